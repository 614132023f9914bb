package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// Retry queues a run in place of a dead one, with the environment that that had.
// code CodeConflict if the run is not dead.
func (c *Client) Retry(ctx context.Context, namespace, name, id string) (Triggered, error) {
	var r Triggered
	if err := checkID(id); err != nil {
		return r, err
	}
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost}, &r, "runs", id, "retry")
	return r, err
}

// Dismiss takes a run off the list of dead ones, and returns it. Its history stays.
// Code CodeConflict if it is not dead.
func (c *Client) Dismiss(ctx context.Context, namespace, name, id string) (task.Run, error) {
	var r task.Run
	if err := checkID(id); err != nil {
		return r, err
	}
	err := c.onTask(ctx, namespace, name, call{method: http.MethodPost}, &r, "runs", id, "dismiss")
	return r, err
}
