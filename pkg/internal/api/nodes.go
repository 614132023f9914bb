package api

import (
	"context"
	"fmt"
	"net/http"
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
	// withdrawWithin is how long etcd is waited for when a request is withdrawn.
	withdrawWithin = 1500 * time.Millisecond
)

// drainNode, cordonNode and resumeNode serve the states of a node. The node keeps
// its state itself: whatever other node is asked leaves a request for it in etcd.
func (h *nodeHandlers) drainNode(c *call) (answer, error)  { return h.setState(c, task.NodeDraining) }
func (h *nodeHandlers) cordonNode(c *call) (answer, error) { return h.setState(c, task.NodeCordoned) }
func (h *nodeHandlers) resumeNode(c *call) (answer, error) { return h.setState(c, task.NodeReady) }

func (h *nodeHandlers) setState(c *call, state string) (answer, error) {
	name := c.r.PathValue("node")
	if err := task.CheckName("node", name); err != nil {
		return answer{}, err
	}
	if name != h.Node {
		return h.requestState(c, name, state)
	}

	if h.SetState == nil {
		return answer{}, fail(http.StatusNotImplemented, client.CodeInternal, "node %s takes no states", name)
	}
	if err := h.SetState(c.ctx(), state, c.actor()); err != nil {
		return answer{}, fmt.Errorf("%s node %s: %w", state, name, err)
	}
	return h.getNode(c)
}

// requestState asks another node for a state, and waits until it has announced it.
func (h *nodeHandlers) requestState(c *call, name, state string) (answer, error) {
	n, err := h.Store.Node(c.ctx(), name)
	if err != nil {
		return answer{}, err
	}
	mod, err := h.Store.RequestNodeState(c.ctx(), n, store.NodeRequest{State: state, By: c.actor(), At: h.Now.Stamp()})
	if err != nil {
		return answer{}, about("node "+name, err)
	}

	ctx, cancel := context.WithTimeout(c.ctx(), h.StateWithin)
	defer cancel()
	poll := time.NewTicker(statePoll)
	defer poll.Stop()
	for {
		// An error is no answer: etcd is asked again for as long as there is time.
		pending, err := h.Store.NodeRequestPending(ctx, name, mod)
		if err == nil && !pending {
			return h.getNode(c)
		}
		select {
		case <-poll.C:
			continue
		case <-ctx.Done():
		}
		return answer{}, h.withdrawState(c, name, state, mod)
	}
}

// withdrawState takes a request back that its node did not obey in time: nobody
// expects the state later. It returns what to tell the caller.
func (h *nodeHandlers) withdrawState(c *call, name, state string, mod int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), withdrawWithin)
	defer cancel()
	withdrawn, err := h.Store.DeleteNodeRequest(ctx, name, mod)
	if err != nil || !withdrawn {
		return fail(http.StatusGatewayTimeout, client.CodeUnknown, "node %s did not confirm within %s that it is %s", name, h.StateWithin, state).
			withHint("look before you try again: carillon node list").because(err)
	}
	return fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s did not become %s within %s; the request was withdrawn", name, state, h.StateWithin).
		withHint("only the node itself can take a state; if its process is gone, its shards move by themselves")
}

// listNodes serves the nodes.
func (h *nodeHandlers) listNodes(c *call) (answer, error) {
	nodes, _, err := presentNodes(c.ctx(), h.Store)
	if err != nil {
		return answer{}, err
	}
	return all(nodes)
}

// getNode serves one of them.
func (h *nodeHandlers) getNode(c *call) (answer, error) {
	name := c.r.PathValue("node")
	if err := task.CheckName("node", name); err != nil {
		return answer{}, err
	}
	nodes, _, err := presentNodes(c.ctx(), h.Store)
	if err != nil {
		return answer{}, err
	}
	for _, n := range nodes {
		if n.Name == name {
			return answer{status: http.StatusOK, body: n}, nil
		}
	}
	return answer{}, fmt.Errorf("node %s: %w", name, task.ErrNotFound)
}

// listShards serves all shards, in the order of their numbers.
func (h *nodeHandlers) listShards(c *call) (answer, error) {
	owners, err := h.Store.Owners(c.ctx())
	if err != nil {
		return answer{}, err
	}
	records, err := h.Store.ShardRecords(c.ctx(), h.Shards)
	if err != nil {
		return answer{}, err
	}
	shards := make([]task.Shard, len(records))
	for i, r := range records {
		shards[i] = task.Shard{ID: i, Previous: []task.Assignment{}, Watermark: r.Watermark.Time, Tasks: r.Tasks, Queued: r.Queued}
	}
	for _, o := range owners {
		if o.Shard >= len(shards) {
			continue
		}
		sh := &shards[o.Shard]
		sh.Node, sh.Fence, sh.Since = o.Node, o.Fence, o.Since
		sh.Previous = append(sh.Previous, o.Previous...)
	}
	return all(shards)
}
