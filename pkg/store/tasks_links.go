package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A task that runs after others names its sources in its spec. Its entry has a link to each of them, from which the owner of the
// task's shard decides. For each source, a record below subscribers/ in the shard of the source names the task, so that the owner of
// the source knows its dependents. A write of the task changes all of these at one revision.
//
// The tasks of a namespace and their links must not have a cycle, which no single key shows. So a writer reads the links, decides
// that a new one closes none, and compares that the key graph/<ns> is unchanged since, which each such write puts. Of two writers
// that close a cycle together, one fails, and then finds it. Writes that only remove links close none, and leave the key alone.

// ErrDependents is returned if a task cannot be deleted because other tasks run after it.
var ErrDependents = errors.New("other tasks run after it")

// LinkChange is what a write changes of the links of a task to its sources.
type LinkChange struct {
	Added   []record.Ref // the sources whose link is new or changed, as in the entry that is written
	Removed []record.Ref // the former sources

	// GraphMod is the mod revision of the namespace's key graph when it was found that the added links are allowed.
	GraphMod int64
}

// linkTxn returns what the transaction that writes some tasks compares and writes for their links. The key of the graph of a
// namespace is compared and put once.
func (s Tasks) linkTxn(tasks ...*Stored) (t kv.Txn) {
	graphs := map[string]bool{}

	for _, st := range tasks {
		for _, source := range st.Links.Added {
			wanted := st.Task.After.Find(source.Name)
			if wanted == nil {
				continue // a caller has mixed up two versions; the link would be an orphan
			}

			t.If = append(t.If, clientv3.Compare(clientv3.CreateRevision(s.keys.Entry(source)), ">", 0))
			t.Then = append(t.Then, clientv3.OpPut(s.keys.Subscriber(source, st.Ref.Name), record.Encode(record.Subscriber{
				UID: st.Task.UID, Generation: st.Task.Generation, When: wanted.When, Results: wanted.Results,
			})))
		}

		for _, source := range st.Links.Removed {
			t.Then = append(t.Then, clientv3.OpDelete(s.keys.Subscriber(source, st.Ref.Name)))
		}

		if ns := st.Ref.Namespace; len(st.Links.Added) > 0 && !graphs[ns] {
			graphs[ns] = true
			t.If = append(t.If, isUnchanged(s.keys.Graph(ns), st.Links.GraphMod))
			t.Then = append(t.Then, clientv3.OpPut(s.keys.Graph(ns), ""))
		}
	}

	return t
}

// sourcesOf returns the sources of a stored task, as far as its records can be read.
func (s Tasks) sourcesOf(ctx context.Context, st *Stored) ([]record.Ref, error) {
	names := st.Task.After.Names()
	for _, l := range st.Entry.Links {
		if !slices.Contains(names, l.Task) {
			names = append(names, l.Task)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}

	// The number of shards never changes, and tasks with sources are deleted rarely.
	e, err := s.getOne(ctx, s.keys.Cluster())
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, fmt.Errorf("the cluster's record: %w", task.ErrNotFound)
	}
	cluster, err := DecodeCluster(e)
	if err != nil {
		return nil, fmt.Errorf("the cluster's record: %w", err)
	}

	refs := make([]record.Ref, len(names))
	for i, name := range names {
		refs[i] = record.Ref{Namespace: st.Ref.Namespace, Name: name, Shard: record.ShardOf(st.Ref.Namespace, name, cluster.Shards)}
	}

	return refs, nil
}

// RepairLink writes the record of a dependent of a source, if all that was seen is unchanged. Otherwise it returns task.ErrConflict. For
// the owner of the source, the dependent is new.
func (s Tasks) RepairLink(ctx context.Context, source record.Ref, dependent string, sub record.Subscriber, seen ...Seen) error {
	t := kv.Txn{Then: []clientv3.Op{clientv3.OpPut(s.keys.Subscriber(source, dependent), record.Encode(sub)), clientv3.OpPut(s.keys.Graph(source.Namespace), "")}}
	for _, k := range seen {
		t.If = append(t.If, isUnchanged(k.Key, k.Mod))
	}

	res, err := s.writeTxn(ctx, t)
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("write the link from %s to %s: %w", source, dependent, err)
	}

	return nil
}

// Link is a link between two tasks of a namespace.
type Link struct {
	Source, Dependent string
	When              task.When
	Results           []string
}

// Links contains links of a namespace, as they were at one revision.
type Links struct {
	Revision int64
	GraphMod int64 // the mod revision of the namespace's key graph
	List     []Link
	// Absent contains the tasks that were looked for and do not exist.
	Absent map[string]bool
}

// LinkQuery says which links LinksAround reads.
type LinkQuery struct {
	Namespace string
	// Up are tasks whose sources are read, and the sources of these, and so on. Of these tasks themselves, the dependents are read,
	// too, but not what is behind them.
	Up []string
	// Down are tasks whose dependents are read, and the dependents of these, and so on.
	Down []string
	// Levels is how many links away the last task is whose links are read; 0: no limit.
	Levels int
	// MaxTasks stops the read as soon as there certainly are more tasks upwards or downwards; 0: no limit.
	MaxTasks int
}

// opsInLinkRead is how many operations one request of LinksAround has at most. etcd allows 128.
const opsInLinkRead = 120

// LinksAround reads the links near some tasks, level by level and all at one revision. ref returns the reference of a task with its
// shard. A link is listed once for each of its two records that was read: the spec of the dependent, and the record in the shard of
// the source.
func (s Tasks) LinksAround(ctx context.Context, q LinkQuery, ref func(namespace, name string) record.Ref) (l Links, err error) {
	l.Absent = map[string]bool{}
	seenUp, seenDown := map[string]bool{}, map[string]bool{}
	up, down := unseen(seenUp, q.Up), unseen(seenDown, q.Down)

	for level := 0; level == 0 || len(up)+len(down) > 0; level++ {
		if q.Levels > 0 && level >= q.Levels && level > 0 {
			break
		}
		if q.MaxTasks > 0 && max(len(seenUp), len(seenDown)) > q.MaxTasks {
			break
		}

		var reads []linkRead
		if level == 0 {
			reads = append(reads, linkRead{op: clientv3.OpGet(s.keys.Graph(q.Namespace)), use: func(kvs []*mvccpb.KeyValue) {
				if len(kvs) > 0 {
					l.GraphMod = kvs[0].ModRevision
				}
			}})
		}

		var above, below []string
		for _, name := range up {
			r := ref(q.Namespace, name)
			reads = append(reads, linkRead{op: clientv3.OpGet(s.keys.Spec(r)), use: func(kvs []*mvccpb.KeyValue) {
				if len(kvs) == 0 {
					l.Absent[name] = true
					return
				}
				for _, source := range sourcesIn(kvs[0].Value) {
					l.List = append(l.List, Link{source.Task, name, source.When, source.Results})
					above = append(above, source.Task)
				}
			}})

			// A write that adds a link compares that the entry of the source exists.
			if level == 0 {
				reads = append(reads, linkRead{op: clientv3.OpGet(s.keys.Entry(r), clientv3.WithKeysOnly()), use: func(kvs []*mvccpb.KeyValue) {
					l.Absent[name] = l.Absent[name] || len(kvs) == 0
				}})
				reads = append(reads, s.readSubscribers(r, func(links []Link) { l.List = append(l.List, links...) }))
			}
		}

		for _, name := range down {
			reads = append(reads, s.readSubscribers(ref(q.Namespace, name), func(links []Link) {
				l.List = append(l.List, links...)
				for _, one := range links {
					below = append(below, one.Dependent)
				}
			}))
		}

		if l.Revision, err = s.readTogether(ctx, reads, l.Revision); err != nil {
			return l, fmt.Errorf("read the links of namespace %s: %w", q.Namespace, err)
		}

		up, down = unseen(seenUp, above), unseen(seenDown, below)
	}

	return l, nil
}

// unseen returns those of names that are not in seen, and adds them.
func unseen(seen map[string]bool, names []string) []string {
	var list []string
	for _, name := range names {
		if !seen[name] {
			seen[name] = true
			list = append(list, name)
		}
	}

	return list
}

// linkRead is a read of LinksAround, and what is done with what it finds.
type linkRead struct {
	op  clientv3.Op
	use func([]*mvccpb.KeyValue)
}

// readTogether does reads in as few requests as etcd allows, at a revision; 0 means the current one. It returns the revision.
func (s *conn) readTogether(ctx context.Context, reads []linkRead, rev int64) (int64, error) {
	for chunk := range slices.Chunk(reads, opsInLinkRead) {
		ops := make([]clientv3.Op, len(chunk))
		for i, r := range chunk {
			ops[i] = r.op
			if rev > 0 {
				clientv3.WithRev(rev)(&ops[i])
			}
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return rev, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}
		if rev == 0 {
			rev = res.Header.Revision
		}

		for i, r := range res.Responses {
			chunk[i].use(r.GetResponseRange().Kvs)
		}
	}

	return rev, nil
}

// readSubscribers returns the read of the links to the dependents of a source.
func (s *conn) readSubscribers(source record.Ref, use func([]Link)) linkRead {
	prefix := s.keys.Subscribers(source)
	return linkRead{op: clientv3.OpGet(prefix, withPrefix(prefix)), use: func(kvs []*mvccpb.KeyValue) { use(s.linksIn(kvs)) }}
}

// linksIn returns the links that the records of subscribers show. A record that cannot be read is a link, too.
func (s *conn) linksIn(kvs []*mvccpb.KeyValue) []Link {
	var links []Link
	for _, e := range kvs {
		k, ok := s.keys.ParseShard(string(e.Key))
		if !ok || k.Kind != record.KindSubscriber {
			continue
		}

		d, _, _ := record.DecodeDependent(s.keys, e)
		links = append(links, Link{Source: k.Ref.Name, Dependent: k.Peer, When: d.When, Results: d.Results})
	}

	return links
}

// sourcesIn returns the sources in the record of a spec, of which the rest need not be readable.
func sourcesIn(spec []byte) task.Sources {
	var t struct{ After task.Sources }
	_ = json.Unmarshal(spec, &t)

	return t.After
}

// AllLinks reads the links of a namespace at one revision. It stops as soon as these certainly have more than maxTasks tasks.
func (s Tasks) AllLinks(ctx context.Context, namespace string, shards, maxTasks int) (l Links, err error) {
	enough := maxTasks*task.MaxSources + 1 // so many links have more than maxTasks dependents
	reads := []linkRead{{op: clientv3.OpGet(s.keys.Graph(namespace)), use: func(kvs []*mvccpb.KeyValue) {
		if len(kvs) > 0 {
			l.GraphMod = kvs[0].ModRevision
		}
	}}}

	for shard := range shards {
		prefix := s.keys.SubscribersIn(shard, namespace)
		reads = append(reads, linkRead{op: clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithLimit(int64(enough))), use: func(kvs []*mvccpb.KeyValue) { l.List = append(l.List, s.linksIn(kvs)...) }})
	}

	for chunk := range slices.Chunk(reads, opsInLinkRead) {
		if l.Revision, err = s.readTogether(ctx, chunk, l.Revision); err != nil {
			return l, fmt.Errorf("read the links of namespace %s: %w", namespace, err)
		}
		if len(l.List) >= enough {
			break
		}
	}

	return l, nil
}

// Dependents returns the links from a task to its dependents, by name.
func (s Tasks) Dependents(ctx context.Context, source record.Ref) ([]Link, error) {
	prefix := s.keys.Subscribers(source)
	res, err := s.readKey(ctx, prefix, withPrefix(prefix))
	if err != nil {
		return nil, fmt.Errorf("read the dependents of task %s: %w", source, err)
	}

	return s.linksIn(res.Kvs), nil
}

// WaitingTriggers counts the triggers of some tasks that have no outcome yet: for each task and each of its sources, how many there
// are, and when the oldest was sent. The result has the order of refs. The time of a trigger that cannot be read is zero. Triggers have
// results, and there may be many, so only the values of the oldest are read.
func (s Tasks) WaitingTriggers(ctx context.Context, refs []record.Ref) ([][]SourceTriggers, error) {
	list := make([][]SourceTriggers, len(refs))
	reads := make([]linkRead, len(refs))
	var oldest []linkRead
	for i, ref := range refs {
		prefix := s.keys.Triggers(ref)
		reads[i] = linkRead{op: clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithKeysOnly()), use: func(kvs []*mvccpb.KeyValue) {
			var keys []string
			list[i], keys = s.triggersIn(kvs)
			for n, key := range keys {
				oldest = append(oldest, linkRead{op: clientv3.OpGet(key), use: func(kvs []*mvccpb.KeyValue) { list[i][n].Oldest = s.sentAt(kvs) }})
			}
		}}
	}

	rev, err := s.readTogether(ctx, reads, 0)
	if err == nil {
		_, err = s.readTogether(ctx, oldest, rev)
	}
	if err != nil {
		return nil, fmt.Errorf("read the waiting triggers of tasks (%d): %w", len(refs), err)
	}

	return list, nil
}

// maxDroppedRead is how many history records DroppedTriggers reads at most. Consecutive triggers share a record.
const maxDroppedRead = 1000

// DroppedTriggers counts the triggers of a task that were skipped since a time because the task was paused, as far as its history
// has them.
func (s Tasks) DroppedTriggers(ctx context.Context, ref record.Ref, since time.Time) (n int64, err error) {
	history := s.keys.HistoryOf(ref)
	first := history + strings.TrimSuffix(task.RunID(since, ""), "-")

	res, err := s.readKey(ctx, first, clientv3.WithRange(clientv3.GetPrefixRangeEnd(history)), clientv3.WithLimit(maxDroppedRead))
	if err != nil {
		return 0, fmt.Errorf("read the history of task %s: %w", ref, err)
	}

	for _, e := range res.Kvs {
		if r, ok := record.DecodeRun(s.keys, e); ok && r.Trigger == task.TriggerAfter && r.State == task.Skipped && r.Reason == task.ReasonPaused {
			n += max(r.Count, 1)
		}
	}

	return n, nil
}

// SourceTriggers counts the triggers of a task that one source has sent.
type SourceTriggers struct {
	Source string
	Count  int
	Oldest task.Time
}

// triggersIn counts the triggers of a task by source, in order, and returns the key of the oldest one of each source.
func (s *conn) triggersIn(kvs []*mvccpb.KeyValue) (list []SourceTriggers, oldest []string) {
	counts, first := map[string]int{}, map[string]*mvccpb.KeyValue{}
	for _, e := range kvs {
		k, ok := s.keys.ParseShard(string(e.Key))
		if !ok || k.Kind != record.KindTrigger {
			continue
		}

		counts[k.Peer]++
		if was := first[k.Peer]; was == nil || e.CreateRevision < was.CreateRevision {
			first[k.Peer] = e
		}
	}

	for _, source := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, SourceTriggers{Source: source, Count: counts[source]})
		oldest = append(oldest, string(first[source].Key))
	}

	return list, oldest
}

// sentAt returns when a trigger was sent, or zero.
func (s *conn) sentAt(kvs []*mvccpb.KeyValue) task.Time {
	if len(kvs) == 0 {
		return task.Time{}
	}

	k, _ := s.keys.ParseShard(string(kvs[0].Key))
	p, err := record.DecodePending(k, kvs[0])
	if err != nil {
		return task.Time{}
	}

	return p.At
}
