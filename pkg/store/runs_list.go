package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Outcome describes how the runs of a task ended, for a list of tasks.
type Outcome struct {
	Runs    []task.Run // the newest records of the history, the newest first, without late results
	Dead    string     // the id of the newest dead run, or empty
	Waiting int        // the number of runs in the queue
	Oldest  string     // the key of the oldest record that was read, for OutcomesAfter; empty if there are fewer than n
}

// Outcomes returns the outcomes of several tasks, in their order, with the n newest records of
// each. It includes at least one record of each task that has any.
func (s Runs) Outcomes(ctx context.Context, refs []record.Ref, n int) ([]Outcome, error) {
	return s.OutcomesAfter(ctx, refs, nil, n)
}

// OutcomesAfter is Outcomes for tasks that are read again and again. oldest, if not nil, has what Outcome.Oldest was for each
// task, or an empty string. It only saves work: the history is read from this key, because etcd visits each key of a range,
// also those that were deleted since it has compacted its revisions. Of a task that runs every second, these are thousands,
// and all of them are older. If there are not n records from this key on, the whole history is searched.
func (s Runs) OutcomesAfter(ctx context.Context, refs []record.Ref, oldest []string, n int) ([]Outcome, error) {
	const some = 3 // one of the three newest records is probably the end of a run and not a late result
	n = max(n, some)

	list := make([]Outcome, 0, len(refs))
	for chunk := range slices.Chunk(refs, 40) { // with three operations each, of the 128 that etcd allows
		var from []string
		if oldest != nil {
			from = oldest[len(list) : len(list)+len(chunk)]
		}

		part, err := s.outcomesOf(ctx, chunk, from, n)
		if err != nil {
			return nil, fmt.Errorf("read past runs: %w", err)
		}
		list = append(list, part...)
	}

	return list, nil
}

// outcomesOf returns the outcomes of some tasks at one revision.
func (s Runs) outcomesOf(ctx context.Context, refs []record.Ref, oldest []string, n int) ([]Outcome, error) {
	ops := make([]clientv3.Op, 0, 3*len(refs))
	for i, ref := range refs {
		h, d, q := s.keys.HistoryOf(ref), s.keys.Dead(ref), s.keys.QueueOf(ref)
		from := h
		if oldest != nil && strings.HasPrefix(oldest[i], h) {
			from = oldest[i]
		}
		ops = append(ops,
			clientv3.OpGet(from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(h)), clientv3.WithLimit(int64(endLimit(n)))),
			clientv3.OpGet(d, withPrefix(d), clientv3.WithKeysOnly()),
			clientv3.OpGet(q, withPrefix(q), clientv3.WithCountOnly()))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}

	list := make([]Outcome, len(refs))
	searches := make([]*historyEnd, len(refs))
	soon := time.Now().Add(time.Minute)
	search := func(i int, from string, first *etcdserverpb.RangeResponse) {
		end := clientv3.GetPrefixRangeEnd(s.keys.HistoryOf(refs[i]))
		searches[i] = s.beginHistoryEnd(refs[i], from, end, soon, n, first)
	}

	for i := range refs {
		history, dead := res.Responses[3*i].GetResponseRange(), res.Responses[3*i+1].GetResponseRange().Kvs
		list[i].Waiting = int(res.Responses[3*i+2].GetResponseRange().Count)
		if len(dead) > 0 {
			if k, ok := s.keys.ParseShard(string(dead[len(dead)-1].Key)); ok {
				list[i].Dead = k.Run
			}
		}

		search(i, string(ops[3*i].KeyBytes()), history)
	}

	// Where the remembered key is not old enough any more, the whole history is searched.
	rev := res.Header.Revision
	var short []int
	ops = nil
	for i, ref := range refs {
		if h := s.keys.HistoryOf(ref); oldest != nil && strings.HasPrefix(oldest[i], h) && searches[i].isFound && len(searches[i].records) < n {
			short = append(short, i)
			ops = append(ops, clientv3.OpGet(h, clientv3.WithRange(clientv3.GetPrefixRangeEnd(h)), clientv3.WithRev(rev), clientv3.WithLimit(int64(endLimit(n)))))
		}
	}

	err = s.eachResponse(ctx, ops, func(k int, r *etcdserverpb.RangeResponse) { search(short[k], string(ops[k].KeyBytes()), r) })
	if err != nil {
		return nil, err
	}
	if err := s.finishHistoryEnds(ctx, searches, rev); err != nil {
		return nil, err
	}

	for i, ref := range refs {
		if err := s.addHistory(ctx, &list[i], ref, searches[i].newestFirst(), n); err != nil {
			return nil, err
		}
	}

	return list, nil
}

// newestIn returns the read of the n last keys from one key until before another, the last one first. etcd reads the whole
// range for that, with its values: see historyEnd.
func newestIn(from, end string, n int, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(from, append(opts, clientv3.WithRange(end), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(int64(n)))...)
}

// addHistory adds the newest records of a history to an outcome.
func (s Runs) addHistory(ctx context.Context, o *Outcome, ref record.Ref, newest []*mvccpb.KeyValue, n int) error {
	for _, e := range newest {
		if run, ok := record.DecodeRun(s.keys, e); ok {
			o.Runs = append(o.Runs, run)
		}
	}

	if len(newest) < n {
		return nil
	}
	o.Oldest = string(newest[n-1].Key)
	if len(o.Runs) > 0 {
		return nil
	}

	// These are only late results or unreadable records: read the whole history.
	last, err := s.lastEnded(ctx, ref)
	if err == nil && last != nil {
		o.Runs = []task.Run{*last}
	}

	return err
}

// A RunPlace identifies a run that waits or has ended.
type RunPlace struct {
	Ref record.Ref
	Run string
}

// placesPage is the number of keys of each queue and history that RunPlaces reads in its first request.
const placesPage = 500

// RunPlaces lists the waiting and the ended runs of several shards whose ids have a time from
// since until before until, in no particular order. A zero time means no bound. It lists those
// of one namespace or, if namespace is empty, of all. It reads keys only.
//
// The queues and the histories of up to 50 shards are read at one revision. One request returns
// the beginning of all of them, which for most clusters is everything.
func (s Runs) RunPlaces(ctx context.Context, shards []int, namespace string, since, until time.Time) ([]RunPlace, error) {
	from, to := idBound(since), idBound(until)
	var list []RunPlace
	add := func(kvs []*mvccpb.KeyValue) {
		for _, e := range kvs {
			k, ok := s.keys.ParseShard(string(e.Key))
			if ok && !k.Late && k.Run >= from && (to == "" || k.Run < to) {
				list = append(list, RunPlace{k.Ref, k.Run})
			}
		}
	}

	for chunk := range slices.Chunk(shards, 50) { // with two operations each, of the 128 that etcd allows
		var prefixes []string
		var ops []clientv3.Op
		for _, id := range chunk {
			for _, prefix := range []string{s.keys.Queue(id), s.keys.History(id)} {
				if namespace != "" {
					prefix += namespace + "/"
				}
				prefixes = append(prefixes, prefix)
				ops = append(ops, clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithKeysOnly(), clientv3.WithLimit(placesPage)))
			}
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("list runs: %w: %w", task.ErrUnavailable, err)
		}

		for i, r := range res.Responses {
			first := r.GetResponseRange()
			add(first.Kvs)
			if !first.More {
				continue
			}

			rest, _, err := s.getRange(ctx, keyAfter(first.Kvs), clientv3.GetPrefixRangeEnd(prefixes[i]), res.Header.Revision, clientv3.WithKeysOnly())
			if err != nil {
				return nil, fmt.Errorf("list runs: %w", err)
			}
			add(rest)
		}
	}

	return list, nil
}

// QueuedPlaces lists the waiting runs of some shards, of one namespace or, if namespace is empty, of all, in no particular
// order. It reads keys only.
func (s Runs) QueuedPlaces(ctx context.Context, shards []int, namespace string) ([]RunPlace, error) {
	var list []RunPlace
	for chunk := range slices.Chunk(shards, 100) {
		ops := make([]clientv3.Op, len(chunk))
		for i, id := range chunk {
			prefix := s.keys.Queue(id)
			if namespace != "" {
				prefix += namespace + "/"
			}
			ops[i] = clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithKeysOnly())
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("list waiting runs: %w: %w", task.ErrUnavailable, err)
		}

		for _, r := range res.Responses {
			for _, e := range r.GetResponseRange().Kvs {
				if k, ok := s.keys.ParseShard(string(e.Key)); ok {
					list = append(list, RunPlace{k.Ref, k.Run})
				}
			}
		}
	}

	return list, nil
}

// EndedParts returns the ended parts of runs that have not ended, in no particular order: those
// of one namespace, of one task (namespace/name) or, if of is empty, of all.
func (s Runs) EndedParts(ctx context.Context, shards []int, of string) ([]task.Run, error) {
	return s.runsBelow(ctx, s.keys.PartsIn, shards, of)
}

// runsBelow returns the runs in the records of one kind: those of one namespace, of one task
// or, if of is empty, of all.
func (s Runs) runsBelow(ctx context.Context, kind func(shard int) string, shards []int, of string) ([]task.Run, error) {
	var runs []task.Run
	for chunk := range slices.Chunk(shards, 100) {
		ops := make([]clientv3.Op, len(chunk))
		for i, id := range chunk {
			prefix := kind(id)
			if of != "" {
				prefix += of + "/"
			}
			ops[i] = clientv3.OpGet(prefix, withPrefix(prefix))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("list runs: %w: %w", task.ErrUnavailable, err)
		}

		for _, r := range res.Responses {
			for _, e := range r.GetResponseRange().Kvs {
				if run, ok := record.DecodeRun(s.keys, e); ok {
					runs = append(runs, run)
				}
			}
		}
	}

	return runs, nil
}

// idBound returns a text that is not greater than the id of any run with that time, and greater
// than the ids of all earlier ones.
func idBound(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strings.TrimSuffix(task.RunID(t, ""), "-")
}

// RunsAt reads runs that wait or have ended. The result is nil for a run that is neither, or
// that cannot be read.
func (s Runs) RunsAt(ctx context.Context, places []RunPlace) ([]*task.Run, error) {
	keys := make([]string, 0, 2*len(places))
	for _, p := range places {
		keys = append(keys, s.keys.Queued(p.Ref, p.Run), s.keys.Ended(p.Ref, p.Run))
	}

	list := make([]*task.Run, len(places))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}

		if run, ok := record.DecodeRun(s.keys, e); ok {
			list[i/2] = &run // the history record is read second and takes precedence
		}
	})

	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}

	return list, nil
}
