package scheduler

import (
	"cmp"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// boardBuilder is what the workers of a node show, put together.
type boardBuilder struct {
	sum   shardSummary
	stuck first[task.BoardShard]
	soon  first[boardTick]
	late  first[boardTick]
	runs  first[boardRun]
	gone  first[boardRun]
	queue first[boardWaiting]
	fails first[boardFailure]
}

func newBoardBuilder(limit int) *boardBuilder {
	return &boardBuilder{
		sum: shardSummary{waiting: map[string]int{}},
		stuck: first[task.BoardShard]{most: limit, before: func(a, b task.BoardShard) int {
			return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.ID, b.ID))
		}},
		soon: first[boardTick]{most: limit, before: sooner}, late: first[boardTick]{most: limit, before: sooner},
		runs: first[boardRun]{most: limit, before: olderRun}, gone: first[boardRun]{most: limit, before: olderRun},
		queue: first[boardWaiting]{most: limit, before: firstWait},
		fails: first[boardFailure]{most: limit, before: func(a, b boardFailure) int {
			return cmp.Or(cmp.Compare(b.ended, a.ended), strings.Compare(a.task, b.task))
		}},
	}
}

func sooner(a, b boardTick) int {
	return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.task, b.task))
}

func (s *boardBuilder) add(g *shardSummary) {
	sum := &s.sum
	sum.tasks, sum.paused, sum.unreadable, sum.failing = sum.tasks+g.tasks, sum.paused+g.paused, sum.unreadable+g.unreadable, sum.failing+g.failing
	sum.overdue, sum.active, sum.away, sum.waits = sum.overdue+g.overdue, sum.active+g.active, sum.away+g.away, sum.waits+g.waits
	for reason, n := range g.waiting {
		sum.waiting[reason] += n
	}
	take(&s.soon, g.soon)
	take(&s.late, g.late)
	take(&s.runs, g.runs)
	take(&s.gone, g.gone)
	take(&s.queue, g.queue)
	take(&s.fails, g.failures)
}

// take adds what is sorted: when one is too late, so are those after it.
func take[T any](f *first[T], list []T) {
	for _, v := range list {
		if !f.add(v) {
			return
		}
	}
}

// fill writes what was collected into a part.
func (s *boardBuilder) fill(p *task.BoardPart) {
	sum := &s.sum
	p.Tasks, p.Paused, p.Unreadable, p.FailingCount, p.OverdueCount = sum.tasks, sum.paused, sum.unreadable, sum.failing, sum.overdue
	p.ActiveCount, p.AwayCount, p.WaitingCount, p.Waiting = sum.active, sum.away, sum.waits, sum.waiting
	p.Stuck = append([]task.BoardShard{}, s.stuck.sorted()...)
	p.Next, p.Overdue = tickList(s.soon.sorted()), tickList(s.late.sorted())
	p.Active, p.Away = runList(s.runs.sorted()), runList(s.gone.sorted())
	p.Waits, p.Failing = []task.BoardWait{}, []task.BoardFailing{}
	for _, q := range s.queue.sorted() {
		namespace, name, _ := strings.Cut(q.task, "/")
		since, _ := task.TimeOfRunID(q.run)
		p.Waits = append(p.Waits, task.BoardWait{Namespace: namespace, Task: name, Run: q.run, Reason: q.reason, Since: task.At(since), NotBefore: q.notBefore})
	}
	for _, f := range s.fails.sorted() {
		namespace, name, _ := strings.Cut(f.task, "/")
		p.Failing = append(p.Failing, task.BoardFailing{Namespace: namespace, Task: name, Run: f.run, State: f.state, Reason: f.reason,
			ExitCode: f.exitCode, Node: f.node, EndedAt: f.endTime(), InARow: f.inARow})
	}
}

func tickList(seen []boardTick) []task.BoardTick {
	list := make([]task.BoardTick, len(seen))
	for i, s := range seen {
		namespace, name, _ := strings.Cut(s.task, "/")
		list[i] = task.BoardTick{Namespace: namespace, Task: name, Time: task.At(instant(s.tick))}
		if s.at != s.tick {
			list[i].DueAt = task.At(instant(s.at))
		}
	}
	return list
}

func runList(seen []boardRun) []task.BoardRun {
	list := make([]task.BoardRun, len(seen))
	for i, s := range seen {
		namespace, name, _ := strings.Cut(s.task, "/")
		tick, _ := task.TimeOfRunID(s.run)
		list[i] = task.BoardRun{Namespace: namespace, Task: name, Run: s.run, Node: s.node, ScheduledTime: task.At(tick), Ending: s.ending}
		if s.known {
			list[i].Since = task.At(instant(s.since))
		}
	}
	return list
}
