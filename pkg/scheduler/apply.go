package scheduler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

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
		case store.KindDead:
			w.applyDead(ev)
		case store.KindPart:
			w.applyPart(ev)
		case store.KindRevised:
			w.applyRevised(ev)
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
	if again {
		t.past = nil
	}
	t.present, t.mod, t.create = true, ev.Mod, ev.Create
	err := w.read(t, ev.Value)
	if err != nil {
		w.log.Error("an entry cannot be read; its task does not fire", zap.String("task", t.fullName()), zap.Error(err))
	} else if again {
		// As if some records had been added already: on average, a history is
		// trimmed as often in a shard that changes hands after every few runs.
		t.added = uint16(w.random.IntN(trimAfter(t.how.history.Keep)))
		t.dead = uint8(w.random.IntN(trimAfter(store.KeepDead)))
	}
	w.setBad(t, err != nil)
	w.count(t)
	w.reschedule(t)
	if t.live != nil || t.depends() {
		w.look(t)
	}
}

// noEntry takes a task's entry away.
func (w *worker) noEntry(t *taskState) {
	w.spanEnds(t)
	t.present, t.when, t.how, t.past = false, nil, nil, nil
	t.text, t.uid = t.text[:t.name], 0
	w.count(t)
	delete(w.failing, t)
	w.due.set(t, 0)
	delete(w.uncovered, t)
	delete(w.unread, t)
	delete(w.rests, t)
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
	action, err := store.DecodeAction(p.Action)
	if err != nil {
		return err
	}
	if t.how, err = w.e.policies.get(p.Policy); err != nil {
		return err
	}
	if t.when, err = w.e.timings.get(p.Timing); err != nil {
		return err
	}
	var own *task.Own
	if len(p.Own) > 0 {
		o, err := store.DecodeOwn(p.Own)
		if err != nil {
			return err
		}
		own = &o
	}
	t.setOwn(own)
	text := make([]byte, 0, int(t.name)+len(p.UID)+len(p.Action))
	text = append(append(append(text, t.fullName()...), p.UID...), p.Action...)
	t.text, t.uid, t.secret = string(text), uint8(len(p.UID)), action.NeedsKey()
	w.tasks[t.fullName()] = t // so that the key is no second copy of the name
	t.from, t.anchor, t.paused, t.generation = p.From.UnixMilli(), p.Anchor.UnixMilli(), p.Paused, int32(p.Generation)
	return nil
}

func (w *worker) setBad(t *taskState, bad bool) {
	if t.bad != bad {
		t.bad = bad
		if bad {
			w.countBad(1)
		} else {
			w.countBad(-1)
		}
	}
}

// countBad counts unreadable entries of a shard that is ours.
func (w *worker) countBad(by int) {
	if w.owner {
		w.e.metrics.bad.Add(float64(by))
	}
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
		w.lively(t).unreadable = append(w.lively(t).unreadable, ev.Run)
		w.log.Error("a queue record cannot be read; it waits for ever", zap.String("task", t.fullName()), zap.String("run", ev.Run), zap.Error(err))
		if i >= 0 {
			w.dequeued(t, i)
			w.look(t)
		}
		return
	}
	q := &waiting{Waiting: decoded, mod: ev.Mod, seen: w.e.cfg.Now().UnixMilli()}
	if i >= 0 && t.queue()[i].mod == q.mod {
		q.seen = t.queue()[i].seen // it is told twice
	}
	if i >= 0 {
		q.parental = t.queue()[i].parental
		t.queue()[i] = q
	} else {
		w.enqueued(t, q)
	}
	w.look(t)
}

func (w *worker) enqueued(t *taskState, q *waiting) {
	l := w.lively(t)
	at, _ := slices.BinarySearchFunc(l.queue, q, func(a, b *waiting) int { return strings.Compare(a.ID, b.ID) })
	l.queue = slices.Insert(l.queue, at, q)
	w.countWaiting(1)
}

func (w *worker) dequeued(t *taskState, i int) {
	t.unsure()
	t.live.queue = slices.Delete(t.live.queue, i, i+1)
	w.countWaiting(-1)
}

func (w *worker) applyEnded(ev *store.ShardEvent) {
	t := w.taskOf(ev)
	if ev.Deleted {
		delete(w.purges, ev.Key)
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
	w.hearOutcome(t, ev)
	mayTrim := t.mayTrim()
	if t.past != nil && t.depends() {
		t.told(ev, w.e.cfg.Now().UnixMilli())
		w.look(t)
	}
	if ev.Mod == ev.Create && t.added < math.MaxUint16 { // else it was extended
		t.added++
	}
	if w.owner && mayTrim && int(t.added) >= trimAfter(t.how.history.Keep) && w.e.trims.ask(w.trimOf(t, ev)) {
		t.added = 0
	}
}

// mayTrim reports whether all ends that have been told of are counted. Failures in
// a row must be counted before their records are trimmed: an owner that comes later
// counts from the history.
func (t *taskState) mayTrim() bool {
	return !t.counts() || t.past != nil && t.past.studied && len(t.past.uncounted()) == 0
}

// trimOf is the trim of t's history after an end.
func (w *worker) trimOf(t *taskState, ev *store.ShardEvent) trim {
	job := trim{fences: w.fences, ref: t.ref(w.shard), uid: t.uidText(), history: t.how.history}
	if t.counts() {
		job.before = ev.Mod // this end, and those that follow, are yet to be counted
	}
	return job
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
	w.placement.Release(t.live.active[i].node)
	t.live.active = slices.Delete(t.live.active, i, i+1)
	t.unsure()
	t.calm()
	if t.live != nil || !t.present || t.depends() {
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
		w.placement.Occupy(k.Node)
		w.look(t)
	}
	w.endedSince, w.doubts, w.runDoubts = nil, doubts{}, doubts{}
	w.openings.Add(1)
}

func (w *worker) activate(t *taskState, a *attempt) {
	l := w.lively(t)
	l.active = append(l.active, a)
	t.unsure()
}

// look notes that what waits for the task, or its attempts, want a look.
func (w *worker) look(t *taskState) {
	if !t.looked {
		t.looked = true
		w.looks = append(w.looks, t)
	}
}
