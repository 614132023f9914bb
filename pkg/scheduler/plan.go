package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// plan is one commit in the making, and what follows when it succeeds.
type plan struct {
	w       *worker
	now     time.Time
	commit  *store.Commit
	touched map[*taskState]struct{}
	started map[*taskState]struct{} // a run of them is dispatched: at most one in a commit
	given   []task.Node             // on which runs are reserved, as they were known
	then    []func(rev int64)       // when it has succeeded
	popped  []*taskState            // taken off the heap: their tick is decided here
	full    bool
}

// plan decides what one commit can hold.
func (w *worker) plan(now time.Time) *plan {
	p := &plan{
		w: w, now: now, touched: map[*taskState]struct{}{}, started: map[*taskState]struct{}{},
		commit: w.e.cfg.Store.NewCommit(w.shard, w.fences, w.known, w.mark),
	}
	// First what is owed: entries that the watermark does not cover, then tasks
	// that are behind. A commit that pays of it leaves the watermark where it
	// is; the next one finds what else is due.
	if owed := p.uncovered(); !owed && !p.behind() {
		p.ticks()
	}
	p.waiting()
	p.purge()
	return p
}

// idle reports whether there is nothing to commit.
func (p *plan) idle() bool { return p.commit.Empty() }

// done takes into memory what the commit has written, at revision rev.
func (p *plan) done(rev int64) {
	w := p.w
	w.known, w.mark = rev, p.commit.Watermark
	for _, f := range p.then {
		f(rev)
	}
	for _, t := range p.popped {
		w.ticked(t)
	}
	for t := range p.touched {
		t.failed = 0
		delete(w.stubborn, t.name)
	}
	for t := range w.uncovered {
		if w.covered(t) {
			delete(w.uncovered, t)
		}
	}
}

// undo puts everything back as if there had been no plan.
func (p *plan) undo() {
	for _, n := range p.given {
		p.w.e.cfg.Fleet.Take(n.Name)
	}
	for _, t := range p.popped {
		p.w.due.set(t, t.next)
	}
	for t := range p.touched {
		p.w.look(t)
	}
}

// fits makes room for a task's change, which has to follow; false if the commit
// is full, or if the task has to go alone because two commits failed for it.
func (p *plan) fits(t *taskState, records, bytes int) bool {
	if _, in := p.touched[t]; t.failed >= 2 && !in && len(p.touched) > 0 || !p.commit.Fits(records, bytes) {
		p.full = true
	}
	if p.full {
		return false
	}
	p.touched[t] = struct{}{}
	if t.failed >= 2 {
		p.full = true // nobody after it
	}
	return true
}

// roomForRecord is a generous guess of a record's bytes beside its action.
const roomForRecord = 2048

func (t *taskState) bytes() int {
	n := roomForRecord
	if a := t.entry.Action.Process; a != nil {
		n += len(a.Shell)
		for _, arg := range a.Command {
			n += len(arg)
		}
		for k, v := range a.Env {
			n += len(k) + len(v)
		}
	}
	return n
}

// uncovered decides the ticks up to the watermark of entries that it does not
// cover, the oldest creation first. seen moves past every entry that has none
// left. It reports whether there were any.
func (p *plan) uncovered() (owed bool) {
	w := p.w
	seen, upTo := w.applied, w.mark.Time.Time
	if p.now.Before(upTo) {
		upTo = p.now // the clock of an earlier owner was ahead of ours
	}
	for _, t := range slices.SortedFunc(maps.Keys(w.uncovered), byCreation) {
		done := false
		if !t.next.After(upTo) {
			owed = true
			next, more := t.schedule.Next(upTo)
			done = p.catchUp(t, upTo) && (!more || next.After(w.mark.Time.Time))
		}
		if !done {
			seen = min(seen, t.create-1)
		}
	}
	p.commit.Watermark.Seen = max(w.mark.Seen, seen)
	return owed
}

func byCreation(a, b *taskState) int {
	return cmp.Or(cmp.Compare(a.create, b.create), strings.Compare(a.name, b.name))
}

func byTick(a, b *taskState) int {
	return cmp.Or(a.next.Compare(b.next), strings.Compare(a.name, b.name))
}

// behind decides the ticks of the tasks that are behind. It reports whether
// there were any.
func (p *plan) behind() bool {
	list := p.w.behindBy(p.now)
	for _, t := range list {
		if !p.catchUp(t, p.now) && p.full {
			break
		}
	}
	return len(list) > 0
}

// behindBy lists the tasks that are behind at now, the oldest tick first.
func (w *worker) behindBy(now time.Time) []*taskState {
	var list []*taskState
	var walk func(i int) // a heap: below a tick that is not due none is
	walk = func(i int) {
		if i >= len(w.due) || w.due[i].next.After(now) {
			return
		}
		if w.due[i].isBehind(now) {
			list = append(list, w.due[i])
		}
		walk(2*i + 1)
		walk(2*i + 2)
	}
	walk(0)
	slices.SortFunc(list, byTick)
	return list
}

// ticks decides what is due, in (time, task) order, and moves the watermark as
// far as that went: to now if it was everything.
func (p *plan) ticks() {
	w := p.w
	mark := &p.commit.Watermark
	for len(w.due) > 0 && !w.due[0].next.After(p.now) {
		t := w.due[0]
		if !p.tick(t) {
			return
		}
		tick := t.next
		w.due.set(t, time.Time{})
		t.next = tick
		p.popped = append(p.popped, t)
		mark.Time, mark.Last = task.At(tick), t.name
	}
	if len(p.popped) > 0 {
		mark.Time, mark.Last = task.At(p.now), ""
	}
}

// waiting looks at what waits, and at attempts that want something.
func (p *plan) waiting() {
	w := p.w
	if p.full {
		return
	}
	for _, t := range slices.SortedFunc(maps.Keys(w.looks), byName) {
		delete(w.looks, t)
		p.attempts(t)
		p.queue(t)
		if p.full {
			w.look(t)
			return
		}
		w.drop(t)
	}
}

func byName(a, b *taskState) int { return strings.Compare(a.name, b.name) }

// purge deletes records of tasks that are no more.
func (p *plan) purge() {
	for key, mod := range p.w.purges {
		if p.full || !p.commit.Fits(1, roomForRecord) {
			return
		}
		p.commit.Purge(key, mod)
		p.then = append(p.then, func(int64) { delete(p.w.purges, key) })
	}
}
