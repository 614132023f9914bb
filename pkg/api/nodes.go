package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// drainNode, cordonNode and resumeNode serve the states of a node. The node keeps
// its state itself: whatever node is asked passes the request on to that one.
func (s *server) drainNode(c *call) (answer, error)  { return s.setState(c, task.NodeDraining) }
func (s *server) cordonNode(c *call) (answer, error) { return s.setState(c, task.NodeCordoned) }
func (s *server) resumeNode(c *call) (answer, error) { return s.setState(c, task.NodeReady) }

func (s *server) setState(c *call, state string) (answer, error) {
	name := c.r.PathValue("node")
	if err := task.CheckName("node", name); err != nil {
		return answer{}, err
	}
	if name == s.Node {
		if s.SetState == nil {
			return answer{}, fail(http.StatusNotImplemented, client.CodeInternal, "node %s takes no states", name)
		}
		if err := s.SetState(c.ctx(), state); err != nil {
			return answer{}, fmt.Errorf("%s node %s: %w", state, name, err)
		}
		return s.getNode(c)
	}
	if by := c.r.Header.Get(forwardedBy); by != "" {
		return answer{}, fail(http.StatusLoopDetected, client.CodeLoop, "node %s sent this to node %s, but it is for node %s", task.Quote(by), s.Node, name)
	}
	target, err := s.addressOf(c.ctx(), name, fmt.Errorf("node %s: %w", name, task.ErrNotFound))
	if err != nil {
		return answer{}, err
	}
	if err := s.pass(c, target.JoinPath(strings.Split(c.r.URL.Path, "/")...), nil); err != nil {
		return answer{}, fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s does not answer at %s", name, target.Host).
			withHint("only the node itself can take a state; if its process is gone, its shards move by themselves").because(err)
	}
	return answer{}, nil
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
