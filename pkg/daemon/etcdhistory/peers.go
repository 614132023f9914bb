package etcdhistory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/peerhistory"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// askEvery is the interval at which a node asks some others which history they follow, and askAtOnce how many of them.
	askEvery  = 5 * time.Second
	askAtOnce = 3
	// maxPeers is how many addresses of other nodes are stored.
	maxPeers = 16
	// forgetOld is how long after its last answer a node of an older history is reported.
	forgetOld = 2 * time.Minute
)

// Asker asks nodes which history of the cluster they follow.
type Asker interface {
	AskAll(ctx context.Context, addresses []string) []peerhistory.Answer
}

// peers is what a Monitor knows about other nodes. After a restore, nodes of the lost history may come back with an etcd of their own,
// for example when the hosts of a lost majority get power again. Neither etcd shows that there are two. So each node asks the others
// that it knows:
//
//	the other follows a later history, or another one of the same epoch ──▶ this node gives up its shards
//	the other follows an earlier history, and has a session              ──▶ this node warns
//
// Of two histories that see each other, the later one fires. If both have the same epoch, none does, until an operator chooses one with
// carillon cluster recover. Two clusters whose nodes cannot reach each other are not detected.
type peers struct {
	mu    sync.Mutex
	own   peerhistory.History
	lost  []string           // addresses of the nodes of the backup, from the cluster's record
	next  int                // which address is asked next
	old   map[string]oldNode // nodes that follow an earlier history, by address
	first sync.Once
}

// oldNode says when a node that follows an earlier history said so for the first time, and for the last.
type oldNode struct{ first, last time.Time }

// observeRecord takes the history that the node follows, and the addresses of the nodes of its backup.
func (p *peers) observeRecord(c task.Cluster) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.own, p.lost = peerhistory.Of(c), nil
	if r := c.LastRestored(); r != nil {
		p.lost = r.Nodes
	}
}

// rememberPeers stores the addresses of other nodes in the data directory, the present ones first.
func (m *Monitor) rememberPeers(nodes []task.Node) {
	var list []string
	add := func(address string) {
		if address != "" && len(list) < maxPeers && !slices.Contains(list, address) {
			list = append(list, address)
		}
	}

	known := m.cfg.State.Peers()
	for _, n := range nodes {
		if n.Name != m.cfg.Node {
			add(n.Address)
		}
	}
	for _, address := range known {
		add(address)
	}

	// The order does not matter, so do not write it.
	slices.Sort(list)
	if err := m.cfg.State.SetPeers(list); err != nil {
		m.cfg.Logger.Error("cannot store the addresses of other nodes", zap.Error(err))
	}
}

// addresses returns the addresses of all other nodes that are known.
func (m *Monitor) addresses() []string {
	m.peers.mu.Lock()
	defer m.peers.mu.Unlock()

	list := slices.Concat(m.cfg.State.Peers(), m.peers.lost)
	slices.Sort(list)

	return slices.Compact(list)
}

// AskFirst asks all known nodes before the node joins for the first time. Afterwards, it does nothing.
func (m *Monitor) AskFirst(ctx context.Context) {
	m.peers.first.Do(func() { m.askNodes(ctx, m.addresses()) })
}

// AskOthers asks some of the known nodes at intervals, until ctx ends.
func (m *Monitor) AskOthers(ctx context.Context) error {
	for clock.Sleep(ctx, askEvery) {
		if list := m.addresses(); len(list) > 0 {
			var some []string
			for range min(askAtOnce, len(list)) {
				some = append(some, list[m.peers.next%len(list)])
				m.peers.next++
			}
			m.askNodes(ctx, some)
		}
	}

	return ctx.Err()
}

// askNodes asks nodes and acts on their answers.
func (m *Monitor) askNodes(ctx context.Context, addresses []string) {
	if m.cfg.Asker == nil || len(addresses) == 0 {
		return
	}

	for _, a := range m.cfg.Asker.AskAll(ctx, addresses) {
		m.observeAnswer(a, time.Now())
	}
}

// observeAnswer compares the history that another node follows with that of this one.
func (m *Monitor) observeAnswer(a peerhistory.Answer, now time.Time) {
	m.peers.mu.Lock()
	own := m.peers.own
	isOld := a.Err == nil && a.Cluster == own.Cluster && a.Epoch < own.Epoch && a.Session
	switch seen, known := m.peers.old[a.Address]; {
	case isOld && !known:
		if m.peers.old == nil {
			m.peers.old = map[string]oldNode{}
		}
		m.peers.old[a.Address] = oldNode{now, now}
	case isOld:
		m.peers.old[a.Address] = oldNode{seen.first, now}
	case a.Err == nil:
		delete(m.peers.old, a.Address)
	}
	m.peers.mu.Unlock()

	if a.Err != nil || !a.Supersedes(own) || m.cfg.Restored() != nil {
		return
	}

	// The node still knows this after a restart, when it may not reach the other one. Only a higher epoch ends it.
	m.cfg.SetRestored(fmt.Errorf("the node at %s follows epoch %d of the cluster, after another restore, but this node has epoch %d: stop the agents of one of them, "+
		"or choose the other with carillon cluster recover", a.Address, a.Epoch, own.Epoch))
	cluster, epoch, revision := m.cfg.State.History()
	if err := m.cfg.State.SetHistory(cluster, epoch, revision, true); err != nil {
		m.cfg.Logger.Error("cannot store that the cluster was restored", zap.Error(err))
	}
}

// OldNodes returns the addresses of nodes that follow an older history of the cluster and still run. It leaves out a node that has said
// so only once: all nodes follow an older history for a moment when an operator accepts a restored etcd.
func (m *Monitor) OldNodes(now time.Time) (list []string) {
	m.peers.mu.Lock()
	defer m.peers.mu.Unlock()

	for address, seen := range m.peers.old {
		if seen.last.After(seen.first) && now.Sub(seen.last) < forgetOld {
			list = append(list, address)
		}
	}
	slices.Sort(list)

	return list
}
