package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// queueJudge judges the waiting runs of a shard, those of one task together.
type queueJudge struct {
	judge
	waiting []queuedRun   // of the task that is being read
	limits  *access.Table // judges the labels of nodes; nil until it is needed
}

// queuedRun is a queue record with the key and revision at which it was read.
type queuedRun struct {
	task.Waiting
	ref record.Ref
	store.Seen
}

// maxQueued is how many queue records of one task are judged together.
const maxQueued = 1000

// checkQueued judges one queue record. It collects the records of a task for finishTask.
func (j *queueJudge) checkQueued(_ context.Context, s *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	if len(j.waiting) > 0 && j.waiting[0].ref != k.Ref {
		j.finishTask(s)
	}

	j.checkNoLease(e)
	w, err := record.DecodeWaiting(k, e.Value)
	if err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("a waiting run of %s", k.Ref), err)
		return
	}

	entry, hasEntry := s.entries[k.Ref.String()]

	if !j.hasTask(s, k.Ref, w.UID) {
		j.addSuspect(kindQueueOrphan.newFinding(fmt.Sprintf("run %s waits, but its task %s (uid %s) was deleted", k.Run, k.Ref, w.UID), string(e.Key)),
			seenRecord(e), store.Seen{Key: j.keys.Entry(k.Ref), Mod: entry.mod})
		return
	}

	if hasEntry && len(j.waiting) < maxQueued {
		j.waiting = append(j.waiting, queuedRun{w, k.Ref, seenRecord(e)})
	}
}

// finishTask judges the queue of one task. Its first run is stuck if all of its runs are due, none is active, a
// node could run each of them, and the shard has had its owner for a while. A run is not stuck if it is frozen, if it waits
// for the catch-up rate, or if its parts are under way.
func (j *queueJudge) finishTask(s *shardState) {
	all := j.waiting
	j.waiting = j.waiting[:0]

	if len(all) == 0 {
		return
	}

	ref := all[0].ref
	waitsAsItShould := func(q queuedRun) bool { return q.Reason == task.ReasonCatchUp || q.UnderWay() }
	if j.cluster.freezes.Of(ref.Namespace) != nil || slices.ContainsFunc(all, waitsAsItShould) {
		return
	}

	// A new owner needs some time to dispatch what waits.
	entry, o := s.entries[ref.String()], j.cluster.owners[s.id]
	if entry.unreadable || j.cluster.active[hashOf(ref)] || j.reader.timeSince(o.Since.Time) < timeTolerance {
		return
	}

	// A run whose request named a node waits for that node, and the others may wait behind it.
	mayWait := func(q queuedRun) bool {
		return j.dueFor(q.Waiting) < timeTolerance || !j.hasTaker(ref.Namespace, entry, q.TargetNode)
	}
	if slices.ContainsFunc(all, mayWait) {
		return
	}

	first, ownerKey := all[0], j.keys.Owner(s.id)
	f := kindStuck.newFinding(fmt.Sprintf("run %s of %s waits (%s), and has been due since %s", first.ID, ref, first.Reason,
		j.dueFor(first.Waiting).Round(time.Second)), first.Key, ownerKey)
	f.Count = int64(len(all))
	j.suspectWith(f, taskStillIdle{j.reader.store, ref}, first.Seen, store.Seen{Key: ownerKey, Mod: o.Fence})
}

// dueFor returns for how long a run could have been dispatched.
func (j *queueJudge) dueFor(w task.Waiting) time.Duration {
	since := w.NotBefore.Time
	if since.IsZero() {
		since = w.CreatedAt.Time
	}
	return j.reader.timeSince(since)
}

// hasTaker reports whether some node could run a task of a namespace. If the request of the run named a node, only that one
// can, whatever the target of the task is. If a selector compares measured facts, the answer is false, because it is not
// known for how long a node has matched.
func (j *queueJudge) hasTaker(namespace string, e entryState, targetNode string) bool {
	if j.limits == nil {
		j.limits, _ = access.Compile(access.Records{NodeLimits: j.cluster.limits})
	}

	var nodes []task.Node
	for _, n := range j.cluster.nodes {
		if targetNode == "" || n.Name == targetNode {
			nodes = append(nodes, j.limits.LimitNode(n.Node))
		}
	}

	target := e.target
	if targetNode != "" {
		target = task.Target{}
	}
	target.Selector = access.JoinSelector(j.cluster.namespaces[namespace], target.Selector)

	return !task.ComparesInSelector(target.Selector) && len(target.Takers(nodes, e.needsKey)) > 0
}

// taskStillIdle confirms that a task still has no active run.
type taskStillIdle struct {
	store *store.Store
	ref   record.Ref
}

func (r taskStillIdle) stillHolds(ctx context.Context) (bool, error) {
	active, err := r.store.ActiveOf(ctx, r.ref)
	return len(active) == 0, err
}
