package nodes

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve nodes and shards.
type Handlers struct {
	Store  *store.Store
	Node   string // this one's name
	Shards int
	Now    httpapi.Clock
	// SetState has this node take a state, keep it over restarts, and announce it; nil: it
	// takes none.
	SetState func(ctx context.Context, state, by string) error
	// StateWithin is how long another node may take to obey a state.
	StateWithin time.Duration
}

// Routes are the operations of nodes and shards.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get, post = http.MethodGet, http.MethodPost

	return []*httpapi.Operation{
		{ID: "list-nodes", Method: get, Path: "/v1/nodes", Tag: "cluster", Summary: "List the nodes that are present",
			Status: 200, Answer: reflect.TypeFor[client.List[task.Node]](), Handler: httpapi.NoQuery(h.listNodes)},
		{ID: "get-node", Method: get, Path: "/v1/nodes/{node}", Tag: "cluster", Summary: "Read a node", Status: 200, Answer: reflect.TypeFor[task.Node](), Handler: httpapi.NoQuery(h.getNode)},
		{ID: "drain-node", Method: post, Path: "/v1/nodes/{node}/drain", Tag: "cluster", Summary: "Have a node hand its shards and its unstarted runs over",
			Description: "The answer comes when the node has announced it. It is drained when it has no shards and runs nothing. " + stateAbout,
			Status:      200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.drainNode)},
		{ID: "cordon-node", Method: post, Path: "/v1/nodes/{node}/cordon", Tag: "cluster", Summary: "Give a node no new runs; it keeps its shards",
			Description: stateAbout, Status: 200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.cordonNode)},
		{ID: "resume-node", Method: post, Path: "/v1/nodes/{node}/resume", Tag: "cluster", Summary: "End a node's draining, or its cordon",
			Description: stateAbout, Status: 200, Answer: reflect.TypeFor[task.Node](), Errors: []int{409}, Handler: httpapi.NoQuery(h.resumeNode)},
		{ID: "list-shards", Method: get, Path: "/v1/shards", Tag: "cluster", Summary: "List all shards and their owners",
			Status: 200, Answer: reflect.TypeFor[client.List[task.Shard]](), Handler: httpapi.NoQuery(h.listShards)},
	}
}

const stateAbout = "Only the node itself can take a state, which it keeps over restarts: any other node asks it for the state through etcd, and withdraws that if the node does not take it within 10 s."
