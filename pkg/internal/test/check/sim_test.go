package check

import (
	"cmp"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// sim is a model of the protocol that is small enough to be obviously correct: etcd as a map, and what owners,
// nodes and the API write to it.
type sim struct {
	keys   record.Keys
	rev    int64
	now    int64 // ms
	kv     map[string]Event
	events []Event

	sessions map[string]string // by node: its instance
	term     int64
	owners   map[int]string
	marks    map[int]record.Watermark
	tasks    []*simTask
	nonce    int
	careless bool // runs that end keep their pause, which is a violation
	hasty    bool // retries have no backoff
}

type simTask struct {
	ref    record.Ref
	create int64
	period int64 // in seconds: it has a tick when this divides the time
	entry  task.Entry
	after  task.Sources
	steps  *task.Workflow
	active *simRun
	queue  []task.Waiting
}

type simRun struct {
	task.Assigned
	node   string
	create int64
}

// op is a put, or a delete if the value is nil.
type op struct {
	key   string
	value any
}

var simStart = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC).UnixMilli()

func newSim(t testing.TB, shards int, nodes ...string) *sim {
	t.Helper()
	keys, err := record.NewKeys("/test")
	if err != nil {
		t.Fatal(err)
	}

	s := &sim{
		keys: keys, rev: 10, now: simStart, kv: map[string]Event{},
		sessions: map[string]string{}, owners: map[int]string{}, marks: map[int]record.Watermark{},
	}
	var marks []op
	for id := range shards {
		s.marks[id] = record.Watermark{Time: task.At(time.UnixMilli(0)), Nonce: task.NewUID()}
		marks = append(marks, op{keys.Watermark(id), s.marks[id]})
	}

	s.txn(marks...)
	s.txn(op{keys.Cluster(), task.Cluster{ID: "c", Shards: shards}})

	for _, n := range nodes {
		s.join(n)
	}

	s.elect()

	for id := range shards {
		s.assign(id, nodes[id%len(nodes)])
		s.open(id)
	}

	return s
}

// txn writes ops at one new revision, and returns that.
func (s *sim) txn(ops ...op) int64 {
	s.rev++
	for _, o := range ops {
		ev := Event{Revision: s.rev, Key: o.key, ModRevision: s.rev, At: time.UnixMilli(s.now)}
		if o.value == nil {
			ev.Deleted = true
			delete(s.kv, o.key)
		} else {
			b, err := json.Marshal(o.value)
			if err != nil {
				panic(err)
			}

			ev.Value, ev.CreateRevision = b, cmp.Or(s.kv[o.key].CreateRevision, s.rev)
			s.kv[o.key] = ev
		}

		s.events = append(s.events, ev)
	}

	return s.rev
}

// listed returns the current keys as the first list of a recording.
func (s *sim) listed() []Event {
	var all []Event
	for _, ev := range s.kv {
		ev.Revision, ev.Listed = s.rev, true
		all = append(all, ev)
	}

	slices.SortFunc(all, func(a, b Event) int { return cmp.Compare(a.Key, b.Key) })

	return all
}

func (s *sim) time() task.Time { return task.At(time.UnixMilli(s.now)) }

func (s *sim) pass(seconds float64) { s.now += int64(seconds * 1000) }

func (s *sim) join(node string) {
	s.nonce++
	s.sessions[node] = node + "-" + string(rune('a'+s.nonce%26))
	s.txn(op{s.keys.Node(node), task.Node{Name: node, Instance: s.sessions[node], State: task.NodeReady,
		Roles: []string{task.RoleScheduler, task.RoleExecutor}, Weight: 1, Clock: s.time()}})
}

func (s *sim) elect() { s.term = s.txn(op{s.keys.Leader() + "1f", "node"}) }

func (s *sim) assign(shard int, node string) {
	s.owners[shard] = node
	s.txn(op{s.keys.Owner(shard), record.Owner{Node: node, Since: s.time(), Term: s.term}})
}

func (s *sim) open(shard int) { s.commit(shard, s.marks[shard]) }

// commit writes a watermark together with ops.
func (s *sim) commit(shard int, w record.Watermark, ops ...op) int64 {
	s.nonce++
	w.Nonce = time.UnixMilli(int64(s.nonce)).String()
	s.marks[shard] = w
	return s.txn(append(ops, op{s.keys.Watermark(shard), w})...)
}

// create adds a task that has a tick every period seconds.
func (s *sim) create(name string, shard int, period int64, change func(*task.Entry)) *simTask {
	d := task.Defaults()
	d.History.Keep = 0 // tests trim when they want to
	e := task.Entry{
		UID: task.NewUID(), Generation: 1, Timezone: "UTC", From: s.time(), Anchor: s.time(), Overlap: d.Overlap,
		Missed: d.Missed, Retry: task.Retry{Attempts: 2, On: []task.State{task.Failed}}, History: d.History,
	}
	t := &simTask{ref: record.Ref{Namespace: "default", Name: name, Shard: shard}, entry: e}
	t.schedule(period)

	if change != nil {
		change(&t.entry)
	}

	t.create = s.write(t)
	s.tasks = append(s.tasks, t)

	return t
}

func (t *simTask) schedule(period int64) {
	t.period = period
	t.entry.Schedule = task.Schedules{map[int64]string{1: "* * * * * *", 2: "*/2 * * * * *", 5: "*/5 * * * * *"}[period]}
}

// write puts a task's spec and entry, as the API does, and keeps the former spec.
func (s *sim) write(t *simTask, more ...op) int64 {
	was, there := s.kv[s.keys.Spec(t.ref)]
	if there {
		more = append(more, op{s.keys.Version(t.ref, t.entry.Generation-1), json.RawMessage(was.Value)})
		if old := s.keys.Version(t.ref, t.entry.Generation-11); s.kv[old].Key != "" {
			more = append(more, op{old, nil})
		}
	} else if s.kv[s.keys.Tombstone(t.ref)].Key != "" {
		more = append(more, op{s.keys.Tombstone(t.ref), nil})
	}

	spec := map[string]any{"uid": t.entry.UID, "generation": t.entry.Generation, "timeout": t.entry.Timeout}
	if len(t.after) > 0 {
		spec["after"] = t.after
	}
	if t.steps != nil {
		spec["action"] = task.Action{Workflow: t.steps}
	}
	return s.txn(append([]op{{s.keys.Spec(t.ref), spec}, {s.keys.Entry(t.ref), t.entry}}, more...)...)
}

func (s *sim) update(t *simTask, newTicks bool, change func()) {
	change()
	t.entry.Generation++
	if newTicks {
		t.entry.From = task.At(time.UnixMilli(max(s.now, t.entry.From.UnixMilli())))
	}

	s.write(t, op{s.keys.Revised(t.ref.Shard), json.RawMessage(`""`)})
}

func (s *sim) pause(t *simTask) { s.update(t, false, func() { t.entry.Paused = true }) }

func (s *sim) resume(t *simTask) { s.update(t, true, func() { t.entry.Paused = false }) }

func (s *sim) remove(t *simTask) {
	s.bury(t, tombstone{UID: t.entry.UID, DeletedAt: s.time(), DeletedBy: task.NewActor("ann")})
}

func (s *sim) bury(t *simTask, grave tombstone) {
	ops := []op{{s.keys.Spec(t.ref), nil}, {s.keys.Entry(t.ref), nil}, {s.keys.Tombstone(t.ref), grave}}
	for _, prefix := range []string{s.keys.QueueOf(t.ref), s.keys.HistoryOf(t.ref), s.keys.Dead(t.ref), s.keys.Versions(t.ref), s.keys.LedgerOf(t.ref)} {
		ops = append(ops, s.below(prefix)...)
	}

	s.txn(ops...)
	s.tasks = slices.DeleteFunc(s.tasks, func(o *simTask) bool { return o == t })
}

// below returns deletes of all keys under a prefix.
func (s *sim) below(prefix string) []op {
	var ops []op
	for key := range s.kv {
		if len(key) > len(prefix) && key[:len(prefix)] == prefix {
			ops = append(ops, op{key, nil})
		}
	}

	return ops
}

// due returns the undecided ticks of a task.
func (s *sim) due(t *simTask) []int64 {
	after := t.entry.From.UnixMilli()
	if w := s.marks[t.ref.Shard]; t.create <= w.Seen {
		after = max(after, w.Time.UnixMilli())
	}

	var ticks []int64
	for at := after/1000*1000 + 1000; at <= s.now && !t.entry.Paused; at += 1000 {
		if at/1000%t.period == 0 {
			ticks = append(ticks, at)
		}
	}

	return ticks
}

func (s *sim) tickRun(t *simTask, tick int64, trigger string, state task.State) task.Run {
	return task.Run{
		ID: task.RunID(time.UnixMilli(tick), t.entry.UID), UID: t.entry.UID, ScheduledTime: task.At(time.UnixMilli(tick)),
		State: state, Trigger: trigger, Owner: s.owners[t.ref.Shard], CreatedAt: s.time(), Attempt: 1,
	}
}

// dispatch returns the put of a new attempt.
func (s *sim) dispatch(t *simTask, r task.Run, node string) op {
	r.State, r.DispatchedAt = task.Dispatched, s.time()
	a := task.Assigned{Run: r, Instance: s.sessions[node], Generation: t.entry.Generation, Action: t.entry.Action, Retry: t.entry.Retry}
	t.active = &simRun{Assigned: a, node: node, create: s.rev + 1}
	return op{s.keys.Run(node, t.ref, r.ID), withoutID(a)}
}

func withoutID(a task.Assigned) task.Assigned {
	a.ID = ""
	return a
}

// ended returns the put of a history record.
func (s *sim) ended(t *simTask, r task.Run) op {
	id := r.ID
	r.ID, r.EndedAt = "", s.time()
	return op{s.keys.Ended(t.ref, id), r}
}

func (s *sim) waiting(t *simTask, w task.Waiting) op {
	id := w.ID
	w.ID = ""
	return op{s.keys.Queued(t.ref, id), w}
}

// round decides all ticks that are due in a shard, and dispatches what waits.
func (s *sim) round(shard int) {
	w := s.marks[shard]
	w.Time = s.time()
	var ops []op
	for _, t := range s.tasks {
		if t.ref.Shard != shard {
			continue
		}

		w.Seen = max(w.Seen, t.create)
		ops = append(ops, s.decide(t, s.due(t))...)
		if t.active == nil && len(t.queue) > 0 {
			// A run that was dispatched before is active, so no other run may overtake it.
			i := max(0, slices.IndexFunc(t.queue, wasDispatched))
			next := t.queue[i]
			t.queue = slices.Delete(t.queue, i, i+1)
			next.NotBefore, next.NotBeforeBy = task.Time{}, ""
			ops = append(ops, op{s.keys.Queued(t.ref, next.ID), nil}, s.dispatch(t, next.Run, s.owners[shard]))
		}
	}

	s.commit(shard, w, ops...)
}

// wasDispatched reports whether a waiting run was dispatched before: it is between two attempts, or was handed back.
func wasDispatched(w task.Waiting) bool { return w.Attempt > 1 || w.Reason == task.ReasonHandBack }

// decide gives each tick an outcome: the latest runs or is skipped, and those before it are missed, in one record.
func (s *sim) decide(t *simTask, ticks []int64) []op {
	if len(ticks) == 0 {
		return nil
	}

	var ops []op
	trigger := task.TriggerSchedule
	if n := len(ticks) - 1; n > 0 {
		trigger = task.TriggerCatchUp
		r := s.tickRun(t, ticks[0], trigger, task.Missed)
		r.Reason, r.Last, r.Count = task.ReasonCameToLightLate, task.At(time.UnixMilli(ticks[n-1])), int64(n)
		ops = append(ops, s.ended(t, r))
	}

	last := s.tickRun(t, ticks[len(ticks)-1], trigger, task.Skipped)
	if t.active != nil || slices.ContainsFunc(t.queue, wasDispatched) {
		last.Reason = task.ReasonOverlap
		return append(ops, s.ended(t, last))
	}

	return append(ops, s.dispatch(t, last, s.owners[t.ref.Shard]))
}

func (s *sim) running(t *simTask) {
	t.active.State = task.Running
	s.txn(op{s.keys.Run(t.active.node, t.ref, t.active.ID), withoutID(t.active.Assigned)})
}

// finish ends the active attempt. A failed one waits for its next attempt if the policy allows that.
func (s *sim) finish(t *simTask, state task.State) {
	a := t.active
	t.active = nil
	gone := op{s.keys.Run(a.node, t.ref, a.ID), nil}

	if !s.careless {
		a.Run = a.Unpaused()
	}

	r := a.Run
	r.State, r.Token, r.Node, r.StartedAt, r.EndedAt = state, a.create, a.node, s.time(), s.time()
	r.Reason = map[task.State]string{task.Failed: task.ReasonExit, task.TimedOut: task.ReasonTimeout, task.Lost: task.ReasonNodeLost, task.Cancelled: cmp.Or(a.CancelReason, task.ReasonCancelled)}[state]
	late := s.now - r.ScheduledTime.UnixMilli()
	r.LatenessMS = &late

	if !a.Retries(state, nil) {
		s.txn(append(s.deadOf(t, r), gone, s.ended(t, r))...)
		return
	}

	w := task.Waiting{Run: a.Run}
	w.State, w.Reason, w.Attempt, w.Attempts = task.Queued, task.ReasonRetry, a.Attempt+1, append(slices.Clone(a.Attempts), r.AsAttempt())
	if a.Retry.Backoff > 0 && !s.hasty {
		w.NotBefore = task.At(time.UnixMilli(s.now).Add(a.Retry.Wait(a.Attempt, 0)))
	}
	t.queue = append(t.queue, w)
	s.txn(gone, s.waiting(t, w))
}

// lose declares the active attempt lost, in a commit.
func (s *sim) lose(t *simTask) {
	a := t.active
	t.active = nil
	r := a.Unpaused()
	r.State, r.Reason, r.Token = task.Lost, task.ReasonNodeLost, a.create
	s.commit(t.ref.Shard, s.marks[t.ref.Shard], append(s.deadOf(t, r), op{s.keys.Run(a.node, t.ref, a.ID), nil}, s.ended(t, r))...)
}

// deadOf returns the put of a dead-letter record for a run that has failed and has no attempt left.
func (s *sim) deadOf(t *simTask, r task.Run) []op {
	if !isFailure(r.State) || s.kv[s.keys.Entry(t.ref)].Key == "" {
		return nil
	}
	return []op{{s.keys.DeadRun(t.ref, r.ID), r}}
}

// handBack returns the active attempt to the queue, unstarted.
func (s *sim) handBack(t *simTask) {
	a := t.active
	t.active = nil
	w := task.Waiting{Run: a.Unpaused()}
	w.State, w.Reason = task.Queued, task.ReasonHandBack
	t.queue = append([]task.Waiting{w}, t.queue...)
	s.txn(op{s.keys.Run(a.node, t.ref, a.ID), nil}, s.waiting(t, w))
}

func (s *sim) manual(t *simTask) {
	w := task.Waiting{Run: s.tickRun(t, s.now, task.TriggerManual, task.Queued)}
	w.ID, w.Owner, w.Reason = task.ManualRunID(time.UnixMilli(s.now), t.entry.UID), "", task.ReasonManual
	t.queue = append(t.queue, w)
	s.txn(s.waiting(t, w))
}

// crash removes a node and gives its shards to another one, which opens them.
func (s *sim) crash(node, heir string) {
	s.txn(op{s.keys.Node(node), nil})
	delete(s.sessions, node)

	for id := range len(s.owners) {
		if s.owners[id] == node {
			s.assign(id, heir)
			s.open(id)
		}
	}
}
