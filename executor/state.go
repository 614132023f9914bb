package executor

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// state is the loop's state. Only the goroutine of Run accesses it. Its methods do no I/O and never block.
type state struct {
	session   *joinedSession         // the latest session
	sessions  map[int]*joinedSession // by id: the latest, and those to which attempts still belong
	firstJoin time.Duration          // on CLOCK_BOOTTIME; 0 before the first join
	listed    bool                   // the inbox was listed under the latest session
	freezes   freezes

	all          []*attempt          // in no order; attempt.place is the index
	byKey        map[string]*attempt // only attempts whose record is in the inbox
	unreadable   map[string]bool     // keys of inbox records that cannot be decoded
	leaving      map[string]int      // number of running attempts whose record is gone, by key
	floor        int64               // the inbox is completely known up to this revision
	pendingDiffs kv.PendingDiffs     // keys for which a list differed from the watch; see compareList

	dirty     []*attempt  // attempts about which the loop decides next
	spare     []*ending   // an empty slice for the next mailbox.recorded
	processes readyHeap   // attempts that run a process and wait for a slot
	slotless  readyHeap   // attempts that need no slot: no-ops, and actions that this node does not support
	targets   targetQueue // HTTP attempts that wait for their target or have an HTTP slot
	counts    [phases]int // number of attempts by phase
	// Further counts. addToCounts maintains all of them.
	own    int // attempts of this instance that wait
	claims int // attempts that wait for a slot of a process
	inUse  int // attempts that have such a slot
	paused int // attempts that run and are paused

	draining, stopping bool                 // the same as in view
	drainers           []chan struct{}      // waiting calls of Drain
	dead               map[string]bool      // instances that are proved dead with all their processes
	asked              map[string]time.Time // when cleared/<instance> was last read

	cancelsLate map[lateID]*lateCancel // the cancels that etcd could not store, because it was full

	attempts *sync.WaitGroup // the goroutines of attempts
}

// joinedSession is a session that the node has or had, and the time of its last renewal.
type joinedSession struct {
	id int // numbers the sessions of this executor from 1; the zero joined stands for none
	Session
	renewals *renewals
	fenced   bool         // the session is known to have ended
	renewed  atomic.Int64 // when the last acknowledged renewal was sent, on CLOCK_BOOTTIME; attempts read it, too
}

// silentFor reports whether the last acknowledged renewal was sent more than d ago.
func (j *joinedSession) silentFor(d, boot time.Duration) bool {
	return boot > time.Duration(j.renewed.Load())+d
}

// keyExists reports whether the node is certain that its key still exists. A freeze waits for
// all nodes whose key exists, so a node that is not certain must start nothing (G21).
func (j *joinedSession) keyExists(boot time.Duration) bool {
	return j.TTL == 0 || !j.silentFor(j.TTL, boot)
}

// mayStart reports whether an attempt may start under the session. An overdue attempt may
// not: it may soon be declared lost and be started again on another node.
func (j *joinedSession) mayStart(h *record.Held, boot time.Duration) bool {
	return j.keyExists(boot) && !j.isOverdue(h, boot)
}

// isOverdue reports whether the session has not been renewed for so long that an attempt of
// it may soon be declared lost. Its processes must be gone before that (G17).
func (j *joinedSession) isOverdue(h *record.Held, boot time.Duration) bool {
	return j.silentFor(mostSilence(h.EffectiveLostAfter().Std()), boot)
}

// mostSilence returns how long an attempt may run after the last acknowledged renewal of its
// node's session, given the lost_after in its record. The owner of its shard uses the same
// record: it waits for lost_after from when it finds the node absent, which is later than
// the renewal from which the node counts. So the node kills first (G17). The margin covers
// clocks that run at different rates and the time that a kill takes.
func mostSilence(lostAfter time.Duration) time.Duration { return lostAfter - silenceMargin(lostAfter) }

// mostSilenceOfGuardian returns the same limit for the guardian. It is longer, so that the
// daemon's own kill comes first and has time for its grace period.
func mostSilenceOfGuardian(lostAfter time.Duration) time.Duration {
	// The daemon has the first 6/10 of the margin, which is 6 s of 10 s for a lost_after of at least 40 s. That is
	// more than maxGrace. The guardian kills without a grace period and has the rest.
	return lostAfter - silenceMargin(lostAfter)*4/10
}

// silenceMargin returns how long before lost_after the processes of a silent node must be gone: 10 s, or a quarter of
// lost_after if that is less.
func silenceMargin(lostAfter time.Duration) time.Duration { return min(10*time.Second, lostAfter/4) }

// newState returns a state before the first join.
func newState() state {
	return state{
		session: &joinedSession{}, sessions: map[int]*joinedSession{}, byKey: map[string]*attempt{},
		unreadable: map[string]bool{}, leaving: map[string]int{}, dead: map[string]bool{}, asked: map[string]time.Time{}, cancelsLate: map[lateID]*lateCancel{},
		targets: newTargetQueue(task.HTTPSlots),
	}
}

// countPhase returns the number of attempts in a phase, without those that were forgotten.
func (s *state) countPhase(p phase) int { return s.counts[p] }

// settledAll reports whether the state holds no attempt of this instance that waits, runs, or
// has ended without a record of its end.
func (s *state) settledAll() bool {
	return s.counts[phaseRunning] == 0 && s.counts[phaseEnded] == 0 && s.own == 0
}

// setPhase changes an attempt's phase, keeps the counts correct, and touches the attempt.
func (s *state) setPhase(a *attempt, to phase) {
	s.addToCounts(a, -1)
	a.phase = to
	s.addToCounts(a, 1)
	s.markDirty(a)
}

// addToCounts adds by to each count that includes the attempt. Code that changes a field on which
// a count depends calls it with -1 before the change and with 1 after it.
func (s *state) addToCounts(a *attempt, by int) {
	s.counts[a.phase] += by
	if a.phase == phaseWaiting && !a.foreign {
		s.own += by
	}

	if a.waitsForSlot() {
		s.claims += by
	}

	if a.phase == phaseRunning && a.kind == task.KindProcess {
		s.inUse += by
	}

	if a.phase == phaseRunning && !a.Since.IsZero() {
		s.paused += by
	}
}

// markDirty makes the loop decide about the attempt in its next advanceAttempts.
func (s *state) markDirty(a *attempt) {
	if !a.isDirty {
		a.isDirty = true
		s.dirty = append(s.dirty, a)
	}
}

// addAttempt adds a new attempt to the state.
func (s *state) addAttempt(a *attempt) {
	a.place = len(s.all)
	s.all, s.byKey[a.key] = append(s.all, a), a
	s.addToCounts(a, 1)
	s.markDirty(a)
}

// removeAttempt removes an attempt from the state. The last attempt takes its place in s.all. The removed one may still
// be in s.dirty, in a ready heap or in a backlog; code that takes it from there recognizes it by place -1. It is not
// in s.byKey any more, because recordVanished came first.
func (s *state) removeAttempt(a *attempt) {
	s.addToCounts(a, -1)
	last := s.all[len(s.all)-1]
	s.all[a.place], last.place = last, a.place
	s.all[len(s.all)-1] = nil
	s.all = s.all[:len(s.all)-1]
	a.place = -1
}

// beginSession begins a session. The inbox and the freezes have to be read again under it. Attempts
// that were dispatched under it already need not be adopted.
func (e *Executor) beginSession(s Session) {
	j := &joinedSession{id: e.session.id + 1, Session: s, renewals: newRenewals(e.clocks, s.LastRenewal)}
	e.session, e.listed, e.freezes.known = j, false, false
	e.sessions[j.id] = j
	if e.firstJoin == 0 {
		e.firstJoin = e.clocks.boot()
	}

	for _, a := range e.all {
		// An event of the watch may have arrived before the daemon reported the join.
		if e.dispatchedInSession(a.Create) {
			e.attemptAdopted(a, j)
		}
	}

	e.renewSessions()
	e.log.Info("joined", zap.Int64("rev", s.Fence.CreateRevision), zap.Int("attempts", len(e.all)))
}

// dispatchedInSession reports whether the attempt with this token was dispatched under the latest
// session. The dispatch compared the create revision of the node's key, and a token that is newer than the key's
// create revision can only have been dispatched while the key existed.
func (e *Executor) dispatchedInSession(token int64) bool {
	return token > e.session.Fence.CreateRevision
}

// attemptAdopted notes that an attempt belongs to the session j: from now on, the renewals of j
// determine when it is killed, here and in the guardian.
func (e *Executor) attemptAdopted(a *attempt, j *joinedSession) {
	a.session = j.id
	switch {
	case a.phase != phaseRunning:
	case a.remote != nil:
		a.remote.setSession(j)
	default:
		e.cfg.Guardian.SetSession(a.processMark(), j.id)
	}
}

// renewSessions reads when each session was last renewed, passes this to the guardian, and drops
// earlier sessions to which no attempt belongs.
func (e *Executor) renewSessions() {
	used := map[int]bool{e.session.id: true}
	for _, a := range e.all {
		used[a.session] = true
	}

	for id, j := range e.sessions {
		if !used[id] {
			delete(e.sessions, id)
			continue
		}

		// The guardian comes first. Otherwise, an attempt could start because of the renewal before the guardian knows
		// of it, and the guardian would take the attempt for one that it has killed at its deadline.
		renewed := j.renewals.lastRenewal()
		e.cfg.Guardian.SetRenewal(id, renewed)
		j.renewed.Store(int64(renewed))
	}
}

// errSuperseded ends a follower of an earlier session. Its context ends soon, too, so it does not follow again.
var errSuperseded = errors.New("a later session follows the inbox")

// applyBatch applies a list (Reset), events of the watch, or an echo to the state. It returns
// errSuperseded if the batch comes from a follower of an earlier session.
func (e *Executor) applyBatch(b inboxBatch) error {
	if b.session != e.session.id {
		return errSuperseded
	}

	if b.Replayed {
		e.applyReplay(b.InboxBatch)
		return nil
	}

	if b.Reset {
		e.compareList(b.InboxBatch)
	}

	// applyRecord compares records with the revision that was known before this batch. The floor rises only after
	// the whole batch, because all events of a batch may have the same revision.
	before := e.floor

	for i := range b.Events {
		ev := &b.Events[i]
		if !ev.Deleted {
			e.applyRecord(ev, before)
			continue
		}

		delete(e.unreadable, ev.Key)

		// A delete that is older than the record that a list has shown is not about it.
		if a := e.byKey[ev.Key]; a != nil && a.Create < ev.Mod {
			e.recordVanished(a)
		}
	}

	// A list is complete as of its revision: what it does not contain is gone, unless this
	// node has learned of it at a later revision.
	if b.Reset {
		e.listed = true
		seen := make(map[string]bool, len(b.Events))
		for i := range b.Events {
			seen[b.Events[i].Key] = true
		}

		for key, a := range e.byKey {
			if !seen[key] && a.Mod <= b.Revision {
				e.recordVanished(a)
			}
		}

		for key := range e.unreadable {
			if !seen[key] {
				delete(e.unreadable, key)
			}
		}
	}

	e.floor = max(e.floor, b.Revision)
	e.metrics.unreadable.Set(float64(len(e.unreadable)))

	return nil
}

// applyRecord applies the current state of a record. known is the revision up to which the inbox was
// completely known before.
func (e *Executor) applyRecord(ev *store.InboxEvent, known int64) {
	if ev.Err != nil {
		// The record is counted and left alone (G19). If its attempt is known already, it continues with the
		// record that was last read.
		if !e.unreadable[ev.Key] {
			e.unreadable[ev.Key] = true
			e.log.Error("cannot decode an inbox record", zap.String("key", ev.Key), zap.Error(ev.Err))
		}
		return
	}

	mended := e.unreadable[ev.Key]
	delete(e.unreadable, ev.Key)

	if a := e.byKey[ev.Key]; a != nil {
		switch {
		case a.Create == ev.Create:
			if ev.Mod > a.Mod {
				// The same attempt, with a cancel, a pause, or this node's own rewrite. The counts depend on
				// PauseRequested.
				e.addToCounts(a, -1)
				a.setHeld(ev.Held)
				e.addToCounts(a, 1)
				e.markDirty(a)
			}

			return
		case a.Create > ev.Create: // an event older than what a list has shown
			return
		}

		// The key was deleted and created again: this is another attempt.
		e.recordVanished(a)
	}

	// Up to known, every readable record was seen. A record that appears only now, with an older create revision, was
	// removed from the state before and may have been started, so it is never started again (G9). A record that was
	// unreadable until now was never started.
	a := &attempt{Held: ev.Held, kind: ev.Action.Kind(), key: ev.Key, foreign: ev.Instance != e.cfg.Instance}
	if a.stale = ev.Create <= known && !mended && !a.foreign; a.stale {
		a.noRetry = true
		e.log.Error("a finished attempt reappeared in the inbox; not starting it again",
			zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID), zap.Int64("rev", a.Create))
	}

	if !a.foreign && e.dispatchedInSession(a.Create) {
		a.session = e.session.id
	}

	e.bindLateCancel(a)

	e.addAttempt(a)
}

// recordVanished notes that an attempt's record is gone. If the attempt runs, it is killed, and
// leaving keeps a later attempt with the same key from starting before its process has ended.
func (e *Executor) recordVanished(a *attempt) {
	a.recordGone = true
	delete(e.byKey, a.key)
	// If the attempt waits or has ended, its key is free at once.

	if a.phase == phaseRunning {
		e.leaving[a.key]++
	}

	e.markDirty(a)
}

// clocks are CLOCK_BOOTTIME, which counts suspend, and CLOCK_MONOTONIC, which does not.
type clocks struct{ boot, mono func() time.Duration }

// clocksOf returns the host's clocks or, if boot is set, those of a host that never suspends.
func clocksOf(boot func() time.Duration) clocks {
	if boot != nil {
		return clocks{boot, boot}
	}
	return clocks{proctree.BootTime, monotonicTime}
}

// monotonicTime returns CLOCK_MONOTONIC, which stops while the host is suspended.
func monotonicTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock_gettime: " + err.Error()) // Linux always has this clock
	}
	return time.Duration(ts.Nano())
}

// renewals converts the time of a session's last renewal to CLOCK_BOOTTIME. The session
// itself measures with Go's monotonic clock, which stops during suspend.
//
//	boot time of the renewal = its monotonic time + (boot − monotonic) at that time
//
// The difference grows with every suspend and never shrinks. Each call of lastRenewal samples it and uses
// the sample of the previous call. If the host was suspended since then, the renewal appears
// older than it was, never younger, so attempts are killed too early rather than too late (G17).
type renewals struct {
	clocks
	last  func() time.Time // Session.LastRenewal
	slept time.Duration    // boot − monotonic at the previous call
	seen  time.Time        // the renewal at the previous call
	at    time.Duration    // boot time of that renewal
}

// newRenewals returns the renewals of a new session. last is Session.LastRenewal.
func newRenewals(c clocks, last func() time.Time) *renewals {
	return &renewals{clocks: c, last: last, slept: c.boot() - c.mono()}
}

// lastRenewal returns when the last acknowledged renewal was sent, on CLOCK_BOOTTIME.
func (r *renewals) lastRenewal() time.Duration {
	// The order matters: time that passes between the readings makes a renewal older, not younger.
	boot := r.boot()
	mono, last := r.mono(), r.last()
	if !last.Equal(r.seen) || r.at == 0 {
		// A new renewal. Its boot time is computed once: at a later call, slept would include a suspend that
		// came after the renewal.
		r.seen, r.at = last, mono-time.Since(last)+r.slept
	}

	r.slept = boot - mono

	return r.at
}
