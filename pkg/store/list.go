package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/task"
)

// Brief is a spec in a list that was not read in full: most of those that a list
// looks at are not wanted.
type Brief struct {
	Namespace, Name string

	value []byte
	mod   int64
}

// Labels are the task's; none if the spec cannot be read.
func (b Brief) Labels() map[string]string {
	var labels map[string]string
	_ = object(b.value, func(r *reader, name []byte) { // what cannot be read has none
		if string(name) == "labels" {
			r.other(&labels)
			return
		}
		r.skip()
	})
	return labels
}

// MayBePaused is false for a task that cannot be: its user did not pause it, and does
// not want it paused when it fails. Whether it is, its entry says.
func (b Brief) MayBePaused() bool {
	var paused bool
	var failures int
	err := object(b.value, func(r *reader, name []byte) {
		switch string(name) {
		case "paused":
			r.yes(&paused)
		case "pause_after_failures":
			r.small(&failures)
		default:
			r.skip()
		}
	})
	return err != nil || paused || failures > 0
}

// Task is the spec. One that cannot be read has its name alone, and says so.
func (b Brief) Task() task.Task {
	t, err := DecodeTask(b.value, b.mod)
	if err != nil {
		t = task.Task{Spec: task.Spec{Namespace: b.Namespace, Name: b.Name, Description: "unreadable: " + err.Error()}, Revision: b.mod}
	}
	return t
}

func (s *Store) brief(e *mvccpb.KeyValue) (Brief, bool) {
	ns, name, ok := s.keys.ParseSpec(string(e.Key))
	return Brief{ns, name, e.Value, e.ModRevision}, ok
}

// Briefs lists specs in the order of their keys: of one namespace, or of all if
// namespace is ""; with a namespace only those whose name begins with prefix.
// after is where the page before ended ("" for the first).
func (s *Store) Briefs(ctx context.Context, namespace, prefix, after string, limit int) (list []Brief, next string, err error) {
	below := s.keys.Specs()
	if namespace != "" {
		below = s.keys.SpecsOf(namespace) + prefix
	}
	from, end := below, clientv3.GetPrefixRangeEnd(below)
	if after != "" {
		from = max(from, s.keys.Specs()+after+"\x00")
	}
	if from >= end {
		return nil, "", nil
	}
	res, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, "", fmt.Errorf("list tasks: %w", err)
	}
	for _, e := range res.Kvs {
		if b, ok := s.brief(e); ok {
			list = append(list, b)
		}
	}
	if res.More && len(res.Kvs) > 0 {
		next = string(res.Kvs[len(res.Kvs)-1].Key)[len(s.keys.Specs()):]
	}
	return list, next, nil
}

// BriefsOf are the specs of certain tasks, in their order; those that are not
// there are left out.
func (s *Store) BriefsOf(ctx context.Context, refs []Ref) ([]Brief, error) {
	keys := make([]string, len(refs))
	for i, ref := range refs {
		keys[i] = s.keys.Spec(ref)
	}
	list := make([]Brief, 0, len(refs))
	err := s.eachKey(ctx, keys, func(_ int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}
		if b, ok := s.brief(e); ok {
			list = append(list, b)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}
	return list, nil
}

// DeadTasks are the tasks, of one namespace or of all (""), that have dead runs,
// without order.
func (s *Store) DeadTasks(ctx context.Context, shards int, namespace string) ([]Ref, error) {
	var list []Ref
	for id := range shards {
		prefix := s.keys.Shard(id) + "dead/"
		if namespace != "" {
			prefix += namespace + "/"
		}
		all, _, err := s.getAll(ctx, prefix, clientv3.WithKeysOnly())
		if err != nil {
			return nil, fmt.Errorf("list tasks with dead runs: %w", err)
		}
		for _, e := range all {
			k, ok := s.keys.ParseShard(string(e.Key))
			if ok && (len(list) == 0 || list[len(list)-1] != k.Ref) { // those of a task are neighbours
				list = append(list, k.Ref)
			}
		}
	}
	return list, nil
}

// Outcome is how the runs of a task ended, as a list shows it.
type Outcome struct {
	Runs    []task.Run // the newest records of history, the newest first; late results left out
	Dead    string     // the id of the newest dead run; "" if there is none
	Waiting int        // runs in the queue
}

// Outcomes are those of several tasks, each with its n newest records (at least
// one, if it has any).
func (s *Store) Outcomes(ctx context.Context, refs []Ref, n int) ([]Outcome, error) {
	const some = 3 // of which one is likely to be the end of a run
	n = max(n, some)
	list := make([]Outcome, 0, len(refs))
	for chunk := range slices.Chunk(refs, 40) { // etcd takes 128 operations
		ops := make([]clientv3.Op, 0, 3*len(chunk))
		for _, ref := range chunk {
			h, d, q := s.keys.HistoryOf(ref), s.keys.Dead(ref), s.keys.QueueOf(ref)
			ops = append(ops,
				clientv3.OpGet(h, below(h), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(int64(n))),
				clientv3.OpGet(d, below(d), clientv3.WithKeysOnly()),
				clientv3.OpGet(q, below(q), clientv3.WithCountOnly()))
		}
		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("read past runs: %w: %w", task.ErrUnavailable, err)
		}
		for i, ref := range chunk {
			history, dead := res.Responses[3*i].GetResponseRange(), res.Responses[3*i+1].GetResponseRange().Kvs
			o := Outcome{Waiting: int(res.Responses[3*i+2].GetResponseRange().Count)}
			for _, e := range history.Kvs {
				if run, ok := s.recorded(e); ok {
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
	Ref Ref
	Run string
}

// RunPlaces are the runs on record and waiting in several shards, of one namespace
// or of all (""), whose ids are of a time from since on and before until (zero: no
// bound), in no order. It reads keys only.
func (s *Store) RunPlaces(ctx context.Context, shards []int, namespace string, since, until time.Time) ([]RunPlace, error) {
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
func (s *Store) QueuedRuns(ctx context.Context, shards []int, namespace string) ([]task.Run, error) {
	return s.runsBelow(ctx, s.keys.Queue, shards, namespace)
}

// EndedParts are the parts that have ended of runs that have not, of one namespace, of
// one task (namespace/name) or of all (""), in no order.
func (s *Store) EndedParts(ctx context.Context, shards []int, of string) ([]task.Run, error) {
	return s.runsBelow(ctx, s.keys.PartsIn, shards, of)
}

// runsBelow are the runs of one kind of record, of a namespace, of a task or of all.
func (s *Store) runsBelow(ctx context.Context, kind func(shard int) string, shards []int, of string) ([]task.Run, error) {
	var runs []task.Run
	for chunk := range slices.Chunk(shards, 100) {
		ops := make([]clientv3.Op, len(chunk))
		for i, id := range chunk {
			prefix := kind(id)
			if of != "" {
				prefix += of + "/"
			}
			ops[i] = clientv3.OpGet(prefix, below(prefix))
		}
		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, fmt.Errorf("list runs: %w: %w", task.ErrUnavailable, err)
		}
		for _, r := range res.Responses {
			for _, e := range r.GetResponseRange().Kvs {
				if run, ok := s.recorded(e); ok {
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
func (s *Store) RunsAt(ctx context.Context, places []RunPlace) ([]*task.Run, error) {
	keys := make([]string, 0, 2*len(places))
	for _, p := range places {
		keys = append(keys, s.keys.Queued(p.Ref, p.Run), s.keys.Ended(p.Ref, p.Run))
	}
	list := make([]*task.Run, len(places))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}
		if run, ok := s.recorded(e); ok {
			list[i/2] = &run // history comes second, and is what counts
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	return list, nil
}
