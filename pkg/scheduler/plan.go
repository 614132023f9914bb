package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// A plan is one decision in the making: what the shard's next commit writes, and what changes in
// memory if it succeeds. It changes memory in three ways:
//
//   - Claims, entry changes and effects say what the commit writes. They change memory only when
//     it has succeeded (applyCommitted).
//   - Reservations are what shards compete for: slots of nodes and catch-up tokens. They are
//     taken while deciding, and given back if the commit does not succeed (applyAbandoned).
//   - Notes say when to look at something again: looks, wakes, rests, the need for history. They are
//     kept whatever becomes of the commit. They never change what is decided, only when it is
//     looked at.
//
// Some observations are kept as well: since when the node of a part is away (parental.away), since
// when a part is nowhere (parental.missing), which records of parts are to be purged, and that a
// range of skipped ticks ends. Each is true whatever becomes of the commit, apart from the last,
// which costs one more record.
//
// A worker has one plan at a time, and applies no event before it knows what became of its commit:
// claims and effects point into the state that they were made from.
type plan struct {
	s *shardState
	settings
	now    time.Time // of the round; clock is of this plan
	commit *store.Commit

	taskChanges
	claims  []claim           // ticks and waiting runs that it dispatches
	effects []effect          // all else, in order
	popped  []*taskstate.Task // off the heap: their tick is decided here
	reservations

	looksAfterCommit []*taskstate.Task // to be looked at when the commit has succeeded; if it fails, all changes are
	counts           outcomes

	// What the worker does for it: notices are reported when the commit has succeeded, and
	// deletions are asked for whatever becomes of it.
	notices   []notice
	deletions []*retention.Deletion

	full          bool          // no more fits into the commit
	keepWatermark bool          // what is due is decided in its entries, and the watermark stays
	attempt       task.Assigned // reused for each claim
}

// claim is an attempt that a plan puts into an inbox.
type claim struct {
	t    *taskstate.Task
	run  string
	node string
	late time.Duration // of a tick; less than 0: of what has waited
}

// lateness yields how late each run is that the plan dispatches.
func (p *plan) lateness(yield func(time.Duration) bool) {
	for i := range p.claims {
		if !yield(p.claims[i].late) {
			return
		}
	}
}

// outcomes count ticks, and attempts that are lost.
type outcomes struct{ run, queued, skipped, missed, lost int64 }

// buildPlan decides what one commit can hold.
func (s *shardState) buildPlan(now time.Time, as settings) *plan {
	p := s.newPlan(now, as)

	// First what is owed: entries that the watermark does not cover, then tasks
	// that are behind. A commit that pays of it leaves the watermark where it
	// is; the next one finds what else is due.
	if owed := p.decideUncovered(); !owed && !p.catchUp() {
		p.decideDueTicks()
	}

	p.serveWaiting()
	p.purgeRecords()

	return p
}

// newPlan returns an empty plan. It has the slices of the plan before, of which nothing is used any
// more: a worker has one plan at a time.
func (s *shardState) newPlan(now time.Time, as settings) *plan {
	s.mustBeSettled()

	old := &s.lastPlan
	clear(old.changes)
	clear(old.claims)
	clear(old.effects)
	clear(old.popped)
	clear(old.reserved)
	clear(old.looksAfterCommit)
	clear(old.joined)
	clear(old.notices)
	clear(old.deletions)

	*old = plan{
		s: s, settings: as, now: now, keepWatermark: s.overtaken >= maxOvertaken,
		commit:      s.commits.NewCommit(s.Shard, s.fences, s.WatermarkRev, s.Watermark),
		taskChanges: taskChanges{old.changes[:0]}, claims: old.claims[:0], effects: old.effects[:0], popped: old.popped[:0],
		reservations:     reservations{placement: s.placement, pace: s.tokens, line: &s.line, reserved: old.reserved[:0], joined: old.joined[:0]},
		looksAfterCommit: old.looksAfterCommit[:0], notices: old.notices[:0], deletions: old.deletions[:0],
	}
	old.commit.Freezes = as.freezesRead

	return old
}

// isEmpty reports whether there is nothing to commit.
func (p *plan) isEmpty() bool { return p.commit.Empty() }

// applyCommitted takes into memory what the commit has written, at revision rev.
func (s *shardState) applyCommitted(p *plan, rev int64) {
	s.WatermarkRev, s.Watermark = rev, p.commit.Watermark

	switch {
	case len(p.popped) == 0: // it says nothing of edits
	case p.keepWatermark:
		s.overtaken = maxOvertaken - 1 // the watermark gets one more try
	default:
		s.overtaken = 0
	}

	for _, c := range p.claims {
		s.addActiveAttempt(c.t, &taskstate.Attempt{Run: c.run, Node: c.node, Create: rev, Since: p.now.UnixMilli()})
		c.t.NoteTurn(c.node)
	}

	// Entries before effects: what an effect counts may depend on what the entry says now.
	for i := range p.changes {
		if c := &p.changes[i]; c.entry != nil {
			c.entry.apply(c.task, rev)
		}
	}

	for _, e := range p.effects {
		e.apply(s, rev, p.now)
	}

	// Now that all of it is known, the next ticks.
	for _, t := range p.popped {
		s.advanceToNextTick(t)
		s.noteDecided(t)
	}

	for i := range p.changes {
		c := &p.changes[i]
		if c.entry != nil {
			s.census.Count(c.task)
			s.reschedule(c.task)
			s.noteDecided(c.task)
		}

		c.task.Failed = 0

		if len(s.stubborn) > 0 {
			delete(s.stubborn, c.task.FullName())
		}
	}

	for t := range s.uncovered {
		if s.CoveredByWatermark(t) {
			delete(s.uncovered, t)
		}
	}

	for _, t := range p.looksAfterCommit {
		s.addLook(t)
	}

	s.notices = append(s.notices, p.notices...)

	p.commit = nil // it may be large, and the next plan may be long in coming
}

// applyAbandoned gives back what the plan has reserved: nothing of it was written. All that it would have
// changed is looked at again.
func (s *shardState) applyAbandoned(p *plan) {
	p.giveBack()

	for _, t := range p.joined {
		s.addLook(t)
	}

	for _, t := range p.popped {
		s.due.Set(t, t.Next)
	}

	for i := range p.changes {
		s.addLook(p.changes[i].task)
	}

	p.commit = nil
}

// lookAfterCommit notes that a task is to be looked at when the commit has succeeded.
func (p *plan) lookAfterCommit(t *taskstate.Task) { p.looksAfterCommit = append(p.looksAfterCommit, t) }

// reserveRoom makes room for a task's change, which has to follow; false if the commit
// is full, or if the task has to go alone because two commits failed for it.
func (p *plan) reserveRoom(t *taskstate.Task, records, bytes int) bool {
	return p.admitChange(t, p.commit.Fits(records, bytes))
}

func (p *plan) admitChange(t *taskstate.Task, room bool) bool {
	alone := t.Failed >= 2

	if alone && p.changeFor(t) == nil && len(p.changes) > 0 || !room {
		p.full = true
	}

	if p.full {
		return false
	}

	p.changeOf(t)

	if alone {
		p.full = true // nobody after it
	}

	return true
}

// roomForRecord is a generous guess of a record's bytes beside its action.
const roomForRecord = 2048

// decideUncovered decides the ticks up to the watermark of entries that it does not
// cover, the oldest creation first. seen moves past every entry that has none
// left. It reports whether there were any.
func (p *plan) decideUncovered() (owed bool) {
	s := p.s
	if len(s.uncovered) == 0 {
		p.commit.Watermark.Seen = max(s.Watermark.Seen, s.seenUpTo())
		return false
	}

	seen, mark := s.seenUpTo(), s.Watermark.Time.UnixMilli()
	upTo := min(mark, p.now.UnixMilli()) // the clock of an earlier owner may have been ahead of ours

	for _, t := range slices.SortedFunc(maps.Keys(s.uncovered), byCreation) {
		done := false
		if t.DueAt() <= upTo {
			owed = true
			next := t.After(t.LastDue(upTo))
			done = p.decideLateTicks(t, upTo) && (next == 0 || t.Due(next) > mark)
		}

		if !done {
			seen = min(seen, t.Create-1)
		}
	}

	p.commit.Watermark.Seen = max(s.Watermark.Seen, seen)

	return owed
}

func byCreation(a, b *taskstate.Task) int {
	return cmp.Or(cmp.Compare(a.Create, b.Create), strings.Compare(a.FullName(), b.FullName()))
}

// catchUp decides the ticks of the tasks that are behind, the oldest tick first. It
// reports whether there were any. Of many it looks only at those that the commit has
// room for: there are as many commits as it takes.
func (p *plan) catchUp() (any bool) {
	now := p.now.UnixMilli()
	if !p.s.anyBehind(now) {
		return false
	}

	p.s.due.InOrder(func(t *taskstate.Task) bool {
		if t.DueAt() > now {
			return false
		}

		if t.IsBehind(now) {
			any = true
			return p.decideLateTicks(t, now) || !p.full
		}

		return true
	})

	return any
}

// anyBehind reports whether a task is behind at now. That none is, is remembered until
// one is put into the heap that is: a round has one now, and many commits.
func (s *shardState) anyBehind(now int64) bool {
	if s.onTime == now {
		return false
	}
	if s.due.AnyUpTo(now, func(t *taskstate.Task) bool { return t.IsBehind(now) }) {
		return true
	}

	s.onTime = now

	return false
}

// decideDueTicks decides what is due, in (due, task) order, and moves the watermark as
// far as that went: to now if it was everything.
func (p *plan) decideDueTicks() {
	s, now := p.s, p.now.UnixMilli()
	all := true
	for len(s.due) > 0 && s.due[0].DueAt() <= now {
		t := s.due[0]
		if all = p.decideNextTick(t); !all {
			break
		}

		tick := t.Next
		s.due.Set(t, 0)
		t.Next = tick
		p.popped = append(p.popped, t)
	}

	if len(p.popped) == 0 || p.keepWatermark {
		return
	}

	p.commit.Moves(s.revised)
	mark, last := &p.commit.Watermark, p.popped[len(p.popped)-1]
	if mark.Time, mark.Last = task.At(p.now), ""; !all {
		mark.Time, mark.Last = task.At(taskstate.Instant(last.DueAt())), last.FullName()
	}
}

// serveWaiting looks at what waits, and at attempts that want something.
func (p *plan) serveWaiting() {
	s := p.s

	if p.full {
		return
	}

	looks := s.takeLooks()
	for i, t := range looks {
		t.Looked = false
		p.endAttempts(t)
		p.serveQueue(t)
		p.forgetParts(t)
		p.followUp(t)

		if p.full {
			for _, rest := range looks[i+1:] {
				rest.Looked = false
			}

			for _, rest := range looks[i:] {
				s.addLook(rest)
			}

			return
		}

		s.dropTask(t)
	}
}

// purgeRecords deletes records of tasks that are no more.
func (p *plan) purgeRecords() {
	for key, mod := range p.s.purges {
		if p.full || !p.commit.Fits(1, roomForRecord) {
			return
		}
		p.addEffect(recordPurged{key, mod})
	}
}

// roomForTask is how many bytes a record of a run of t takes at most, about.
func roomForTask(t *taskstate.Task) int {
	if t.Policy != nil && t.Policy.Target.FansOut() {
		return roomForRecord + roomForFan + len(t.Text)
	}
	return roomForRecord + len(t.Text)
}
