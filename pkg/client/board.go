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

// BoardOptions say how much of the board is wanted.
type BoardOptions struct {
	Span  time.Duration // how far ahead; 0 is 10 minutes
	Limit int           // items in each list; 0 is 50
}

// Get returns what an operator wants to see first. It comes from the memory of all nodes
// that schedule, so that a program may call Get every second.
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
