package failures

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// pagePause is how long a Reader rests between pages, and between attempts to deliver what it found.
const pagePause = 50 * time.Millisecond

// maxRequests is how many requests may wait: more than a cluster has shards.
const maxRequests = 4096

// Outcomes reads how runs have ended, and which of them are dead.
type Outcomes interface {
	HistoriesOf(ctx context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error)
	RecordsAt(ctx context.Context, keys []string, rev int64) ([]store.ShardEvent, error)
	DeadKeys(ctx context.Context, shard int, after string) (events []store.ShardEvent, next string, rev int64, err error)
}

// Reader finds out which tasks of a shard were failing before the shard was opened: those with a dead
// run after which no run of the task succeeded. It reads one shard after another, beside the workers,
// so that no tick waits for it. A shard without dead runs costs one listing of keys.
type Reader struct {
	store    Outcomes
	requests chan Request
	log      *zap.Logger
}

// Request asks for the failing tasks of a shard.
type Request struct {
	Shard int

	// Deliver hands over a part of what was found, and returns false if the worker is busy. The Reader
	// then tries again for about a second, and drops the rest of the shard if that does not help.
	Deliver func(*Found) bool
}

// Found is what a Reader has found, or a part of it.
type Found struct {
	Failing map[string]*Failure // by namespace/name
	More    bool                // another part follows
}

// NewReader returns a reader. It does nothing until Run is called.
func NewReader(s Outcomes, log *zap.Logger) *Reader {
	return &Reader{store: s, requests: make(chan Request, maxRequests), log: log}
}

// Request queues a request. If too many wait, it is dropped: then the board of that shard shows only
// the failures from now on.
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
			if err := r.ReadShard(ctx, q); err != nil && ctx.Err() == nil {
				r.log.Debug("could not read earlier failures", zap.Int("shard", q.Shard), zap.Error(err))
			}
		}
	}
}

// ReadShard serves one request, page by page.
func (r *Reader) ReadShard(ctx context.Context, q Request) error {
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

// deliverFound hands a worker what was found. It returns false if the worker stays busy.
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

// newestOfEach returns of each task the dead run that ended last.
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

// maxLaterRecords is how many records after a dead run are read to see whether the task
// has recovered: more of them did not run, or are of a task whose history is long.
const maxLaterRecords = 100

// readRecords finds the tasks, among those with a dead run, whose last run to end failed.
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

	// At the revision of the lists: records of which a trim deletes some meanwhile
	// would tell of another last end.
	now, err := r.store.RecordsAt(ctx, keys, rev) // of a task's, the newest first, and its dead run before all of them
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
