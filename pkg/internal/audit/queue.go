package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// queued is a record of the queue of the task that is looked at.
type queued struct {
	task.Waiting
	ref record.Ref
	store.Seen
}

// mostQueued is how many records of one task's queue are looked at together.
const mostQueued = 1000

func (a *audit) lookAtQueued(s *shardLook, e *mvccpb.KeyValue, k record.ShardKey) {
	if len(s.queue) > 0 && s.queue[0].ref != k.Ref {
		a.endQueue(s)
	}
	a.unleased(e)
	w, err := record.DecodeWaiting(k, e.Value)
	if err != nil {
		a.unreadable(e, fmt.Sprintf("a waiting run of %s", k.Ref), err)
		return
	}
	entry, there := s.entries[k.Ref.String()]
	if !a.has(s, k.Ref, w.UID) {
		a.suspect(kindQueueOrphan.of(fmt.Sprintf("run %s waits, and its task %s (uid %s) is gone", k.Run, k.Ref, w.UID), string(e.Key)),
			seen(e), store.Seen{Key: a.keys.Entry(k.Ref), Mod: entry.mod})
		return
	}
	if there && len(s.queue) < mostQueued {
		s.queue = append(s.queue, queued{w, k.Ref, seen(e)})
	}
}

// endQueue judges the queue of one task: its first run is stuck if all of them
// are due, none is active, a node takes it, and the shard is served. What waits for
// its turn to be caught up with, or is frozen, waits as it should; what has its parts
// does not wait.
func (a *audit) endQueue(s *shardLook) {
	all := s.queue
	s.queue = s.queue[:0]
	if len(all) == 0 {
		return
	}
	ref := all[0].ref
	entry, o := s.entries[ref.String()], a.owners[s.id]
	if a.freezes.Of(ref.Namespace) != nil || slices.ContainsFunc(all, func(q queued) bool { return q.Reason == task.ReasonCatchUp || q.UnderWay() }) {
		return
	}
	if entry.bad || a.active[hashOf(ref)] || !a.taken(entry.target, entry.secret) || a.at.Sub(o.Since.Time) < slack {
		return
	}
	for _, q := range all {
		if a.dueFor(q.Waiting) < slack {
			return
		}
	}
	first := all[0]
	f := kindStuck.of(fmt.Sprintf("run %s of %s waits (%s), and is due since %s", first.ID, ref, first.Reason,
		a.dueFor(first.Waiting).Round(time.Second)), first.Key, a.keys.Owner(s.id))
	f.Count = int64(len(all))
	a.suspect(f, first.Seen, store.Seen{Key: a.keys.Owner(s.id), Mod: o.Fence}).still = a.noneActive(ref)
}

// dueFor is for how long a run could have been dispatched.
func (a *audit) dueFor(w task.Waiting) time.Duration {
	since := w.NotBefore.Time
	if since.IsZero() {
		since = w.CreatedAt.Time
	}
	return a.at.Sub(since)
}

// taken reports whether some node takes runs of such a task. Of a target that compares
// facts nobody can say for how long a node has matched.
func (a *audit) taken(t task.Target, secret bool) bool {
	var nodes []task.Node
	for _, n := range a.nodes {
		nodes = append(nodes, n.Node)
	}
	return !task.ComparesInSelector(t.Selector) && len(t.Takers(nodes, secret)) > 0
}

func (a *audit) noneActive(ref record.Ref) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		held, err := a.Store.ActiveOf(ctx, ref)
		return len(held) == 0, err
	}
}

// stillAhead reads a watermark again: it may move, and still be ahead.
func (a *audit) stillAhead(key string) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) {
		ahead := false
		err := a.gets([]string{key}, 0, func(e *mvccpb.KeyValue) {
			w, err := record.DecodeWatermark(e.Value)
			ahead = err == nil && w.Time.Sub(a.Now()) > slack
		})
		return ahead, err
	}
}
