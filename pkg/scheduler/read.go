package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// watchAttempts reads the attempts whose node is gone or which must be cancelled, of the tasks that are
// noted for examination. The next plan ends or cancels them.
//
// An attempt is lost when its node was absent and its record unchanged at two readings. The time between
// them must be at least the lost_after in the record, or ClearedAfter if its instance is proved dead. The
// commit compares both once more (G17). now must have a monotonic reading.
//
// watchAttempts returns an error only if ctx has ended. If etcd cannot be read, it is tried again a second
// later.
func (w *worker) watchAttempts(ctx context.Context, now time.Time) error {
	err := w.readAttempts(ctx, now)
	if err != nil && ctx.Err() == nil {
		w.state.agenda.examineAllBy(now.Add(time.Second))
	}
	return ctx.Err()
}

// readAttempts determines which attempts to read, finds out which instances are proved dead if that
// matters, reads the attempts together with their nodes, and applies the result.
func (w *worker) readAttempts(ctx context.Context, now time.Time) error {
	cleared := map[string]bool{} // by instance, in this round

	readings, unknown := w.state.neededReadings(now, cleared)
	if len(unknown) > 0 {
		for _, instance := range unknown {
			dead, err := w.e.cfg.Store.Cleared(ctx, instance)
			if err != nil {
				return err
			}
			cleared[instance] = dead
		}

		readings, _ = w.state.neededReadings(now, cleared)
	}

	if len(readings) == 0 {
		return nil
	}

	keys := make([]record.RunKey, len(readings))
	for i, r := range readings {
		keys[i] = w.state.records.RunKey(r.Task, r.Attempt)
	}

	found, err := w.e.cfg.Store.Sightings(ctx, keys)
	read := w.e.cfg.Now() // the time of absence counts from after the reading, not from before

	for i, v := range found {
		// If the attempt's record is gone, the watch will deliver its end.
		if !v.Gone {
			w.state.applyReading(readings[i], v, now, read)
		}
	}

	return err
}

// historyStore lists histories, and reads records of them at one revision.
type historyStore interface {
	HistoriesOf(ctx context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error)
	RecordsAt(ctx context.Context, keys []string, rev int64) ([]store.ShardEvent, error)
}

// readHistories reads some of the histories that decisions wait for. Between two plans it reads at most
// store.HistoriesAtOnce of them, so that ticks of other tasks do not wait for long. If they cannot be read,
// their tasks are examined again in a second. now is in Unix milliseconds.
func (w *worker) readHistories(ctx context.Context, now int64) {
	// Sort the tasks, so that the order does not depend on the map.
	some := slices.SortedFunc(maps.Keys(w.state.unread), state.ByName)
	some = some[:min(len(some), store.HistoriesAtOnce)]
	for _, t := range some {
		delete(w.state.unread, t)
	}

	list, err := readHistoriesOf(ctx, w.e.cfg.Store, w.state.records.Shard, some)
	if err != nil {
		w.log.Debug("could not read histories", zap.Error(err))
		for _, t := range some {
			w.state.agenda.examineAgainAt(t, state.Instant(now+1000))
		}
		return
	}

	for _, s := range list {
		s.Conclude(now)
		w.state.agenda.examineNext(s.Task())
	}
}

// readHistoriesOf reads the histories of tasks of a shard, at most store.HistoriesAtOnce. It lists the keys first, and then
// reads records, the newest first, until each reader has enough. All reads are at the revision of the list.
func readHistoriesOf(ctx context.Context, s historyStore, shard int, tasks []*state.Task) ([]*state.HistoryReader, error) {
	refs := make([]record.Ref, len(tasks))
	for i, t := range tasks {
		refs[i] = t.Ref(shard)
	}

	keys, rev, err := s.HistoriesOf(ctx, refs)
	if err != nil {
		return nil, err
	}

	list := make([]*state.HistoryReader, len(tasks))
	for i, t := range tasks {
		own := slices.DeleteFunc(keys[i], func(ev store.ShardEvent) bool { return t.Orphan(ev.Run) })

		// The create revision gives the order in which runs ended, because a record that was written again is no other end. The key
		// begins with the time of the tick.
		slices.SortFunc(own, func(a, b store.ShardEvent) int {
			return cmp.Or(cmp.Compare(b.Create, a.Create), cmp.Compare(b.Key, a.Key))
		})
		list[i] = state.NewHistoryReader(t, rev, own)
	}

	// Most tasks need only their newest record, so the pages start small and grow.
	for want := 1; ; want *= 4 {
		var page []string
		var of []*state.HistoryReader
		for _, h := range list {
			for _, ev := range h.Wants(want) {
				page, of = append(page, ev.Key), append(of, h)
			}
		}

		if len(page) == 0 {
			return list, nil
		}

		// Read at the revision of the list. Retention trims in parallel: a record that was deleted since
		// then would be missing, and an older end would pass for the last one.
		events, err := s.RecordsAt(ctx, page, rev)
		if err != nil {
			return nil, err
		}

		for i, ev := range events {
			of[i].Take(ev)
		}
	}
}

// needHistory requests t's history before the next plan, because the watch has not delivered everything
// that matters.
func (s *shardState) needHistory(t *state.Task) { s.unread[t] = struct{}{} }

// A commit that moves the watermark's time compares the shard's revised key. It fails if an edit may have given
// a task new ticks and the watch has not delivered the edit yet. Otherwise the watermark could pass a new tick
// that its writer has not seen, and the tick would be lost (G4). After such a failure, the owner waits for the
// watch or reads the entries, and decides again.
//
// Edits may arrive faster than an owner can commit. After some failures in a row, it decides due ticks without
// moving the watermark: the from of each entry records that its tick is decided. Such a commit compares the
// entries that it writes, and not the revised key. So edits can slow a shard down but never stop it.

const (
	// revisedTimeout is how long the watch may take to deliver an edit before the entries are read. It
	// limits how late ticks are.
	revisedTimeout = 100 * time.Millisecond
	// maxOvertaken is how many commits in a row may fail because of edits before ticks are decided without
	// moving the watermark.
	maxOvertaken = 3
)

// learnRevised waits until the worker knows the edit that made a commit fail. mod is the current mod
// revision of the revised key. It returns as soon as the watch has delivered the edit, or after it has read
// the entries itself. If it can do neither, it returns nil, and the next commit fails as well. An error
// means that ctx has ended or that the shard must be opened again.
func (w *worker) learnRevised(ctx context.Context, mod int64) error {
	w.state.overtaken++

	// The edit is known if the watch has delivered this version of the key or a later one. A mod of 0 means
	// that the key is gone.
	told := func() bool { return w.state.revised == mod || mod != 0 && w.state.revised > mod }

	// The event may be in the channel already.
	if err := w.applyPending(w.batches); err != nil {
		return err
	}

	patience := time.NewTimer(revisedTimeout)
	defer patience.Stop()

	for !told() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-w.batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}
		case <-patience.C:
			// The watch is late. Read the entries instead.
			if err := w.readRevised(ctx); err != nil {
				w.log.Debug("could not read the edited entries", zap.Error(err))
			}
			return ctx.Err()
		}
	}

	return nil
}

// readRevised reads the entries that have changed, and then records the value of the revised key as of the
// listing of the keys. Entries of tasks that were created after what the watch has delivered are left to
// the watch: the watermark does not cover them before the watch has delivered everything up to the listing
// (see readAhead). Nothing changes if it returns an error.
func (w *worker) readRevised(ctx context.Context) error {
	keys, rev, err := w.e.cfg.Store.ShardKeys(ctx, w.state.records.Shard)
	if err != nil {
		return err
	}

	var changed []string
	var revised int64
	for i := range keys {
		ev := &keys[i]
		switch {
		case ev.Kind == record.KindRevised:
			revised = ev.Mod
		case ev.Kind == record.KindEntry && ev.Create <= w.state.applied && w.state.records.LacksRecord(ev):
			changed = append(changed, ev.Key)
		}
	}

	// An entry may be edited again before it is read. Then the revised key has changed as well, and the
	// next commit fails.
	entries, err := w.e.cfg.Store.RecordsNow(ctx, changed)
	if err != nil {
		return err
	}

	for i := range entries {
		if ev := &entries[i]; !ev.Deleted {
			w.state.applyEntry(ev)
		}
	}

	w.state.setRevised(revised, rev)
	w.state.readAhead = readAhead{applied: w.state.applied, at: rev}

	return nil
}

// requestPast requests how the runs of the shard's tasks had ended before the shard was opened.
func (w *worker) requestPast() {
	opening := w.openings.Load()
	current := func() bool { return w.openings.Load() == opening && w.served.Load() != nil }

	// offer passes a review to the worker. It waits while the worker is busy.
	offer := func(ctx context.Context, r review) bool {
		for current() && !w.offerReview(r) {
			if !clock.Sleep(ctx, reviewPause) {
				return false
			}
		}

		return current()
	}

	w.e.pastRuns.Request(background.PastRequest{
		Shard: w.state.records.Shard, Current: current,
		Wanted: func(ctx context.Context) ([]background.WantedPast, bool) {
			answer := make(chan []background.WantedPast, 1)
			if !offer(ctx, wantedPast{answer}) {
				return nil, false
			}

			for {
				select {
				case list := <-answer:
					return list, true
				case <-time.After(time.Second):
					// The worker may have opened the shard again without having seen the request.
					if !current() {
						return nil, false
					}
				case <-ctx.Done():
					return nil, false
				}
			}
		},
		Deliver: func(ctx context.Context, some []background.Past, more bool) bool {
			return offer(ctx, foundPast{some, more, opening})
		},
	})
}

// lookPeriod is how often the histories of sources are searched for ended runs that no watch has reported.
const lookPeriod = 10 * time.Minute

// lookAtSources asks the node's sender to look at all sources of the shard. The ends of their runs before the shard was opened
// are not in the load, and a watch may have lost one.
func (w *worker) lookAtSources() {
	w.lookedAt = time.Now()

	names := w.state.records.Links.Sources()
	looks := make([]background.Send, len(names))
	for i, name := range names {
		looks[i] = w.state.sendOf(name)
	}

	w.e.sender.Look(w.state.records.Shard, looks)
}

// reviewPause is the pause before a worker that was busy is asked again.
const reviewPause = 20 * time.Millisecond

// wantedPast asks for the tasks whose past is not known.
type wantedPast struct {
	answer chan<- []background.WantedPast
}

func (p wantedPast) reviewBy(_ context.Context, w *worker) error {
	p.answer <- w.state.rows.Wanted(&w.state.records.Tasks, w.state.fences.Gap != nil)
	return nil
}

// foundPast is what has been read of the past of some tasks.
type foundPast struct {
	some    []background.Past
	more    bool  // further tasks follow
	opening int64 // the value of worker.openings when it was requested
}

func (f foundPast) reviewBy(_ context.Context, w *worker) error {
	// If the shard was opened again since, that opening has made a request of its own.
	if f.opening != w.openings.Load() {
		return nil
	}

	for i := range f.some {
		w.state.rows.Restore(w.state.records.Tasks.Get(f.some[i].Want.Task), &f.some[i], w.state.applied)
	}

	if f.more {
		return nil
	}

	w.state.rows.Restored()

	w.requestMissingPast() // entries of some tasks could not be read before

	return nil
}

// requestMissingPast requests the past of the tasks whose past is not known, if there are any: the watch has lost
// events of them, or their entries could not be read before.
func (w *worker) requestMissingPast() {
	w.state.rows.Flush(w.state.applied)

	if w.state.rows.NeedsExplanations() || w.state.rows.Index.Size().Unread > 0 {
		w.requestPast()
	}
}

// A review is what another goroutine of the node has read of a shard, or a request to repair what differed from it.
//
// A difference between a listing and the worker's state may be an event that is still on its way. So it is checked
// again a while later, and repaired only if it is still the same: then the watch has lost the event.
type review interface {
	// reviewBy compares the review with the worker's state, on the worker's goroutine. It returns an error only if
	// the shard must be opened again.
	reviewBy(ctx context.Context, w *worker) error
}

// differenceTimeout is how long a difference between etcd and a worker may be an event on its way.
const differenceTimeout = 10 * time.Second

// offerReview passes a review to the worker. It does not block, and returns false if the worker is busy
// with others.
func (w *worker) offerReview(r review) bool {
	select {
	case w.reviews <- r:
		return true
	default:
		return false
	}
}

// openShards returns the shards whose workers serve them, ordered by shard, for the reconciler.
func (e *Engine) openShards() []background.OpenShard {
	e.mu.Lock()
	defer e.mu.Unlock()

	var list []background.OpenShard
	for _, w := range e.workers {
		if w.serving.Load() {
			list = append(list, background.OpenShard{ID: w.state.records.Shard, Owner: w})
		}
	}

	slices.SortFunc(list, func(a, b background.OpenShard) int { return a.ID - b.ID })

	return list
}

// Openings, CompareRecords, CompareRuns and CompareHistory implement background.ShardOwner.
func (w *worker) Openings() int64 { return w.openings.Load() }

func (w *worker) CompareRecords(keys []store.ShardEvent, rev int64) bool {
	return w.offerReview(recordListing{keys, rev})
}

func (w *worker) CompareRuns(runs []store.ActiveKey, rev int64) bool {
	return w.offerReview(runListing{runs, rev})
}

func (w *worker) CompareHistory(page []store.ShardEvent) bool {
	return w.offerReview(historyPage(page))
}

// recordListing is a listing of all keys of the shard, without its history.
type recordListing struct {
	keys []store.ShardEvent // without values
	rev  int64              // the revision of the listing
}

func (r recordListing) reviewBy(ctx context.Context, w *worker) error {
	// Earlier differences must be settled first.
	if w.recordDiffs.NotEmpty() {
		return w.repairOverdue(ctx, w.recordDiffs, overdueRecords{})
	}

	w.recordDiffs = state.Differences{Records: w.state.records.DifferingRecords(r.keys, r.rev)}
	w.scheduleRepair(&w.recordDiffs, overdueRecords{})

	return nil
}

// runListing is a listing of all active attempts of the shard.
type runListing struct {
	runs []store.ActiveKey
	rev  int64 // the revision of the listing
}

func (r runListing) reviewBy(ctx context.Context, w *worker) error {
	// Earlier differences must be settled first.
	if w.runDiffs.NotEmpty() {
		return w.repairOverdue(ctx, w.runDiffs, overdueRuns{})
	}

	w.runDiffs = w.state.records.DifferingRuns(r.runs, r.rev)
	w.scheduleRepair(&w.runDiffs, overdueRuns{})

	return nil
}

// scheduleRepair schedules the repair of differences for when they have persisted for long enough.
func (w *worker) scheduleRepair(d *state.Differences, repair review) {
	if d.NotEmpty() {
		d.Since = time.Now()
		time.AfterFunc(w.e.patience, func() { w.offerReview(repair) })
	}
}

// repairOverdue repairs differences whose time has come but whose scheduled repair was dropped because the
// worker was busy.
func (w *worker) repairOverdue(ctx context.Context, d state.Differences, repair review) error {
	if time.Since(d.Since) < w.e.patience {
		return nil
	}
	return repair.reviewBy(ctx, w)
}

// overdueRecords requests the repair of records that have differed for long enough.
type overdueRecords struct{}

// reviewBy applies the records that still differ, as etcd holds them now. It returns errReload if the
// watermark belongs to another writer.
func (overdueRecords) reviewBy(ctx context.Context, w *worker) error {
	repair := w.state.records.RepairRecords(w.recordDiffs)
	w.recordDiffs = state.Differences{}

	keys := repair.Keys()
	if len(keys) == 0 {
		return nil
	}

	events, err := w.e.cfg.Store.RecordsNow(ctx, keys)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	for _, ev := range events {
		switch repair.Judge(&ev) {
		case state.ForeignWatermark:
			// A watermark that this worker did not write means that another worker has opened the shard.
			w.countRepair("the watermark", ev.Key)
			return fmt.Errorf("%w: the watermark is another's", errReload)
		case state.ApplyRecord:
			w.countRepair("a record", ev.Key)
			w.applyToShard(store.ShardBatch{Events: []store.ShardEvent{ev}})
		}
	}

	w.requestMissingPast()

	return nil
}

// overdueRuns requests the repair of active attempts that have differed for long enough.
type overdueRuns struct{}

// reviewBy ends the attempts that are no longer active in etcd, and adds those that are active only there.
func (overdueRuns) reviewBy(ctx context.Context, w *worker) error {
	repair := w.state.records.RepairRuns(w.runDiffs)
	w.runDiffs = state.Differences{}

	if len(repair.Keys) == 0 {
		return nil
	}

	found, err := w.e.cfg.Store.Sightings(ctx, repair.Keys)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	// An attempt that ended with a retry leaves the run active. So the queue is read before the end is
	// applied (G8).
	if repair.MayEnd() {
		if err := w.readQueue(ctx); err != nil {
			return w.ignoreRetryable(err)
		}
	}

	for i, v := range found {
		k := repair.Keys[i]

		if t, a := repair.Ended(i, v); a != nil {
			w.countRepair("an end", k.Run)
			w.state.applyAttemptEnd(t, a.Run, v.Revision+1)
			w.state.retrySetAside(t)
			w.state.rows.DoubtPast(t, w.e.cfg.Now())
		}

		if repair.Added(i, v) {
			w.countRepair("an attempt", k.Run)
			t := w.state.records.TaskNamed(k.Ref.String())
			w.state.addFoundAttempt(t, state.Attempt{Run: k.Run, Node: k.Node, Create: v.Create})
			w.state.agenda.examineNext(t)
			w.state.retrySetAside(t)
		}
	}

	w.requestMissingPast()

	return nil
}

// historyPage is one page of the keys of the shard's history.
type historyPage []store.ShardEvent

// reviewBy has the records of tasks that no longer exist deleted.
func (h historyPage) reviewBy(ctx context.Context, w *worker) error {
	orphans := w.state.records.FindOrphans(h, w.state.applied)
	if len(orphans.Entries) == 0 {
		return nil
	}

	entries, err := w.e.cfg.Store.RecordsNow(ctx, orphans.Entries)
	if err != nil {
		return w.ignoreRetryable(err)
	}

	n := 0
	for i := range entries {
		for _, ev := range orphans.Of(&entries[i]) {
			w.state.purges[ev.Key] = ev.Mod
			n++
		}
	}

	if n > 0 {
		w.log.Info("deleting the history of deleted tasks", zap.Int("records", n))
	}

	return nil
}

// countRepair counts and logs a difference that the watch should have reported.
func (w *worker) countRepair(what, key string) {
	w.e.metrics.Repairs.Inc()
	w.log.Warn("repaired changes that a watch had missed", zap.String("what", what), zap.String("key", key), zap.Int64("rev", w.state.applied))
}

// ignoreRetryable logs an error and drops it: the next comparison finds the differences again.
func (w *worker) ignoreRetryable(err error) error {
	w.log.Debug("could not reconcile", zap.Error(err))
	return nil
}

// planReader reads the plans of workflows.
type planReader interface {
	ReadPlans(ctx context.Context, sources []store.PlanSource) ([]store.PlanRecord, error)
}

// plansAtOnce is how many plans are read between two decisions, so that ticks of other tasks do not wait for long.
const plansAtOnce = 8

// readPlans reads some of the plans for which decisions wait. If they cannot be read, their tasks are examined again in a second.
func (w *worker) readPlans(ctx context.Context, now time.Time) {
	// Sort them, so that the order does not depend on the map.
	wanted := slices.SortedFunc(maps.Keys(w.state.wantedPlans), func(a, b wantedPlan) int {
		if c := state.ByName(a.task, b.task); c != 0 {
			return c
		}
		return strings.Compare(a.run, b.run)
	})
	wanted = wanted[:min(len(wanted), plansAtOnce)]

	sources := make([]store.PlanSource, len(wanted))
	for i, want := range wanted {
		delete(w.state.wantedPlans, want)
		sources[i] = store.PlanSource{Ref: want.task.Ref(w.state.records.Shard), Run: want.run}
	}

	found, err := w.e.cfg.Store.ReadPlans(ctx, sources)
	if err != nil {
		w.log.Debug("could not read the plans of workflows", zap.Error(err))
		for _, want := range wanted {
			w.state.agenda.examineAgainAt(want.task, now.Add(time.Second))
		}
		return
	}

	for i, want := range wanted {
		w.state.applyPlan(want, &found[i], now)
	}
}
