package scheduler

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskState is what a worker knows of a task: its entry, what waits, what is
// active. There may be a million: it is small, holds few pointers, and leaves to
// others what tasks have alike. Times are Unix milliseconds; 0 is none.
type taskState struct {
	text string // namespace/name, uid, action as JSON: in one piece, to spare what strings cost
	when *timing
	how  *policySet
	live *live // nil for most

	mod, create  int64 // revisions of the entry's key
	from, anchor int64
	next         int64 // the next tick that is not decided
	second       int64 // the tick after it
	generation   int32

	at      int32  // place in the heap, or -1
	name    uint16 // length of namespace/name
	added   uint16 // records of history since the last trim
	uid     uint8  // length of the uid
	failed  uint8  // commits in a row that failed for a record of this task
	present bool   // the entry exists; if bad, it cannot be read and has no ticks
	bad     bool
	paused  bool
	looked  bool // it is among the worker's looks
	touched bool // the plan in the making changes it
	started bool // and dispatches a run of it
}

// live is what a task has while something waits or runs.
type live struct {
	queue      []*waiting // by run id
	active     []*attempt
	unreadable []string // runs whose queue records cannot be read
}

func (t *taskState) fullName() string { return t.text[:t.name] }
func (t *taskState) uidText() string  { return t.text[t.name : int(t.name)+int(t.uid)] }
func (t *taskState) action() string   { return t.text[int(t.name)+int(t.uid):] }

func (t *taskState) ref(shard int) store.Ref {
	namespace, name, _ := strings.Cut(t.fullName(), "/")
	return store.Ref{Namespace: namespace, Name: name, Shard: shard}
}

func (t *taskState) queue() []*waiting {
	if t.live == nil {
		return nil
	}
	return t.live.queue
}

func (t *taskState) active() []*attempt {
	if t.live == nil {
		return nil
	}
	return t.live.active
}

// lively is t's live, made if need be.
func (t *taskState) lively() *live {
	if t.live == nil {
		t.live = &live{}
	}
	return t.live
}

// calm drops t's live when there is nothing in it.
func (t *taskState) calm() {
	if l := t.live; l != nil && len(l.queue) == 0 && len(l.active) == 0 && len(l.unreadable) == 0 {
		t.live = nil
	}
}

// schedule is when t ticks. Only of a task with an entry that can be read.
func (t *taskState) schedule() schedule.Schedule { return t.when.schedule.Anchored(instant(t.anchor)) }

// after is t's first tick later than an instant; 0 if there is none.
func (t *taskState) after(at int64) int64 {
	s := t.schedule()
	tick, ok := s.Next(instant(at))
	if !ok {
		return 0
	}
	return tick.UnixMilli()
}

// instant is the time of ms.
func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

type waiting struct {
	task.Waiting
	mod int64
}

type attempt struct {
	run    string
	node   string
	create int64  // fencing token
	watch  *watch // of an attempt whose node is gone, or whose task is
}

// watched is a's watch, made if need be.
func (a *attempt) watched() *watch {
	if a.watch == nil {
		a.watch = &watch{}
	}
	return a.watch
}

// begun reports whether a waiting run has been dispatched before.
func (q *waiting) begun() bool { return q.Attempt > 1 || q.Reason == task.ReasonHandBack }

// begun is how many waiting runs have been dispatched before: they are active,
// though no attempt is.
func (t *taskState) begun() int {
	n := 0
	for _, q := range t.queue() {
		if q.begun() {
			n++
		}
	}
	return n
}

// holds reports whether a run is in an inbox, or has a queue record that cannot
// be read: then there is no writing another.
func (t *taskState) holds(run string) bool {
	l := t.live
	return l != nil && (slices.Contains(l.unreadable, run) || slices.ContainsFunc(l.active, func(a *attempt) bool { return a.run == run }))
}

// orphan reports whether a run's task is gone, though another may bear its name
// now. Of an entry that cannot be read nobody knows.
func (t *taskState) orphan(run string) bool {
	if !t.present || t.bad {
		return !t.present
	}
	return !task.RunBelongs(run, t.uidText())
}

// busy reports whether a new tick finds the task occupied: by an active run, or
// by one that an earlier tick gave rise to and that waits.
func (t *taskState) busy() bool {
	l := t.live
	return l != nil && (len(l.active) > 0 || slices.ContainsFunc(l.queue, func(q *waiting) bool {
		return q.Trigger != task.TriggerManual || q.begun()
	}))
}

func (t *taskState) empty() bool {
	t.calm()
	return !t.present && t.live == nil
}

// fires reports whether the task has ticks.
func (t *taskState) fires() bool { return t.present && !t.bad && !t.paused }

// task returns the state of a task, namespace/name, made if need be.
func (w *worker) task(name string) *taskState {
	t := w.tasks[name]
	if t == nil {
		t = &taskState{text: strings.Clone(name), name: uint16(len(name)), at: -1}
		w.tasks[t.text] = t
	}
	return t
}

// taskOf is the task that an event is about.
func (w *worker) taskOf(ev *store.ShardEvent) *taskState { return w.task(ev.Task) }

// drop forgets a task of which nothing is left. Another may bear its name by
// now: that one stays.
func (w *worker) drop(t *taskState) {
	if t.empty() && w.tasks[t.fullName()] == t {
		delete(w.tasks, t.fullName())
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
	if b.More {
		return
	}
	w.applied = max(w.applied, b.Revision)
	for key, rev := range w.gone {
		if rev <= w.applied {
			delete(w.gone, key)
		}
	}
}

func (w *worker) applyEntry(ev *store.ShardEvent) {
	t := w.taskOf(ev)
	if ev.Mod != 0 && ev.Mod < t.mod {
		return
	}
	if ev.Deleted {
		w.setBad(t, false)
		t.mod, t.create = max(t.mod, ev.Mod), 0
		w.noEntry(t)
		w.look(t)
		return
	}
	again := t.create != ev.Create
	t.present, t.mod, t.create = true, ev.Mod, ev.Create
	err := w.read(t, ev.Value)
	if err != nil {
		w.log.Error("an entry cannot be read; its task does not fire", zap.String("task", t.fullName()), zap.Error(err))
	} else if again {
		// As if some records had been added already: on average, a history is
		// trimmed as often in a shard that changes hands after every few runs.
		t.added = uint16(rand.IntN(trimAfter(t.how.history.Keep)))
	}
	w.setBad(t, err != nil)
	w.reschedule(t)
	if t.live != nil {
		w.look(t)
	}
}

// noEntry takes a task's entry away.
func (w *worker) noEntry(t *taskState) {
	t.present, t.when, t.how = false, nil, nil
	t.text, t.uid = t.text[:t.name], 0
	w.due.set(t, 0)
	delete(w.uncovered, t)
}

// mostEntry is how large an entry may be, in bytes: the API writes little more
// than its action. A commit has room for some of them, with a run of each; one
// that fits into none would hold up its shard.
const mostEntry = 2 * task.MaxAction

// read takes what an entry says.
func (w *worker) read(t *taskState, value []byte) (err error) {
	if len(value) > mostEntry {
		return fmt.Errorf("%w: an entry of %d bytes; at most %d are read", task.ErrInvalid, len(value), mostEntry)
	}
	p := &w.parts
	if err := p.Split(value); err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(t.fullName(), "/")
	if err := errors.Join(task.CheckName("namespace", namespace), task.CheckName("name", name)); err != nil {
		return err
	}
	if len(p.UID) > math.MaxUint8 || p.Generation != int64(int32(p.Generation)) {
		return fmt.Errorf("%w: uid or generation", task.ErrInvalid)
	}
	if err := store.CheckAction(p.Action); err != nil {
		return err
	}
	if t.how, err = w.e.policies.get(p.Policy); err != nil {
		return err
	}
	if t.when, err = w.e.timings.get(p.Timing); err != nil {
		return err
	}
	text := make([]byte, 0, int(t.name)+len(p.UID)+len(p.Action))
	text = append(append(append(text, t.fullName()...), p.UID...), p.Action...)
	t.text, t.uid = string(text), uint8(len(p.UID))
	w.tasks[t.fullName()] = t // so that the key is no second copy of the name
	t.from, t.anchor, t.paused, t.generation = p.From.UnixMilli(), p.Anchor.UnixMilli(), p.Paused, int32(p.Generation)
	return nil
}

// entry is t's entry, to be written.
func (t *taskState) entry() store.EntryParts {
	return store.EntryParts{
		UID: []byte(t.uidText()), Generation: int64(t.generation), From: task.At(instant(t.from)), Anchor: task.At(instant(t.anchor)),
		Paused: t.paused, Action: []byte(t.action()), Timing: []byte(t.when.text), Policy: []byte(t.how.text),
	}
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
// watermark decides; 0 if there is none.
func (w *worker) nextUndecided(t *taskState) int64 {
	after, mark := t.from, w.mark.Time.UnixMilli()
	if w.covered(t) && mark > after {
		// The watermark's own instant may be decided for some tasks only.
		tick := t.after(max(after, mark-1))
		if tick == 0 || !w.mark.Decided(task.At(instant(tick)), t.fullName()) {
			return tick
		}
		after = mark
	}
	return t.after(after)
}

// reschedule finds the task's next undecided tick and puts it into the heap.
func (w *worker) reschedule(t *taskState) {
	tick := int64(0)
	if t.fires() {
		tick = w.nextUndecided(t)
	}
	delete(w.uncovered, t)
	if tick == 0 {
		w.due.set(t, 0)
		return
	}
	w.put(t, tick)
	if !w.covered(t) && tick <= w.mark.Time.UnixMilli() {
		w.uncovered[t] = struct{}{}
	}
}

// ticked moves the task on to the tick after the one just decided.
func (w *worker) ticked(t *taskState) {
	if t.second == 0 {
		w.due.set(t, 0)
		return
	}
	w.put(t, t.second)
}

func (w *worker) put(t *taskState, tick int64) {
	t.second = t.after(tick)
	w.due.set(t, tick)
}

// isBehind reports whether several of the task's ticks are due at now, or one
// is past its grace.
func (t *taskState) isBehind(now int64) bool {
	return t.second != 0 && t.second <= now || now-t.next > t.how.grace.Milliseconds()
}

func (w *worker) applyQueued(ev *store.ShardEvent) {
	t := w.taskOf(ev)
	if rev, ok := w.gone[t.fullName()+"/"+ev.Run]; ok && (ev.Mod == 0 || ev.Mod <= rev) {
		w.drop(t) // it may have been forgotten already
		return
	}
	i := slices.IndexFunc(t.queue(), func(q *waiting) bool { return q.ID == ev.Run })
	if i >= 0 && ev.Mod != 0 && ev.Mod < t.queue()[i].mod {
		return
	}
	if t.live != nil {
		t.live.unreadable = slices.DeleteFunc(t.live.unreadable, func(run string) bool { return run == ev.Run })
	}
	if ev.Deleted {
		if i >= 0 {
			w.dequeued(t, i)
		}
		w.look(t)
		return
	}
	w.ended(t, ev.Run, ev.Mod) // a retry waits, or the attempt was handed back
	decoded, err := store.DecodeWaiting(ev.ShardKey, ev.Value)
	if err != nil {
		t.lively().unreadable = append(t.lively().unreadable, ev.Run)
		w.log.Error("a queue record cannot be read; it waits for ever", zap.String("task", t.fullName()), zap.String("run", ev.Run), zap.Error(err))
		if i >= 0 {
			w.dequeued(t, i)
			w.look(t)
		}
		return
	}
	q := &waiting{Waiting: decoded, mod: ev.Mod}
	if i >= 0 {
		t.queue()[i] = q
	} else {
		w.enqueued(t, q)
	}
	w.look(t)
}

func (w *worker) enqueued(t *taskState, q *waiting) {
	l := t.lively()
	at, _ := slices.BinarySearchFunc(l.queue, q, func(a, b *waiting) int { return strings.Compare(a.ID, b.ID) })
	l.queue = slices.Insert(l.queue, at, q)
	w.e.metrics.waiting.Inc()
}

func (w *worker) dequeued(t *taskState, i int) {
	t.live.queue = slices.Delete(t.live.queue, i, i+1)
	w.e.metrics.waiting.Dec()
}

func (w *worker) applyEnded(ev *store.ShardEvent) {
	t := w.taskOf(ev)
	if ev.Deleted {
		w.drop(t)
		return
	}
	if !ev.Late {
		w.ended(t, ev.Run, ev.Mod)
	}
	if t.orphan(ev.Run) {
		w.purges[ev.Key] = ev.Mod
		return
	}
	if t.bad {
		return
	}
	t.added++
	if h := t.how.history; int(t.added) >= trimAfter(h.Keep) && w.e.trims.ask(trim{w.fences, t.ref(w.shard), h}) {
		t.added = 0
	}
}

// ended takes the attempt of a run off the active ones, if it began before rev.
func (w *worker) ended(t *taskState, run string, rev int64) {
	if w.endedSince != nil {
		w.endedSince[t.fullName()+"/"+run] = rev
	}
	i := slices.IndexFunc(t.active(), func(a *attempt) bool { return a.run == run && a.create < rev })
	if i < 0 {
		return
	}
	w.e.cfg.Fleet.Take(t.live.active[i].node)
	t.live.active = slices.Delete(t.live.active, i, i+1)
	t.calm()
	if t.live != nil || !t.present {
		w.look(t) // something may have waited for this end
	}
}

// scanned takes the answer to the scan for active attempts: but those that have
// ended meanwhile.
func (w *worker) scanned(keys []store.ActiveKey) {
	for _, k := range keys {
		t := w.task(k.Ref.String())
		if w.endedSince[t.fullName()+"/"+k.Run] > k.Create {
			continue
		}
		w.activate(t, &attempt{run: k.Run, node: k.Node, create: k.Create})
		w.e.cfg.Fleet.Give(k.Node)
		w.look(t)
	}
	w.endedSince = nil
}

func (w *worker) activate(t *taskState, a *attempt) {
	l := t.lively()
	l.active = append(l.active, a)
}

// look notes that what waits for the task, or its attempts, want a look.
func (w *worker) look(t *taskState) {
	if !t.looked {
		t.looked = true
		w.looks = append(w.looks, t)
	}
}
