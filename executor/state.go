package executor

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// state is what the loop knows.
type state struct {
	session   *joined         // the latest
	sessions  map[int]*joined // those that attempts still belong to
	firstJoin time.Duration   // on CLOCK_BOOTTIME
	listed    bool            // the inbox was listed under the latest session

	all        map[*attempt]struct{}
	byKey      map[string]*attempt // without those that are gone
	unreadable map[string]bool
	leaving    map[string]int // processes whose record is gone, by key
	floor      int64          // the inbox is known completely up to here

	dirty     []*attempt // to be looked at
	processes ready
	noops     ready
	counts    [phases]int
	own       int // waiting, of this instance
	claims    int // waiting for a slot

	draining, stopping bool
	drainers           []chan struct{}
	dead               map[string]bool // instances
	asked              map[string]time.Time

	attempts *sync.WaitGroup // their goroutines
}

// joined is a session, and until when its attempts may run in silence.
type joined struct {
	id int
	Session
	renewals *renewals
	fenced   bool         // it is known to be over
	until    atomic.Int64 // on CLOCK_BOOTTIME; others read it
}

func (j *joined) expired() bool { return int64(boottime()) > j.until.Load() }

func newState() state {
	return state{
		session: &joined{}, sessions: map[int]*joined{}, all: map[*attempt]struct{}{}, byKey: map[string]*attempt{},
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
}

func (s *state) touch(a *attempt) { s.dirty = append(s.dirty, a) }

func (s *state) forget(a *attempt) {
	if _, ok := s.all[a]; ok {
		s.tally(a, -1)
		delete(s.all, a)
	}
}

// join begins a session. Attempts dispatched under it need not be adopted.
func (e *Executor) join(s Session) {
	j := &joined{id: e.session.id + 1, Session: s, renewals: newRenewals(s.LastRenewal)}
	e.session, e.listed = j, false
	e.sessions[j.id] = j
	if e.firstJoin == 0 {
		e.firstJoin = boottime()
	}
	for a := range e.all {
		if e.covered(a.Held) {
			e.adopted(a, j)
		}
	}
	e.renew()
	e.log.Info("joined", zap.Int64("rev", s.Fence.CreateRevision), zap.Int("attempts", len(e.all)))
}

// covered reports whether an attempt was dispatched under the latest session:
// its claim compared the node key that the session's fence names.
func (e *Executor) covered(h store.Held) bool { return h.Create > e.session.Fence.CreateRevision }

func (e *Executor) adopted(a *attempt, j *joined) {
	a.session = j.id
	if a.phase == phaseRunning {
		e.cfg.Guardian.cover(a.leftover(), j.id)
	}
}

// renew sets the deadlines, and drops sessions without attempts.
func (e *Executor) renew() {
	used := map[int]bool{e.session.id: true}
	for a := range e.all {
		used[a.session] = true
	}
	for id, j := range e.sessions {
		if !used[id] {
			delete(e.sessions, id)
			continue
		}
		until := j.renewals.look() + e.cfg.LostAfter - e.margin
		j.until.Store(int64(until))
		// The daemon's own kill comes first, and has time for its grace.
		e.cfg.Guardian.renewed(id, until+e.margin*6/10)
	}
}

var errSuperseded = errors.New("a later session follows the inbox")

// apply takes a step of the inbox.
func (e *Executor) apply(b batch) error {
	if b.session != e.session.id {
		return errSuperseded
	}
	before := e.floor
	seen := map[string]bool{}
	if b.Reset {
		e.listed = true
	}
	for _, ev := range b.Events {
		switch {
		case ev.Deleted:
			delete(e.unreadable, ev.Key)
			if a := e.byKey[ev.Key]; a != nil && a.Create < ev.Mod {
				e.vanish(a)
			}
		default:
			seen[ev.Key] = true
			e.see(ev, before)
		}
	}
	if b.Reset {
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
func (e *Executor) see(ev store.InboxEvent, known int64) {
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
	if !a.foreign && e.covered(a.Held) {
		a.session = e.session.id
	}
	e.all[a], e.byKey[a.key] = struct{}{}, a
	e.tally(a, 1)
	e.touch(a)
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

// advance does what is to be done: about those that were touched, or about all.
func (e *Executor) advance(all bool) {
	v := view{now: time.Now(), boot: boottime(), session: e.session.id, fenced: e.session.fenced, draining: e.draining, stopping: e.stopping}
	if all {
		if e.session.id > 0 {
			e.renew()
		}
		for a := range e.all {
			e.step(a, v)
		}
		e.askCleared(v)
	}
	for again := true; again; {
		dirty := e.dirty
		e.dirty = nil
		for _, a := range dirty {
			e.step(a, v)
		}
		for _, l := range []*lane{&e.toRecord, &e.toWrite} {
			for a := l.next(); a != nil; a = l.next() {
				e.step(a, v)
			}
		}
		again = e.startReady(v) || len(e.dirty) > 0
	}
	e.publish()
}

// publish tells the outside how full the node is.
func (e *Executor) publish() {
	running := e.count(phaseRunning)
	e.running.Store(int64(running))
	e.free.Store(int64(max(0, e.cfg.Slots-running-e.claims)))
	e.metrics.waiting.Set(float64(e.count(phaseWaiting)))
	e.metrics.unrecorded.Set(float64(e.count(phaseEnded)))
	if len(e.drainers) > 0 && e.settledAll() && (e.listed || e.session.id == 0) {
		for _, c := range e.drainers {
			close(c)
		}
		e.drainers = nil
	}
}

// step does what is to be done about one attempt.
func (e *Executor) step(a *attempt, v view) {
	if _, ok := e.all[a]; !ok {
		return
	}
	if j := e.sessions[a.session]; j != nil {
		v.overdue = a.Replaceable && int64(v.boot) > j.until.Load()
	}
	if a.foreign {
		v.dead = e.dead[a.Instance] || v.boot > e.firstJoin+e.cfg.LostAfter || e.cfg.Dead(a.Instance)
	}
	v.behind = e.leaving[a.key] > 0
	switch decide(a, v) {
	case doForget:
		e.forget(a)
	case doAdopt, doMark:
		e.rewrite(a)
	case doReady:
		if a.noop() {
			e.noops.add(a)
		} else {
			e.processes.add(a)
		}
	case doCancel:
		a.finish(e.cfg.Node, Result{State: task.Cancelled, Reason: task.ReasonCancelled, EndedAt: v.now})
		e.ended(a)
	case doLose:
		a.end = LostEnd(a.Assigned, a.Create, v.now)
		e.ended(a)
	case doHandBack:
		e.handBack(a)
	case doKill:
		k := killFor(a, v)
		if a.killed.cause == causeNone {
			a.killed = k
		}
		a.killed.grace = k.grace
		a.orders.give(k)
	case doRecord:
		e.record(a)
	}
}

// startReady starts what is ready, the oldest first, as far as slots allow; it
// reports whether it started anything.
func (e *Executor) startReady(v view) (started bool) {
	if e.session.id == 0 || e.session.expired() {
		return false
	}
	for e.count(phaseEnded) < e.cfg.MaxUnfinished && len(e.noops) > 0 {
		started = e.start(e.noops.take(), v) || started
	}
	for e.count(phaseEnded) < e.cfg.MaxUnfinished && len(e.processes) > 0 && e.count(phaseRunning) < e.cfg.Slots {
		started = e.start(e.processes.take(), v) || started
	}
	return started
}

func (e *Executor) start(a *attempt, v view) bool {
	if _, ok := e.all[a]; !ok {
		return false
	}
	v.behind = e.leaving[a.key] > 0
	if decide(a, v) != doReady {
		e.touch(a) // what has changed since may need something else
		return false
	}
	switch {
	case a.Action.Process != nil:
		e.startProcess(a)
	case a.Action.Noop != nil:
		a.finish(e.cfg.Node, Result{State: task.Succeeded, StartedAt: v.now, EndedAt: v.now})
		e.late(a, v.now)
		e.ended(a)
	default:
		a.finish(e.cfg.Node, Result{State: task.Failed, Reason: task.ReasonStart, EndedAt: v.now,
			Message: "the action is of a kind that this node's version does not know"})
		e.ended(a)
	}
	return true
}

// ended has an attempt's end recorded.
func (e *Executor) ended(a *attempt) {
	e.metrics.ended.WithLabelValues(string(a.end.State)).Inc()
	e.move(a, phaseEnded)
}

func (e *Executor) late(a *attempt, started time.Time) {
	if max(a.Attempt, 1) == 1 && a.Trigger != task.TriggerCatchUp {
		e.metrics.lateness.Observe(started.Sub(a.ScheduledTime.Time).Seconds())
	}
}
