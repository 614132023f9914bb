// Package nodes contains the API handlers for nodes and shards: the present nodes, the owners of shards, and
// the node states ready, cordoned and draining.
//
// Only a node itself can change its state. Another node writes a request for it to etcd and waits. If the node
// does not obey in time, the request is withdrawn, so that the node does not obey it later.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve nodes and shards. They are safe for concurrent use.
type Handlers struct {
	Store  *store.Store
	Node   string // the name of this node
	Shards int    // the number of shards
	Now    httpapi.Clock
	// Sizes returns the number of tasks of each shard, as far as the owners have answered.
	Sizes func(ctx context.Context) map[int]int
	// SetState puts this node into a state, keeps it over restarts, and announces it. If nil, the node supports
	// no states.
	SetState func(ctx context.Context, state string, by *task.Actor) error
	// StateTimeout limits how long another node may take to obey a state.
	StateTimeout time.Duration
}

// Routes returns the operations on nodes and shards.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get, post = http.MethodGet, http.MethodPost

	return []*httpapi.Operation{
		{ID: "list-nodes", Verb: access.Read, Kind: access.Nodes, Method: get, Path: "/v1/nodes", Tag: "cluster", Summary: "List the live nodes",
			Description: "A node is in the list as long as its session lasts. A node that was lost disappears when its session ends.",
			Status:      200, Answer: reflect.TypeFor[client.List[task.Node]](), Handler: httpapi.NoQuery(h.listNodes)},
		{ID: "get-node", Verb: access.Read, Kind: access.Nodes, Method: get, Path: "/v1/nodes/{node}", Tag: "cluster", Summary: "Read a node",
			Description: "The answer is 404 if the node is not present.", Status: 200, Answer: reflect.TypeFor[task.Node](), Handler: httpapi.NoQuery(h.getNode)},
		{ID: "drain-node", Verb: access.Operate, Kind: access.Nodes, Method: post, Path: "/v1/nodes/{node}/drain", Tag: "cluster", Summary: "Drain a node: hand over its shards and runs that have not started",
			Description: "The call returns when the node has announced the change. The drain is complete when the node has no shards and runs nothing. " + stateAbout,
			Status:      200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.drainNode)},
		{ID: "cordon-node", Verb: access.Operate, Kind: access.Nodes, Method: post, Path: "/v1/nodes/{node}/cordon", Tag: "cluster", Summary: "Cordon a node: it gets no new runs and keeps its shards",
			Description: stateAbout, Status: 200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.cordonNode)},
		{ID: "resume-node", Verb: access.Operate, Kind: access.Nodes, Method: post, Path: "/v1/nodes/{node}/resume", Tag: "cluster", Summary: "End the drain or cordon of a node",
			Description: stateAbout, Status: 200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.resumeNode)},
		{ID: "list-shards", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/v1/shards", Tag: "cluster", Summary: "List all shards and their owners",
			Description: "Each task belongs to one shard, and the owner of a shard schedules its tasks.",
			Status:      200, Answer: reflect.TypeFor[client.List[task.Shard]](), Handler: httpapi.NoQuery(h.listShards)},
	}
}

const stateAbout = "Only the node itself can change its state, which survives restarts. Another node requests the change through etcd, and withdraws the request if the node does not change its state within 10 s."

const (
	// StateTimeout is how long a node may take to obey a request for a state. statePoll is how often the
	// requesting node checks this.
	StateTimeout = 10 * time.Second
	statePoll    = 50 * time.Millisecond
	// withdrawTimeout limits how long the withdrawal of a request waits for etcd.
	withdrawTimeout = 1500 * time.Millisecond
)

// drainNode, cordonNode and resumeNode serve the states of a node.
func (h *Handlers) drainNode(c *httpapi.Call) (httpapi.Answer, error) {
	return h.setState(c, task.NodeDraining)
}
func (h *Handlers) cordonNode(c *httpapi.Call) (httpapi.Answer, error) {
	return h.setState(c, task.NodeCordoned)
}
func (h *Handlers) resumeNode(c *httpapi.Call) (httpapi.Answer, error) {
	return h.setState(c, task.NodeReady)
}

// setState puts a node into a state: this node directly, and another node through a request in etcd.
func (h *Handlers) setState(c *httpapi.Call, state string) (httpapi.Answer, error) {
	name := c.Request.PathValue("node")
	if err := task.CheckName("node", name); err != nil {
		return httpapi.Answer{}, err
	}
	if name != h.Node {
		return h.requestState(c, name, state)
	}

	if h.SetState == nil {
		return httpapi.Answer{}, httpapi.Fail(http.StatusNotImplemented, client.CodeInternal, "the state of node %s cannot be changed", name)
	}

	node := []task.AuditObject{{Kind: "node", Name: name, Change: "put"}}
	err := c.Rights().RecordAround(c.Context(), h.Store, node, func() error { return h.SetState(c.Context(), state, c.Actor()) })
	if err != nil {
		return httpapi.Answer{}, fmt.Errorf("%s node %s: %w", state, name, err)
	}

	return h.getNode(c)
}

// requestState requests a state of another node and waits until that node has announced it.
func (h *Handlers) requestState(c *httpapi.Call, name, state string) (httpapi.Answer, error) {
	n, err := h.Store.Node(c.Context(), name)
	if errors.Is(err, task.ErrNotFound) {
		return httpapi.Answer{}, httpapi.Fail(http.StatusNotFound, client.CodeNotFound, "node %s: not found", name)
	}
	if err != nil {
		return httpapi.Answer{}, err
	}

	mod, err := h.Store.As(c.Rights()).RequestNodeState(c.Context(), n, store.NodeRequest{State: state, By: c.Actor(), At: h.Now.Stamp()})
	if err != nil {
		return httpapi.Answer{}, httpapi.About("node "+name, err)
	}

	ctx, cancel := context.WithTimeout(c.Context(), h.StateTimeout)
	defer cancel()

	poll := time.NewTicker(statePoll)
	defer poll.Stop()

	for {
		// An error is not an answer, so the check is repeated as long as time is left.
		pending, err := h.Store.NodeRequestPending(ctx, name, mod)
		if err == nil && !pending {
			return h.getNode(c)
		}

		select {
		case <-poll.C:
			continue
		case <-ctx.Done():
		}

		return httpapi.Answer{}, h.withdrawState(c, name, state, mod)
	}
}

// withdrawState deletes a request that its node did not obey in time, because the caller no longer expects the
// state afterwards. It returns the failure for the caller. If the deletion fails, the node may still obey, and
// the outcome is unknown.
func (h *Handlers) withdrawState(c *httpapi.Call, name, state string, mod int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), withdrawTimeout)
	defer cancel()

	withdrawn, err := h.Store.DeleteNodeRequest(ctx, name, mod)
	if err != nil || !withdrawn {
		return httpapi.Fail(http.StatusGatewayTimeout, client.CodeUnknown, "node %s did not confirm within %s that it is %s", name, h.StateTimeout, state).
			WithHint("check the state before you retry: carillon node list").Because(err)
	}

	return httpapi.Fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s did not become %s within %s; the request was withdrawn", name, state, h.StateTimeout).
		WithHint("only the node itself can change its state; if its process is gone, other nodes take over its shards")
}

// presentNodes returns the present nodes with the labels that the placement of runs uses: those that their limits allow.
func (h *Handlers) presentNodes(c *httpapi.Call) ([]task.Node, error) {
	nodes, _, err := views.PresentNodes(c.Context(), h.Store)
	return c.Rights().View().LimitNodes(nodes), err
}

// listNodes serves the present nodes.
func (h *Handlers) listNodes(c *httpapi.Call) (httpapi.Answer, error) {
	nodes, err := h.presentNodes(c)
	if err != nil {
		return httpapi.Answer{}, err
	}
	return httpapi.All(nodes)
}

// getNode serves one present node.
func (h *Handlers) getNode(c *httpapi.Call) (httpapi.Answer, error) {
	name := c.Request.PathValue("node")
	if err := task.CheckName("node", name); err != nil {
		return httpapi.Answer{}, err
	}

	nodes, err := h.presentNodes(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	for _, n := range nodes {
		if n.Name == name {
			return httpapi.Answer{Status: http.StatusOK, Body: n}, nil
		}
	}

	return httpapi.Answer{}, fmt.Errorf("node %s: %w", name, task.ErrNotFound)
}

// listShards serves all shards, sorted by number.
func (h *Handlers) listShards(c *httpapi.Call) (httpapi.Answer, error) {
	owners, err := h.Store.Owners(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	records, err := h.Store.ShardRecords(c.Context(), h.Shards)
	if err != nil {
		return httpapi.Answer{}, err
	}

	tasks, err := h.Store.TasksOfShards(c.Context(), h.Shards, h.Sizes(c.Context()))
	if err != nil {
		return httpapi.Answer{}, err
	}

	shards := make([]task.Shard, len(records))
	for i, r := range records {
		shards[i] = task.Shard{ID: i, Previous: []task.Assignment{}, Watermark: r.Watermark.Time, Tasks: tasks[i], Queued: r.Queued}
	}

	for _, o := range owners {
		if o.Shard >= len(shards) {
			continue
		}

		sh := &shards[o.Shard]
		sh.Node, sh.Fence, sh.Since = o.Node, o.Fence, o.Since
		sh.Previous = append(sh.Previous, o.Previous...)
	}

	return httpapi.All(shards)
}
