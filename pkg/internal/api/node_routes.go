package api

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// nodeHandlers serve nodes and shards.
type nodeHandlers struct {
	Store  *store.Store
	Node   string // this one's name
	Shards int
	Now    Clock
	// SetState has this node take a state, keep it over restarts, and announce it; nil: it
	// takes none.
	SetState func(ctx context.Context, state, by string) error
	// StateWithin is how long another node may take to obey a state.
	StateWithin time.Duration
}

// Routes are the operations of nodes and shards.
func (h *nodeHandlers) Routes() []*route {
	const get, post = http.MethodGet, http.MethodPost

	return []*route{
		{id: "list-nodes", method: get, path: "/v1/nodes", tag: "cluster", summary: "List the nodes that are present",
			status: 200, answer: reflect.TypeFor[client.List[task.Node]](), handler: NoQuery(h.listNodes)},
		{id: "get-node", method: get, path: "/v1/nodes/{node}", tag: "cluster", summary: "Read a node", status: 200, answer: reflect.TypeFor[task.Node](), handler: NoQuery(h.getNode)},
		{id: "drain-node", method: post, path: "/v1/nodes/{node}/drain", tag: "cluster", summary: "Have a node hand its shards and its unstarted runs over",
			about:  "The answer comes when the node has announced it. It is drained when it has no shards and runs nothing. " + stateAbout,
			status: 200, answer: reflect.TypeFor[task.Node](), errors: []int{409}, handler: NoQuery(h.drainNode)},
		{id: "cordon-node", method: post, path: "/v1/nodes/{node}/cordon", tag: "cluster", summary: "Give a node no new runs; it keeps its shards",
			about: stateAbout, status: 200, answer: reflect.TypeFor[task.Node](), errors: []int{409}, handler: NoQuery(h.cordonNode)},
		{id: "resume-node", method: post, path: "/v1/nodes/{node}/resume", tag: "cluster", summary: "End a node's draining, or its cordon",
			about: stateAbout, status: 200, answer: reflect.TypeFor[task.Node](), errors: []int{409}, handler: NoQuery(h.resumeNode)},
		{id: "list-shards", method: get, path: "/v1/shards", tag: "cluster", summary: "List all shards and their owners",
			status: 200, answer: reflect.TypeFor[client.List[task.Shard]](), handler: NoQuery(h.listShards)},
	}
}

const stateAbout = "Only the node itself can take a state, which it keeps over restarts: any other node asks it for the state through etcd, and withdraws that if the node does not take it within 10 s."
