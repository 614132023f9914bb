package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Outcome is how the runs of a task ended, as a list shows it.
type Outcome struct {
	Runs    []task.Run // the newest records of history, the newest first; late results left out
	Dead    string     // the id of the newest dead run; "" if there is none
	Waiting int        // runs in the queue
}

// Outcomes are those of several tasks, each with its n newest records (at least
// one, if it has any).
func (s Runs) Outcomes(ctx context.Context, refs []record.Ref, n int) ([]Outcome, error) {
	const some = 3 // of which one is likely to be the end of a run
	n = max(n, some)

	list := make([]Outcome, 0, len(refs))
	for chunk := range slices.Chunk(refs, 40) { // etcd takes 128 operations
		ops := make([]clientv3.Op, 0, 3*len(chunk))
		for _, ref := range chunk {
			h, d, q := s.keys.HistoryOf(ref), s.keys.Dead(ref), s.keys.QueueOf(ref)
			ops = append(ops,
				clientv3.OpGet(h, withPrefix(h), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(int64(n))),
				clientv3.OpGet(d, withPrefix(d), clientv3.WithKeysOnly()),
				clientv3.OpGet(q, withPrefix(q), clientv3.WithCountOnly()))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read past runs: %w: %w", task.ErrUnavailable, err)
		}

		for i, ref := range chunk {
			history, dead := res.Responses[3*i].GetResponseRange(), res.Responses[3*i+1].GetResponseRange().Kvs
			o := Outcome{Waiting: int(res.Responses[3*i+2].GetResponseRange().Count)}
			for _, e := range history.Kvs {
				if run, ok := record.DecodeRun(s.keys, e); ok {
					o.Runs = append(o.Runs, run)
				}
			}

			if len(o.Runs) == 0 && history.More { // none that counts: look behind them
				last, err := s.lastEnded(ctx, ref)
				if err != nil {
					return nil, fmt.Errorf("read past runs: %w", err)
				}

				if last != nil {
					o.Runs = []task.Run{*last}
				}
			}

			if len(dead) > 0 {
				if k, ok := s.keys.ParseShard(string(dead[len(dead)-1].Key)); ok {
					o.Dead = k.Run
				}
			}

			list = append(list, o)
		}
	}

	return list, nil
}

// A RunPlace is where a run is on record, or waits.
type RunPlace struct {
	Ref record.Ref
	Run string
}

// RunPlaces are the runs on record and waiting in several shards, of one namespace
// or of all (""), whose ids are of a time from since on and before until (zero: no
// bound), in no order. It reads keys only.
func (s Runs) RunPlaces(ctx context.Context, shards []int, namespace string, since, until time.Time) ([]RunPlace, error) {
	from, to := idBound(since), idBound(until)
	var list []RunPlace
	for _, id := range shards {
		for _, prefix := range []string{s.keys.Queue(id), s.keys.History(id)} {
			if namespace != "" {
				prefix += namespace + "/"
			}

			all, _, err := s.getAll(ctx, prefix, clientv3.WithKeysOnly())
			if err != nil {
				return nil, fmt.Errorf("list runs: %w", err)
			}

			for _, e := range all {
				k, ok := s.keys.ParseShard(string(e.Key))
				if ok && !k.Late && k.Run >= from && (to == "" || k.Run < to) {
					list = append(list, RunPlace{k.Ref, k.Run})
				}
			}
		}
	}

	return list, nil
}

// QueuedRuns are the runs that wait, of one namespace or of all (""), in no order.
func (s Runs) QueuedRuns(ctx context.Context, shards []int, namespace string) ([]task.Run, error) {
	return s.runsBelow(ctx, s.keys.Queue, shards, namespace)
}

// EndedParts are the parts that have ended of runs that have not, of one namespace, of
// one task (namespace/name) or of all (""), in no order.
func (s Runs) EndedParts(ctx context.Context, shards []int, of string) ([]task.Run, error) {
	return s.runsBelow(ctx, s.keys.PartsIn, shards, of)
}

// runsBelow are the runs of one kind of record, of a namespace, of a task or of all.
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

// idBound is at most any id of a run of that time, and more than any earlier one's.
func idBound(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strings.TrimSuffix(task.RunID(t, ""), "-")
}

// RunsAt reads runs that are on record or wait; nil where one is neither, or cannot
// be read.
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
			list[i/2] = &run // history comes second, and is what counts
		}
	})

	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}

	return list, nil
}
