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

// boardHandlers serve the board.
type boardHandlers struct {
	Store   *store.Store
	Cluster task.Cluster
	Peers   *Peers
	Talks   *talkHandlers
	Node    string // this one's name
	Version string // Carillon's
	Now     Clock
	// Part is this node's part of the board: ticks within a span, and of each list limit
	// items; nil if the node does not schedule.
	Part func(ctx context.Context, span time.Duration, limit int) task.BoardPart
	// Status finds out how the cluster fares.
	Status func(ctx context.Context) (client.ClusterStatus, error)

	cache boardCache
}

// Routes are the operations of the board.
func (h *boardHandlers) Routes() []*route {
	const get = http.MethodGet

	return []*route{
		{id: "get-board", forwarded: true, method: get, path: "/v1/board", tag: "cluster", summary: "What an operator wants to see first: problems, what comes, what runs, nodes",
			about: boardAbout, status: 200, answer: reflect.TypeFor[task.Board](), handler: Query(h.getBoard)},
	}
}
