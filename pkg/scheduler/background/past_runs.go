package background

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// DefaultPastRate is how many tasks a PastReader reads in a second, at most, unless it is given another rate.
	DefaultPastRate = 5000
	// pastRetryPause is the pause before a batch is read again, and while the node is overdue.
	pastRetryPause = time.Second
	// maxPastRecords limits how many records of a task without dead runs are read to find its last success.
	maxPastRecords = 200
	// MaxPastDead is of how many dead runs of a task the records are read, the newest ones.
	MaxPastDead = 8
	// maxRecordsAtOnce limits how many records of a task are read at once.
	maxRecordsAtOnce = 64
	// maxPastRequests is how many requests may wait. A cluster has fewer shards.
	maxPastRequests = 4096
)

// PastStore lists histories and dead runs, and reads records.
type PastStore interface {
	HistoriesOf(ctx context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error)
	RecordsAt(ctx context.Context, keys []string, rev int64) ([]store.ShardEvent, error)
	DeadKeys(ctx context.Context, shard int, after string) (events []store.ShardEvent, next string, rev int64, err error)
}

// WantedPast is a task whose past a PastReader should read.
type WantedPast struct {
	Task      string // namespace/name
	UID       string
	IsWatched bool // its alerts depend on it, so it is read before others of the shard

	ReadsDead bool // its dead runs may be such that are no failures: of workflows that were cancelled, or that a restore has lost
}

// owns reports whether a run belongs to the task, and not to a former one of that name.
func (w *WantedPast) owns(run string) bool { return w.UID == "" || task.RunBelongs(run, w.UID) }

// Past is how the runs of a task had ended at a revision.
type Past struct {
	Want     WantedPast
	Revision int64
	Last     PastEnd            // the end that was recorded last; zero: none is kept
	Success  PastEnd            // the success that was recorded last; zero: none is kept
	Failures int                // how many runs have failed after that
	Dead     []store.ShardEvent // the dead runs that were created after that, the oldest first; only the last MaxPastDead have their values

	// DeadRevision is the revision from which on the dead runs were listed. Dead may lack those that were created later.
	DeadRevision int64
}

// PastEnd is a record in the history of a task.
type PastEnd struct {
	Create int64
	record.End
}

// PastRequest asks for the past of the tasks of a shard.
type PastRequest struct {
	Shard int
	// Current reports whether the worker still wants the result.
	Current func() bool
	// Wanted returns the tasks, or false if the worker does not want the result any more.
	Wanted func(ctx context.Context) ([]WantedPast, bool)
	// Deliver passes on a part of the result; more parts follow if more is set. It returns false if the worker does not
	// want the result any more.
	Deliver func(ctx context.Context, some []Past, more bool) bool
}

// PastReader reads how the runs of tasks have ended before their shard got its owner, for the rows that queries
// read. No decision depends on it. It reads the history of each task, one shard after another: that takes minutes for a
// million tasks, at a rate that does not disturb the firing of ticks.
type PastReader struct {
	store    PastStore
	overdue  func() bool
	pause    time.Duration // after each batch of store.HistoriesAtOnce tasks
	requests chan PastRequest
	log      *zap.Logger
}

// NewPastReader returns a PastReader. It does nothing until Run is called. It reads at most rate tasks in a second, and pauses
// while overdue returns true: then the node has more urgent things to do.
func NewPastReader(s PastStore, rate int, overdue func() bool, log *zap.Logger) *PastReader {
	return &PastReader{
		store: s, overdue: overdue, pause: store.HistoriesAtOnce * time.Second / time.Duration(rate),
		requests: make(chan PastRequest, maxPastRequests), log: log,
	}
}

// Request queues a request without blocking. If too many wait, it is dropped.
func (r *PastReader) Request(q PastRequest) {
	select {
	case r.requests <- q:
	default:
	}
}

// Run serves requests until ctx ends, and returns its error.
func (r *PastReader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case q := <-r.requests:
			r.readShard(ctx, q)
		}
	}
}

// readShard serves one request, batch by batch.
func (r *PastReader) readShard(ctx context.Context, q PastRequest) {
	wanted, ok := q.Wanted(ctx)
	if !ok {
		return
	}

	if len(wanted) == 0 {
		q.Deliver(ctx, nil, false)
		return
	}

	// The dead runs come first. A run that dies later is in the events that the worker receives.
	var dead deadRuns
	if !r.retry(ctx, q, func() (err error) { dead, err = r.readDead(ctx, q.Shard); return err }) {
		return
	}

	slices.SortFunc(wanted, func(a, b WantedPast) int {
		switch {
		case a.IsWatched && !b.IsWatched:
			return -1
		case b.IsWatched && !a.IsWatched:
			return 1
		}

		return strings.Compare(a.Task, b.Task)
	})

	for len(wanted) > 0 {
		some := wanted[:min(len(wanted), store.HistoriesAtOnce)]
		wanted = wanted[len(some):]

		var found []Past
		if !r.retry(ctx, q, func() (err error) { found, err = r.readTasks(ctx, q.Shard, some, dead); return err }) {
			return
		}

		if !q.Deliver(ctx, found, len(wanted) > 0) || !clock.Sleep(ctx, r.pause) {
			return
		}
	}
}

// retry calls read until it succeeds, and waits while the node is overdue. It returns false if ctx ends or the worker
// does not want the result any more.
func (r *PastReader) retry(ctx context.Context, q PastRequest, read func() error) bool {
	for q.Current() {
		if !r.overdue() {
			err := read()
			if err == nil {
				return true
			}

			r.log.Debug("could not read how runs had ended", zap.Int("shard", q.Shard), zap.Error(err))
		}

		if !clock.Sleep(ctx, pastRetryPause) {
			return false
		}
	}

	return false
}

// deadRuns are the dead runs of a shard.
type deadRuns struct {
	byTask   map[string][]store.ShardEvent // by namespace/name; without values
	revision int64                         // of the first page of the list
}

// readDead lists the dead runs of a shard.
func (r *PastReader) readDead(ctx context.Context, shard int) (deadRuns, error) {
	list := deadRuns{byTask: map[string][]store.ShardEvent{}}

	for after := ""; ; {
		page, next, revision, err := r.store.DeadKeys(ctx, shard, after)
		if err != nil {
			return list, err
		}

		if after == "" {
			list.revision = revision
		}
		for _, ev := range page {
			list.byTask[ev.Task] = append(list.byTask[ev.Task], ev)
		}

		if after = next; next == "" {
			return list, nil
		}
	}
}

// of returns the dead runs of a task, without those of a deleted task of the same name.
func (d deadRuns) of(t *WantedPast) []store.ShardEvent {
	return slices.DeleteFunc(slices.Clone(d.byTask[t.Task]), func(ev store.ShardEvent) bool { return !t.owns(ev.Run) })
}

// pastReading is the reading of one task.
type pastReading struct {
	past *Past
	left []store.ShardEvent // the records that are not read yet, the latest first
}

// readTasks reads the histories of tasks, at most store.HistoriesAtOnce. It lists the keys first, and then reads
// records, the latest first, until each task has a success or no records are left.
func (r *PastReader) readTasks(ctx context.Context, shard int, tasks []WantedPast, dead deadRuns) ([]Past, error) {
	refs := make([]record.Ref, len(tasks))
	for i, t := range tasks {
		namespace, name, _ := strings.Cut(t.Task, "/")
		refs[i] = record.Ref{Namespace: namespace, Name: name, Shard: shard}
	}

	keys, rev, err := r.store.HistoriesOf(ctx, refs)
	if err != nil {
		return nil, err
	}

	found := make([]Past, len(tasks))
	readings := make([]pastReading, len(tasks))

	for i, t := range tasks {
		found[i] = Past{Want: t, Revision: rev, Dead: dead.of(&t), DeadRevision: dead.revision}

		// The create revision gives the order in which runs ended; the key begins with the time of the tick.
		own := slices.DeleteFunc(keys[i], func(ev store.ShardEvent) bool { return !t.owns(ev.Run) })
		slices.SortFunc(own, func(a, b store.ShardEvent) int {
			return cmp.Or(cmp.Compare(b.Create, a.Create), cmp.Compare(b.Key, a.Key))
		})
		readings[i] = pastReading{&found[i], own[:min(len(own), found[i].recordsToRead(own))]}
	}

	// The last run of most tasks has succeeded, so the pages start small and grow.
	for want := 1; ; want = min(4*want, maxRecordsAtOnce) {
		more, err := r.readRecords(ctx, readings, want, rev)
		if err != nil {
			return nil, err
		}

		if !more {
			break
		}
		if want == maxRecordsAtOnce && !clock.Sleep(ctx, r.pause) {
			return nil, ctx.Err()
		}
	}

	for i := range found {
		p := &found[i]
		// The create revision counts: a dismissal rewrites the record before it deletes it.
		p.Dead = slices.DeleteFunc(p.Dead, func(ev store.ShardEvent) bool { return ev.Create <= p.Success.Create })
		slices.SortFunc(p.Dead, func(a, b store.ShardEvent) int { return cmp.Compare(a.Create, b.Create) })
	}

	return found, r.readNewestDead(ctx, found, rev)
}

// readNewestDead reads the newest dead runs of each task, which show how it has failed. Those that were dismissed since they
// were listed are left out.
func (r *PastReader) readNewestDead(ctx context.Context, found []Past, rev int64) error {
	var keys []string
	for i := range found {
		dead := found[i].Dead
		if !found[i].Want.ReadsDead {
			dead = dead[max(0, len(dead)-MaxPastDead):]
		}
		for _, ev := range dead {
			keys = append(keys, ev.Key)
		}
	}

	if len(keys) == 0 {
		return nil
	}

	events, err := r.store.RecordsAt(ctx, keys, rev)
	if err != nil {
		return err
	}

	byKey := map[string]*store.ShardEvent{}
	for i := range events {
		byKey[events[i].Key] = &events[i]
	}

	for i := range found {
		p := &found[i]
		p.Dead = slices.DeleteFunc(p.Dead, func(ev store.ShardEvent) bool { now := byKey[ev.Key]; return now != nil && now.Deleted })
		for j := range p.Dead {
			if now := byKey[p.Dead[j].Key]; now != nil {
				p.Dead[j].Value = now.Value
			}
		}
		if p.Want.ReadsDead {
			p.Dead = slices.DeleteFunc(p.Dead, func(ev store.ShardEvent) bool { return !record.IsDeadFailure(ev.Value) })
		}
	}

	return nil
}

// recordsToRead returns how many of a task's records, the latest first, may have to be read. A task is failing unless a run
// has succeeded after its dead runs, however many records there are since.
func (p *Past) recordsToRead(latestFirst []store.ShardEvent) int {
	after := 0
	if len(p.Dead) > 0 {
		oldest := slices.MinFunc(p.Dead, func(a, b store.ShardEvent) int { return cmp.Compare(a.Create, b.Create) }).Create
		after, _ = slices.BinarySearchFunc(latestFirst, oldest, func(ev store.ShardEvent, dead int64) int { return cmp.Compare(dead, ev.Create) })
	}

	return max(after, maxPastRecords)
}

// readRecords reads up to want further records of each task that needs them. It returns false if none does.
func (r *PastReader) readRecords(ctx context.Context, readings []pastReading, want int, rev int64) (more bool, err error) {
	var page []string
	var of []*pastReading

	for i := range readings {
		p := &readings[i]
		n := min(want, len(p.left))
		for _, ev := range p.left[:n] {
			page, of = append(page, ev.Key), append(of, p)
		}
		p.left = p.left[n:]
	}

	if len(page) == 0 {
		return false, nil
	}

	// Read at the revision of the list: if a trim deleted some of the records meanwhile, another end would look like the
	// last one.
	events, err := r.store.RecordsAt(ctx, page, rev)
	if err != nil {
		return false, err
	}

	for i, ev := range events {
		of[i].take(&ev)
	}

	return true, nil
}

// take adds the next record to the past of its task.
func (p *pastReading) take(ev *store.ShardEvent) {
	end, ok := record.EndOf(ev.Value)
	if !ok || readmodel.OutcomeOf(end.State) == 0 || p.past.Success.Create != 0 {
		return
	}

	e := PastEnd{ev.Create, end}
	if p.past.Last.Create == 0 {
		p.past.Last = e
	}

	switch end.State {
	case task.Succeeded:
		p.past.Success, p.left = e, nil
	default:
		// A run that was cancelled says nothing about the task.
		if end.IsFailure() {
			p.past.Failures++
		}
	}
}
