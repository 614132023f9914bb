package board

import (
	"iter"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// Shard is the part of a shard's state that its summary shows.
type Shard struct {
	Census  *taskstate.Census
	Due     taskstate.Heap                       // tasks with a tick to come
	Active  []*taskstate.Task                    // tasks with waiting or active runs
	Failing iter.Seq2[*taskstate.Task, *Failure] // tasks whose last run failed
}

// Answer fills in a summary and delivers it. The cost depends on the size of the view and on how many runs are active,
// waiting or failing, not on the number of tasks.
func (s Shard) Answer(g *Summary) {
	if g.Includes == nil {
		g.Tasks, g.Paused = s.Census.Tasks(g.Now)
		g.Unreadable = s.Census.Of[taskstate.Unreadable]
	}

	s.showTicks(g)
	s.showRuns(g)
	s.showFailures(g)
	g.Shown <- g
}

const (
	// mostOverdue limits how many overdue ticks of a shard are visited before those that are to come.
	mostOverdue = 1000
	// mostHidden limits how many ticks are visited that the caller may not see. The list of the next ticks may be
	// incomplete after that, rather than delay firing.
	mostHidden = 10_000
)

// showTicks adds the shard's next ticks and its overdue ones.
func (s Shard) showTicks(g *Summary) {
	// Ticks that were due before this are overdue. Later ones are normal: they are being decided.
	line := g.Now - OverdueAfter.Milliseconds()
	if g.Includes == nil {
		g.Overdue = s.Due.CountUpTo(line)
	}

	passed, hidden := 0, 0 // overdue ticks that were visited; ticks that are not shown
	s.Due.InOrder(func(t *taskstate.Task) bool {
		at := t.DueAt()
		if at > g.Until || len(g.Soon) == g.Limit || passed > mostOverdue || at > g.Enough.Load() {
			return false
		}

		if !g.Shows(t.FullName()) {
			hidden++
			return hidden < mostHidden
		}

		seen := Tick{Task: t.FullName(), Time: t.Next, At: at}

		switch {
		case at > line:
			g.Soon = append(g.Soon, seen)
		case len(g.Late) < g.Limit:
			g.Late = append(g.Late, seen)
			fallthrough
		default:
			passed++
		}

		if g.Includes != nil && at <= line {
			g.Overdue++
		}

		return true
	})
}

// showRuns adds the active and waiting runs of the shard.
func (s Shard) showRuns(g *Summary) {
	runs, gone := NewFirst(g.Limit, OlderRun), NewFirst(g.Limit, OlderRun)
	queue := NewFirst(g.Limit, FirstWait)

	for _, t := range s.Active {
		if !g.Shows(t.FullName()) {
			continue
		}

		g.Active += len(t.Activity.Active)
		g.Waits += len(t.Activity.Queue)
		for _, a := range t.Activity.Active {
			r := Run{Task: t.FullName(), Run: a.Run, Node: a.Node, Since: a.Since, Known: a.Since != 0, Ending: a.Watch != nil && a.Watch.Asked}
			if at, ok := task.TimeOfRunID(a.Run); ok && !r.Known {
				r.Since = at.UnixMilli()
			}

			// The node of the attempt is away.
			if a.Watch != nil && !a.Watch.Since.IsZero() {
				g.Away++
				gone.Add(r)
				continue
			}

			runs.Add(r)
		}

		// held means that the overlap policy would not let another run of the task start now.
		held := t.Policy != nil && len(t.Activity.Active) > 0 && !t.Policy.Rule.Free(t.Doing(g.Now))

		for _, q := range t.Activity.Queue {
			if q.UnderWay() {
				// A run with parts does not wait: its parts are among the active ones.
				g.Waits--
				continue
			}

			if g.Waiting == nil {
				g.Waiting = map[string]int{}
			}

			// If the record says that no node was free, a node has since taken another run of the task.
			reason := q.Reason
			if held && reason == task.ReasonNoNode {
				reason = task.ReasonOverlap
			}

			g.Waiting[reason]++
			queue.Add(Waiting{Task: t.FullName(), Run: q.ID, Reason: reason, NotBefore: q.NotBefore, Unsent: q.Unsent})
		}
	}

	g.Runs, g.Gone, g.Queue = runs.Sorted(), gone.Sorted(), queue.Sorted()
}

// showFailures adds the tasks whose last run failed.
func (s Shard) showFailures(g *Summary) {
	newest := NewFirst(g.Limit, NewerFailure)

	for t, f := range s.Failing {
		if !g.Shows(t.FullName()) {
			continue
		}

		g.Failing++
		newest.Add(FailedTask{Task: t.FullName(), Failure: f})
	}

	g.Failures = newest.Sorted()
}
