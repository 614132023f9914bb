package failures

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/scheduler/histories"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// pagePause is the pause of a Reader between pages, and between attempts to deliver a result.
const pagePause = 50 * time.Millisecond

// maxRequests is how many requests may wait. A cluster has fewer shards.
const maxRequests = 4096

// Outcomes reads how runs have ended, and which of them are dead.
type Outcomes interface {
	histories.Store
	DeadKeys(ctx context.Context, shard int, after string) (events []store.ShardEvent, next string, rev int64, err error)
}

// Reader finds which tasks of a shard were failing before the shard was opened: those with a dead run after
// which no run succeeded. It reads one shard after another, in parallel with the workers, so that no tick
// waits for it. A shard without dead runs costs one listing of keys.
type Reader struct {
	store    Outcomes
	requests chan Request
	log      *zap.Logger
}

// Request asks for the failing tasks of a shard.
type Request struct {
	Shard int

	// Deliver passes a part of the result to the worker, and returns false if the worker is busy. The
	// Reader then tries again for about a second, and drops the rest of the shard if that does not help.
	Deliver func(*Found) bool
}

// Found is the result of a Request, or a part of it.
type Found struct {
	Failing map[string]*Failure // by namespace/name
	More    bool                // another part follows
}

// NewReader returns a Reader. It does nothing until Run is called.
func NewReader(s Outcomes, log *zap.Logger) *Reader {
	return &Reader{store: s, requests: make(chan Request, maxRequests), log: log}
}

// Request queues a request without blocking. If too many wait, it is dropped: the board then shows only
// later failures of that shard.
func (r *Reader) Request(q Request) {
	select {
	case r.requests <- q:
	default:
	}
}

// Run serves requests until ctx ends, and returns its error.
func (r *Reader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case q := <-r.requests:
			if err := r.readShard(ctx, q); err != nil && ctx.Err() == nil {
				r.log.Debug("could not read earlier failures", zap.Int("shard", q.Shard), zap.Error(err))
			}
		}
	}
}

// readShard serves one request, page by page.
func (r *Reader) readShard(ctx context.Context, q Request) error {
	for after := ""; ; {
		page, next, _, err := r.store.DeadKeys(ctx, q.Shard, after)
		if err != nil {
			return err
		}

		found := Found{Failing: map[string]*Failure{}, More: next != ""}

		for some := range slices.Chunk(newestOfEach(page), store.HistoriesAtOnce) {
			if err := r.readRecords(ctx, some, found.Failing); err != nil {
				return err
			}
		}

		if !deliverFound(ctx, q, &found) || next == "" {
			return ctx.Err()
		}
		if after = next; !clock.Sleep(ctx, pagePause) {
			return ctx.Err()
		}
	}
}

// deliverFound passes a result to the worker. It returns false if the worker stays busy, or if ctx ends.
func deliverFound(ctx context.Context, q Request, found *Found) bool {
	for range 20 {
		if q.Deliver(found) {
			return true
		}
		if !clock.Sleep(ctx, pagePause) {
			return false
		}
	}

	return false
}

// newestOfEach returns, for each task, the dead run that ended last. The page is ordered by task.
func newestOfEach(page []store.ShardEvent) (list []store.ShardEvent) {
	for _, ev := range page {
		if n := len(list); n == 0 || list[n-1].Task != ev.Task {
			list = append(list, ev)
		} else if ev.Mod > list[n-1].Mod {
			list[n-1] = ev
		}
	}

	return list
}

// maxLaterRecords limits how many records after a dead run are read to find out whether the task has
// recovered. More of them belong to ticks that did not run, or to a very long history.
const maxLaterRecords = 100

// readRecords adds to into those tasks with a dead run whose last run to end failed.
func (r *Reader) readRecords(ctx context.Context, dead []store.ShardEvent, into map[string]*Failure) error {
	refs, keys := make([]record.Ref, len(dead)), make([]string, len(dead))
	for i, ev := range dead {
		refs[i], keys[i] = ev.Ref, ev.Key
	}

	histories, rev, err := r.store.HistoriesOf(ctx, refs)
	if err != nil {
		return err
	}

	for i := range dead {
		later := slices.DeleteFunc(histories[i], func(ev store.ShardEvent) bool { return ev.Mod <= dead[i].Mod })
		slices.SortFunc(later, func(a, b store.ShardEvent) int { return cmp.Compare(b.Mod, a.Mod) })
		for _, ev := range later[:min(len(later), maxLaterRecords)] {
			keys = append(keys, ev.Key)
		}
	}

	// Read at the revision of the lists: if a trim deleted some of the records meanwhile, another end would
	// look like the last one. The first records are the dead runs, followed by those of each task, the
	// newest first.
	now, err := r.store.RecordsAt(ctx, keys, rev)
	if err != nil {
		return err
	}

	settled := map[string]bool{}
	for _, ev := range now[len(dead):] {
		e := taskstate.End{Mod: ev.Mod, State: record.StateOf(ev.Value)}
		if ev.Deleted || settled[ev.Task] || !e.Ran() {
			continue
		}

		settled[ev.Task] = true
		if run, err := record.DecodeEnded(ev.ShardKey, ev.Value); err == nil && e.Failed() {
			// A run failed after the dead run did, so at least two failed in a row.
			into[ev.Task] = newFailure(ev.Mod, run, 2)
		}
	}

	for _, ev := range now[:len(dead)] {
		if ev.Deleted || settled[ev.Task] {
			continue
		}

		if w, err := record.DecodeWaiting(ev.ShardKey, ev.Value); err == nil {
			into[ev.Task] = newFailure(ev.Mod, w.Run, 1)
		}
	}

	return nil
}
