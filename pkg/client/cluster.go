package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// Nodes are the nodes that are present.
func (c *Client) Nodes(ctx context.Context) ([]task.Node, error) {
	return getAll[task.Node](ctx, c, "/v1/nodes")
}

// Node is one of them.
func (c *Client) Node(ctx context.Context, name string) (task.Node, error) {
	var n task.Node
	if err := task.CheckName("node", name); err != nil {
		return n, err
	}
	err := c.do(ctx, call{method: http.MethodGet, path: "/v1/nodes/" + name}, &n)
	return n, err
}

// DrainNode has a node hand over its shards and what it has not started. It is
// drained when its record says that it has no shards and runs nothing. Like the
// other states, the node keeps this one over restarts.
func (c *Client) DrainNode(ctx context.Context, name string) (task.Node, error) {
	return c.setState(ctx, name, "drain")
}

// CordonNode keeps new runs from a node; it keeps its shards.
func (c *Client) CordonNode(ctx context.Context, name string) (task.Node, error) {
	return c.setState(ctx, name, "cordon")
}

// ResumeNode ends both.
func (c *Client) ResumeNode(ctx context.Context, name string) (task.Node, error) {
	return c.setState(ctx, name, "resume")
}

func (c *Client) setState(ctx context.Context, name, verb string) (n task.Node, err error) {
	if err := task.CheckName("node", name); err != nil {
		return n, err
	}
	err = c.do(ctx, call{method: http.MethodPost, path: "/v1/nodes/" + name + "/" + verb}, &n)
	return n, err
}

// Recover has all nodes go on with an etcd that was restored from an older
// snapshot, and returns the cluster's record with its new epoch. task.ErrConflict
// if no node says that it was restored.
func (c *Client) Recover(ctx context.Context) (task.Cluster, error) {
	var k task.Cluster
	err := c.do(ctx, call{method: http.MethodPost, path: "/v1/cluster/recover"}, &k)
	return k, err
}

// Shards are all shards, with their owners.
func (c *Client) Shards(ctx context.Context) ([]task.Shard, error) {
	return getAll[task.Shard](ctx, c, "/v1/shards")
}

// Cluster says how the cluster fares.
func (c *Client) Cluster(ctx context.Context) (ClusterStatus, error) {
	var s ClusterStatus
	err := c.do(ctx, call{method: http.MethodGet, path: "/v1/cluster"}, &s)
	return s, err
}

// SetCluster changes settings of the cluster, and returns those that hold then.
func (c *Client) SetCluster(ctx context.Context, set ClusterSettings) (ClusterSettings, error) {
	var now ClusterSettings
	err := c.do(ctx, call{method: http.MethodPatch, path: "/v1/cluster", body: set}, &now)
	return now, err
}

// Version says what answers.
func (c *Client) Version(ctx context.Context) (Version, error) {
	var v Version
	err := c.do(ctx, call{method: http.MethodGet, path: "/v1/version"}, &v)
	return v, err
}

// Ready asks whether the server is ready for work; the error says why it is
// not. It needs no token.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: "/readyz"}, nil)
}

func getAll[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	var l List[T]
	err := c.do(ctx, call{method: http.MethodGet, path: path}, &l)
	return l.Items, err
}
