package scheduler

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/board"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// summaryTimeout is how long a worker may take to deliver its summary. One that takes longer is waiting
	// for etcd, which the board shows as well.
	summaryTimeout = 250 * time.Millisecond
	// boardAge is how long a part of the board may be shown again. So the workers make a summary at most
	// twice a second, however many users look at the same view.
	boardAge = 500 * time.Millisecond
)

// boardCache holds the last part of the board, and with which arguments it was made. Its lock is held while
// a part is made, so callers at the same time share one.
type boardCache struct {
	mu    sync.Mutex
	span  time.Duration
	limit int
	// within are the namespaces of the last part, joined: a part is never shown to somebody who may read others.
	within string
	at     time.Time
	part   task.BoardPart
	// shown holds each worker's last summary, for when the worker does not answer in time.
	shown map[*worker]*board.Summary
}

// Part returns what this node adds to the board. The workers make it from memory, which takes each some
// microseconds. If a worker is waiting for etcd, Part takes summaryTimeout.
func (e *Engine) Part(ctx context.Context, q task.BoardQuery) task.BoardPart {
	b := &e.board
	b.mu.Lock()
	defer b.mu.Unlock()

	within := withinKey(q.Within)
	if age := time.Since(b.at); b.span == q.Span && b.limit == q.Limit && b.within == within && age <= boardAge {
		return b.part
	}

	part := e.readBoard(ctx, q)

	// If ctx has ended, the part is incomplete. Do not keep it.
	if ctx.Err() == nil {
		b.part, b.span, b.limit, b.within, b.at = part, q.Span, q.Limit, within, time.Now()
	}

	return part
}

// withinKey returns a text that is the same for the same namespaces only. No name contains a comma.
func withinKey(within []string) string {
	if within == nil {
		return "*"
	}
	return strings.Join(within, ",")
}

// readBoard requests a summary of each worker, and combines them with the last summaries of those that do
// not answer in time.
func (e *Engine) readBoard(ctx context.Context, q task.BoardQuery) task.BoardPart {
	clock := e.cfg.Now()
	now := clock.UnixMilli()
	part := task.BoardPart{Node: e.cfg.Node, At: task.At(clock)}
	var includes func(string) bool
	if q.Within == nil {
		part.Tally = e.recent.Tally(clock) // of all namespaces
	} else {
		includes = func(name string) bool {
			namespace, _, _ := strings.Cut(name, "/")
			return q.Includes(namespace)
		}
	}

	e.mu.Lock()

	workers := make([]*worker, 0, len(e.workers))
	for _, w := range e.workers {
		workers = append(workers, w)
	}
	e.mu.Unlock()

	// waits holds the workers, by shard, whose summary has not arrived. enough is the due time, in Unix
	// milliseconds, after which further ticks would not be shown: workers that answer later need not list
	// them.
	seen := board.NewBuilder(q.Limit)
	answers, waits, shown := make(chan *board.Summary, len(workers)), map[int]*worker{}, make(map[*worker]*board.Summary, len(workers))
	asked := 0
	var enough atomic.Int64
	enough.Store(math.MaxInt64)

	for _, w := range workers {
		g := &board.Summary{Shard: w.state.Shard, Now: now, Until: now + q.Span.Milliseconds(), Limit: q.Limit, Includes: includes, Enough: &enough, Shown: answers}

		if w.serving.Load() {
			select {
			case <-w.summaryRequests:
				// The worker has not answered the previous request. Nobody waits for it any more, so replace
				// it.
			default:
			}

			w.summaryRequests <- g
			asked++
		}

		waits[w.state.Shard] = w
	}

	patience := time.NewTimer(summaryTimeout)
	defer patience.Stop()

	for patient := true; patient && asked > 0; {
		select {
		case g := <-answers:
			asked--
			shown[waits[g.Shard]] = g
			delete(waits, g.Shard)
			seen.Add(g)

			if last, full := seen.LastTick(); full {
				enough.Store(last)
			}

			part.Serving++
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			patient = false
		}
	}

	// Workers that did not answer: show their last summary with what has become overdue since.
	for _, w := range waits {
		since := w.undecided.Load()
		loading := !w.serving.Load()
		if !loading {
			part.Serving++
			if g := e.board.shown[w]; g != nil && e.board.within == withinKey(q.Within) {
				shown[w] = g
				seen.Add(g.AgedTo(now))
			}
		}

		if since > 0 && now-since > board.OverdueAfter.Milliseconds() {
			seen.AddStuck(task.BoardShard{ID: w.state.Shard, Node: e.cfg.Node, Since: task.At(taskstate.Instant(since)), Loading: loading})
		}
	}

	e.board.shown = shown
	seen.Fill(&part)

	return part
}

// addToBoard fills in a summary of the shard and delivers it. The cost depends on the size of the view and
// on how many runs are active, waiting or failing, not on the number of tasks.
func (s *shardState) addToBoard(g *board.Summary) {
	if g.Includes == nil {
		g.Tasks, g.Paused = s.census.Tasks(g.Now)
		g.Unreadable = s.census.Of[taskstate.Unreadable]
	}

	s.showTicks(g)
	s.showRuns(g)
	newest := board.NewFirst(g.Limit, board.NewerFailure)

	for t, f := range s.failures.All() {
		if !g.Shows(t.FullName()) {
			continue
		}

		g.Failing++
		newest.Add(board.FailedTask{Task: t.FullName(), Failure: &f.Failure})
	}

	g.Failures = newest.Sorted()
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
func (s *shardState) showTicks(g *board.Summary) {
	// Ticks that were due before this are overdue. Later ones are normal: they are being decided.
	line := g.Now - board.OverdueAfter.Milliseconds()
	if g.Includes == nil {
		g.Overdue = s.due.CountUpTo(line)
	}

	passed, hidden := 0, 0 // overdue ticks that were visited; ticks that are not shown
	s.due.InOrder(func(t *taskstate.Task) bool {
		at := t.DueAt()
		if at > g.Until || len(g.Soon) == g.Limit || passed > mostOverdue || at > g.Enough.Load() {
			return false
		}

		if !g.Shows(t.FullName()) {
			hidden++
			return hidden < mostHidden
		}

		seen := board.Tick{Task: t.FullName(), Time: t.Next, At: at}

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
func (s *shardState) showRuns(g *board.Summary) {
	runs, gone := board.NewFirst(g.Limit, board.OlderRun), board.NewFirst(g.Limit, board.OlderRun)
	queue := board.NewFirst(g.Limit, board.FirstWait)

	for _, t := range s.active.Tasks {
		if !g.Shows(t.FullName()) {
			continue
		}

		g.Active += len(t.Activity.Active)
		g.Waits += len(t.Activity.Queue)
		for _, a := range t.Activity.Active {
			r := board.Run{Task: t.FullName(), Run: a.Run, Node: a.Node, Since: a.Since, Known: a.Since != 0, Ending: a.Watch != nil && a.Watch.Asked}
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
		held := t.Policy != nil && len(t.Activity.Active) > 0 && !t.Policy.Rule.Free(t.Doing())

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
			queue.Add(board.Waiting{Task: t.FullName(), Run: q.ID, Reason: reason, NotBefore: q.NotBefore})
		}
	}

	g.Runs, g.Gone, g.Queue = runs.Sorted(), gone.Sorted(), queue.Sorted()
}
