package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// inbox is an attempt while it is looked at.
type inbox struct {
	task.Assigned
	key record.RunKey
	store.Seen
}

// lookAtRuns reads all inboxes, a page at a time, with the entries of their tasks.
func (a *audit) lookAtRuns() error {
	var page []inbox
	err := a.each(a.keys.Runs(), func(e *mvccpb.KeyValue) error {
		k, ok := a.keys.ParseRun(string(e.Key))
		if !ok {
			a.strange(e)
			return nil
		}
		a.unleased(e)
		a.active[hashOf(k.Ref)] = true
		r, err := record.DecodeAssigned(k, e.CreateRevision, e.Value)
		if err != nil {
			a.unreadable(e, fmt.Sprintf("an attempt of %s on node %s", k.Ref, k.Node), err)
			return nil
		}
		a.lookForTwoOwners(e, k.Ref, r.Run)
		if a.orphaned(k, r, e) {
			return nil
		}
		if page = append(page, inbox{r, k, seen(e)}); len(page) < a.Page {
			return nil
		}
		err = a.lookForTasks(page)
		page = page[:0]
		return err
	})
	if err != nil {
		return err
	}
	return a.lookForTasks(page)
}

// orphaned suspects an attempt whose instance is gone for longer than others
// wait for it. An instance that another has followed is gone since that started;
// of a node that is absent, etcd's past tells.
func (a *audit) orphaned(k record.RunKey, r task.Assigned, e *mvccpb.KeyValue) bool {
	lostAfter := r.EffectiveLostAfter().Std()
	if n, alive := a.nodes[k.Node]; alive {
		if n.Instance == r.Instance {
			return false
		}
		if a.at.Sub(n.StartedAt.Time) > lostAfter+slack {
			a.suspect(kindOrphan.of(fmt.Sprintf("run %s of %s is for instance %s of node %s, whose instance is %s since %s", k.Run, k.Ref,
				r.Instance, k.Node, n.Instance, a.ago(n.StartedAt.Time)), string(e.Key)), seen(e))
		}
		return true
	}
	node := store.Seen{Key: a.keys.Node(k.Node)}
	if at, dead := a.cleared[r.Instance]; dead && a.at.Sub(at) > slack {
		a.suspect(kindOrphan.of(fmt.Sprintf("run %s of %s is on node %s, whose instance is proved dead since %s", k.Run, k.Ref, k.Node, a.ago(at)),
			string(e.Key), a.keys.Root()+"cleared/"+r.Instance), seen(e), node)
		return true
	}
	s := a.suspect(kindOrphan.of(fmt.Sprintf("run %s of %s is on node %s, which is absent for longer than %s", k.Run, k.Ref, k.Node, r.EffectiveLostAfter()),
		string(e.Key), node.Key), seen(e), node)
	s.still = func(ctx context.Context) (bool, error) {
		gone, known, err := a.goneFor(ctx, node.Key, lostAfter+slack, e.ModRevision)
		if err == nil && !known {
			a.note("node %s has attempts and is absent; etcd's past does not reach far enough to tell for how long: look again in %s", k.Node, r.EffectiveLostAfter())
		}
		return gone, err
	}
	return true
}

// lookForTasks suspects attempts of tasks that are gone, unless they were asked
// to end.
func (a *audit) lookForTasks(page []inbox) error {
	keys := make([]string, 0, len(page))
	for _, in := range page {
		keys = append(keys, a.keys.Entry(in.key.Ref))
	}
	entries, err := a.get(keys)
	if err != nil {
		return err
	}
	for _, in := range page {
		e := entries[a.keys.Entry(in.key.Ref)]
		if in.CancelRequested || e != nil && (uidOf(e.Value) == in.UID || uidOf(e.Value) == "") {
			continue
		}
		entry := store.Seen{Key: a.keys.Entry(in.key.Ref)}
		if e != nil {
			entry.Mod = e.ModRevision
		}
		a.suspect(kindNoTask.of(fmt.Sprintf("run %s on node %s is of task %s (uid %s), which is gone", in.key.Run, in.key.Node, in.key.Ref, in.UID), in.Key), in.Seen, entry)
	}
	return nil
}

// goneFor reports whether a node's key was absent so long ago already, and a
// record that was last changed at mod as it is now. known is false if etcd's
// past does not reach that far.
//
// The past has no clock but what the nodes then announced: the newest revision
// at which none of them was past the time in question is not later than that.
func (a *audit) goneFor(ctx context.Context, node string, long time.Duration, mod int64) (gone, known bool, err error) {
	before := a.at.Add(-long)
	past, err := a.Store.Readable(ctx)
	if err != nil {
		return false, false, err
	}
	low, high := past.Oldest, a.rev
	at, err := a.clockAt(ctx, low)
	for err == nil && !at.After(before) && low+1 < high {
		var then time.Time
		middle := low + (high-low)/2
		if then, err = a.clockAt(ctx, middle); then.After(before) {
			high = middle
		} else {
			low, at = middle, then
		}
	}
	// Where no node was there, nobody told the time.
	old := !at.IsZero() && !at.After(before)
	var res *clientv3.GetResponse
	if err == nil && old {
		res, err = a.Store.Client().Get(ctx, node, clientv3.WithRev(low), clientv3.WithCountOnly())
	}
	switch {
	case errors.Is(err, rpctypes.ErrCompacted): // meanwhile
		return false, false, nil
	case err != nil:
		return false, false, unavailable("read the past of "+node, err)
	case !old:
		return false, false, nil
	}
	return res.Count == 0 && mod <= low, true, nil
}

// clockAt is the latest time that a node had announced at a revision; zero if
// none was there.
func (a *audit) clockAt(ctx context.Context, rev int64) (time.Time, error) {
	key, end := kv.Prefix(a.keys.Nodes())
	res, err := a.Store.Client().Get(ctx, key, clientv3.WithRange(end), clientv3.WithRev(rev))
	if err != nil {
		return time.Time{}, unavailable("read the nodes of the past", err)
	}
	var latest time.Time
	for _, e := range res.Kvs {
		var n task.Node
		if json.Unmarshal(e.Value, &n) == nil && n.Clock.After(latest) {
			latest = n.Clock.Time
		}
	}
	return latest, nil
}
