package scheduler

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// A plan is one decision: what the shard's next commit writes, and what changes in memory if that commit
// succeeds. It changes memory in three ways:
//
//   - Claims, entry changes and effects describe what the commit writes. They change memory only after the
//     commit has succeeded (applyCommitted).
//   - Reservations take resources for which shards compete: slots of nodes and catch-up tokens. They are
//     taken while deciding, and given back if the commit does not succeed (applyAbandoned).
//   - Notes say when to examine a task again (agenda), and which histories are requested. They are kept
//     whatever the outcome of the commit. They affect only when something is examined, never what is
//     decided.
//
// Some observations are kept as well: since when the node of a part has been away (Parental.Away), since
// when a part has had no record (Parental.Missing), which records of parts can be deleted, and that a range
// of skipped ticks has ended. So are the results of checks against the records of namespaces
// (nslimits.Checks). All but the ends of ranges are true whatever the outcome of the commit. If one of these
// is wrong, one more history record is written.
//
// A worker has one plan at a time. It applies no event until the outcome of the plan's commit is known,
// because claims and effects point into the state from which they were made.
type plan struct {
	s *shardState
	settings
	now time.Time // the time of the round; settings.clock is that of this plan
	// commit collects the writes and their comparisons. It is nil once the plan is settled: applied,
	// abandoned or empty.
	commit *store.Commit

	taskChanges
	claims  []claim           // attempts of ticks and waiting runs that the plan dispatches
	effects []effect          // all other changes, in the order in which they apply
	popped  []*taskstate.Task // tasks off the heap, because the plan decides their next tick
	reservations

	// afterCommit are tasks to examine again after the commit has succeeded. If it fails, all tasks
	// that the plan changes are examined.
	afterCommit []*taskstate.Task
	counts      outcomes // for metrics and the board

	// notices are logged when the commit has succeeded. deletions are requested whatever its outcome.
	notices   []notice
	deletions []*retention.Deletion

	// full means that the plan takes no more changes: the commit has no room, or it is for a task that is set
	// aside.
	full bool
	// alone means that the plan is for a task that is set aside.
	alone bool
	// keepWatermark means that due ticks are recorded as decided in the from of their entries, and the time
	// of the watermark stays. Such a commit does not compare the shard's revised key (see revised.go).
	keepWatermark bool
	attempt       task.Assigned // scratch space for building claims, reused for each
	namespace     planNamespace // the namespace of the task that was examined last
}

// claim is an attempt that a plan puts into an inbox.
type claim struct {
	t    *taskstate.Task
	run  string // run id
	node string
	late time.Duration // how late its tick is decided; negative for a run that has waited

	probeUntil int64 // see taskstate.Attempt
}

// eachLateness yields how late each dispatched run is. Negative values are runs that have waited.
func eachLateness(claims []claim) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for i := range claims {
			if !yield(claims[i].late) {
				return
			}
		}
	}
}

// outcomes counts ticks by outcome, and attempts that were declared lost.
type outcomes struct{ run, queued, skipped, missed, lost int64 }

// buildPlan returns a plan with as many decisions as fit into one commit. now is the time of the round. The
// caller must settle the plan before the next call: with applyCommitted, applyConflict or applyAbandoned,
// or by setting its commit to nil if it is empty.
func (s *shardState) buildPlan(now time.Time, as settings) *plan {
	p := s.newPlan(now, as)

	// Commits for other tasks must not delay tasks that are set aside forever.
	if s.aside.commits >= maxCommitsBetweenRetries && p.decideSetAside() {
		return p
	}

	// First decide what is overdue: ticks of entries that the watermark does not cover, then tasks that are
	// behind. Both are recorded in the from of the entries, so the time of the watermark stays. If a commit
	// contains any of them, other due ticks wait for the next one. So the watermark never passes an
	// undecided tick (G4).
	if owed := p.decideUncovered(); !owed && !p.catchUp() {
		p.decideDueTicks()
	}

	p.serveWaiting()
	p.purgeRecords()

	if p.commit.Empty() {
		p.decideSetAside()
	}

	return p
}

// newPlan returns an empty plan, which reuses the memory of the previous one. That is safe because a worker
// has one plan at a time. The slices are cleared so that they keep no tasks or records alive.
func (s *shardState) newPlan(now time.Time, as settings) *plan {
	s.mustBeSettled()

	// Clear the whole slices, not only their lengths.
	old := &s.lastPlan
	clear(old.changes)
	clear(old.claims)
	clear(old.effects)
	clear(old.popped)
	clear(old.reserved)
	clear(old.afterCommit)
	clear(old.joined)
	clear(old.notices)
	clear(old.deletions)

	*old = plan{
		s: s, settings: as, now: now, keepWatermark: s.overtaken >= maxOvertaken || s.aside.anyDue(now.UnixMilli()),
		commit:      s.commits.NewCommit(s.Shard, s.fences, s.WatermarkRev, s.Watermark),
		taskChanges: taskChanges{old.changes[:0]}, claims: old.claims[:0], effects: old.effects[:0], popped: old.popped[:0],
		reservations: reservations{placement: s.placement, pace: s.tokens, line: &s.line, reserved: old.reserved[:0], joined: old.joined[:0]},
		afterCommit:  old.afterCommit[:0], notices: old.notices[:0], deletions: old.deletions[:0],
	}
	old.commit.Freezes = as.freezesRead

	return old
}

// applyCommitted applies a plan whose commit has succeeded at revision rev. It must be called before any
// event is applied. The commit's own events arrive later through the watch and have no further effect,
// because their mod revisions are not newer.
func (s *shardState) applyCommitted(p *plan, rev int64) {
	s.WatermarkRev, s.Watermark = rev, p.commit.Watermark

	switch {
	case len(p.popped) == 0: // no due tick was decided, so the commit proves nothing about edits
	case s.overtaken >= maxOvertaken:
		s.overtaken = maxOvertaken - 1 // the next plan tries once to move the watermark
	case p.keepWatermark: // for a task that is set aside
	default:
		s.overtaken = 0
	}

	// The revision of the commit is the create revision of the inbox records, and thus the attempts'
	// fencing token.
	for _, c := range p.claims {
		s.addActiveAttempt(c.t, &taskstate.Attempt{Run: c.run, Node: c.node, Create: rev, Since: p.now.UnixMilli(), ProbeUntil: c.probeUntil, Pool: c.t.Pool()})
		c.t.NoteTurn(c.node)
	}

	// Entries come before effects, because an effect may use what the entry counts from now on.
	for i := range p.changes {
		if c := &p.changes[i]; c.entry != nil {
			c.entry.applyTo(c.task, rev)
		}
	}

	for _, e := range p.effects {
		e.applyTo(s, rev, p.now)
	}

	// Now that all changes are applied, find the next tick of each task.
	for _, t := range p.popped {
		s.advanceToNextTick(t)
		s.noteDecided(t)
	}

	s.aside.commits++

	for i := range p.changes {
		c := &p.changes[i]
		if c.entry != nil {
			s.rows.Touch(c.task)
			s.rescheduleTask(c.task)
			s.noteDecided(c.task)
		}

		c.task.Failed = 0
		s.endSetAside(c.task)

		// The task's records can be committed after all.
		if len(s.reopenedFor) > 0 {
			delete(s.reopenedFor, c.task.FullName())
		}
	}

	// The watermark's seen may have moved past some entries.
	for t := range s.uncovered {
		if s.CoveredByWatermark(t) {
			delete(s.uncovered, t)
		}
	}

	for _, t := range p.afterCommit {
		s.examineNext(t)
	}

	s.notices = append(s.notices, p.notices...)
	s.rows.Flush(s.applied)

	// Mark the plan as settled, and release the commit's memory.
	p.commit = nil
}

// applyAbandoned gives back what the plan has reserved. Nothing of it was written, and nothing of it was
// applied to memory. All tasks that it would have changed are examined again.
func (s *shardState) applyAbandoned(p *plan) {
	p.giveBack()

	for _, t := range p.joined {
		s.examineNext(t)
	}

	// The ticks are still undecided, so they go back into the heap.
	for _, t := range p.popped {
		s.due.Set(t, t.Next)
	}

	for i := range p.changes {
		s.examineNext(p.changes[i].task)
	}

	p.commit = nil
}

// examineAfterCommit makes the worker examine t again after the commit has succeeded.
func (p *plan) examineAfterCommit(t *taskstate.Task) { p.afterCommit = append(p.afterCommit, t) }

// reserveRoom reserves room in the commit for a change of task t with up to the given number of records and
// bytes. The caller must then add the change. It returns false if the commit is full. From then on the plan
// is full.
func (p *plan) reserveRoom(t *taskstate.Task, records, bytes int) bool {
	return p.admitChange(t, p.commit.Fits(records, bytes))
}

// admitChange adds t to the tasks that the plan changes, if room is true. t becomes the subject of the comparisons that follow, so their
// failures count for t.
func (p *plan) admitChange(t *taskstate.Task, room bool) bool {
	if !room {
		p.full = true
	}

	if p.full {
		return false
	}

	p.changeOf(t)
	p.commit.Subject = int(t.Change)

	return true
}

// roomForRecord is a generous estimate of the size of a record in bytes, without the action.
const roomForRecord = 2048

// decideUncovered decides the ticks up to the watermark of entries that it does not cover, in the order in
// which the entries were created. It moves the watermark's seen past every entry that has none left, and
// reports whether there were any such ticks.
//
// The watermark says nothing about a task that was created after seen. So these ticks are undecided
// although they are before the watermark's time, and would be lost if seen moved past them (G4).
func (p *plan) decideUncovered() (owed bool) {
	s := p.s
	if len(s.uncovered) == 0 {
		p.commit.Watermark.Seen = max(s.Watermark.Seen, s.seenUpTo())
		return false
	}

	seen, mark := s.seenUpTo(), s.Watermark.Time.UnixMilli()

	// The clock of an earlier owner may have been ahead of this one. Ticks after now wait until they are
	// due (G6).
	upTo := min(mark, p.now.UnixMilli())

	for _, t := range slices.SortedFunc(maps.Keys(s.uncovered), byCreation) {
		// Its ticks stay undecided, and seen must not cover it.
		if s.aside.has(t) {
			seen = min(seen, t.Create-1)
			continue
		}

		// done means that no undecided tick up to the watermark is left, so seen may cover the entry.
		done := false
		if t.DueAt() <= upTo {
			owed = true

			// If upTo is before the watermark, the entry is done only if its next tick is due after the
			// watermark.
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

// byCreation orders tasks by the create revision of their entries, then by name.
func byCreation(a, b *taskstate.Task) int {
	return cmp.Or(cmp.Compare(a.Create, b.Create), strings.Compare(a.FullName(), b.FullName()))
}

// catchUp decides the ticks of tasks that are behind, the oldest tick first, and reports whether there were
// any. It visits only as many tasks as the commit has room for; the next commits decide the rest.
func (p *plan) catchUp() (any bool) {
	now := p.now.UnixMilli()
	if !p.s.anyBehind(now) {
		return false
	}

	// Visit the due tasks in order, and decide those that are behind, until the commit is full.
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

// anyBehind reports whether a task is behind at now. A negative result is remembered (onTime) until a task
// that is behind enters the heap, because one round has a single now and may take many commits.
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

// decideDueTicks decides the ticks that are due, in (due time, task) order. It moves the watermark to now
// if it has decided all of them, otherwise to the last one that it has decided. So the watermark covers
// exactly the decided ticks (G3, G4).
func (p *plan) decideDueTicks() {
	s, now := p.s, p.now.UnixMilli()
	all := true
	for len(s.due) > 0 && s.due[0].DueAt() <= now {
		t := s.due[0]
		if all = p.decideNextTick(t); !all {
			break
		}

		// Set removes the task from the heap and clears Next. Restore Next, because applyAbandoned needs
		// it.
		tick := t.Next
		s.due.Set(t, 0)
		t.Next = tick
		p.popped = append(p.popped, t)
	}

	if len(p.popped) == 0 || p.keepWatermark {
		return
	}

	// The watermark moves. The commit fails if an edit that this worker has not seen gave a task ticks
	// before it.
	p.commit.Moves(s.revised)
	mark, last := &p.commit.Watermark, p.popped[len(p.popped)-1]
	if mark.Time, mark.Last = task.At(p.now), ""; !all {
		mark.Time, mark.Last = task.At(taskstate.Instant(last.DueAt())), last.FullName()
	}
}

// serveWaiting examines the tasks that are noted in the agenda. If the commit is full, the tasks that are
// left stay noted, including the one at which it became full.
func (p *plan) serveWaiting() {
	s := p.s

	if p.full {
		return
	}

	tasks := s.takeToExamine()
	for i, t := range tasks {
		t.SetListed(false)

		// It has a plan of its own.
		if s.aside.has(t) {
			continue
		}

		p.examineTask(t)

		// Keep this task, which may be unfinished, and all that follow.
		if p.full {
			for _, rest := range tasks[i+1:] {
				rest.SetListed(false)
			}

			for _, rest := range tasks[i:] {
				s.examineNext(rest)
			}

			return
		}

		s.dropTask(t)
	}
}

// examineTask ends or cancels attempts of a task, serves its queue, deletes records of parts, and draws
// conclusions from how runs ended, as far as there is room.
func (p *plan) examineTask(t *taskstate.Task) {
	p.endAttempts(t)
	p.serveQueue(t)
	p.forgetParts(t)
	p.followUp(t)
}

// purgeRecords deletes history records whose task no longer exists, as far as there is room.
func (p *plan) purgeRecords() {
	p.commit.Subject = store.NoSubject

	for key, mod := range p.s.purges {
		if p.full || !p.commit.Fits(1, roomForRecord) {
			return
		}
		p.addEffect(recordPurged{key, mod})
	}
}

// roomForTask is an estimate of the largest size in bytes of a run record of t. A record in an inbox
// contains the action, which is part of t.Text.
func roomForTask(t *taskstate.Task) int {
	if t.Policy != nil && t.Policy.Target.FansOut() {
		return roomForRecord + roomForFan + len(t.Text)
	}
	return roomForRecord + len(t.Text)
}
