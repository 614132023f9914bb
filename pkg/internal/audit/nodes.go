package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// nodeJudge judges the nodes that are present, their clocks, and the records of instances that are proved dead.
type nodeJudge struct {
	judge
	leases    *leaseJudge
	localNode string // the node with whose clock the others are compared
}

// checkNode judges a node's record: whether it may own shards, and whether its lease is its own.
func (j *nodeJudge) checkNode(ctx context.Context, e *mvccpb.KeyValue) error {
	name := strings.TrimPrefix(string(e.Key), j.keys.Nodes())
	n := nodeState{mod: e.ModRevision}
	if err := json.Unmarshal(e.Value, &n.Node); err != nil {
		j.suspectUnreadable(e, "node "+name, err)
		j.cluster.nodes[name] = n
		return nil
	}

	n.Name = name
	j.cluster.nodes[name] = n

	if n.Ineligible != "" {
		// The record's revision is not a fact, because nodes rewrite their records all the time.
		j.suspectWith(kindIneligible.newFinding(fmt.Sprintf("node %s owns no shards: %s", name, n.Ineligible), string(e.Key)), stillIneligible{j.reader.store, name})
	}

	if !namesLease(n.Node, e.Lease) {
		j.leases.suspectLease(ctx, e, fmt.Sprintf("the key of node %s is attached to lease %x, which is not in its record", name, e.Lease))
	}

	return nil
}

// stillIneligible confirms that a node still reports that it may not own shards.
type stillIneligible struct {
	store *store.Store
	node  string
}

// stillHolds reads the node again. A node that has left is no longer a finding.
func (r stillIneligible) stillHolds(ctx context.Context) (bool, error) {
	nodes, err := r.store.Nodes(ctx)
	for _, n := range nodes {
		if n.Name == r.node {
			return n.Ineligible != "", err
		}
	}

	return false, err
}

// clearedFor is how long an owner may need the record of a cleared instance.
const clearedFor = 48 * time.Hour

// checkCleared judges the record that an instance is proved dead. It must have a lease, which removes it.
func (j *nodeJudge) checkCleared(_ context.Context, e *mvccpb.KeyValue) error {
	instance := strings.TrimPrefix(string(e.Key), clearedPrefix(j.keys))
	var c struct {
		At task.Time `json:"at"`
	}
	if err := json.Unmarshal(e.Value, &c); err != nil {
		j.suspectUnreadable(e, "the record that clears instance "+instance, err)
	}

	j.cluster.cleared[instance] = c.At.Time

	if e.Lease == 0 {
		f := kindCleared.newFinding("instance "+instance+" is cleared forever: the record has no lease", string(e.Key))
		if j.reader.timeSince(c.At.Time) < clearedFor {
			f.Repair = "" // an owner may still wait for it
		}
		j.addSuspect(f, seenRecord(e))
	}

	return nil
}

// confirmClocks compares the nodes' clocks with the clock of the local node. The record of a node that was
// rewritten between the two reads shows a clock that is ahead or behind. An older record shows only a clock that is
// ahead, because its time is old.
func (j *nodeJudge) confirmClocks(ctx context.Context) ([]task.Finding, error) {
	if j.cluster.shards == 0 {
		return nil, nil
	}

	keys := make([]string, 0, len(j.cluster.nodes))
	for name := range j.cluster.nodes {
		keys = append(keys, j.keys.Node(name))
	}

	nodes := map[string]nodeState{}
	err := j.reader.getAt(ctx, 0, keys, func(e *mvccpb.KeyValue) {
		n := nodeState{mod: e.ModRevision}
		if json.Unmarshal(e.Value, &n.Node) == nil {
			nodes[strings.TrimPrefix(string(e.Key), j.keys.Nodes())] = n
		}
	})

	if err != nil {
		return nil, err
	}

	// A clock is ahead if its time is later than now. It is behind if its record was rewritten after the first read
	// and still has a time before that read.
	now := j.reader.now()
	var found []task.Finding
	for name, n := range nodes {
		ahead, behind := n.Clock.Sub(now), j.reader.timeSince(n.Clock.Time)
		difference := ""

		switch {
		case n.Clock.IsZero():
		case ahead > maxClockSkew:
			difference = fmt.Sprintf("%s ahead of", ahead.Round(time.Second))
		case n.mod != j.cluster.nodes[name].mod && behind > maxClockSkew:
			difference = fmt.Sprintf("%s behind", behind.Round(time.Second))
		}

		if difference != "" {
			f := kindClock.newFinding(fmt.Sprintf("the clock of node %s is %s that of this one (%s)", name, difference, j.localNode), j.keys.Node(name))
			f.Revision = n.mod
			found = append(found, f)
		}
	}

	// If at least half of the nodes differ, the local clock is the wrong one.
	if len(found) > 1 && 2*len(found) >= len(nodes) {
		f := kindClock.newFinding(fmt.Sprintf("the clock of node %s differs from those of %d of %d nodes", j.localNode, len(found), len(nodes)), j.keys.Node(j.localNode))
		f.Count = int64(len(found))
		return []task.Finding{f}, nil
	}

	return found, nil
}
