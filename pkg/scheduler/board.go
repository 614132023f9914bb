package scheduler

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// overdueAfter is how old an undecided tick is that an operator should see.
	overdueAfter = 2 * time.Second
	// summaryTimeout is how long a worker may take to say what it does. One that does
	// not waits for etcd, which is worth telling, too.
	summaryTimeout = 250 * time.Millisecond
	// boardAge is how old a part may be that is shown again: however many look at the
	// same one, the workers are asked twice a second at most.
	boardAge = 500 * time.Millisecond
)

// board is the latest part, as it was shown.
type board struct {
	mu    sync.Mutex
	span  time.Duration
	limit int
	at    time.Time
	part  task.BoardPart
	// shown is what each worker has shown last, for when it is held up.
	shown map[*worker]*shardSummary
}

// Part is what this node adds to the board: ticks within a span from now, and of
// each list limit items. It is put together from memory, by the workers themselves,
// in some microseconds of each; it takes 250 ms if one of them is held up by etcd.
func (e *Engine) Part(ctx context.Context, span time.Duration, limit int) task.BoardPart {
	b := &e.board
	b.mu.Lock()
	defer b.mu.Unlock()
	if age := time.Since(b.at); b.span == span && b.limit == limit && age <= boardAge {
		return b.part
	}
	part := e.look(ctx, span, limit)
	if ctx.Err() == nil { // else who asked has not waited for all of it, and the next one may
		b.part, b.span, b.limit, b.at = part, span, limit, time.Now()
	}
	return part
}

// look asks all workers.
func (e *Engine) look(ctx context.Context, span time.Duration, limit int) task.BoardPart {
	clock := e.cfg.Now()
	now := clock.UnixMilli()
	part := task.BoardPart{Node: e.cfg.Node, At: task.At(clock), Tally: e.recent.tally(clock)}
	e.mu.Lock()
	workers := make([]*worker, 0, len(e.workers))
	for _, w := range e.workers {
		workers = append(workers, w)
	}
	e.mu.Unlock()
	seen := newBoardBuilder(limit)
	answers, waits, shown := make(chan *shardSummary, len(workers)), map[int]*worker{}, make(map[*worker]*shardSummary, len(workers))
	asked := 0
	var enough atomic.Int64
	enough.Store(math.MaxInt64)
	for _, w := range workers {
		g := &shardSummary{shard: w.shard, now: now, until: now + span.Milliseconds(), limit: limit, enough: &enough, shown: answers}
		if w.serving.Load() {
			select {
			case <-w.summaryRequests: // it has not looked at the one before, for which nobody waits any more
			default:
			}
			w.summaryRequests <- g
			asked++
		}
		waits[w.shard] = w
	}
	patience := time.NewTimer(summaryTimeout)
	defer patience.Stop()
	for patient := true; patient && asked > 0; {
		select {
		case g := <-answers:
			asked--
			shown[waits[g.shard]] = g
			delete(waits, g.shard)
			seen.add(g)
			if seen.soon.full {
				enough.Store(seen.soon.items[limit-1].at)
			}
			part.Serving++
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			patient = false
		}
	}
	for _, w := range waits {
		since := w.undecided.Load()
		loading := !w.serving.Load()
		if !loading {
			part.Serving++
			if g := e.board.shown[w]; g != nil {
				shown[w] = g
				seen.add(g.at(now))
			}
		}
		if since > 0 && now-since > overdueAfter.Milliseconds() {
			seen.stuck.add(task.BoardShard{ID: w.shard, Node: e.cfg.Node, Since: task.At(instant(since)), Loading: loading})
		}
	}
	e.board.shown = shown
	seen.fill(&part)
	return part
}

// shardSummary is what a worker shows of its shard. Its strings are of what the worker
// knows, and are not copied.
type shardSummary struct {
	shard      int
	now, until int64 // ms
	limit      int
	enough     *atomic.Int64        // ticks that are due after it are too late for the list; ms
	shown      chan<- *shardSummary // with room for it

	tasks, paused, unreadable, failing, overdue, active, away, waits int

	waiting  map[string]int
	soon     []boardTick
	late     []boardTick
	runs     []boardRun
	gone     []boardRun // whose node is
	queue    []boardWaiting
	failures []boardFailure
}

// at is what was shown a while ago as it is now, if the worker did nothing since: what
// was to come may be overdue.
func (g *shardSummary) at(now int64) *shardSummary {
	line := now - overdueAfter.Milliseconds()
	late := 0
	for late < len(g.soon) && g.soon[late].at <= line {
		late++
	}
	aged := *g
	aged.late = append(slices.Clone(g.late), g.soon[:late]...)
	aged.soon, aged.overdue = g.soon[late:], g.overdue+late
	return &aged
}

type boardTick struct {
	task     string
	tick, at int64
}

type boardRun struct {
	task, run, node string
	since           int64 // ms; of one that another owner dispatched, its tick
	known, ending   bool
}

type boardWaiting struct {
	task, run, reason string
	notBefore         task.Time
}

type boardFailure struct {
	task string
	*failure
}

// show fills in a summary of the shard. What it costs depends on what is asked for, on what runs,
// waits and fails, and not on how many tasks there are.
func (s *shardState) show(g *shardSummary) {
	g.tasks, g.paused = s.census.tasks(g.now)
	g.unreadable, g.failing = s.census.of[isUnreadable], len(s.failing)
	s.showTicks(g)
	s.showLives(g)
	failures := first[boardFailure]{most: g.limit, before: func(a, b boardFailure) int { return cmp.Compare(b.ended, a.ended) }}
	for t, f := range s.failing {
		failures.add(boardFailure{t.fullName(), f})
	}
	g.failures = failures.sorted()
	g.shown <- g
}

// mostOverdue is how many overdue ticks of a shard are passed over on the way to
// those that are to come.
const mostOverdue = 1000

func (s *shardState) showTicks(g *shardSummary) {
	line := g.now - overdueAfter.Milliseconds()
	g.overdue = s.due.countUpTo(line)
	passed := 0
	s.due.inOrder(func(t *taskState) bool {
		at := t.dueAt()
		if at > g.until || len(g.soon) == g.limit || passed > mostOverdue || at > g.enough.Load() {
			return false
		}
		seen := boardTick{t.fullName(), t.next, at}
		switch {
		case at > line:
			g.soon = append(g.soon, seen)
		case len(g.late) < g.limit:
			g.late = append(g.late, seen)
			fallthrough
		default:
			passed++
		}
		return true
	})
}

func (s *shardState) showLives(g *shardSummary) {
	runs, gone := first[boardRun]{most: g.limit, before: olderRun}, first[boardRun]{most: g.limit, before: olderRun}
	queue := first[boardWaiting]{most: g.limit, before: firstWait}
	for _, t := range s.active.tasks {
		g.active += len(t.activity.active)
		g.waits += len(t.activity.queue)
		for _, a := range t.activity.active {
			r := boardRun{task: t.fullName(), run: a.run, node: a.node, since: a.since, known: a.since != 0, ending: a.watch != nil && a.watch.asked}
			if at, ok := task.TimeOfRunID(a.run); ok && !r.known {
				r.since = at.UnixMilli()
			}
			if a.watch != nil && !a.watch.since.IsZero() {
				g.away++
				gone.add(r)
				continue
			}
			runs.add(r)
		}
		held := t.how != nil && len(t.activity.active) > 0 && !t.how.rule.free(t.doing())
		for _, q := range t.activity.queue {
			if q.UnderWay() { // it does not wait: its parts are among what runs
				g.waits--
				continue
			}
			if g.waiting == nil {
				g.waiting = map[string]int{}
			}
			reason := q.Reason
			if held && reason == task.ReasonNoNode {
				reason = task.ReasonOverlap // a node has come since: others of the task run now
			}
			g.waiting[reason]++
			queue.add(boardWaiting{t.fullName(), q.ID, reason, q.NotBefore})
		}
	}
	g.runs, g.gone, g.queue = runs.sorted(), gone.sorted(), queue.sorted()
}

func olderRun(a, b boardRun) int {
	return cmp.Or(cmp.Compare(a.since, b.since), strings.Compare(a.task, b.task), strings.Compare(a.run, b.run))
}

// firstWait puts runs that no node matches first: they wait for a person.
func firstWait(a, b boardWaiting) int {
	if x, y := a.reason == task.ReasonNoNode, b.reason == task.ReasonNoNode; x != y {
		if x {
			return -1
		}
		return 1
	}
	return cmp.Or(strings.Compare(a.run, b.run), strings.Compare(a.task, b.task)) // ids begin with their time
}

// first keeps the first of what is added to it.
type first[T any] struct {
	most   int
	before func(a, b T) int
	items  []T
	full   bool // the first most items are sorted: what comes after the last of them is too late
}

// add adds v; false if it is too late.
func (f *first[T]) add(v T) bool {
	if f.full && f.before(v, f.items[f.most-1]) >= 0 {
		return false
	}
	if f.items = append(f.items, v); len(f.items) >= 2*f.most+16 {
		f.items, f.full = f.sorted(), true
	}
	return true
}

func (f *first[T]) sorted() []T {
	slices.SortFunc(f.items, f.before)
	return f.items[:min(len(f.items), f.most)]
}
