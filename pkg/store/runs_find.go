package store

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// firstKeys is how many keys FindRuns reads first of the queue and of the history of each shard, or of each task. Then
	// it decides how to read what is left.
	firstKeys = 100
	// keysPerRange and rangesAtOnce limit the size of an answer: how many keys eachKeyIn reads of a range, and of how many
	// ranges.
	keysPerRange = 1000
	rangesAtOnce = 50
	// keysForARange is how many keys cost about as much as one more range: 0.7 µs a key and 7 µs a range.
	keysForARange = 10
)

// FindRuns finds the waiting, active and ended runs of a namespace whose ids begin with idPrefix, at one revision. It
// returns no parts, and at most most runs. When it has found that many, it stops.
//
// It reads the keys of all inboxes and of every shard, without their values. Where the runs are many, it reads only those
// of each task that begin with idPrefix. So the cost depends on the numbers of active runs, shards and tasks, and not on how
// many runs the histories contain.
func (s Runs) FindRuns(ctx context.Context, shards int, namespace, idPrefix string, most int) ([]record.Ref, []string, error) {
	f := runSearch{Runs: s, namespace: namespace, idPrefix: idPrefix, most: most}
	err := f.searchInboxes(ctx)
	if err == nil {
		err = f.searchShards(ctx, shards)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find run: %w", err)
	}

	return f.refs, f.ids, nil
}

// runSearch is a search of FindRuns. All reads are at the revision of the first one, so a run is in one place.
type runSearch struct {
	Runs
	namespace, idPrefix string
	most                int
	rev                 int64

	refs []record.Ref
	ids  []string
}

// isFull reports whether the search has found as many runs as were asked for.
func (s *runSearch) isFull() bool { return len(s.ids) >= s.most }

// add adds a run if it is one that is searched for. It may be called again for the same run.
func (s *runSearch) add(ref record.Ref, id string) {
	if s.isFull() || ref.Namespace != s.namespace || !strings.HasPrefix(id, s.idPrefix) || task.IsPart(id) {
		return
	}

	for i := range s.ids {
		if s.ids[i] == id && s.refs[i] == ref {
			return
		}
	}

	s.refs, s.ids = append(s.refs, ref), append(s.ids, id)
}

// addKey adds the run of a key in a queue or a history. A late result is not a run.
func (s *runSearch) addKey(key string) {
	if k, ok := s.keys.ParseShard(key); ok && !k.Late {
		s.add(k.Ref, k.Run)
	}
}

// searchInboxes adds the active runs, and sets the revision of the search.
func (s *runSearch) searchInboxes(ctx context.Context) error {
	all, rev, err := s.getAll(ctx, s.keys.Runs(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}

	s.rev = rev
	for _, e := range all {
		if k, ok := s.keys.ParseRun(string(e.Key)); ok {
			s.add(k.Ref, k.Run)
		}
	}

	return nil
}

// runDirectory is the part of a queue or a history that belongs to the namespace of a search.
type runDirectory struct {
	shard  int
	prefix string
	next   string // the key after those that were read
	count  int64  // of all its keys
}

// searchShards adds the runs in the queues and the histories of all shards.
func (s *runSearch) searchShards(ctx context.Context, shards int) error {
	var all []runDirectory
	var ops []clientv3.Op
	for id := range shards {
		for _, prefix := range []string{s.keys.Queue(id) + s.namespace + "/", s.keys.History(id) + s.namespace + "/"} {
			all = append(all, runDirectory{shard: id, prefix: prefix})
			ops = append(ops, opBelow(prefix, s.rev, clientv3.WithKeysOnly(), clientv3.WithLimit(firstKeys)))
		}
	}

	var long []runDirectory
	err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
		for _, e := range r.Kvs {
			s.addKey(string(e.Key))
		}

		if r.More && len(r.Kvs) > 0 {
			d := all[i]
			d.next, d.count = keyAfter(r.Kvs), r.Count
			long = append(long, d)
		}
	})
	if err != nil || len(long) == 0 || s.isFull() {
		return err
	}

	return s.searchLong(ctx, long)
}

// searchLong adds the runs in directories with many keys. It searches a directory by task if that costs less than to read
// all its keys.
func (s *runSearch) searchLong(ctx context.Context, long []runDirectory) error {
	tasks, err := s.tasksOf(ctx, long)
	if err != nil {
		return err
	}

	var rest []keyRange
	var parents []string
	var known []directory
	for _, d := range long {
		names := tasks[d.shard]
		if d.count <= int64(keysForARange*(2*len(names)+1)) { // a range for each task, and one before, between and after them
			rest = append(rest, keyRange{d.next, clientv3.GetPrefixRangeEnd(d.prefix)})
			continue
		}

		parents = append(parents, d.prefix)
		for _, name := range names {
			known = append(known, directory{d.prefix, name})
		}
	}

	// The history may contain runs of a task that has been deleted meanwhile. eachDirectory finds them, too.
	reads := func(d directory) []clientv3.Op {
		return []clientv3.Op{opBelow(d.prefix()+s.idPrefix, s.rev, clientv3.WithKeysOnly(), clientv3.WithLimit(firstKeys))}
	}
	err = s.eachDirectory(ctx, parents, known, s.rev, reads, func(d directory, _ int, r *etcdserverpb.RangeResponse) {
		for _, e := range r.Kvs {
			s.addKey(string(e.Key))
		}
		if r.More && len(r.Kvs) > 0 {
			rest = append(rest, keyRange{keyAfter(r.Kvs), clientv3.GetPrefixRangeEnd(d.prefix() + s.idPrefix)})
		}
	})
	if err != nil {
		return err
	}

	return s.eachKeyIn(ctx, rest, s.addKey)
}

// tasksOf returns the names of the tasks that the shards of some directories have in the namespace, by shard.
func (s *runSearch) tasksOf(ctx context.Context, dirs []runDirectory) (map[int][]string, error) {
	names := make(map[int][]string, len(dirs))
	var entries []keyRange
	for _, d := range dirs {
		if _, is := names[d.shard]; !is {
			names[d.shard] = nil
			prefix := s.keys.Entries(d.shard) + s.namespace + "/"
			entries = append(entries, keyRange{prefix, clientv3.GetPrefixRangeEnd(prefix)})
		}
	}

	err := s.eachKeyIn(ctx, entries, func(key string) {
		if k, ok := s.keys.ParseShard(key); ok {
			names[k.Ref.Shard] = append(names[k.Ref.Shard], k.Ref.Name)
		}
	})

	return names, err
}

// keyRange is the keys from one key until before another.
type keyRange struct{ from, end string }

// eachKeyIn calls visit for every key in some ranges, until the search is full. It reads many ranges in a transaction, and
// what is left of long ones in further transactions.
func (s *runSearch) eachKeyIn(ctx context.Context, pending []keyRange, visit func(key string)) error {
	for len(pending) > 0 && !s.isFull() {
		some := pending[:min(len(pending), rangesAtOnce)]
		pending = pending[len(some):]

		var ops []clientv3.Op
		for _, r := range some {
			ops = append(ops, clientv3.OpGet(r.from, clientv3.WithRange(r.end), clientv3.WithLimit(keysPerRange), clientv3.WithRev(s.rev), clientv3.WithKeysOnly()))
		}

		err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
			for _, e := range r.Kvs {
				visit(string(e.Key))
			}

			if r.More && len(r.Kvs) > 0 {
				pending = append(pending, keyRange{keyAfter(r.Kvs), some[i].end})
			}
		})
		if err != nil {
			return err
		}
	}

	return nil
}
