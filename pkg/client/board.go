package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// BoardService reads the overview of the cluster.
type BoardService struct{ conn *connection }

// BoardOptions select how much of the board is returned.
type BoardOptions struct {
	Span  time.Duration // how far to look ahead; 0 means 10 minutes
	Limit int           // the maximum number of items in each list; 0 means 50
}

// Get returns an overview for operators: problems, future ticks, active runs and nodes. It comes from the
// memory of all scheduling nodes, so a program may call Get every second.
func (s *BoardService) Get(ctx context.Context, o BoardOptions) (task.Board, error) {
	q := url.Values{}

	if o.Span != 0 {
		q.Set("span", task.Duration(o.Span).String())
	}

	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}

	var b task.Board
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/board", query: q}, &b)

	return b, err
}
