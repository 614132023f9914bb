package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Outcome describes how the runs of a task ended, and which of them wait, at one revision. Runs of a deleted task of the
// same name do not count.
type Outcome struct {
	Runs []task.Run // the newest records of the history, the newest tick first, without late results

	// Failing: the task has a dead run whose create revision is above that of its last success.
	Failing bool
	// Waits: a run waits in the queue. A run whose parts have begun does not wait, and parts are not separate runs.
	Waits bool
	// UnderWay holds the runs whose parts have begun. It may be incomplete if hundreds of runs wait.
	UnderWay []string

	Oldest string // the key of the oldest record that was read, for OutcomeRead; empty if there are fewer than n
}

// OutcomeRead asks for the outcome of a task.
type OutcomeRead struct {
	Ref record.Ref
	UID string

	// Oldest is what Outcome.Oldest was when the task was last read, or empty. It only saves work: the history is read from
	// this key, because etcd visits each key of a range, also those that were deleted since it has compacted its revisions.
	// Of a task that runs every second, these are thousands, and all of them are older. If there are not n records from this
	// key on, the whole history is searched.
	Oldest string

	// KnownFailing is set if the owner of the shard has just said that the task is failing. It only saves work, for a task with
	// a dead run and no success among the newest ticks: an older tick may have succeeded later, which only the whole history
	// shows, and which the owner knows.
	KnownFailing bool
}

// Outcomes returns the outcomes of several tasks, in their order, with the n newest records of each. It includes at least
// one record of each task that has any.
func (s Runs) Outcomes(ctx context.Context, tasks []OutcomeRead, n int) ([]Outcome, error) {
	const some = 3 // one of the three newest records is probably the end of a run and not a late result
	n = max(n, some)

	const perRequest = 40 // with three operations each, of the 128 that etcd allows

	list := make([]Outcome, len(tasks))
	g, ctx := callgroup.WithContext(ctx)

	for from := 0; from < len(tasks); from += perRequest {
		to := min(from+perRequest, len(tasks))
		g.Go(func() error { return s.readOutcomes(ctx, tasks[from:to], list[from:to], n) })
	}

	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("read past runs: %w", err)
	}

	return list, nil
}

// outcomeReading is the reading of the outcome of one task.
type outcomeReading struct {
	ask *OutcomeRead
	out *Outcome

	from    string                      // the key from which the history is read
	search  *historyEnd                 // for the newest records
	queue   *etcdserverpb.RangeResponse // the beginning of the queue
	newest  int64                       // create revision of the newest dead run that is a failure; 0: none
	dead    []*mvccpb.KeyValue          // the dead runs, the newest first, without their values
	isWhole bool                        // the search has found all records of the history
}

// owns reports whether a run is one of the task.
func (o *outcomeReading) owns(run string) bool { return task.RunBelongs(run, o.ask.UID) }

// readOutcomes sets list to the outcomes of some tasks at one revision.
func (s Runs) readOutcomes(ctx context.Context, tasks []OutcomeRead, list []Outcome, n int) error {
	readings := make([]outcomeReading, len(tasks))
	ops := make([]clientv3.Op, 0, 3*len(tasks))

	for i := range tasks {
		o := &readings[i]
		o.ask, o.out = &tasks[i], &list[i]

		history, dead, queue := s.keys.HistoryOf(o.ask.Ref), s.keys.Dead(o.ask.Ref), s.keys.QueueOf(o.ask.Ref)
		o.from = history
		if strings.HasPrefix(tasks[i].Oldest, history) {
			o.from = tasks[i].Oldest
		}

		ops = append(ops,
			clientv3.OpGet(o.from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(history)), clientv3.WithLimit(int64(endLimit(n)))),
			clientv3.OpGet(dead, withPrefix(dead), clientv3.WithKeysOnly()),
			clientv3.OpGet(queue, withPrefix(queue), clientv3.WithLimit(queuePage)))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}

	first := make([]*etcdserverpb.RangeResponse, len(tasks))
	for i := range readings {
		o := &readings[i]
		first[i], o.queue = res.Responses[3*i].GetResponseRange(), res.Responses[3*i+2].GetResponseRange()

		for _, e := range res.Responses[3*i+1].GetResponseRange().Kvs {
			if k, ok := s.keys.ParseShard(string(e.Key)); ok && o.owns(k.Run) {
				o.dead = append(o.dead, e)
			}
		}
		slices.SortFunc(o.dead, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(b.CreateRevision, a.CreateRevision) })
	}

	rev := res.Header.Revision
	if err := s.findFailures(ctx, readings, rev); err != nil {
		return err
	}
	if err := s.searchNewest(ctx, readings, first, rev, n); err != nil {
		return err
	}

	for i := range readings {
		if err := s.addHistory(ctx, &readings[i], n); err != nil {
			return err
		}
	}

	if err := s.judgeFailing(ctx, readings, rev); err != nil {
		return err
	}

	return s.readQueues(ctx, readings, rev)
}

// searchNewest finds the n newest records of each history. first are the answers to the reads from o.from.
func (s Runs) searchNewest(ctx context.Context, readings []outcomeReading, first []*etcdserverpb.RangeResponse, rev int64, n int) error {
	soon := time.Now().Add(time.Minute)
	search := func(o *outcomeReading, from string, first *etcdserverpb.RangeResponse) {
		o.search = s.beginHistoryEnd(o.ask.Ref, from, clientv3.GetPrefixRangeEnd(s.keys.HistoryOf(o.ask.Ref)), soon, n, first)
	}

	// Where the remembered key is not old enough any more, the whole history is searched.
	var short []*outcomeReading
	var ops []clientv3.Op
	for i := range readings {
		o := &readings[i]
		search(o, o.from, first[i])

		if h := s.keys.HistoryOf(o.ask.Ref); o.from != h && o.search.isFound && len(o.search.records) < n {
			short = append(short, o)
			ops = append(ops, clientv3.OpGet(h, clientv3.WithRange(clientv3.GetPrefixRangeEnd(h)), clientv3.WithRev(rev), clientv3.WithLimit(int64(endLimit(n)))))
		}
	}

	err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) { search(short[i], s.keys.HistoryOf(short[i].ask.Ref), r) })
	if err != nil {
		return err
	}

	searches := make([]*historyEnd, len(readings))
	for i := range readings {
		searches[i] = readings[i].search
	}

	if err := s.finishHistoryEnds(ctx, searches, rev); err != nil {
		return err
	}

	for i := range readings {
		readings[i].isWhole = len(searches[i].records) < n
	}

	return nil
}

// newestIn returns the read of the n last keys from one key until before another, the last one first. etcd reads the whole
// range for that, with its values: see historyEnd.
func newestIn(from, end string, n int, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(from, append(opts, clientv3.WithRange(end), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(int64(n)))...)
}

// addHistory adds the newest records of a history to an outcome.
func (s Runs) addHistory(ctx context.Context, o *outcomeReading, n int) error {
	newest := o.search.newestFirst()
	for _, e := range newest {
		if run, ok := record.DecodeRun(s.keys, e); ok && o.owns(run.ID) {
			o.out.Runs = append(o.out.Runs, run)
		}
	}

	if len(newest) < n {
		return nil
	}
	o.out.Oldest = string(newest[n-1].Key)
	if len(o.out.Runs) > 0 {
		return nil
	}

	// These are only late results, unreadable records, or those of a deleted task: read the whole history.
	last, err := s.lastEnded(ctx, o.ask.Ref)
	if err == nil && last != nil && o.owns(last.ID) {
		o.out.Runs = []task.Run{*last}
	}

	return err
}

// findFailures sets the create revision of the newest dead run of each task that counts as a failure. Nearly all do.
func (s Runs) findFailures(ctx context.Context, readings []outcomeReading, rev int64) error {
	for at := 0; ; at++ {
		var ops []clientv3.Op
		var of []*outcomeReading
		for i := range readings {
			if o := &readings[i]; o.newest == 0 && at < len(o.dead) {
				of, ops = append(of, o), append(ops, clientv3.OpGet(string(o.dead[at].Key), clientv3.WithRev(rev)))
			}
		}

		if len(ops) == 0 {
			return nil
		}

		err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
			if len(r.Kvs) > 0 && record.IsDeadFailure(r.Kvs[0].Value) {
				of[i].newest = r.Kvs[0].CreateRevision
			}
		})
		if err != nil {
			return err
		}
	}
}

// judgeFailing determines which tasks are failing. A success ends that, unless it is older than the newest dead run. It may
// be among the newest ticks, or the run of an older tick that has ended later.
func (s Runs) judgeFailing(ctx context.Context, readings []outcomeReading, rev int64) error {
	var doubtful []*outcomeReading
	var ops []clientv3.Op

	for i := range readings {
		o := &readings[i]
		if o.newest == 0 {
			continue
		}

		o.out.Failing = !slices.ContainsFunc(o.search.records, func(e *mvccpb.KeyValue) bool { return e.CreateRevision >= o.newest && s.isSuccess(o, e) })
		if !o.out.Failing || o.isWhole || o.ask.KnownFailing {
			continue
		}

		history := s.keys.HistoryOf(o.ask.Ref)
		doubtful = append(doubtful, o)
		ops = append(ops, clientv3.OpGet(history, withPrefix(history), clientv3.WithKeysOnly(), clientv3.WithMinCreateRev(o.newest), clientv3.WithRev(rev)))
	}

	// Of a task that is failing, few records are newer than its newest dead run.
	later := make([][]*mvccpb.KeyValue, len(doubtful))
	err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
		later[i] = slices.SortedFunc(slices.Values(r.Kvs), func(a, b *mvccpb.KeyValue) int { return cmp.Compare(b.CreateRevision, a.CreateRevision) })
	})
	if err != nil {
		return err
	}

	for want := 4; ; want *= 4 {
		ops = nil
		var of []*outcomeReading
		for i, o := range doubtful {
			if !o.out.Failing {
				continue
			}

			some := later[i][:min(want, len(later[i]))]
			later[i] = later[i][len(some):]
			for _, e := range some {
				of, ops = append(of, o), append(ops, clientv3.OpGet(string(e.Key), clientv3.WithRev(rev)))
			}
		}

		if len(ops) == 0 {
			return nil
		}

		err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
			if len(r.Kvs) > 0 && s.isSuccess(of[i], r.Kvs[0]) {
				of[i].out.Failing = false
			}
		})
		if err != nil {
			return err
		}
	}
}

// isSuccess reports whether a record of a history is the success of a run of the task.
func (s Runs) isSuccess(o *outcomeReading, e *mvccpb.KeyValue) bool {
	k, ok := s.keys.ParseShard(string(e.Key))
	if !ok || k.Late || !o.owns(k.Run) {
		return false
	}

	end, ok := record.EndOf(e.Value)

	return ok && end.State == task.Succeeded
}

const (
	// queuePage is how many records of a queue are read at once.
	queuePage = 16
	// maxQueueRead is how many of them are read of a task, apart from parts. After that, Outcome.UnderWay may be incomplete.
	maxQueueRead = 256
)

// readQueues determines which runs wait, and which have begun their parts. Parts follow their run in the order of the keys,
// and are skipped, because there may be thousands.
func (s Runs) readQueues(ctx context.Context, readings []outcomeReading, rev int64) error {
	read := map[*outcomeReading]int{}

	for {
		var pending []*outcomeReading
		var ops []clientv3.Op
		for i := range readings {
			o := &readings[i]
			if o.queue == nil {
				continue
			}

			page := o.queue
			o.queue = nil
			read[o] += s.addQueued(o, page.Kvs)
			if !page.More || read[o] >= maxQueueRead {
				continue
			}

			from, end := keyAfter(page.Kvs), clientv3.GetPrefixRangeEnd(s.keys.QueueOf(o.ask.Ref))
			if k, ok := s.keys.ParseShard(string(page.Kvs[len(page.Kvs)-1].Key)); ok {
				if parent, _, isPart := task.ParentOf(k.Run); isPart {
					from = s.keys.Queued(o.ask.Ref, task.PartID(parent, task.MaxParts)) + "\x00"
				}
			}
			pending = append(pending, o)
			ops = append(ops, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(queuePage), clientv3.WithRev(rev)))
		}

		if len(ops) == 0 {
			return nil
		}
		if err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) { pending[i].queue = r }); err != nil {
			return err
		}
	}
}

// addQueued adds some records of a queue to an outcome. It returns how many of them are not parts.
func (s Runs) addQueued(o *outcomeReading, page []*mvccpb.KeyValue) (runs int) {
	for _, e := range page {
		k, ok := s.keys.ParseShard(string(e.Key))
		if !ok || task.IsPart(k.Run) {
			continue
		}

		runs++
		w, err := record.DecodeWaiting(k, e.Value)
		switch {
		case err != nil || !o.owns(k.Run):
		case w.UnderWay():
			o.out.UnderWay = append(o.out.UnderWay, k.Run)
		default:
			o.out.Waits = true
		}
	}

	return runs
}
