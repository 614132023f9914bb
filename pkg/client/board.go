package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// BoardOptions say how much of the board is wanted.
type BoardOptions struct {
	Span  time.Duration // how far ahead; 0 is 10 minutes
	Limit int           // items in each list; 0 is 50
}

// Board is what an operator wants to see first, from the memory of all nodes that
// schedule. It may be asked for every second.
func (c *Client) Board(ctx context.Context, o BoardOptions) (task.Board, error) {
	q := url.Values{}
	if o.Span != 0 {
		q.Set("span", task.Duration(o.Span).String())
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	var b task.Board
	err := c.do(ctx, call{method: http.MethodGet, path: "/v1/board", query: q}, &b)
	return b, err
}
