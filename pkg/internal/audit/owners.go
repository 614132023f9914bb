package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ownerJudge judges who owns the shards, and that no other node decides their ticks (G1).
type ownerJudge struct{ judge }

// checkOwner judges an owner key.
func (j *ownerJudge) checkOwner(_ context.Context, e *mvccpb.KeyValue) error {
	id, ok := j.keys.ParseOwner(string(e.Key))
	if !ok {
		j.suspectUnknownKey(e)
		return nil
	}

	j.checkNoLease(e)

	o := record.Owner{}
	if err := json.Unmarshal(e.Value, &o); err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("the owner of shard %d", id), err)
	}

	o.Shard, o.Fence = id, e.ModRevision
	j.cluster.owners[id] = o

	if id >= j.cluster.shards {
		j.addSuspect(kindStrayShard.newFinding(fmt.Sprintf("an owner of shard %d, but the cluster has %d shards", id, j.cluster.shards), string(e.Key)), seenRecord(e))
	}

	return nil
}

// checkAllOwned checks that every shard has an owner that is present.
func (j *ownerJudge) checkAllOwned() {
	for id := range j.cluster.shards {
		key := j.keys.Owner(id)
		o, owned := j.cluster.owners[id]
		_, present := j.cluster.nodes[o.Node]

		switch {
		case !owned:
			j.addSuspect(kindNoOwner.newFinding(fmt.Sprintf("shard %d has no owner", id), key), store.Seen{Key: key})
		case o.Node == "": // checkOwner has reported it as unreadable
		case !present:
			j.addSuspect(kindOwnerAbsent.newFinding(fmt.Sprintf("the owner of shard %d, node %s, is not present", id, o.Node), key, j.keys.Node(o.Node)),
				store.Seen{Key: key, Mod: o.Fence}, store.Seen{Key: j.keys.Node(o.Node)})
		}
	}
}

// movesFor is how long a handover may take. The leader forces one that is not answered after 30 s.
const movesFor = 2 * time.Minute

// checkMove judges the record of a handover.
func (j *ownerJudge) checkMove(_ context.Context, e *mvccpb.KeyValue) error {
	var m struct {
		To    string    `json:"to"`
		Since task.Time `json:"since"`
	}
	if err := json.Unmarshal(e.Value, &m); err != nil {
		j.suspectUnreadable(e, "a handover", err)
		return nil
	}

	if j.reader.timeSince(m.Since.Time) > movesFor {
		shard := strings.TrimPrefix(string(e.Key), movesPrefix(j.keys))
		j.addSuspect(kindMoveStalled.newFinding(fmt.Sprintf("shard %s is being handed over to node %s, begun %s", shard, m.To, j.reader.formatAgo(m.Since.Time)),
			string(e.Key)), seenRecord(e))
	}

	return nil
}

// checkDecidedByOwner suspects a record of a decision that a node wrote when it did not own the shard (G1): it was
// written under the present fence, and names another node than the owner. Only a record that is as the deciding
// commit wrote it is evidence. A retry, for example, keeps the name of an earlier owner.
func (j *ownerJudge) checkDecidedByOwner(e *mvccpb.KeyValue, ref record.Ref, r task.Run) {
	o := j.cluster.owners[ref.Shard]
	if r.Owner == "" || o.Node == "" || r.Owner == o.Node || e.CreateRevision <= o.Fence || r.Attempt > 1 || len(r.Attempts) > 0 {
		return
	}

	asDecided := r.State == task.Missed || r.State == task.Skipped || r.State.Active() && r.DispatchedAt.Equal(r.CreatedAt.Time)
	ofTick := r.Trigger == task.TriggerSchedule || r.Trigger == task.TriggerCatchUp
	if !asDecided || !ofTick {
		return
	}

	f := kindTwoOwners.newFinding(fmt.Sprintf("node %s decided a tick of shard %d at revision %d, although node %s has owned it since revision %d",
		r.Owner, ref.Shard, e.CreateRevision, o.Node, o.Fence), string(e.Key), j.keys.Owner(ref.Shard))
	f.Revision = e.ModRevision

	// The record itself is not a fact that must still hold: it is evidence even if it is deleted meanwhile.
	j.addSuspect(f, store.Seen{Key: j.keys.Owner(ref.Shard), Mod: o.Fence})
}
