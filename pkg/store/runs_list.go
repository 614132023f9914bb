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
