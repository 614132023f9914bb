// Package pastruns reads how the runs of tasks have ended before their shard got its owner, for the rows that queries
// read. No decision depends on it. A Reader reads the history of each task: it takes minutes for a million tasks, at a
// rate that does not disturb the firing of ticks.
package pastruns

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
	// DefaultRate is how many tasks a Reader reads in a second, at most, unless it is given another rate.
	DefaultRate = 5000
	// retryPause is the pause before a batch is read again, and while the node is overdue.
	retryPause = time.Second
	// maxRecords limits how many records of a task without dead runs are read to find its last success.
	maxRecords = 200
	// MaxDead is of how many dead runs of a task the records are read, the newest ones.
	MaxDead = 8
	// maxRound limits how many records of a task are read at once.
	maxRound = 64
	// maxRequests is how many requests may wait. A cluster has fewer shards.
	maxRequests = 4096
)

// Store lists histories and dead runs, and reads records.
type Store interface {
	HistoriesOf(ctx context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error)
	RecordsAt(ctx context.Context, keys []string, rev int64) ([]store.ShardEvent, error)
	DeadKeys(ctx context.Context, shard int, after string) (events []store.ShardEvent, next string, rev int64, err error)
}

// Want is a task whose past is to be read.
type Want struct {
	Task string // namespace/name
	UID  string
}

// owns reports whether a run belongs to the task, and not to a former one of that name.
func (w *Want) owns(run string) bool { return w.UID == "" || task.RunBelongs(run, w.UID) }

// Past is how the runs of a task had ended at a revision.
type Past struct {
	Want     Want
	Revision int64
	Last     End                // the end with the highest mod revision; zero: none is kept
	Success  End                // the success with the highest mod revision; zero: none is kept
	Failures int                // how many runs have failed after that
	Dead     []store.ShardEvent // the dead runs that were created after that, the oldest first; only the last MaxDead have their values

	// DeadRevision is the revision from which on the dead runs were listed. Dead may lack those that were created later.
	DeadRevision int64
}

// End is a record in the history of a task.
type End struct {
	Mod int64
	record.End
}

// Request asks for the past of the tasks of a shard.
type Request struct {
	Shard int
	// Current reports whether the worker still wants the result.
	Current func() bool
	// Wanted returns the tasks, or false if the worker does not want the result any more.
	Wanted func(ctx context.Context) ([]Want, bool)
	// Deliver passes on a part of the result; more parts follow if more is set. It returns false if the worker does not
	// want the result any more.
	Deliver func(ctx context.Context, some []Past, more bool) bool
}

// Reader reads one shard after another, in parallel with the workers.
type Reader struct {
	store    Store
	overdue  func() bool
	pause    time.Duration // after each batch of store.HistoriesAtOnce tasks
	requests chan Request
	log      *zap.Logger
}

// NewReader returns a Reader. It does nothing until Run is called. It reads at most rate tasks in a second, and pauses
// while overdue returns true: then the node has more urgent things to do.
func NewReader(s Store, rate int, overdue func() bool, log *zap.Logger) *Reader {
	return &Reader{
		store: s, overdue: overdue, pause: store.HistoriesAtOnce * time.Second / time.Duration(rate),
		requests: make(chan Request, maxRequests), log: log,
	}
}

// Request queues a request without blocking. If too many wait, it is dropped.
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
			r.readShard(ctx, q)
		}
	}
}

// readShard serves one request, batch by batch.
func (r *Reader) readShard(ctx context.Context, q Request) {
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

	slices.SortFunc(wanted, func(a, b Want) int { return strings.Compare(a.Task, b.Task) })

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
func (r *Reader) retry(ctx context.Context, q Request, read func() error) bool {
	for q.Current() {
		if !r.overdue() {
			err := read()
			if err == nil {
				return true
			}

			r.log.Debug("could not read how runs had ended", zap.Int("shard", q.Shard), zap.Error(err))
		}

		if !clock.Sleep(ctx, retryPause) {
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
func (r *Reader) readDead(ctx context.Context, shard int) (deadRuns, error) {
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
func (d deadRuns) of(t *Want) []store.ShardEvent {
	return slices.DeleteFunc(slices.Clone(d.byTask[t.Task]), func(ev store.ShardEvent) bool { return !t.owns(ev.Run) })
}

// pastReading is the reading of one task.
type pastReading struct {
	past *Past
	left []store.ShardEvent // the records that are not read yet, the latest first
}

// readTasks reads the histories of tasks, at most store.HistoriesAtOnce. It lists the keys first, and then reads
// records, the latest first, until each task has a success or no records are left.
func (r *Reader) readTasks(ctx context.Context, shard int, tasks []Want, dead deadRuns) ([]Past, error) {
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

		// The mod revision gives the order in which runs ended; the key begins with the time of the tick.
		own := slices.DeleteFunc(keys[i], func(ev store.ShardEvent) bool { return !t.owns(ev.Run) })
		slices.SortFunc(own, func(a, b store.ShardEvent) int { return cmp.Or(cmp.Compare(b.Mod, a.Mod), cmp.Compare(b.Key, a.Key)) })
		readings[i] = pastReading{&found[i], own[:min(len(own), found[i].recordsToRead(own))]}
	}

	// The last run of most tasks has succeeded, so the pages start small and grow.
	for want := 1; ; want = min(4*want, maxRound) {
		more, err := r.readRecords(ctx, readings, want, rev)
		if err != nil {
			return nil, err
		}

		if !more {
			break
		}
		if want == maxRound && !clock.Sleep(ctx, r.pause) {
			return nil, ctx.Err()
		}
	}

	for i := range found {
		p := &found[i]
		// The create revision counts: a dismissal rewrites the record before it deletes it.
		p.Dead = slices.DeleteFunc(p.Dead, func(ev store.ShardEvent) bool { return ev.Create <= p.Success.Mod })
		slices.SortFunc(p.Dead, func(a, b store.ShardEvent) int { return cmp.Compare(a.Create, b.Create) })
	}

	return found, r.readNewestDead(ctx, found, rev)
}

// readNewestDead reads the newest dead runs of each task, which show how it has failed. Those that were dismissed since they
// were listed are left out.
func (r *Reader) readNewestDead(ctx context.Context, found []Past, rev int64) error {
	var keys []string
	for i := range found {
		dead := found[i].Dead
		for _, ev := range dead[max(0, len(dead)-MaxDead):] {
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
	}

	return nil
}

// recordsToRead returns how many of a task's records, the latest first, may have to be read. A task is failing unless a run
// has succeeded after its dead runs, however many records there are since.
func (p *Past) recordsToRead(latestFirst []store.ShardEvent) int {
	after := 0
	if len(p.Dead) > 0 {
		oldest := slices.MinFunc(p.Dead, func(a, b store.ShardEvent) int { return cmp.Compare(a.Create, b.Create) }).Create
		after, _ = slices.BinarySearchFunc(latestFirst, oldest, func(ev store.ShardEvent, dead int64) int { return cmp.Compare(dead, ev.Mod) })
	}

	return max(after, maxRecords)
}

// readRecords reads up to want further records of each task that needs them. It returns false if none does.
func (r *Reader) readRecords(ctx context.Context, readings []pastReading, want int, rev int64) (more bool, err error) {
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
	if !ok || readmodel.OutcomeOf(end.State) == 0 || p.past.Success.Mod != 0 {
		return
	}

	e := End{ev.Mod, end}
	if p.past.Last.Mod == 0 {
		p.past.Last = e
	}

	switch end.State {
	case task.Succeeded:
		p.past.Success, p.left = e, nil
	case task.Cancelled:
		// It says nothing about the task.
	default:
		p.past.Failures++
	}
}
