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
	freezes *task.Freezes         // nil: none
	touched []*taskState          // those that it changes
	claims  []claim               // ticks that it has run
	given   []*task.Node          // on which runs are reserved, as they were known
	counts  outcomes              // of the ticks that it decides
	then    []func(rev int64)     // what is rare, when it has succeeded
	popped  []*taskState          // taken off the heap: their tick is decided here
	drafts  map[*taskState]*draft // entries that it writes
	full    bool
	apart   bool          // what is due is decided in its entries, and the watermark stays
	tokens  int           // taken for late ticks
	attempt task.Assigned // scratch
}

// claim is an attempt that a plan puts into an inbox.
type claim struct {
	t    *taskState
	run  string
	node string
	late time.Duration // of a tick; less than 0: of what has waited
}

// outcomes count ticks.
type outcomes struct{ run, queued, skipped, missed int64 }

// plan decides what one commit can hold.
func (w *worker) plan(now time.Time) *plan {
	p := &plan{w: w, now: now, apart: w.overtaken >= mostOvertaken, commit: w.e.cfg.Store.NewCommit(w.shard, w.fences, w.known, w.mark)}
	p.freezes, p.commit.Freezes = w.e.frozen()
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

// close ends the plan's hold on its tasks.
func (p *plan) close() {
	for _, t := range p.touched {
		t.touched, t.started = false, false
	}
}

// done takes into memory what the commit has written, at revision rev.
func (p *plan) done(rev int64) {
	p.close()
	w := p.w
	w.known, w.mark = rev, p.commit.Watermark
	switch {
	case len(p.popped) == 0: // it says nothing of edits
	case p.apart:
		w.overtaken = mostOvertaken - 1 // the watermark gets one more try
	default:
		w.overtaken = 0
	}
	for _, c := range p.claims {
		w.activate(c.t, &attempt{run: c.run, node: c.node, create: rev, since: p.now.UnixMilli()})
		c.t.turned(c.node)
		if c.late >= 0 {
			w.e.metrics.lateness.Observe(c.late.Seconds())
		}
	}
	w.e.metrics.decided(p.counts)
	w.e.recent.decided(p)
	for t, d := range p.drafts {
		d.keep(t, rev)
	}
	for _, f := range p.then {
		f(rev)
	}
	for _, t := range p.popped {
		w.ticked(t)
		w.decided(t)
	}
	for t := range p.drafts {
		w.count(t)
		w.reschedule(t)
		w.decided(t)
	}
	for _, t := range p.touched {
		t.failed = 0
		if len(w.stubborn) > 0 {
			delete(w.stubborn, t.fullName())
		}
	}
	for t := range w.uncovered {
		if w.covered(t) {
			delete(w.uncovered, t)
		}
	}
}

// undo puts everything back as if there had been no plan.
func (p *plan) undo() {
	p.close()
	for _, n := range p.given {
		p.w.e.cfg.Fleet.Take(n.Name)
	}
	if p.tokens > 0 {
		p.w.e.pace.give(p.tokens)
	}
	for _, t := range p.popped {
		p.w.due.set(t, t.next)
	}
	for _, t := range p.touched {
		p.w.look(t)
	}
}

// fits makes room for a task's change, which has to follow; false if the commit
// is full, or if the task has to go alone because two commits failed for it.
func (p *plan) fits(t *taskState, records, bytes int) bool {
	return p.admit(t, p.commit.Fits(records, bytes))
}

func (p *plan) admit(t *taskState, room bool) bool {
	if t.failed >= 2 && !t.touched && len(p.touched) > 0 || !room {
		p.full = true
	}
	if p.full {
		return false
	}
	if !t.touched {
		t.touched = true
		p.touched = append(p.touched, t)
	}
	if t.failed >= 2 {
		p.full = true // nobody after it
	}
	return true
}

// roomForRecord is a generous guess of a record's bytes beside its action.
const roomForRecord = 2048

func (t *taskState) bytes() int {
	if t.how != nil && t.how.target.FansOut() {
		return roomForRecord + roomForFan + len(t.text)
	}
	return roomForRecord + len(t.text)
}

// uncovered decides the ticks up to the watermark of entries that it does not
// cover, the oldest creation first. seen moves past every entry that has none
// left. It reports whether there were any.
func (p *plan) uncovered() (owed bool) {
	w := p.w
	if len(w.uncovered) == 0 {
		p.commit.Watermark.Seen = max(w.mark.Seen, w.applied)
		return false
	}
	seen, mark := w.applied, w.mark.Time.UnixMilli()
	upTo := min(mark, p.now.UnixMilli()) // the clock of an earlier owner may have been ahead of ours
	for _, t := range slices.SortedFunc(maps.Keys(w.uncovered), byCreation) {
		done := false
		if t.dueAt() <= upTo {
			owed = true
			next := t.after(t.lastDue(upTo))
			done = p.catchUp(t, upTo) && (next == 0 || t.due(next) > mark)
		}
		if !done {
			seen = min(seen, t.create-1)
		}
	}
	p.commit.Watermark.Seen = max(w.mark.Seen, seen)
	return owed
}

func byCreation(a, b *taskState) int {
	return cmp.Or(cmp.Compare(a.create, b.create), strings.Compare(a.fullName(), b.fullName()))
}

// behind decides the ticks of the tasks that are behind, the oldest tick first. It
// reports whether there were any. Of many it looks only at those that the commit has
// room for: there are as many commits as it takes.
func (p *plan) behind() (any bool) {
	now := p.now.UnixMilli()
	if !p.w.anyBehind(now) {
		return false
	}
	p.w.due.inOrder(func(t *taskState) bool {
		if t.dueAt() > now {
			return false
		}
		if t.isBehind(now) {
			any = true
			return p.catchUp(t, now) || !p.full
		}
		return true
	})
	return any
}

// anyBehind reports whether a task is behind at now. That none is, is remembered until
// one is put into the heap that is: a round has one now, and many commits.
func (w *worker) anyBehind(now int64) bool {
	if w.onTime == now {
		return false
	}
	if w.due.anyUpTo(now, func(t *taskState) bool { return t.isBehind(now) }) {
		return true
	}
	w.onTime = now
	return false
}

// ticks decides what is due, in (due, task) order, and moves the watermark as
// far as that went: to now if it was everything.
func (p *plan) ticks() {
	w, now := p.w, p.now.UnixMilli()
	all := true
	for len(w.due) > 0 && w.due[0].dueAt() <= now {
		t := w.due[0]
		if all = p.tick(t); !all {
			break
		}
		tick := t.next
		w.due.set(t, 0)
		t.next = tick
		p.popped = append(p.popped, t)
	}
	if len(p.popped) == 0 || p.apart {
		return
	}
	p.commit.Moves(w.revised)
	mark, last := &p.commit.Watermark, p.popped[len(p.popped)-1]
	if mark.Time, mark.Last = task.At(p.now), ""; !all {
		mark.Time, mark.Last = task.At(instant(last.dueAt())), last.fullName()
	}
}

// waiting looks at what waits, and at attempts that want something.
func (p *plan) waiting() {
	w := p.w
	if p.full {
		return
	}
	looks := w.looks
	w.looks = nil
	slices.SortFunc(looks, byName)
	for i, t := range looks {
		t.looked = false
		p.attempts(t)
		p.queue(t)
		p.forgetParts(t)
		p.followUp(t)
		if p.full {
			for _, rest := range looks[i+1:] {
				rest.looked = false
			}
			for _, rest := range looks[i:] {
				w.look(rest)
			}
			return
		}
		w.drop(t)
	}
}

func byName(a, b *taskState) int { return strings.Compare(a.fullName(), b.fullName()) }

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
