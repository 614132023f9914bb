package scheduler

import (
	"container/heap"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// agenda holds which tasks the next plan examines, and when the worker must examine tasks again. It affects
// only when a task is examined, never what is decided. So it stays as it is when a commit fails.
type agenda struct {
	// toExamine are the tasks that the next plan examines, each once: something waits, or an attempt needs
	// attention.
	toExamine []*taskstate.Task
	// later holds tasks that must be examined at a certain time. Each examination adds the task again if another one
	// will be needed.
	later laterTasks
	// examineAllAt is when to examine all tasks with waiting or active runs, or zero. It is for conditions that affect
	// many of them, such as an unavailable etcd.
	examineAllAt time.Time
	lastRound    time.Time // when the last round began
}

// examineAgainAt schedules an examination of the task at the given time or earlier. If an earlier examination is
// scheduled already, it will schedule this one again.
func (a *agenda) examineAgainAt(t *taskstate.Task, at time.Time) {
	a.later.add(t, at.Add(time.Millisecond-time.Nanosecond).UnixMilli())
}

// moveDueTasks moves the tasks whose examination is due to toExamine. now is in Unix milliseconds.
func (a *agenda) moveDueTasks(now int64) {
	for len(a.later.heap) > 0 && a.later.heap[0].at <= now {
		a.examineNext(a.later.pop())
	}
}

// clockWasSetBack records the time of a round, which must have a monotonic reading, and reports whether the clock
// was set back since the previous round. In that case, tasks would be examined too late.
func (a *agenda) clockWasSetBack(now time.Time) bool {
	last := a.lastRound
	a.lastRound = now

	// Sub uses the monotonic readings, unless they are removed.
	passed := now.Round(0).Sub(last.Round(0))

	return !last.IsZero() && (passed < 0 || now.Sub(last)-passed > maxClockDrift)
}

// maxClockDrift is how far the wall clock may fall behind the monotonic clock between two rounds.
const maxClockDrift = 100 * time.Millisecond

// laterTasks is a priority queue of tasks, ordered by the time of their next examination.
type laterTasks struct {
	heap  laterHeap
	notes map[*taskstate.Task]*laterNote
}

// laterNote is when to examine a task.
type laterNote struct {
	task  *taskstate.Task
	at    int64 // Unix milliseconds
	index int   // in the heap
}

// add schedules a task, unless it is already scheduled for an earlier time.
func (l *laterTasks) add(t *taskstate.Task, at int64) {
	if n := l.notes[t]; n != nil {
		if at < n.at {
			n.at = at
			heap.Fix(&l.heap, n.index)
		}
		return
	}

	n := &laterNote{task: t, at: at}
	if l.notes == nil {
		l.notes = map[*taskstate.Task]*laterNote{}
	}

	l.notes[t] = n
	heap.Push(&l.heap, n)
}

// remove removes a task, if it is scheduled.
func (l *laterTasks) remove(t *taskstate.Task) {
	if n := l.notes[t]; n != nil {
		heap.Remove(&l.heap, n.index)
		delete(l.notes, t)
	}
}

// pop removes the task with the earliest time and returns it. There must be one.
func (l *laterTasks) pop() *taskstate.Task {
	n := heap.Pop(&l.heap).(*laterNote)
	delete(l.notes, n.task)

	return n.task
}

// next returns the earliest time in Unix milliseconds, and false if there is none.
func (l *laterTasks) next() (at int64, ok bool) {
	if len(l.heap) == 0 {
		return 0, false
	}
	return l.heap[0].at, true
}

// laterHeap implements heap.Interface for laterTasks.
type laterHeap []*laterNote

func (h laterHeap) Len() int           { return len(h) }
func (h laterHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h laterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *laterHeap) Push(x any) {
	n := x.(*laterNote)
	n.index = len(*h)
	*h = append(*h, n)
}
func (h *laterHeap) Pop() any {
	last := len(*h) - 1
	n := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]

	return n
}

// takeToExamine returns the tasks to examine, ordered by name so that plans are deterministic, and empties the
// list. The caller clears Task.IsListed of each.
func (a *agenda) takeToExamine() []*taskstate.Task {
	tasks := a.toExamine
	a.toExamine = nil
	slices.SortFunc(tasks, taskstate.ByName)

	return tasks
}

// examineAll notes all tasks that have waiting or active runs.
func (s *shardState) examineAll() {
	for _, t := range s.active.Tasks {
		s.examineNext(t)
	}
}

// examineAllBy makes the worker examine all tasks with waiting or active runs at t or earlier.
func (a *agenda) examineAllBy(t time.Time) {
	if a.examineAllAt.IsZero() || t.Before(a.examineAllAt) {
		a.examineAllAt = t
	}
}

// examineNext notes that the next plan must examine the task.
func (a *agenda) examineNext(t *taskstate.Task) {
	if t.SetListed(true) {
		a.toExamine = append(a.toExamine, t)
	}
}

// hasWork reports whether there may be something to decide at now, or a history to read.
func (s *shardState) hasWork(now time.Time) bool {
	return len(s.due) > 0 && s.due[0].DueAt() <= now.UnixMilli() || len(s.toExamine) > 0 || len(s.uncovered) > 0 || len(s.purges) > 0 || len(s.unread) > 0 ||
		len(s.aside.ready(now.UnixMilli())) > 0
}

// rescheduleTask computes the task's next undecided tick from its entry and the watermark, and updates the
// heap. It is called when the entry or the watermark has changed.
func (s *shardState) rescheduleTask(t *taskstate.Task) {
	// During a preload, the watermark is the last record to be loaded. Then all tasks are scheduled.
	if !s.watermarkKnown {
		return
	}

	tick := int64(0)
	if t.Fires() {
		tick = s.NextUndecided(t)
	}

	delete(s.uncovered, t)

	if tick == 0 {
		s.rows.Touch(t)
		s.due.Set(t, 0)
		return
	}

	s.scheduleTick(t, tick)

	// The watermark's time has passed this tick although it is undecided. decideUncovered decides it (G4).
	if !s.CoveredByWatermark(t) && t.DueAt() <= s.Watermark.Time.UnixMilli() {
		s.uncovered[t] = struct{}{}
	}
}

// advanceToNextTick moves a task to the tick after the one that was just decided.
func (s *shardState) advanceToNextTick(t *taskstate.Task) {
	if t.Second == 0 {
		s.rows.Touch(t)
		s.due.Set(t, 0)
		return
	}
	s.scheduleTick(t, t.Second)
}

// scheduleTick puts a task into the heap with the given next tick, and computes the one after it.
func (s *shardState) scheduleTick(t *taskstate.Task, tick int64) {
	t.Second = t.After(tick)
	s.due.Set(t, tick)
	s.rows.Touch(t)

	if s.aside.has(t) {
		s.takeOffHeap(t)
		return
	}

	// The task is behind, so the remembered result of anyBehind is no longer true.
	if s.onTime != 0 && t.IsBehind(s.onTime) {
		s.onTime = 0
	}
}

// loadWatermark computes the next ticks of all tasks from the watermark in a page of a load. The watermark
// is in the last page. A damaged one is ignored here, because the opening of the shard reports it.
func (s *shardState) loadWatermark(b store.ShardBatch) {
	for i := len(b.Events) - 1; i >= 0; i-- {
		if b.Events[i].Kind != record.KindWatermark {
			continue
		}

		if mark, err := record.DecodeWatermark(b.Events[i].Value); err == nil {
			s.setWatermark(mark)
		}

		return
	}
}

// setWatermark sets a watermark that this worker has not written by a plan, and computes the next ticks of
// the tasks that it affects.
func (s *shardState) setWatermark(mark record.Watermark) {
	before := s.Watermark
	s.Watermark = mark

	// It is the first one, or it is lower than the one before: any task may be affected.
	if !s.watermarkKnown || mark.Time.Before(before.Time.Time) || mark.Seen < before.Seen {
		s.watermarkKnown = true
		for t := range s.Tasks.All() {
			s.rescheduleTask(t)
		}
		return
	}

	// Only tasks with a tick up to the new watermark are affected. For all others, the next tick stays the
	// same, whether or not the watermark covers the task.
	for _, t := range s.due.UpTo(mark.Time.UnixMilli()) {
		s.rescheduleTask(t)
	}
}
