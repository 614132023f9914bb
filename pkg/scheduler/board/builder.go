package board

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Builder combines the summaries of a node's workers.
type Builder struct {
	shards []task.BoardShardCounts
	stuck  First[task.BoardShard]
	soon   First[Tick]
	late   First[Tick]
	runs   First[Run]
	gone   First[Run]
	queue  First[Waiting]
	fails  First[FailedTask]
}

// NewBuilder returns a Builder with at most limit items in each list.
func NewBuilder(limit int) *Builder {
	return &Builder{
		stuck: NewFirst(limit, func(a, b task.BoardShard) int {
			return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.ID, b.ID))
		}),
		soon: NewFirst(limit, compareTicks), late: NewFirst(limit, compareTicks),
		runs: NewFirst(limit, OlderRun), gone: NewFirst(limit, OlderRun),
		queue: NewFirst(limit, FirstWait),
		fails: NewFirst(limit, func(a, b FailedTask) int {
			return cmp.Or(NewerFailure(a, b), strings.Compare(a.Task, b.Task))
		}),
	}
}

// AddStuck adds a shard that has undecided ticks and does not answer.
func (s *Builder) AddStuck(shard task.BoardShard) { s.stuck.Add(shard) }

// LastTick returns the due time in Unix milliseconds of the last of the next ticks. It returns false if the
// list is not full yet. Ticks after that time would not be shown.
func (s *Builder) LastTick() (at int64, full bool) {
	if !s.soon.full {
		return 0, false
	}
	return s.soon.items[s.soon.most-1].At, true
}

// compareTicks orders ticks by due time, then by task.
func compareTicks(a, b Tick) int {
	return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.Task, b.Task))
}

// AddUnknown adds a shard that is served, but whose worker has not delivered a summary.
func (s *Builder) AddUnknown(shard int, owner int64) {
	s.shards = append(s.shards, task.BoardShardCounts{Shard: shard, Owner: owner, Unknown: true, BoardCounts: task.BoardCounts{Serving: 1}})
}

// Add adds the summary of one worker.
func (s *Builder) Add(g *Summary) {
	s.shards = append(s.shards, task.BoardShardCounts{Shard: g.Shard, Owner: g.Owner, BoardCounts: task.BoardCounts{
		Serving: 1, Tasks: g.Tasks, Paused: g.Paused, Unreadable: g.Unreadable, FailingCount: g.Failing, OverdueCount: g.Overdue,
		ActiveCount: g.Active, AwayCount: g.Away, WaitingCount: g.Waits, Waiting: g.Waiting,
	}})

	addSorted(&s.soon, g.Soon)
	addSorted(&s.late, g.Late)
	addSorted(&s.runs, g.Runs)
	addSorted(&s.gone, g.Gone)
	addSorted(&s.queue, g.Queue)
	addSorted(&s.fails, g.Failures)
}

// addSorted adds the items of a sorted list. When one of them comes too late for the first list, so do
// those after it.
func addSorted[T any](f *First[T], list []T) {
	for _, v := range list {
		if !f.Add(v) {
			return
		}
	}
}

// Fill writes the result to p.
func (s *Builder) Fill(p *task.BoardPart) {
	p.Shards = append([]task.BoardShardCounts{}, s.shards...)
	slices.SortFunc(p.Shards, func(a, b task.BoardShardCounts) int { return a.Shard - b.Shard })
	p.Stuck = append([]task.BoardShard{}, s.stuck.Sorted()...)
	p.Next, p.Overdue = tickList(s.soon.Sorted()), tickList(s.late.Sorted())
	p.Active, p.Away = runList(s.runs.Sorted()), runList(s.gone.Sorted())
	p.Waits, p.Failing = []task.BoardWait{}, []task.BoardFailing{}
	for _, q := range s.queue.Sorted() {
		namespace, name, _ := strings.Cut(q.Task, "/")
		since, _ := task.TimeOfRunID(q.Run)
		p.Waits = append(p.Waits, task.BoardWait{Namespace: namespace, Task: name, Run: q.Run, Reason: q.Reason, Since: task.At(since), NotBefore: q.NotBefore, Unsent: q.Unsent})
	}

	for _, f := range s.fails.Sorted() {
		namespace, name, _ := strings.Cut(f.Task, "/")
		p.Failing = append(p.Failing, task.BoardFailing{Namespace: namespace, Task: name, Run: f.Run, State: f.State, Reason: f.Reason,
			ExitCode: f.ExitCode, Node: f.Node, EndedAt: task.At(time.UnixMilli(f.Ended)), InARow: f.InARow})
	}
}

// tickList converts ticks to their form in the API.
func tickList(seen []Tick) []task.BoardTick {
	list := make([]task.BoardTick, len(seen))
	for i, s := range seen {
		namespace, name, _ := strings.Cut(s.Task, "/")
		list[i] = task.BoardTick{Namespace: namespace, Task: name, Time: task.At(time.UnixMilli(s.Time))}
		if s.At != s.Time {
			list[i].DueAt = task.At(time.UnixMilli(s.At))
		}
	}

	return list
}

// runList converts runs to their form in the API.
func runList(seen []Run) []task.BoardRun {
	list := make([]task.BoardRun, len(seen))
	for i, s := range seen {
		namespace, name, _ := strings.Cut(s.Task, "/")
		tick, _ := task.TimeOfRunID(s.Run)

		list[i] = task.BoardRun{Namespace: namespace, Task: name, Run: s.Run, Node: s.Node, ScheduledTime: task.At(tick), Ending: s.Ending}
		if s.Known {
			list[i].Since = task.At(time.UnixMilli(s.Since))
		}
	}

	return list
}
