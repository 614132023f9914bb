package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// NodesService reads the nodes of the cluster and changes their states. A node keeps
// the state that it was given over restarts.
//
// Every method that takes the name of a node returns task.ErrInvalid for a name that no
// node can have, without a call, and task.ErrNotFound if there is no such node.
type NodesService struct{ conn *connection }

// List returns the nodes that are present.
func (s *NodesService) List(ctx context.Context) ([]task.Node, error) {
	return getItems[task.Node](ctx, s.conn, "/v1/nodes")
}

// Get reads a node.
func (s *NodesService) Get(ctx context.Context, name string) (task.Node, error) {
	return s.doNode(ctx, http.MethodGet, name, "")
}

// Drain asks a node to hand over its shards, and the runs that it has not started. The
// node is drained when its record says that it has no shards and runs nothing.
func (s *NodesService) Drain(ctx context.Context, name string) (task.Node, error) {
	return s.doNode(ctx, http.MethodPost, name, "/drain")
}

// Cordon keeps new runs from a node; the node keeps its shards.
func (s *NodesService) Cordon(ctx context.Context, name string) (task.Node, error) {
	return s.doNode(ctx, http.MethodPost, name, "/cordon")
}

// Resume ends the effect of Drain and of Cordon.
func (s *NodesService) Resume(ctx context.Context, name string) (task.Node, error) {
	return s.doNode(ctx, http.MethodPost, name, "/resume")
}

func (s *NodesService) doNode(ctx context.Context, method, name, rest string) (task.Node, error) {
	var n task.Node

	if err := task.CheckName("node", name); err != nil {
		return n, err
	}

	err := s.conn.doCall(ctx, call{method: method, path: "/v1/nodes/" + name + rest}, &n)

	return n, err
}
