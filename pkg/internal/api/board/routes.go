package board

import (
	"context"
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/attempts"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the board. They are safe for concurrent use.
type Handlers struct {
	Store    *store.Store
	Cluster  task.Cluster
	Ref      func(namespace, name string) record.Ref // maps a task to its shard
	Peers    *peers.Client
	Attempts *attempts.Handlers
	Node     string // the name of this node
	Version  string // the version of Carillon
	Now      httpapi.Clock
	// Part returns this node's part of the board, with the ticks of a time span and at most limit items in each
	// list. It is nil if the node does not schedule.
	Part func(ctx context.Context, q task.BoardQuery) task.BoardPart
	// Status returns the status of the cluster.
	Status func(ctx context.Context) (client.ClusterStatus, error)

	cache boardCache
}

// Routes returns the operations on the board.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "get-board", Forwarded: true, Method: get, Path: "/v1/board", Tag: "cluster", Summary: "Read an overview: problems, next ticks, running runs and nodes",
			Description: boardAbout, Status: 200, Answer: reflect.TypeFor[task.Board](), Handler: httpapi.Query(h.getBoard)},
	}
}
