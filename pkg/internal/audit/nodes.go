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

// nodeJudge judges the nodes that are present, their clocks, and the instances that are
// proved dead.
type nodeJudge struct {
	judge
	leases    *leaseJudge
	localNode string // the node whose clock is compared with the others'
}

// checkNode judges a node's record.
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

	if n.Unfit != "" {
		// The record's revision is no fact: a node announces itself all the time.
		j.suspectWith(kindUnfit.newFinding(fmt.Sprintf("node %s owns no shards: %s", name, n.Unfit), string(e.Key)), stillUnfit{j.reader.store, name})
	}

	if !namesLease(n.Node, e.Lease) {
		j.leases.suspectLease(ctx, e, fmt.Sprintf("the key of node %s hangs on lease %x, which its record does not name", name, e.Lease))
	}

	return nil
}

// stillUnfit checks that a node still says that it is not fit to own shards.
type stillUnfit struct {
	store *store.Store
	node  string
}

func (r stillUnfit) stillHolds(ctx context.Context) (bool, error) {
	nodes, err := r.store.Nodes(ctx)
	for _, n := range nodes {
		if n.Name == r.node {
			return n.Unfit != "", err
		}
	}

	return false, err
}

// clearedFor is how long it may matter that an instance is cleared.
const clearedFor = 48 * time.Hour

// checkCleared judges a record that says that an instance is proved dead. It goes by
// itself, when its lease ends.
func (j *nodeJudge) checkCleared(_ context.Context, e *mvccpb.KeyValue) error {
	instance := strings.TrimPrefix(string(e.Key), clearedPrefix(j.keys))
	var c struct {
		At task.Time `json:"at"`
	}
	if err := json.Unmarshal(e.Value, &c); err != nil {
		j.suspectUnreadable(e, "what says that instance "+instance+" is cleared", err)
	}

	j.cluster.cleared[instance] = c.At.Time

	if e.Lease == 0 {
		f := kindCleared.newFinding("instance "+instance+" is cleared, for ever", string(e.Key))
		if j.reader.timeSince(c.At.Time) < clearedFor {
			f.Repair = "" // somebody may wait for it
		}
		j.addSuspect(f, seenRecord(e))
	}

	return nil
}

// confirmClocks compares the clocks of the nodes with the one of the local node. A node
// that has announced itself between the two reads shows both a clock that is ahead and
// one that is behind; an older announcement only shows a clock that is ahead.
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

	// If half of the nodes differ, the local clock is the one that is wrong.
	if len(found) > 1 && 2*len(found) >= len(nodes) {
		f := kindClock.newFinding(fmt.Sprintf("the clock of node %s differs from those of %d of %d nodes", j.localNode, len(found), len(nodes)), j.keys.Node(j.localNode))
		f.Count = int64(len(found))
		return []task.Finding{f}, nil
	}

	return found, nil
}
