package board

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/attempts"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the board.
type Handlers struct {
	Store    *store.Store
	Cluster  task.Cluster
	Peers    *peers.Client
	Attempts *attempts.Handlers
	Node     string // this one's name
	Version  string // Carillon's
	Now      httpapi.Clock
	// Part is this node's part of the board: ticks within a span, and of each list limit
	// items; nil if the node does not schedule.
	Part func(ctx context.Context, span time.Duration, limit int) task.BoardPart
	// Status finds out how the cluster fares.
	Status func(ctx context.Context) (client.ClusterStatus, error)

	cache boardCache
}

// Routes are the operations of the board.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "get-board", Forwarded: true, Method: get, Path: "/v1/board", Tag: "cluster", Summary: "Read an overview: problems, next ticks, running runs and nodes",
			Description: boardAbout, Status: 200, Answer: reflect.TypeFor[task.Board](), Handler: httpapi.Query(h.getBoard)},
	}
}
