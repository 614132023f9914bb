package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// NodesService reads the nodes of the cluster and changes their states. A node keeps its state over restarts.
//
// Methods with the name of a node return task.ErrInvalid, without a call, for a name that no node can have.
// They return task.ErrNotFound if no such node is present.
type NodesService struct{ conn *connection }

// List returns the present nodes.
func (s *NodesService) List(ctx context.Context) ([]task.Node, error) {
	return getItems[task.Node](ctx, s.conn, "/v1/nodes")
}

// Get reads a node.
func (s *NodesService) Get(ctx context.Context, name string) (task.Node, error) {
	return s.doNode(ctx, http.MethodGet, name, "")
}

// Drain makes a node hand over its shards and the runs that it has not started. The node is drained when its
// record shows no shards and no runs.
func (s *NodesService) Drain(ctx context.Context, name string) (task.Node, error) {
	return s.doNode(ctx, http.MethodPost, name, "/drain")
}

// Cordon stops the assignment of new runs to a node. The node keeps its shards.
func (s *NodesService) Cordon(ctx context.Context, name string) (task.Node, error) {
	return s.doNode(ctx, http.MethodPost, name, "/cordon")
}

// Resume ends a drain or a cordon.
func (s *NodesService) Resume(ctx context.Context, name string) (task.Node, error) {
	return s.doNode(ctx, http.MethodPost, name, "/resume")
}

// doNode sends a call for one node.
func (s *NodesService) doNode(ctx context.Context, method, name, rest string) (task.Node, error) {
	var n task.Node

	if err := task.CheckName("node", name); err != nil {
		return n, err
	}

	err := s.conn.doCall(ctx, call{method: method, path: "/v1/nodes/" + name + rest}, &n)

	return n, err
}
