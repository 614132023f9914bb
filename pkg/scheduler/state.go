package scheduler

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskState is what a worker knows of a task: its entry, what waits, what is active.
type taskState struct {
	name string // namespace/name
	ref  store.Ref

	present  bool // the entry exists; if bad, it cannot be read and has no ticks
	bad      bool
	entry    task.Entry
	mod      int64 // revisions of the entry's key
	create   int64
	schedule *schedule.Schedule
	selector task.Selector

	next   time.Time // the next tick that is not decided; zero if there is none
	second time.Time // the tick after it; zero if there is none
	at     int       // place in the heap, or -1

	queue  []*waiting // by run id
	active []*attempt
	// unreadable are the runs whose queue records cannot be read.
	unreadable []string
	added      int // records of history since the last trim
	failed     int // commits in a row that failed for a record of this task
}

type waiting struct {
	task.Waiting
	mod int64
}

type attempt struct {
	run    string
	node   string
	create int64 // fencing token
	watch  watch // of an attempt whose node is gone, or whose task is
}

// begun reports whether a waiting run has been dispatched before.
func (q *waiting) begun() bool { return q.Attempt > 1 || q.Reason == task.ReasonHandBack }

// begun is how many waiting runs have been dispatched before: they are active,
// though no attempt is.
func (t *taskState) begun() int {
	n := 0
	for _, q := range t.queue {
		if q.begun() {
			n++
		}
	}
	return n
}

// holds reports whether a run is in an inbox, or has a queue record that cannot
// be read: then there is no writing another.
func (t *taskState) holds(run string) bool {
	return slices.Contains(t.unreadable, run) || slices.ContainsFunc(t.active, func(a *attempt) bool { return a.run == run })
}

// orphan reports whether a run's task is gone, though another may bear its name
// now. Of an entry that cannot be read nobody knows.
func (t *taskState) orphan(run string) bool {
	if !t.present || t.bad {
		return !t.present
	}
	tick, ok := task.TimeOfRunID(run)
	return ok && !strings.HasPrefix(run, task.RunID(tick, t.entry.UID))
}

// busy reports whether a new tick finds the task occupied: by an active run, or
// by one that an earlier tick gave rise to and that waits.
func (t *taskState) busy() bool {
	return len(t.active) > 0 || slices.ContainsFunc(t.queue, func(q *waiting) bool {
		return q.Trigger != task.TriggerManual || q.begun()
	})
}

func (t *taskState) empty() bool {
	return !t.present && len(t.queue) == 0 && len(t.active) == 0 && len(t.unreadable) == 0
}

// fires reports whether the task has ticks.
func (t *taskState) fires() bool { return t.present && !t.bad && !t.entry.Paused }

// task returns the state of a task, made if need be.
func (w *worker) task(ref store.Ref) *taskState {
	name := ref.String()
	t := w.tasks[name]
	if t == nil {
		t = &taskState{name: name, ref: ref, at: -1}
		w.tasks[name] = t
	}
	return t
}

// drop forgets a task of which nothing is left. Another may bear its name by
// now: that one stays.
func (w *worker) drop(t *taskState) {
	if t.empty() {
		delete(w.looks, t)
		if w.tasks[t.name] == t {
			delete(w.tasks, t.name)
		}
	}
}

// apply takes what has happened in the shard. Of each record the higher mod
// revision wins, so that what a commit has put in place already, or read, is
// not undone by an event that was on its way.
func (w *worker) apply(b store.ShardBatch) {
	for i := range b.Events {
		ev := &b.Events[i]
		switch ev.Kind {
		case store.KindEntry:
			w.applyEntry(ev)
		case store.KindQueued:
			w.applyQueued(ev)
		case store.KindEnded:
			w.applyEnded(ev)
		}
	}
	w.applied = max(w.applied, b.Revision)
	for key, rev := range w.gone {
		if rev <= w.applied {
			delete(w.gone, key)
		}
	}
}

func (w *worker) applyEntry(ev *store.ShardEvent) {
	t := w.task(ev.Ref)
	if ev.Mod != 0 && ev.Mod < t.mod {
		return
	}
	if ev.Deleted {
		w.setBad(t, false)
		t.present, t.entry, t.schedule = false, task.Entry{}, nil
		t.mod, t.create = max(t.mod, ev.Mod), 0
		w.due.set(t, time.Time{})
		delete(w.uncovered, t)
		w.look(t)
		return
	}
	if t.create != ev.Create {
		// As if some records had been added already: on average, a history is
		// trimmed as often in a shard that changes hands after every few runs.
		t.added = rand.IntN(trimAfter(ev.Entry.History.Keep))
	}
	t.present, t.entry, t.mod, t.create = true, ev.Entry, ev.Mod, ev.Create
	err := ev.Err
	if err == nil {
		err = t.parse()
	}
	if err != nil {
		w.log.Error("an entry cannot be read; its task does not fire", zap.String("task", t.name), zap.Error(err))
	}
	w.setBad(t, err != nil)
	w.reschedule(t)
	w.look(t)
}

// parse reads what the entry says. It refuses what the API would have refused:
// nothing behind it expects such values.
func (t *taskState) parse() (err error) {
	e := &t.entry
	spec := task.Spec{
		Name: t.ref.Name, Namespace: t.ref.Namespace, Action: e.Action, Timeout: e.Timeout, KillGrace: e.KillGrace, Overlap: e.Overlap,
		Missed: e.Missed, Retry: e.Retry, Target: e.Target, History: e.History,
	}
	if err = spec.Validate(); err != nil {
		return err
	}
	if t.schedule, err = schedule.Parse(e.Schedule, e.Timezone, e.DST, e.Anchor.Time); err != nil {
		return err
	}
	t.selector, err = task.ParseSelector(e.Target.Selector)
	return err
}

func (w *worker) setBad(t *taskState, bad bool) {
	if t.bad != bad {
		t.bad = bad
		if bad {
			w.e.metrics.bad.Inc()
		} else {
			w.e.metrics.bad.Dec()
		}
	}
}

// covered reports whether the watermark speaks for the task.
func (w *worker) covered(t *taskState) bool { return t.create <= w.mark.Seen }

// nextUndecided is the first tick that neither the entry's from nor the
// watermark decides.
func (w *worker) nextUndecided(t *taskState) (time.Time, bool) {
	after := t.entry.From.Time
	if w.covered(t) && w.mark.Time.After(after) {
		// The watermark's own instant may be decided for some tasks only.
		tick, ok := t.schedule.Next(maxTime(after, w.mark.Time.Add(-time.Millisecond)))
		if !ok || !w.mark.Decided(task.At(tick), t.name) {
			return tick, ok
		}
		after = w.mark.Time.Time
	}
	return t.schedule.Next(after)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reschedule finds the task's next undecided tick and puts it into the heap.
func (w *worker) reschedule(t *taskState) {
	tick, ok := time.Time{}, false
	if t.fires() {
		tick, ok = w.nextUndecided(t)
	}
	delete(w.uncovered, t)
	if !ok {
		w.due.set(t, time.Time{})
		return
	}
	w.put(t, tick)
	if !w.covered(t) && !tick.After(w.mark.Time.Time) {
		w.uncovered[t] = struct{}{}
	}
}

// ticked moves the task on to the tick after the one just decided.
func (w *worker) ticked(t *taskState) {
	if t.second.IsZero() {
		w.due.set(t, time.Time{})
		return
	}
	w.put(t, t.second)
}

func (w *worker) put(t *taskState, tick time.Time) {
	t.second, _ = t.schedule.Next(tick)
	w.due.set(t, tick)
}

// isBehind reports whether several of the task's ticks are due at now, or one
// is past its grace.
func (t *taskState) isBehind(now time.Time) bool {
	return !t.second.IsZero() && !t.second.After(now) || now.Sub(t.next) > t.entry.Missed.Grace.Std()
}

func (w *worker) applyQueued(ev *store.ShardEvent) {
	t := w.task(ev.Ref)
	if rev, ok := w.gone[t.name+"/"+ev.Run]; ok && (ev.Mod == 0 || ev.Mod <= rev) {
		return
	}
	i := slices.IndexFunc(t.queue, func(q *waiting) bool { return q.ID == ev.Run })
	if i >= 0 && ev.Mod != 0 && ev.Mod < t.queue[i].mod {
		return
	}
	t.unreadable = slices.DeleteFunc(t.unreadable, func(run string) bool { return run == ev.Run })
	if ev.Deleted {
		if i >= 0 {
			w.dequeued(t, i)
		}
		w.look(t)
		return
	}
	w.ended(t, ev.Run, ev.Mod) // a retry waits, or the attempt was handed back
	if ev.Err != nil {
		t.unreadable = append(t.unreadable, ev.Run)
		w.log.Error("a queue record cannot be read; it waits for ever", zap.String("task", t.name), zap.String("run", ev.Run), zap.Error(ev.Err))
		if i >= 0 {
			w.dequeued(t, i)
			w.look(t)
		}
		return
	}
	q := &waiting{Waiting: ev.Waiting, mod: ev.Mod}
	if i >= 0 {
		t.queue[i] = q
	} else {
		w.enqueued(t, q)
	}
	w.look(t)
}

func (w *worker) enqueued(t *taskState, q *waiting) {
	at, _ := slices.BinarySearchFunc(t.queue, q, func(a, b *waiting) int { return strings.Compare(a.ID, b.ID) })
	t.queue = slices.Insert(t.queue, at, q)
	w.e.metrics.waiting.Inc()
}

func (w *worker) dequeued(t *taskState, i int) {
	t.queue = slices.Delete(t.queue, i, i+1)
	w.e.metrics.waiting.Dec()
}

func (w *worker) applyEnded(ev *store.ShardEvent) {
	t := w.task(ev.Ref)
	if ev.Deleted {
		w.drop(t)
		return
	}
	if !ev.Late {
		w.ended(t, ev.Run, ev.Mod)
	}
	if !t.present || (!t.bad && ev.Err == nil && ev.Ended.UID != t.entry.UID) {
		w.purges[ev.Key] = ev.Mod
		return
	}
	t.added++
	if keep := t.entry.History.Keep; !t.bad && t.added >= trimAfter(keep) && w.e.trims.ask(trim{w.fences, t.ref, keep}) {
		t.added = 0
	}
}

// ended takes the attempt of a run off the active ones, if it began before rev.
func (w *worker) ended(t *taskState, run string, rev int64) {
	if w.endedSince != nil {
		w.endedSince[t.name+"/"+run] = rev
	}
	i := slices.IndexFunc(t.active, func(a *attempt) bool { return a.run == run && a.create < rev })
	if i < 0 {
		return
	}
	w.e.cfg.Fleet.Take(t.active[i].node)
	t.active = slices.Delete(t.active, i, i+1)
	w.look(t)
}

// scanned takes the answer to the scan for active attempts: but those that have
// ended meanwhile.
func (w *worker) scanned(keys []store.ActiveKey) {
	for _, k := range keys {
		t := w.task(k.Ref)
		if w.endedSince[t.name+"/"+k.Run] > k.Create {
			continue
		}
		t.active = append(t.active, &attempt{run: k.Run, node: k.Node, create: k.Create})
		w.e.cfg.Fleet.Give(k.Node)
		w.look(t)
	}
	w.endedSince = nil
}

// look notes that what waits for the task, or its attempts, want a look.
func (w *worker) look(t *taskState) { w.looks[t] = struct{}{} }
