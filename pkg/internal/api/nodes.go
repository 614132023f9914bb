package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// stateWithin is how long a node may take to obey a state, and statePoll how often
	// it is looked whether it has.
	stateWithin = 10 * time.Second
	statePoll   = 50 * time.Millisecond
)

// drainNode, cordonNode and resumeNode serve the states of a node. The node keeps
// its state itself: whatever other node is asked leaves a request for it in etcd.
func (s *server) drainNode(c *call) (answer, error)  { return s.setState(c, task.NodeDraining) }
func (s *server) cordonNode(c *call) (answer, error) { return s.setState(c, task.NodeCordoned) }
func (s *server) resumeNode(c *call) (answer, error) { return s.setState(c, task.NodeReady) }

func (s *server) setState(c *call, state string) (answer, error) {
	name := c.r.PathValue("node")
	if err := task.CheckName("node", name); err != nil {
		return answer{}, err
	}
	if name != s.Node {
		return s.requestState(c, name, state)
	}

	if s.SetState == nil {
		return answer{}, fail(http.StatusNotImplemented, client.CodeInternal, "node %s takes no states", name)
	}
	if err := s.SetState(c.ctx(), state, c.actor()); err != nil {
		return answer{}, fmt.Errorf("%s node %s: %w", state, name, err)
	}
	return s.getNode(c)
}

// requestState asks another node for a state, and waits until it has announced it.
func (s *server) requestState(c *call, name, state string) (answer, error) {
	n, err := s.Store.Node(c.ctx(), name)
	if err != nil {
		return answer{}, err
	}
	mod, err := s.Store.RequestNodeState(c.ctx(), n, store.NodeRequest{State: state, By: c.actor(), At: s.now()})
	if err != nil {
		return answer{}, about("node "+name, err)
	}

	ctx, cancel := context.WithTimeout(c.ctx(), s.StateWithin)
	defer cancel()
	poll := time.NewTicker(statePoll)
	defer poll.Stop()
	for {
		// An error is no answer: etcd is asked again for as long as there is time.
		pending, err := s.Store.NodeRequestPending(ctx, name, mod)
		if err == nil && !pending {
			return s.getNode(c)
		}
		select {
		case <-poll.C:
			continue
		case <-ctx.Done():
		}
		return answer{}, s.withdrawState(c, name, state, mod)
	}
}

// withdrawState takes a request back that its node did not obey in time: nobody
// expects the state later. It returns what to tell the caller.
func (s *server) withdrawState(c *call, name, state string, mod int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), etcdWithin)
	defer cancel()
	withdrawn, err := s.Store.DeleteNodeRequest(ctx, name, mod)
	if err != nil || !withdrawn {
		return fail(http.StatusGatewayTimeout, client.CodeUnknown, "node %s did not confirm within %s that it is %s", name, s.StateWithin, state).
			withHint("look before you try again: carillon node list").because(err)
	}
	return fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s did not become %s within %s; the request was withdrawn", name, state, s.StateWithin).
		withHint("only the node itself can take a state; if its process is gone, its shards move by themselves")
}

// recoverCluster serves an operator's word that the history that etcd has now is
// the one to go on with.
func (s *server) recoverCluster(c *call) (answer, error) {
	nodes, err := s.Store.Nodes(c.ctx())
	if err != nil {
		return answer{}, err
	}
	if restoredAt(nodes) == "" && s.Writable() == nil {
		return answer{}, fail(http.StatusConflict, client.CodeConflict, "no node says that etcd was restored from an older snapshot: there is nothing to recover from")
	}
	p, err := s.Store.Present(c.ctx())
	if err != nil {
		return answer{}, err
	}
	if !p.Found {
		return answer{}, fail(http.StatusConflict, client.CodeConflict, "etcd holds no cluster: restore it from a snapshot that does")
	}
	for _, n := range nodes { // a snapshot that is restored again is of an epoch before theirs
		p.Cluster.Epoch = max(p.Cluster.Epoch, n.Epoch)
	}
	p.Cluster = p.Cluster.MarkChanged(c.actor(), s.now(), "")
	next, err := s.Store.BumpEpoch(c.ctx(), p)
	if err != nil {
		return answer{}, about(fmt.Sprintf("epoch %d", next.Epoch+1), err)
	}
	return answer{status: http.StatusOK, body: next}, nil
}

// restoredAt are the nodes that say that etcd was restored from an older snapshot.
func restoredAt(nodes []task.Node) string {
	var names []string
	for _, n := range nodes {
		if n.Unfit == task.UnfitRestored {
			names = append(names, n.Name)
		}
	}
	return strings.Join(names, ", ")
}

// unfitWarnings are of nodes that gave their shards up by themselves, or take no runs.
func unfitWarnings(nodes []task.Node) (list []string) {
	if names := restoredAt(nodes); names != "" {
		list = append(list, fmt.Sprintf("etcd was restored from an older snapshot, as %s found: nothing fires and nothing can be changed "+
			"until an operator accepts what it holds now, with carillon cluster recover", names))
	}
	for _, n := range nodes {
		if len(n.Pressed) > 0 {
			list = append(list, fmt.Sprintf("node %s takes no runs: %s", n.Name, task.PressedWords(n.Pressed)))
		}
		if n.Stuck > 0 {
			list = append(list, fmt.Sprintf("node %s has %d starts of runs that hang: a program, a directory or a file system there does not answer", n.Name, n.Stuck))
		}
		switch n.Unfit {
		case "", task.UnfitRestored:
		case task.UnfitClock:
			list = append(list, fmt.Sprintf("node %s owns no shards: its clock jumped, or differs from that of other nodes", n.Name))
		case task.UnfitStalled:
			list = append(list, fmt.Sprintf("node %s owns no shards for a while: it did not decide what was due; its log says more", n.Name))
		default:
			list = append(list, fmt.Sprintf("node %s owns no shards: %s", n.Name, n.Unfit))
		}
	}
	return list
}
