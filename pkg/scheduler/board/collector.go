package board

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

// Worker is the worker of a shard.
type Worker interface {
	ShardID() int
	// OwnerRevision returns the mod revision of the owner key under which the shard is served.
	OwnerRevision() int64
	// Serving reports whether the worker has loaded the shard, and answers requests.
	Serving() bool
	// Undecided returns the due time of the shard's first undecided tick in Unix milliseconds, or 0 if there is none.
	Undecided() int64
	// RequestSummary asks for a summary. It does not wait for it, and replaces a request that is not answered yet.
	RequestSummary(*Summary)
}

// Collector combines the summaries of a node's workers, and keeps the last result for a moment.
type Collector struct {
	node    string
	recent  *Recent
	workers func() []Worker

	// mu is held while a part is made, so callers at the same time share one. It protects the last part, and with
	// which arguments that was made.
	mu    sync.Mutex
	span  time.Duration
	limit int
	// within are the namespaces of the last part, joined: a part is never shown to somebody who may read others.
	within string
	at     time.Time
	part   task.BoardPart
	// shown holds each worker's last summary, for when the worker does not answer in time.
	shown map[Worker]*Summary
}

// NewCollector returns a Collector for a node. workers returns the workers that the node has at the moment.
func NewCollector(node string, recent *Recent, workers func() []Worker) *Collector {
	return &Collector{node: node, recent: recent, workers: workers}
}

// Part returns what this node adds to the board at now, the time by which ticks are decided. Each worker makes its summary
// from memory, within microseconds. If a worker is waiting for etcd, Part takes summaryTimeout.
func (c *Collector) Part(ctx context.Context, q task.BoardQuery, now time.Time) task.BoardPart {
	c.mu.Lock()
	defer c.mu.Unlock()

	within := withinKey(q.Within)
	if age := time.Since(c.at); c.span == q.Span && c.limit == q.Limit && c.within == within && age <= boardAge {
		return c.part
	}

	part := c.collect(ctx, q, now)

	// If ctx has ended, the part is incomplete. Do not keep it.
	if ctx.Err() == nil {
		c.part, c.span, c.limit, c.within, c.at = part, q.Span, q.Limit, within, time.Now()
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

// collect requests a summary of each worker, and combines them with the last summaries of those that do not answer in
// time.
func (c *Collector) collect(ctx context.Context, q task.BoardQuery, clock time.Time) task.BoardPart {
	workers := c.workers()
	now := clock.UnixMilli()
	part := task.BoardPart{Node: c.node, At: task.At(clock)}
	var includes func(string) bool
	if q.Within == nil {
		part.Tally = c.recent.Tally(clock) // of all namespaces
	} else {
		includes = func(name string) bool {
			namespace, _, _ := strings.Cut(name, "/")
			return q.Includes(namespace)
		}
	}

	// waits holds the workers, by shard, whose summary has not arrived. enough is the due time, in Unix
	// milliseconds, after which further ticks would not be shown: workers that answer later need not list
	// them.
	seen := NewBuilder(q.Limit)
	answers, waits, shown := make(chan *Summary, len(workers)), map[int]Worker{}, make(map[Worker]*Summary, len(workers))
	asked := 0
	var enough atomic.Int64
	enough.Store(math.MaxInt64)

	for _, w := range workers {
		g := &Summary{Shard: w.ShardID(), Owner: w.OwnerRevision(), Now: now, Until: now + q.Span.Milliseconds(), Limit: q.Limit, Includes: includes, Enough: &enough, Shown: answers}

		if w.Serving() {
			w.RequestSummary(g)
			asked++
		}

		waits[w.ShardID()] = w
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
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			patient = false
		}
	}

	// Workers that did not answer: show their last summary with what has become overdue since.
	for _, w := range waits {
		since := w.Undecided()
		loading := !w.Serving()
		if !loading {
			if g := c.shown[w]; g != nil && c.within == withinKey(q.Within) {
				shown[w] = g
				seen.Add(g.AgedTo(now))
			} else {
				seen.AddUnknown(w.ShardID(), w.OwnerRevision())
			}
		}

		if since > 0 && now-since > OverdueAfter.Milliseconds() {
			seen.AddStuck(task.BoardShard{ID: w.ShardID(), Node: c.node, Since: task.At(time.UnixMilli(since)), Loading: loading})
		}
	}

	c.shown = shown
	seen.Fill(&part)

	return part
}
