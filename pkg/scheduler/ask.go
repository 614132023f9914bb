package scheduler

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/feed"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// served is what queries read of a shard that is open.
type served struct {
	index *readmodel.Index
	watch *feed.Feed
}

// Ask answers a query for the shards that this node owns, apart from those in without. A shard that is being opened is
// left out. It returns *readmodel.Busy if queries take as much of the node's processors as they may.
func (e *Engine) Ask(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	e.awaitApplied(ctx, q.MinRevisions)

	scan := readmodel.NewScan(q, e.cfg.Node)
	add := func(s readmodel.ShardAnswer, x *readmodel.Index) bool {
		if x.HasApplied(q.MinRevisions[s.Shard]) {
			scan.Add(s, x)
		}
		return true
	}

	var err error
	if q.Filter.MatchesNothing() || q.Runs != nil {
		err = e.eachServed(ctx, without, false, add) // it visits no rows, and costs little more than an answer that the node is busy
	} else {
		err = e.EachIndex(ctx, q.Subject, without, add)
	}

	answer := scan.Answer()
	if answer.Board != nil {
		e.addToBoard(answer.Board, q, without)
	}

	return answer, err
}

// addToBoard adds to a board what no row shows: the shards that make no progress, and the counts of the last minute.
func (e *Engine) addToBoard(b *readmodel.BoardAnswer, q *readmodel.Query, without []int) {
	if q.Filter.Namespace == "" && q.Filter.Within == nil {
		b.Tally = e.recent.Tally(e.cfg.Now())
	}

	now := e.cfg.Now()
	for _, w := range e.sortedWorkers() {
		if slices.Contains(without, w.state.Shard) {
			continue
		}

		// A worker that is busy with many late ticks makes progress.
		loading := !w.serving.Load()
		since := taskstate.Instant(w.undecided.Load())
		if since.UnixMilli() > 0 && now.Sub(since) > readmodel.OverdueAfter && (loading || e.idleTime(&w.progress) > readmodel.OverdueAfter) {
			b.Lists.Stuck = append(b.Lists.Stuck, task.BoardShard{ID: w.state.Shard, Node: e.cfg.Node, Since: task.At(since), Loading: loading})
		}
	}
}

const (
	// applyWithin is how long a question waits until shards have applied the revisions that it needs. A watch usually
	// delivers a change within milliseconds, but a worker may be in the middle of a commit.
	applyWithin = 500 * time.Millisecond
	// applyPause is how long a question waits between two looks.
	applyPause = 5 * time.Millisecond
)

// awaitApplied waits until the shards of this node have applied some revisions, at most for applyWithin.
func (e *Engine) awaitApplied(ctx context.Context, revisions map[int]int64) {
	deadline := time.Now().Add(applyWithin)

	for shard, revision := range revisions {
		for e.isBehind(shard, revision) && time.Now().Before(deadline) {
			if !clock.Sleep(ctx, applyPause) {
				return
			}
		}
	}
}

// isBehind reports whether this node answers for a shard that has not applied a revision yet.
func (e *Engine) isBehind(shard int, revision int64) bool {
	e.mu.Lock()
	w := e.workers[shard]
	e.mu.Unlock()

	if w == nil {
		return false
	}

	served := w.served.Load()

	return served != nil && !served.index.HasApplied(revision)
}

// A scan yields the processor after yieldRows rows, at the end of a shard: after about a fifth of a millisecond.
const yieldRows = 4096

// EachIndex calls visit with the index of each shard that this node owns, apart from those in without, in the order of
// the shards. The answer that it passes has no counts. A shard that is being opened is left out. visit scans the index;
// if it returns false, EachIndex ends. subject is who asks.
//
// EachIndex returns *readmodel.Busy if queries take as much of the node's processors as they may.
func (e *Engine) EachIndex(ctx context.Context, subject string, without []int, visit func(readmodel.ShardAnswer, *readmodel.Index) bool) error {
	end, retry, err := e.scanLimit.Begin(ctx, subject)
	if err != nil {
		return err
	}
	if end == nil {
		return &readmodel.Busy{Node: e.cfg.Node, RetryAfter: retry}
	}
	defer end()

	return e.eachServed(ctx, without, true, visit)
}

// eachServed is EachIndex without a limit of what queries take. scans is set if visit scans rows.
func (e *Engine) eachServed(ctx context.Context, without []int, scans bool, visit func(readmodel.ShardAnswer, *readmodel.Index) bool) error {
	unyielded := 0 // rows since others were let in between
	for _, w := range e.sortedWorkers() {
		served := w.served.Load()
		if served == nil || slices.Contains(without, w.state.Shard) {
			continue
		}

		if err := ctx.Err(); err != nil {
			return err
		}

		// A scan needs no more than a part of a millisecond for a shard, but many of them follow. Let others in between. The
		// scan is bound to its thread, so each yield costs some 10 µs, which are charged to the scan, and on a busy host a wait
		// for a processor. For small shards, that would be as much as the scan itself, so several of them share one.
		size := served.index.Size()
		if unyielded += size.Rows; scans && unyielded >= yieldRows {
			runtime.Gosched()
			unyielded = 0
		}

		answer := readmodel.ShardAnswer{
			Shard: w.state.Shard, Owner: w.state.fences.Owner.ModRevision, AgeMS: served.watch.Age().Milliseconds(), Rows: size.Rows, Unread: size.Unread,
		}
		if !visit(answer, served.index) {
			return nil
		}
	}

	return nil
}

// Collected returns for how many tasks of this node it is known how their last run ended, and how many tasks there are.
// It does not count shards that are being opened.
func (e *Engine) Collected() (known, tasks int) {
	for _, w := range e.sortedWorkers() {
		if served := w.served.Load(); served != nil {
			size := served.index.Size()
			known, tasks = known+size.Rows-size.Unread, tasks+size.Rows
		}
	}

	return known, tasks
}

// sortedWorkers returns the workers of this node, ordered by shard.
func (e *Engine) sortedWorkers() []*worker {
	e.mu.Lock()
	defer e.mu.Unlock()

	list := make([]*worker, 0, len(e.workers))
	for _, w := range e.workers {
		list = append(list, w)
	}

	slices.SortFunc(list, func(a, b *worker) int { return a.state.Shard - b.state.Shard })

	return list
}
