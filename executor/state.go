package executor

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// state is what the loop knows.
type state struct {
	session   *joined         // the latest
	sessions  map[int]*joined // those that attempts still belong to
	firstJoin time.Duration   // on CLOCK_BOOTTIME
	listed    bool            // the inbox was listed under the latest session
	freezes   freezes

	all        []*attempt
	byKey      map[string]*attempt // without those that are gone
	unreadable map[string]bool
	leaving    map[string]int // processes whose record is gone, by key
	floor      int64          // the inbox is known completely up to here
	doubts     kv.Doubts      // keys that a list had otherwise

	dirty     []*attempt // to be looked at
	spare     []*ending  // an empty slice for the mail
	processes ready
	noops     ready
	counts    [phases]int
	own       int // waiting, of this instance
	claims    int // waiting for a slot
	paused    int // running, and standing still

	draining, stopping bool
	drainers           []chan struct{}
	dead               map[string]bool // instances
	asked              map[string]time.Time

	attempts *sync.WaitGroup // their goroutines
}

// joined is a session, and since when it has been silent.
type joined struct {
	id int
	Session
	renewals *renewals
	fenced   bool         // it is known to be over
	renewed  atomic.Int64 // when the last acknowledged renewal was sent, on CLOCK_BOOTTIME; others read it
}

// silentFor reports whether nothing was heard of etcd for longer than that.
func (j *joined) silentFor(d, boot time.Duration) bool {
	return boot > time.Duration(j.renewed.Load())+d
}

// present reports whether the node is, as far as it can know: whoever has something
// stop on all nodes that are present (a freeze) waits for this one.
func (j *joined) present(boot time.Duration) bool { return j.TTL == 0 || !j.silentFor(j.TTL, boot) }

// mayStart reports whether an attempt may start under the session. Once it is overdue,
// others may be about to start it elsewhere.
func (j *joined) mayStart(h *record.Held, boot time.Duration) bool {
	return j.present(boot) && !j.overdue(h, boot)
}

// overdue reports whether an attempt of the session has run in silence for so long that
// it is about to be declared lost.
func (j *joined) overdue(h *record.Held, boot time.Duration) bool {
	return j.silentFor(mostSilence(h.EffectiveLostAfter().Std()), boot)
}

// mostSilence is how long an attempt may run while its node hears nothing of etcd, by the
// lost_after in its record. The owner of its shard goes by the same record: it waits for
// lost_after from when it reads the node as absent, which is later than the renewal that
// the node counts from. The margin is for clocks that run at different rates, and for the
// time that a kill takes.
func mostSilence(lostAfter time.Duration) time.Duration { return lostAfter - silenceMargin(lostAfter) }

// mostSilenceOfGuardian is when the guardian kills the attempt: the daemon's own kill
// comes first, and has time for its grace.
func mostSilenceOfGuardian(lostAfter time.Duration) time.Duration {
	return lostAfter - silenceMargin(lostAfter)*4/10
}

func silenceMargin(lostAfter time.Duration) time.Duration { return min(10*time.Second, lostAfter/4) }

func newState() state {
	return state{
		session: &joined{}, sessions: map[int]*joined{}, byKey: map[string]*attempt{},
		unreadable: map[string]bool{}, leaving: map[string]int{}, dead: map[string]bool{}, asked: map[string]time.Time{},
	}
}

func (s *state) count(p phase) int { return s.counts[p] }

// settledAll reports whether the inbox holds nothing of this instance any more.
func (s *state) settledAll() bool {
	return s.counts[phaseRunning] == 0 && s.counts[phaseEnded] == 0 && s.own == 0
}

// move changes an attempt's phase.
func (s *state) move(a *attempt, to phase) {
	s.tally(a, -1)
	a.phase = to
	s.tally(a, 1)
	s.touch(a)
}

func (s *state) tally(a *attempt, by int) {
	s.counts[a.phase] += by
	if a.phase == phaseWaiting && !a.foreign {
		s.own += by
	}

	if a.claims() {
		s.claims += by
	}

	if a.phase == phaseRunning && !a.Since.IsZero() {
		s.paused += by
	}
}

func (s *state) touch(a *attempt) {
	if !a.touched {
		a.touched = true
		s.dirty = append(s.dirty, a)
	}
}

func (s *state) learn(a *attempt) {
	a.place = len(s.all)
	s.all, s.byKey[a.key] = append(s.all, a), a
	s.tally(a, 1)
	s.touch(a)
}

func (s *state) forget(a *attempt) {
	s.tally(a, -1)
	last := s.all[len(s.all)-1]
	s.all[a.place], last.place = last, a.place
	s.all[len(s.all)-1] = nil
	s.all = s.all[:len(s.all)-1]
	a.place = -1
}

// join begins a session. Attempts dispatched under it need not be adopted.
func (e *Executor) join(s Session) {
	j := &joined{id: e.session.id + 1, Session: s, renewals: newRenewals(e.clocks, s.LastRenewal)}
	e.session, e.listed, e.freezes.known = j, false, false
	e.sessions[j.id] = j
	if e.firstJoin == 0 {
		e.firstJoin = e.clocks.boot()
	}

	for _, a := range e.all {
		if e.covered(a.Create) {
			e.adopted(a, j)
		}
	}

	e.renew()
	e.log.Info("joined", zap.Int64("rev", s.Fence.CreateRevision), zap.Int("attempts", len(e.all)))
}

// covered reports whether an attempt was dispatched under the latest session:
// its claim compared the node key that the session's fence names.
func (e *Executor) covered(token int64) bool { return token > e.session.Fence.CreateRevision }

func (e *Executor) adopted(a *attempt, j *joined) {
	a.session = j.id
	if a.phase == phaseRunning {
		e.cfg.Guardian.SetSession(a.leftover(), j.id)
	}
}

// renew notes when sessions were renewed, and drops sessions without attempts.
func (e *Executor) renew() {
	used := map[int]bool{e.session.id: true}
	for _, a := range e.all {
		used[a.session] = true
	}

	for id, j := range e.sessions {
		if !used[id] {
			delete(e.sessions, id)
			continue
		}

		renewed := j.renewals.look()
		j.renewed.Store(int64(renewed))
		e.cfg.Guardian.SetRenewal(id, renewed)
	}
}

var errSuperseded = errors.New("a later session follows the inbox")

// apply takes a step of the inbox.
func (e *Executor) apply(b batch) error {
	if b.session != e.session.id {
		return errSuperseded
	}

	if b.Echo {
		e.echo(b.InboxBatch)
		return nil
	}

	if b.Reset {
		e.compare(b.InboxBatch)
	}

	before := e.floor

	for i := range b.Events {
		ev := &b.Events[i]
		if !ev.Deleted {
			e.see(ev, before)
			continue
		}

		delete(e.unreadable, ev.Key)

		if a := e.byKey[ev.Key]; a != nil && a.Create < ev.Mod {
			e.vanish(a)
		}
	}

	if b.Reset {
		e.listed = true
		seen := make(map[string]bool, len(b.Events))
		for i := range b.Events {
			seen[b.Events[i].Key] = true
		}

		for key, a := range e.byKey {
			if !seen[key] && a.Mod <= b.Revision {
				e.vanish(a)
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

// see takes a record as it is now; known is up to where the inbox was known
// completely before.
func (e *Executor) see(ev *store.InboxEvent, known int64) {
	if ev.Err != nil {
		if !e.unreadable[ev.Key] {
			e.unreadable[ev.Key] = true
			e.log.Error("a record in the inbox cannot be read", zap.String("key", ev.Key), zap.Error(ev.Err))
		}
		return
	}

	mended := e.unreadable[ev.Key]
	delete(e.unreadable, ev.Key)

	if a := e.byKey[ev.Key]; a != nil {
		switch {
		case a.Create == ev.Create:
			if ev.Mod > a.Mod {
				e.tally(a, -1)
				a.Held = ev.Held
				e.tally(a, 1)
				e.touch(a)
			}

			return
		case a.Create > ev.Create:
			return
		}

		e.vanish(a)
	}

	a := &attempt{Held: ev.Held, key: ev.Key, foreign: ev.Instance != e.cfg.Instance}
	if a.stale = ev.Create <= known && !mended && !a.foreign; a.stale {
		a.noRetry = true
		e.log.Error("an attempt is back that had been seen to its end; it is not started again",
			zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID), zap.Int64("rev", a.Create))
	}

	if !a.foreign && e.covered(a.Create) {
		a.session = e.session.id
	}

	e.learn(a)
}

// vanish notes that an attempt's record is gone.
func (e *Executor) vanish(a *attempt) {
	a.gone = true
	delete(e.byKey, a.key)

	if a.phase == phaseRunning {
		e.leaving[a.key]++
	}

	e.touch(a)
}
