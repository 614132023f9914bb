// Package background holds what works in parallel with the workers of shards, so that no tick waits for it:
//
//   - Trimmer and Deleter delete what need not be kept: history records and dead runs beyond the number that a task
//     keeps, and tasks whose schedule has ended and whose ttl has expired.
//   - Reconciler lists what etcd holds, so that a worker finds out what its watch has lost.
//   - PastReader reads how runs have ended before a shard got its owner.
//   - Feed follows a shard, and passes its events on.
//
// The package decides no ticks. The workers decide what to delete and what to repair. A request that does not fit into a
// queue, or fails, is not remembered: the worker makes it again. Each delete compares the fences of the shard, so that
// only its owner deletes.
package background

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// HistoryTrimmer reads and trims histories and ledgers. See store.Shards for the methods.
type HistoryTrimmer interface {
	historyLister
	folder
	TrimHistory(ctx context.Context, f store.Fences, ref record.Ref, gone []store.Past) error
	TrimDead(ctx context.Context, f store.Fences, ref record.Ref, keep int) error
	SweepRunData(ctx context.Context, f store.Fences, ref record.Ref) error
}

// historyLister lists histories without their values.
type historyLister interface {
	OldestRun(ctx context.Context, ref record.Ref) (id string, count int64, err error)
	HistoryToTrim(ctx context.Context, ref record.Ref, read store.TrimRead) (store.HistoryToTrim, error)
}

// folder moves records from histories to ledgers.
type folder interface {
	ReadToFold(ctx context.Context, ref record.Ref, listed []store.Past, since string) ([]store.PastRecord, *store.LedgerChunk, error)
	OldestChunks(ctx context.Context, ref record.Ref, limit int) ([]store.LedgerChunk, error)
	FoldHistory(ctx context.Context, f store.Fences, h store.HistoryFold) error
	DeleteLedger(ctx context.Context, f store.Fences, ref record.Ref, newest store.LedgerChunk, mark *store.LedgerChunk) error
}

// Trimmer cuts histories to their length, and adds what it deletes to the ledgers of the tasks. It works in parallel with
// the workers, so that no tick waits for it. A task is trimmed after a number of records has been added (TrimAfter), so
// that its keys are not listed too often. A request that does not fit into the queue is made again when the task's next
// run ends.
//
// What leaves a history is added to the task's ledger (package ledger) by the transaction that deletes it, so a crash
// loses nothing, and nothing is counted twice:
//
//	list the keys of the history ─► choose the surplus ─► its values and the newest chunk ─► ledger.Fold ─► one transaction
//
// The list usually contains the values, because those of the oldest ticks are read with it.
//
// The transaction compares the newest chunk, so that of two folds of the same records only one is applied, and the records
// that their owner may extend. After a conflict, everything is read again. A full etcd refuses puts. Then the records are
// deleted without a fold, because a full etcd must get rid of records. Readers see the hole from the counts of the ledger.
//
// If records or chunks are deleted without being counted, the newest chunk notes it, so that readers know from which tick
// on the history and the ledger together are complete (ledger.Chunk: Gone, Uncounted).
type Trimmer struct {
	store   HistoryTrimmer
	cluster func() task.Cluster // the default and the limit of ledgers
	now     func() time.Time
	line    chan Trim // requests; 4,096 may wait
	log     *zap.Logger

	warnings warnings
	lost     lostRecords
}

// trimmersAtOnce is how many histories are trimmed in parallel, so that their deletes can share requests to
// etcd.
const trimmersAtOnce = 16

// NewTrimmer returns a Trimmer. It does nothing until Run is called. cluster returns the cluster's record as it is known,
// and now the time from which ages count.
func NewTrimmer(s HistoryTrimmer, cluster func() task.Cluster, now func() time.Time, log *zap.Logger) *Trimmer {
	return &Trimmer{store: s, cluster: cluster, now: now, line: make(chan Trim, 4096), log: log}
}

// Ask requests a trim. It returns false if the queue is full.
func (t *Trimmer) Ask(job Trim) bool {
	select {
	case t.line <- job:
		return true
	default:
		return false
	}
}

// Pending returns the queue from which Run takes trims. Tests use it in place of Run.
func (t *Trimmer) Pending() <-chan Trim { return t.line }

// Run carries out trims until ctx ends.
func (t *Trimmer) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)

	for range trimmersAtOnce {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case job := <-t.line:
					if err := t.Trim(ctx, job); err != nil && ctx.Err() == nil && !errors.Is(err, task.ErrFenced) {
						t.logFailure(job.Ref.String(), err)
					}
				}
			}
		})
	}

	return g.Wait()
}

// logFailure logs that a trim failed. While it keeps failing, the history grows, so that an operator should know.
func (t *Trimmer) logFailure(name string, err error) {
	level := zap.DebugLevel
	if t.warnings.noteFailure(name, t.now()) {
		level = zap.WarnLevel
	}

	t.log.Log(level, "could not trim a history; a later run that ends triggers another try", zap.String("task", name), zap.Error(err))
}

// maxTrimTries is how often a trim is tried that fails with a conflict: a range of ticks grew, or the same history was
// trimmed twice at a time.
const maxTrimTries = 4

// Trim cuts one history, or one list of dead runs, to its length.
func (t *Trimmer) Trim(ctx context.Context, job Trim) error {
	if job.Dead {
		keep := store.KeepDead
		if job.IsWorkflow {
			keep = store.KeepDeadFlows
		}

		if err := t.store.TrimDead(ctx, job.Fences, job.Ref, keep); err != nil {
			return err
		}

		// The task may have been a workflow before.
		return t.store.SweepRunData(ctx, job.Fences, job.Ref)
	}

	err := task.ErrConflict
	for try := 0; try < maxTrimTries && errors.Is(err, task.ErrConflict); try++ {
		err = t.trimHistory(ctx, job)
	}
	if err != nil || !job.IsWorkflow {
		return err
	}

	return t.store.SweepRunData(ctx, job.Fences, job.Ref)
}

// spareValues is how many values a trim reads in addition to as many as records were added. Some of the oldest ticks may
// have ended late, and stay.
const spareValues = 4

// trimHistory is one try of a trim.
func (t *Trimmer) trimHistory(ctx context.Context, job Trim) error {
	read := store.TrimRead{States: job.History.Record == task.RecordFailures, Records: job.History.Keep + job.Added + spareValues}
	if job.History.KeepFor > 0 {
		oldest, count, err := t.store.OldestRun(ctx, job.Ref)
		if err != nil || !mayHaveSurplus(oldest, count, job.History, t.now()) {
			return err
		}
		read.Records = int(count)
	}

	cluster := t.cluster()
	lasts := cluster.LedgerOf(job.History)
	if lasts > 0 {
		read.Values = min(job.Added+spareValues, store.MaxFold)
	}

	list, err := t.store.HistoryToTrim(ctx, job.Ref, read)
	if err != nil {
		return err
	}

	// If there are dead runs, it matters which record is the last success.
	oldestDead := list.OldestDead(job.UID)
	if oldestDead != 0 && !read.States {
		read.States = true
		if list, err = t.store.HistoryToTrim(ctx, job.Ref, read); err != nil {
			return err
		}
		oldestDead = list.OldestDead(job.UID)
	}

	past := recordsOf(job.UID, list.Past)
	gone := surplusRecords(past, job.History, t.now(), oldestDead)
	if job.Before != 0 {
		gone = slices.DeleteFunc(gone, func(p store.Past) bool { return p.Mod >= job.Before })
	}
	gone = list.KeepUnsent(gone)

	// Only a setting deletes what is in the ledger. The limit of a full cluster may end soon.
	isOff := job.History.EffectiveLedger(cluster.LedgerSetting()) == 0
	if isOff && list.Newest != nil || lasts == 0 && len(gone) > 0 {
		if err := t.markUncounted(ctx, &job, &list, isOff); err != nil {
			return err
		}
	}

	switch {
	case len(gone) == 0:
		return nil
	case lasts == 0:
		return t.store.TrimHistory(ctx, job.Fences, job.Ref, gone)
	}

	now := t.now()
	f := folding{
		store: t.store, job: &job, history: past, listed: list.Past, revision: list.Revision, now: now, oldestTick: now.Add(-lasts.Std()), chunks: list.Chunks,
		lost: &t.lost, list: &list,
	}

	return f.foldAll(ctx, gone)
}

// markUncounted notes in the ledger that records are deleted without being counted. It is called before the first deletion.
// Without this mark, readers could not determine later from which tick on the ledger is complete. If the setting of the task
// is to have no ledger, nothing else remains in it.
func (t *Trimmer) markUncounted(ctx context.Context, job *Trim, list *store.HistoryToTrim, isOff bool) error {
	mark, previous := ledger.NewUncounted(job.UID, t.now()), ""
	rewrites := false

	if newest := list.Newest; newest != nil {
		previous = newest.ID
		chunk, whole, err := ledger.Decode(newest.Value)
		isOwn := err == nil && chunk.UID == job.UID

		if isOwn && chunk.Uncounted && (!isOff || chunk.IsEmpty() && list.Chunks == 1) {
			return nil
		}
		if rewrites = isOwn && whole && !isOff; rewrites {
			mark = chunk
			mark.Uncounted = true
		}
	}

	value, err := mark.MarshalJSON()
	if err != nil {
		return fmt.Errorf("mark the ledger of %s: %w", job.Ref, err)
	}

	put := store.LedgerChunk{ID: previous, Value: value}
	if !rewrites {
		put.ID = mark.ID(previous)
	}

	if isOff && list.Newest != nil {
		err = t.store.DeleteLedger(ctx, job.Fences, job.Ref, *list.Newest, &put)
		if store.NoSpace(err) {
			return t.store.DeleteLedger(ctx, job.Fences, job.Ref, *list.Newest, nil)
		}
	} else {
		err = t.store.FoldHistory(ctx, job.Fences, store.HistoryFold{Ref: job.Ref, EntryCreate: job.Created, Newest: list.Newest, Put: []store.LedgerChunk{put}})
	}

	// A full etcd must get rid of records. The next trim tries again.
	if store.NoSpace(err) {
		return nil
	}

	return err
}

const (
	warnEvery = time.Hour
	maxWarned = 1000 // tasks whose last warning is remembered
)

// warnings limits how often the log warns of each task. The zero value is ready to use.
type warnings struct {
	mu   sync.Mutex
	last map[string]time.Time // when it last warned of each task
}

// noteFailure reports whether to warn of a task whose trim failed: once an hour, and of a limited number of tasks.
func (w *warnings) noteFailure(name string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	isOver := func(_ string, at time.Time) bool { return now.Sub(at) >= warnEvery }
	if at, known := w.last[name]; known && !isOver(name, at) {
		return false
	}

	if len(w.last) >= maxWarned {
		maps.DeleteFunc(w.last, isOver)
		if len(w.last) >= maxWarned {
			return false
		}
	}

	if w.last == nil {
		w.last = map[string]time.Time{}
	}
	w.last[name] = now

	return true
}

// Trim is a request to cut a task's history, or its list of dead runs, to its length.
type Trim struct {
	Fences store.Fences // every write compares them, so that only the owner trims
	Ref    record.Ref
	Dead   bool // trim the dead runs, not the history; the fields in the second group do not apply

	IsWorkflow bool // its runs have data, which are deleted with the last record of a run

	UID      string            // records of other tasks of that name do not count
	Created  int64             // create revision of the task's entry
	History  task.History      // how many records to keep, and which
	Schedule schedule.Schedule // the task's schedule, with its anchor
	Added    int               // about how many records were added since the last trim
	Before   int64             // only records with a lower mod revision are deleted; 0: any
}

// TrimAfter returns after how many new records a task is trimmed that keeps the given number. A history is therefore up
// to a quarter longer than it should be, or by the ticks of ten minutes, which must not be more than 60.
//
// Every trim that folds records into the ledger writes a chunk. So one fold should take several records of a task that
// ticks often.
func TrimAfter(keep, ticks int) int { return max(keep/4, ticks, 1) }

// recordsOf returns the records of the task with a uid, in the same order. The others are left from a task that was deleted.
func recordsOf(uid string, past []store.Past) []store.Past {
	isOther := func(p store.Past) bool { return !task.RunBelongs(p.Run(), uid) }
	if !slices.ContainsFunc(past, isOther) {
		return past
	}

	return slices.DeleteFunc(slices.Clone(past), isOther)
}

// surplusRecords returns the records that a history must lose, in the order in which they were created. The
// records that were created last stay, not those with the highest keys. Keys begin with the time of the
// tick, and the run that ends last often belongs to an older tick: it took long, was retried or was lost.
// The ttl, a schedule after completion and the count of consecutive failures depend on the last end. The mod
// revision tells less: a record that somebody has written again as it is would seem to be a new end.
//
// Beyond the number that a task keeps, records stay whose ticks are younger than keep_for, up to task.MaxHistory.
//
// The newest record always stays. So does the last success while a dead run from before it is kept: without it, the task
// would seem to be failing. oldestDead is the create revision of the oldest dead run; 0: there is none. Late results do not
// count: they are deleted together with their run.
func surplusRecords(past []store.Past, h task.History, now time.Time, oldestDead int64) (gone []store.Past) {
	byCreate := slices.Clone(past)
	slices.SortFunc(byCreate, func(a, b store.Past) int { return cmp.Or(cmp.Compare(a.Create, b.Create), cmp.Compare(a.ID, b.ID)) })

	stay := map[string]bool{}
	newest, lastSuccess := true, ""
	for _, p := range slices.Backward(byCreate) {
		if p.Late {
			continue
		}

		wanted := newest || !p.Succeeded || h.Record != task.RecordFailures
		if wanted && (len(stay) < h.Keep || len(stay) < task.MaxHistory && isYounger(p.ID, h.KeepFor, now)) {
			stay[p.ID] = true
		}

		if p.Succeeded && lastSuccess == "" && oldestDead != 0 && oldestDead <= p.Create {
			lastSuccess = p.ID
		}

		newest = false
	}

	return slices.DeleteFunc(byCreate, func(p store.Past) bool { return stay[p.Run()] || p.Run() == lastSuccess })
}

// isYounger reports whether the tick of a run is less than an age ago. It returns false if its time is not known.
func isYounger(run string, age task.Duration, now time.Time) bool {
	if age == 0 {
		return false
	}

	tick, ok := task.TimeOfRunID(run)

	return ok && now.Sub(tick) < age.Std()
}

// mayHaveSurplus reports whether a history that keeps records for a time may have records to delete, from its oldest key
// and the number of its keys. Such a history may be long, and is not listed for few records: it may exceed the time, and
// the number of records, by a quarter.
func mayHaveSurplus(oldest string, count int64, h task.History, now time.Time) bool {
	// Successes are deleted however young they are.
	if h.KeepFor == 0 || h.Record == task.RecordFailures {
		return true
	}

	run, _, _ := strings.Cut(oldest, record.LateMark)

	return count > max(int64(h.Keep), task.MaxHistory)*5/4 || !isYounger(run, h.KeepFor*5/4, now)
}
