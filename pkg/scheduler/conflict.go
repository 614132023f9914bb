package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// applyConflict abandons a plan whose commit failed a comparison, and applies the records that have
// changed. It returns errReload if the shard has to be opened again.
func (s *shardState) applyConflict(p *plan, c *store.Conflict, now time.Time) error {
	s.applyAbandoned(p)
	s.takeConflict(p, c, now)
	s.countFailedCommits(p, c)
	err := s.setAsideConflicting(p, now)
	s.rows.Flush(s.applied)

	return err
}

// takeConflict applies the records that a failed commit found changed, so that the next plan differs from this
// one. The watch may deliver them much later. An entry that was deleted or created again is forgotten until the
// watch delivers its current state.
func (s *shardState) takeConflict(p *plan, c *store.Conflict, now time.Time) {
	// Attempts come first: a queue record may show that one of them has ended, and that attempt must not be
	// considered active afterwards.
	for _, key := range c.Runs {
		if t := s.takeConflictingAttempt(key); t != nil {
			// The watch normally delivers the change before this.
			s.agenda.examineAgainAt(t, now.Add(100*time.Millisecond))
		}
	}

	for _, ev := range c.Records {
		t := s.records.TaskOf(&ev)

		switch ev.Kind {
		case record.KindEntry:
			// If the entry was created again, it belongs to another task of the same name.
			if ev.Deleted || ev.Create != t.Create {
				s.forgetTask(t)
			} else {
				s.applyEntry(&ev)
			}
		case record.KindQueued:
			s.applyQueued(&ev, now)

			// Events of the record that are still on their way are older than this read. They must not put the
			// run back into the queue.
			if ev.Deleted {
				s.gone[t.FullName()+"/"+ev.Run] = ev.Mod
			}
		case record.KindPart:
			delete(s.purges, ev.Key)
			s.applyPart(&ev)
		case record.KindTrigger:
			s.applyTrigger(&ev)

			// An older event of the record may still be on its way. It must not bring the trigger back.
			if ev.Deleted {
				s.gone[ev.Key] = ev.Mod
			}
		case record.KindEnded, record.KindDead:
			// If the record still exists, the watch or the reconciliation reports it again.
			delete(s.purges, ev.Key)

			// A range of skipped ticks or triggers cannot be extended: its record has changed or was deleted.
			s.endSpan(t)
			s.endTriggerSpan(t)
		}

		s.agenda.examineNext(t)
	}

	// Freezes may allow or forbid runs of any task.
	if c.Freezes != nil {
		s.examineAll()
	}

	// The session of a node has changed, but the known nodes do not show it yet. Leave the node out until
	// they do. Attempts on that node are examined from the start, because what was read of them belongs to
	// the old session.
	for _, node := range c.Nodes {
		s.agenda.examineAllBy(now.Add(placement.Suspicion))

		for _, slot := range p.reserved.slots {
			if slot.node.Name == node {
				s.ports.placement.Suspect(node, slot.node.Revision, now)
			}
		}

		for i := range p.changes {
			s.watchAnew(p.changes[i].task, func(a *state.Attempt) bool { return a.Node == node })
		}
	}
}

// takeConflictingAttempt handles the key of an inbox record that a rejected commit found changed, deleted,
// or existing where the commit wanted to create it. If the run is not known to be active, the record
// exists, whoever created it, so the run counts as active from now on. takeConflictingAttempt
// returns the run's task, or nil if the task is not known.
func (s *shardState) takeConflictingAttempt(key string) *state.Task {
	k, ok := s.records.Keys.ParseRun(key)
	if !ok {
		return nil
	}

	t := s.records.Tasks.Get(k.Ref.String())
	if t == nil {
		return nil
	}

	if t.Holds(k.Run) {
		// The attempt is known: what was read of it is out of date.
		s.watchAnew(t, func(a *state.Attempt) bool { return a.Run == k.Run })
		return t
	}

	s.addFoundAttempt(t, state.Attempt{Run: k.Run, Node: k.Node})

	return t
}

// forgetTask drops an entry that was deleted, or that now belongs to another task, until the watch delivers
// its current state.
func (s *shardState) forgetTask(t *state.Task) {
	t.Bad = false
	s.noEntry(t)
}

// watchAnew discards what was read of the attempts for which the function returns true. They are read again
// from the start, so the time until an attempt is lost starts over.
func (s *shardState) watchAnew(t *state.Task, which func(*state.Attempt) bool) {
	for _, a := range t.Active() {
		if which(a) {
			a.Watch = nil
			s.rows.Touch(t)
		}
	}
}

// A commit contains decisions for many tasks. If one of its comparisons fails, none of it is written, so a task
// whose comparisons fail repeatedly would stop all others (G19). takeConflict applies the records that it reads,
// but this is not always enough: an edit may come before each commit, or a commit may compare a key that this
// worker does not hold in memory.
//
// So a task is set aside after maxFailedCommitsTogether failed commits in a row. Plans for other tasks omit it, and it is
// committed alone, after the others. Each further failure doubles the time until the next attempt, up to
// maxRetryWait. An event or a repair of one of the task's records ends the wait. The task becomes a normal task
// again when a commit for it succeeds, or when nothing is left to decide for it.
//
// The ticks of a task that is set aside stay undecided. When a commit succeeds, its missed policy decides them (G4).
// While one of them is due, the watermark's time does not move, and the entries of the other tasks record that
// their ticks are decided (plan.keepWatermark).

const (
	// maxFailedCommitsTogether is how many commits in a row may fail for a task before it is set aside.
	maxFailedCommitsTogether = 2
	// minRetryWait and maxRetryWait limit the time between two commits for a task that is set aside. The
	// first commit is made in the same round.
	minRetryWait = 100 * time.Millisecond
	maxRetryWait = 5 * time.Second
	// maxFailedCommitsBeforeReload is how many commits in a row may fail for a task before the shard is opened again,
	// which happens once. The worker's state of the task may be wrong.
	maxFailedCommitsBeforeReload = 20
	// maxCommitsBetweenRetries is how many commits for other tasks may precede an attempt that is due for a task
	// that is set aside.
	maxCommitsBetweenRetries = 20
)

// setAsideTasks are the tasks that are set aside. They are not in the heap of due tasks.
type setAsideTasks struct {
	retryAt map[*state.Task]int64 // when to commit for the task again, in Unix ms; 0: now
	commits int                   // successful commits for others since the last one for such a task
}

func (a *setAsideTasks) has(t *state.Task) bool {
	if len(a.retryAt) == 0 {
		return false
	}

	_, ok := a.retryAt[t]

	return ok
}

// ready returns the tasks whose next attempt is due at now (Unix milliseconds). The longest waiting come first.
func (a *setAsideTasks) ready(now int64) []*state.Task {
	var list []*state.Task
	for t, at := range a.retryAt {
		// More time left than the maximum means that the clock was set back.
		if at <= now || at-now > maxRetryWait.Milliseconds() {
			list = append(list, t)
		}
	}

	slices.SortFunc(list, func(x, y *state.Task) int {
		return cmp.Or(cmp.Compare(a.retryAt[x], a.retryAt[y]), state.ByName(x, y))
	})

	return list
}

// nextRetry returns when the next attempt for any of the tasks is due, in Unix milliseconds, or false if there are
// no tasks.
func (a *setAsideTasks) nextRetry() (at int64, ok bool) {
	at = math.MaxInt64
	for _, retry := range a.retryAt {
		at = min(at, retry)
	}

	return at, len(a.retryAt) > 0
}

// anyDue reports whether a tick of one of the tasks is due at now (Unix milliseconds).
func (a *setAsideTasks) anyDue(now int64) bool {
	for t := range a.retryAt {
		if t.Next != 0 && t.DueAt() <= now {
			return true
		}
	}

	return false
}

// countFailedCommits counts a failed commit for each task that caused the failure. If the conflict does not show the
// cause, the failure counts for all tasks of the plan. After a second failure, each of them is committed alone, and
// only the cause fails again.
func (s *shardState) countFailedCommits(p *plan, c *store.Conflict) {
	count := func(t *state.Task) {
		if t.FailedCommits < math.MaxUint8 {
			t.FailedCommits++
		}
	}

	for _, i := range c.Subjects {
		count(p.changes[i].task)
	}

	if !c.Empty() {
		return
	}

	for i := range p.changes {
		count(p.changes[i].task)
	}

	// Deletions of leftover records belong to no task. The reconciliation finds the records again.
	for _, e := range p.effects {
		if e, ok := e.(recordPurged); ok {
			delete(s.purges, e.key)
		}
	}
}

// setAsideConflicting sets aside the tasks of a failed plan with too many failed commits in a row. It returns
// errReload if the shard must be opened again because of one of them.
func (s *shardState) setAsideConflicting(p *plan, now time.Time) error {
	for i := range p.changes {
		t := p.changes[i].task
		if t.FailedCommits < maxFailedCommitsTogether {
			continue
		}

		name := t.FullName()
		if t.FailedCommits >= maxFailedCommitsBeforeReload && !s.reopenedFor[name] {
			s.reopenedFor[name] = true
			return fmt.Errorf("%w: commits for task %s fail", errReload, name)
		}

		// The first commit for the task alone is made in this round.
		retryAt := int64(0)
		if wait := retryWait(t.FailedCommits); wait > 0 {
			retryAt = now.Add(wait).UnixMilli()
		}

		if t.FailedCommits == maxFailedCommitsTogether+1 && !s.reopenedFor[name] {
			s.addNotice(notice{kind: taskSetAside, task: name})
		}

		s.aside.retryAt[t], s.aside.commits = retryAt, 0
		s.takeOffHeap(t)
	}

	return nil
}

// retryWait returns the time until the next commit for a task after this many failed commits in a row.
func retryWait(failed uint8) time.Duration {
	if failed <= maxFailedCommitsTogether {
		return 0
	}

	return min(minRetryWait<<min(failed-maxFailedCommitsTogether-1, 10), maxRetryWait)
}

// takeOffHeap removes a task from the heap of due tasks, and keeps its next tick.
func (s *shardState) takeOffHeap(t *state.Task) {
	next := t.Next
	s.due.Set(t, 0)
	t.Next = next
}

// endSetAside makes t a normal task again if it is set aside.
func (s *shardState) endSetAside(t *state.Task) {
	if !s.aside.has(t) {
		return
	}

	delete(s.aside.retryAt, t)
	s.aside.commits = 0
	s.rescheduleTask(t)
	s.agenda.examineNext(t)
}

// retrySetAside ends the wait of a task that is set aside, because one of its records has changed.
func (s *shardState) retrySetAside(t *state.Task) {
	if s.aside.has(t) {
		s.aside.retryAt[t] = 0
	}
}

// examineSetAside notes the tasks that are set aside and whose attempt is due, so that the data for their decisions
// is read before the plan.
func (s *shardState) examineSetAside(now time.Time) {
	for _, t := range s.aside.ready(now.UnixMilli()) {
		s.agenda.examineNext(t)
	}
}

// endIdleSetAside is called after an empty plan, which had nothing to decide for any of the tasks that are set aside
// and whose attempt is due. They become normal tasks again, and their failures no longer count: what made their
// commits fail was applied, and left nothing to decide.
func (s *shardState) endIdleSetAside(now time.Time) {
	for _, t := range s.aside.ready(now.UnixMilli()) {
		delete(s.aside.retryAt, t)
		t.FailedCommits = 0
		s.rescheduleTask(t)
	}
}

// decideSetAside decides for one task that is set aside. The plan must be empty. It reports whether the plan
// contains changes now. The entry records up to when the task's ticks are decided.
func (p *plan) decideSetAside() bool {
	now, keepWatermark := p.now.UnixMilli(), p.keepWatermark
	p.full, p.keepWatermark = false, true

	for _, t := range p.s.aside.ready(now) {

		if t.Next != 0 && t.DueAt() <= now {
			if _, uncovered := p.s.uncovered[t]; uncovered || t.IsBehind(now) {
				p.decideLateTicks(t, now)
			} else {
				p.decideNextTick(t)
			}
		}

		p.examineTask(t)

		if !p.commit.Empty() {
			p.full, p.alone = true, true
			return true
		}
	}

	p.keepWatermark = keepWatermark

	return false
}
