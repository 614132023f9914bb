package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/task"
)

// clusterJudge judges the records that exist exactly once in a cluster.
type clusterJudge struct{ judge }

// readCluster reads the cluster's record, which contains the number of shards.
func (j *clusterJudge) readCluster(ctx context.Context) error {
	key := j.keys.Cluster()
	found, err := j.reader.readKeys(ctx, key)
	if err != nil {
		return err
	}

	j.reader.progress.addRecords(len(found))

	e := found[key]
	if e == nil {
		j.addSuspect(kindNoCluster.newFinding("the record of the cluster is missing", key), store.Seen{Key: key})
		return nil
	}

	j.checkNoLease(e)

	var c task.Cluster
	if err := json.Unmarshal(e.Value, &c); err != nil || c.Shards <= 0 {
		j.addSuspect(kindNoCluster.newFinding("the record of the cluster cannot be read", key), seenRecord(e))
		return nil
	}

	j.cluster.shards = c.Shards
	j.cluster.changes.bootstrap = e.CreateRevision

	return nil
}

// readFreezes reads what is frozen. Runs that wait because of a freeze are not stuck.
func (j *clusterJudge) readFreezes(ctx context.Context) error {
	key := j.keys.Freezes()
	found, err := j.reader.readKeys(ctx, key)
	if err != nil {
		return err
	}

	e := found[key]
	if e == nil {
		return nil
	}

	j.checkNoLease(e)

	if err := json.Unmarshal(e.Value, &j.cluster.freezes); err != nil {
		j.suspectUnreadable(e, "the record of freezes", err)
	}

	return nil
}

// leaderJudge judges the election.
type leaderJudge struct {
	judge
	leases *leaseJudge
}

// checkLeader checks that there is a leader, and that every candidate's key has a lease of a node that is present.
func (j *leaderJudge) checkLeader(ctx context.Context) error {
	candidates := 0
	err := j.reader.eachRecord(ctx, j.keys.Leader(), func(ctx context.Context, e *mvccpb.KeyValue) error {
		candidates++

		for _, n := range j.cluster.nodes {
			if namesLease(n.Node, e.Lease) {
				return nil
			}
		}

		j.leases.suspectLease(ctx, e, fmt.Sprintf("a candidate for leader, %q, is attached to lease %x, which is in no node record", e.Value, e.Lease))

		return nil
	})

	if err != nil {
		return err
	}

	if candidates == 0 {
		f := kindNoLeader.newFinding("no leader", j.keys.Leader())
		f.Count = 0
		j.suspectWith(f, stillNoLeader{j.reader.store})
	}

	return nil
}

// stillNoLeader confirms that there is still no leader.
type stillNoLeader struct{ store *store.Store }

func (s stillNoLeader) stillHolds(ctx context.Context) (bool, error) {
	leader, err := s.store.CurrentLeader(ctx)
	return leader == "", err
}

const (
	// membersTimeout is how long a member of etcd may take to answer.
	membersTimeout = 2 * time.Second
	// maxUnapplied is how many committed entries a healthy member may still have to apply. etcd rejects writes at
	// 5,000.
	maxUnapplied = 1000
)

// memberJudge judges the members of etcd.
type memberJudge struct{ judge }

// checkMembers requests the status of etcd's members. The second read does not repeat this, because the cluster's
// own work does not change it.
func (j *memberJudge) checkMembers(ctx context.Context) error {
	for _, m := range j.reader.store.Members(ctx, membersTimeout) {
		for _, f := range memberFindings(m) {
			j.addSuspect(f)
		}
	}

	return nil
}

// memberFindings returns what is wrong with a member.
func memberFindings(m etcdadmin.Member) []task.Finding {
	var found []task.Finding
	add := func(k kind, format string, args ...any) {
		f := k.newFinding(fmt.Sprintf("etcd at %s ", m.Endpoint) + fmt.Sprintf(format, args...))
		f.Keys, f.Count = []string{}, 0
		found = append(found, f)
	}

	if m.Err != nil {
		add(kindMember, "does not respond correctly: %v", m.Err)
	}

	if m.Fault != "" {
		add(kindMember, "is not supported by Carillon: %s", m.Fault)
	}

	if len(m.Alarms) > 0 {
		add(kindMember, "has raised the alarm %s", strings.Join(m.Alarms, ", "))
	}

	if unapplied := m.Index - m.Applied; unapplied > maxUnapplied {
		add(kindMember, "has not applied %d committed writes", unapplied)
	}

	switch used := m.Used(); {
	case slices.Contains(m.Alarms, etcdadmin.AlarmNoSpace): // the alarm is already a finding
	case used >= etcdadmin.NearlyFull:
		add(kindMember, "is at %d %% of its quota", used)
	case used >= etcdadmin.FillingUp:
		add(kindFilling, "is at %d %% of its quota", used)
	}

	return found
}

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
func (s stillIneligible) stillHolds(ctx context.Context) (bool, error) {
	nodes, err := s.store.Nodes(ctx)
	for _, n := range nodes {
		if n.Name == s.node {
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

// leaseJudge judges leases that no node's record contains.
type leaseJudge struct {
	judge
	pause time.Duration // between the two reads
}

// namesLease reports whether a node's record contains a lease.
func namesLease(n task.Node, lease int64) bool {
	for _, l := range n.Leases {
		if id, err := strconv.ParseInt(l, 16, 64); err == nil && id == lease {
			return true
		}
	}

	return false
}

// suspectLease suspects the lease of a record that no node's record contains. It is leaked only if a client still
// renews it. A lease that is not renewed expires by itself.
func (j *leaseJudge) suspectLease(ctx context.Context, e *mvccpb.KeyValue, message string) {
	ttl, err := j.reader.leaseTTL(ctx, e.Lease)
	if err != nil {
		j.addNote("cannot query lease %x: %v", e.Lease, err)
		return
	}

	f := kindLeakedLease.newFinding(message, string(e.Key))
	f.Do = strings.Replace(f.Do, "LEASE", fmt.Sprintf("%x", e.Lease), 1)

	// The record's revision is not a fact, because nodes rewrite their records all the time.
	j.suspectWith(f, leaseStillRenewed{reader: j.reader, key: string(e.Key), lease: e.Lease, ttl: ttl, pause: j.pause})
}

// leaseStillRenewed confirms that a lease still has its key, that no node's record contains it, and that it was
// renewed.
type leaseStillRenewed struct {
	reader *reader
	key    string // the key that has the lease
	lease  int64
	ttl    int64         // its remaining seconds at the first read
	pause  time.Duration // between the two reads: what a lease loses in this time if it is not renewed
}

// stillHolds reads the key, the nodes and the lease again.
func (r leaseStillRenewed) stillHolds(ctx context.Context) (bool, error) {
	res, err := r.reader.store.Client().Get(ctx, r.key)
	if err != nil {
		return false, unavailableError("read "+r.key, err)
	}
	if len(res.Kvs) == 0 || res.Kvs[0].Lease != r.lease {
		return false, nil
	}

	nodes, err := r.reader.store.Nodes(ctx)
	if err != nil {
		return false, err
	}

	for _, n := range nodes {
		if namesLease(n, r.lease) {
			return false, nil
		}
	}

	// A lease that was not renewed has lost about the pause by now.
	ttl, err := r.reader.leaseTTL(ctx, r.lease)

	return ttl >= 0 && ttl >= r.ttl-int64(r.pause/time.Second)/2, err
}
