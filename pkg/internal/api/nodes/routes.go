package nodes

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
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
	SetState func(ctx context.Context, state, by string) error
	// StateWithin limits how long another node may take to obey a state.
	StateWithin time.Duration
}

// Routes returns the operations on nodes and shards.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get, post = http.MethodGet, http.MethodPost

	return []*httpapi.Operation{
		{ID: "list-nodes", Verb: access.Read, Kind: access.Nodes, Method: get, Path: "/v1/nodes", Tag: "cluster", Summary: "List the live nodes",
			Status: 200, Answer: reflect.TypeFor[client.List[task.Node]](), Handler: httpapi.NoQuery(h.listNodes)},
		{ID: "get-node", Verb: access.Read, Kind: access.Nodes, Method: get, Path: "/v1/nodes/{node}", Tag: "cluster", Summary: "Read a node", Status: 200, Answer: reflect.TypeFor[task.Node](), Handler: httpapi.NoQuery(h.getNode)},
		{ID: "drain-node", Verb: access.Operate, Kind: access.Nodes, Method: post, Path: "/v1/nodes/{node}/drain", Tag: "cluster", Summary: "Drain a node: hand over its shards and runs that have not started",
			Description: "The call returns when the node has announced the change. The drain is complete when the node has no shards and runs nothing. " + stateAbout,
			Status:      200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.drainNode)},
		{ID: "cordon-node", Verb: access.Operate, Kind: access.Nodes, Method: post, Path: "/v1/nodes/{node}/cordon", Tag: "cluster", Summary: "Cordon a node: it gets no new runs and keeps its shards",
			Description: stateAbout, Status: 200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.cordonNode)},
		{ID: "resume-node", Verb: access.Operate, Kind: access.Nodes, Method: post, Path: "/v1/nodes/{node}/resume", Tag: "cluster", Summary: "End the drain or cordon of a node",
			Description: stateAbout, Status: 200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.resumeNode)},
		{ID: "list-shards", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/v1/shards", Tag: "cluster", Summary: "List all shards and their owners",
			Status: 200, Answer: reflect.TypeFor[client.List[task.Shard]](), Handler: httpapi.NoQuery(h.listShards)},
	}
}

const stateAbout = "Only the node itself can change its state, which survives restarts. Another node requests the change through etcd, and withdraws the request if the node does not change its state within 10 s."
