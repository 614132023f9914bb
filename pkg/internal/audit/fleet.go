package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// fleet is who is there, as the first look saw it.
type fleet struct {
	nodes   map[string]present
	owners  map[int]record.Owner
	cleared map[string]time.Time // by instance: since when
	freezes task.Freezes
}

// present is a node's record.
type present struct {
	task.Node
	mod, create, lease int64
}

// lookAtFleet reads the small directories, all of what is not a task's.
func (a *audit) lookAtFleet() error {
	a.nodes, a.owners, a.cleared = map[string]present{}, map[int]record.Owner{}, map[string]time.Time{}
	if err := a.lookAtCluster(); err != nil || a.shards == 0 {
		return err
	}
	for _, dir := range []struct {
		prefix string
		f      func(*mvccpb.KeyValue) error
	}{
		{a.keys.Nodes(), a.lookAtNode}, {a.keys.Owners(), a.lookAtOwner}, {a.keys.Root() + "cleared/", a.lookAtCleared},
		{a.moves(), a.lookAtMove}, {a.keys.Tokens(), a.lookAtToken}, {a.keys.Secrets(), a.lookAtSecret},
	} {
		if err := a.each(dir.prefix, dir.f); err != nil {
			return err
		}
	}
	if err := a.lookAtLeader(); err != nil {
		return err
	}
	a.judgeOwners()
	return a.lookAtFreezes()
}

// moves is where hand-overs that are under way are kept, one key a shard.
func (a *audit) moves() string { return a.keys.Root() + "moves/" }

func seen(e *mvccpb.KeyValue) store.Seen { return store.Seen{Key: string(e.Key), Mod: e.ModRevision} }

func (a *audit) unreadable(e *mvccpb.KeyValue, what string, err error) {
	words := strings.TrimPrefix(err.Error(), task.ErrInvalid.Error()+": ")
	a.suspect(kindUnreadable.of(what+" cannot be read: "+words, string(e.Key)), seen(e))
}

// unleased checks that a record that is to stay has no lease.
func (a *audit) unleased(e *mvccpb.KeyValue) {
	if e.Lease != 0 {
		a.suspect(kindLeased.of(fmt.Sprintf("the record hangs on lease %x", e.Lease), string(e.Key)), seen(e))
	}
}

func (a *audit) lookAtCluster() error {
	found, err := a.get([]string{a.keys.Cluster()})
	if err != nil {
		return err
	}
	a.progress(len(found))
	e := found[a.keys.Cluster()]
	if e == nil {
		a.suspect(kindNoCluster.of("there is no record of the cluster", a.keys.Cluster()), store.Seen{Key: a.keys.Cluster()})
		return nil
	}
	a.unleased(e)
	var c task.Cluster
	if err := json.Unmarshal(e.Value, &c); err != nil || c.Shards <= 0 {
		a.suspect(kindNoCluster.of("the record of the cluster cannot be read", a.keys.Cluster()), seen(e))
		return nil
	}
	a.shards = c.Shards
	return nil
}

func (a *audit) lookAtNode(e *mvccpb.KeyValue) error {
	name := strings.TrimPrefix(string(e.Key), a.keys.Nodes())
	n := present{mod: e.ModRevision, create: e.CreateRevision, lease: e.Lease}
	if err := json.Unmarshal(e.Value, &n.Node); err != nil {
		a.unreadable(e, "node "+name, err)
		a.nodes[name] = n
		return nil
	}
	n.Name = name
	a.nodes[name] = n
	if n.Unfit != "" {
		// Not as it was: it announces itself all the time.
		a.suspect(kindUnfit.of(fmt.Sprintf("node %s owns no shards: %s", name, n.Unfit), string(e.Key))).still = a.stillUnfit(name)
	}
	if !a.names(n.Node, e.Lease) {
		a.suspectLease(e, fmt.Sprintf("the key of node %s hangs on lease %x, which its record does not name", name, e.Lease))
	}
	return nil
}

func (a *audit) stillUnfit(name string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		nodes, err := a.Store.Nodes(ctx)
		for _, n := range nodes {
			if n.Name == name {
				return n.Unfit != "", err
			}
		}
		return false, err
	}
}

// names reports whether a node's record names a lease.
func (a *audit) names(n task.Node, lease int64) bool {
	for _, l := range n.Leases {
		if id, err := strconv.ParseInt(l, 16, 64); err == nil && id == lease {
			return true
		}
	}
	return false
}

// suspectLease suspects a lease that no record names. It is leaked if it is kept
// alive: one that runs out goes by itself.
func (a *audit) suspectLease(e *mvccpb.KeyValue, message string) {
	before, _, err := a.ttl(a.ctx, e.Lease)
	if err != nil {
		a.note("lease %x cannot be asked for: %v", e.Lease, err)
		return
	}
	s := a.suspect(kindLeakedLease.of(message, string(e.Key))) // not as it was: a node announces itself all the time
	s.Do = strings.Replace(s.Do, "LEASE", fmt.Sprintf("%x", e.Lease), 1)
	key, lease := string(e.Key), e.Lease
	s.still = func(ctx context.Context) (bool, error) {
		now, err := a.ttlUnlessNamed(ctx, key, lease)
		// A lease that nobody renews has lost about the pause by now.
		return now >= 0 && now >= before-int64(a.Pause/time.Second)/2, err
	}
}

// ttlUnlessNamed is how long a lease lasts yet; negative if its key is gone from
// it, or if a node's record names it by now.
func (a *audit) ttlUnlessNamed(ctx context.Context, key string, lease int64) (int64, error) {
	res, err := a.Store.Client().Get(ctx, key)
	if err != nil {
		return 0, unavailable("read "+key, err)
	}
	if len(res.Kvs) == 0 || res.Kvs[0].Lease != lease {
		return -1, nil
	}
	nodes, err := a.Store.Nodes(ctx)
	if err != nil {
		return 0, err
	}
	for _, n := range nodes {
		if a.names(n, lease) {
			return -1, nil
		}
	}
	left, _, err := a.ttl(ctx, lease)
	return left, err
}

func (a *audit) lookAtOwner(e *mvccpb.KeyValue) error {
	id, ok := a.keys.ParseOwner(string(e.Key))
	if !ok {
		a.strange(e)
		return nil
	}
	a.unleased(e)
	o := record.Owner{}
	if err := json.Unmarshal(e.Value, &o); err != nil {
		a.unreadable(e, fmt.Sprintf("the owner of shard %d", id), err)
	}
	o.Shard, o.Fence = id, e.ModRevision
	a.owners[id] = o
	if id >= a.shards {
		a.suspect(kindStray.of(fmt.Sprintf("an owner of shard %d, and the cluster has %d shards", id, a.shards), string(e.Key)), seen(e))
	}
	return nil
}

func (a *audit) judgeOwners() {
	for id := range a.shards {
		key := a.keys.Owner(id)
		o, there := a.owners[id]
		switch _, alive := a.nodes[o.Node]; {
		case !there:
			a.suspect(kindNoOwner.of(fmt.Sprintf("shard %d has no owner", id), key), store.Seen{Key: key})
		case o.Node == "": // unreadable, and told
		case !alive:
			a.suspect(kindOwnerAbsent.of(fmt.Sprintf("the owner of shard %d, node %s, is not present", id, o.Node), key, a.keys.Node(o.Node)),
				store.Seen{Key: key, Mod: o.Fence}, store.Seen{Key: a.keys.Node(o.Node)})
		}
	}
}

func (a *audit) lookAtCleared(e *mvccpb.KeyValue) error {
	instance := strings.TrimPrefix(string(e.Key), a.keys.Root()+"cleared/")
	var c struct {
		At task.Time `json:"at"`
	}
	if err := json.Unmarshal(e.Value, &c); err != nil {
		a.unreadable(e, "what says that instance "+instance+" is cleared", err)
	}
	a.cleared[instance] = c.At.Time
	if e.Lease == 0 {
		s := a.suspect(kindCleared.of("instance "+instance+" is cleared, for ever", string(e.Key)), seen(e))
		if a.at.Sub(c.At.Time) < clearedFor { // it may be waited for
			s.Repair = ""
		}
	}
	return nil
}

// clearedFor is how long it may matter that an instance is cleared.
const clearedFor = 48 * time.Hour

// movesFor is how long a hand-over may take.
const movesFor = 2 * time.Minute

func (a *audit) lookAtMove(e *mvccpb.KeyValue) error {
	var m struct {
		To    string    `json:"to"`
		Since task.Time `json:"since"`
	}
	if err := json.Unmarshal(e.Value, &m); err != nil {
		a.unreadable(e, "a hand-over", err)
		return nil
	}
	if a.at.Sub(m.Since.Time) > movesFor {
		a.suspect(kindMoveStands.of(fmt.Sprintf("shard %s is being handed over to node %s, begun %s",
			strings.TrimPrefix(string(e.Key), a.moves()), m.To, a.ago(m.Since.Time)), string(e.Key)), seen(e))
	}
	return nil
}

func (a *audit) lookAtToken(e *mvccpb.KeyValue) error {
	a.unleased(e)
	var t record.Token
	if err := json.Unmarshal(e.Value, &t); err != nil {
		a.unreadable(e, "a token", err)
	}
	return nil
}

// lookAtLeader checks that there is one, and that no candidate is a ghost.
func (a *audit) lookAtLeader() error {
	candidates := 0
	err := a.each(a.keys.Leader(), func(e *mvccpb.KeyValue) error {
		candidates++
		for _, n := range a.nodes {
			if a.names(n.Node, e.Lease) {
				return nil
			}
		}
		a.suspectLease(e, fmt.Sprintf("a candidate for leader, %q, hangs on lease %x, which no node's record names", e.Value, e.Lease))
		return nil
	})
	if candidates == 0 && err == nil {
		s := a.suspect(kindNoLeader.of("there is no leader", a.keys.Leader()))
		s.Count = 0
		s.still = func(ctx context.Context) (bool, error) {
			t, err := a.Store.Totals(ctx)
			return t.Leader == "", err
		}
	}
	return err
}

func (a *audit) strange(e *mvccpb.KeyValue) {
	a.suspect(kindStrange.of("no key of Carillon looks so", string(e.Key)), seen(e))
}

// confirmClocks compares the clocks of the nodes with this one's. What a node
// announced between the two looks tells both ways, what is older only that a
// clock is ahead.
func (a *audit) confirmClocks() ([]task.Finding, error) {
	if a.shards == 0 {
		return nil, nil
	}
	nodes := map[string]present{}
	err := a.gets(nodeKeys(a), 0, func(e *mvccpb.KeyValue) {
		n := present{mod: e.ModRevision}
		if json.Unmarshal(e.Value, &n.Node) == nil {
			nodes[strings.TrimPrefix(string(e.Key), a.keys.Nodes())] = n
		}
	})
	if err != nil {
		return nil, err
	}
	now := a.Now()
	var found []task.Finding
	for name, n := range nodes {
		ahead, behind := n.Clock.Sub(now), a.at.Sub(n.Clock.Time)
		off := ""
		switch {
		case n.Clock.IsZero():
		case ahead > skew:
			off = fmt.Sprintf("%s ahead of", ahead.Round(time.Second))
		case n.mod != a.nodes[name].mod && behind > skew:
			off = fmt.Sprintf("%s behind", behind.Round(time.Second))
		}
		if off != "" {
			f := kindClock.of(fmt.Sprintf("the clock of node %s is %s that of this one (%s)", name, off, a.Node), a.keys.Node(name))
			f.Revision = n.mod
			found = append(found, f)
		}
	}
	if len(found) > 1 && 2*len(found) >= len(nodes) { // rather this one's
		f := kindClock.of(fmt.Sprintf("the clock of node %s differs from those of %d of %d nodes", a.Node, len(found), len(nodes)), a.keys.Node(a.Node))
		f.Count = int64(len(found))
		return []task.Finding{f}, nil
	}
	return found, nil
}

func nodeKeys(a *audit) []string {
	keys := make([]string, 0, len(a.nodes))
	for name := range a.nodes {
		keys = append(keys, a.keys.Node(name))
	}
	return keys
}
