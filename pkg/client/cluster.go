package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// ClusterService reads and changes the cluster as a whole.
type ClusterService struct{ conn *connection }

// Status returns the state of the cluster: its nodes, etcd, settings, and warnings for the operator.
func (s *ClusterService) Status(ctx context.Context) (ClusterStatus, error) {
	var status ClusterStatus
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/cluster"}, &status)

	return status, err
}

// UpdateSettings changes the settings that are not nil, and returns all settings after the change.
func (s *ClusterService) UpdateSettings(ctx context.Context, settings ClusterSettings) (ClusterSettings, error) {
	var now ClusterSettings
	err := s.conn.doCall(ctx, call{method: http.MethodPatch, path: "/v1/cluster", body: settings}, &now)

	return now, err
}

const formatPath = "/v1/cluster/format"

// Format returns the format of the cluster's records.
func (s *ClusterService) Format(ctx context.Context) (FormatStatus, error) {
	var f FormatStatus
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: formatPath}, &f)

	return f, err
}

// SetFormat requests an older format of records or, with 0, the newest format that all nodes understand. An
// older format is in force when FormatStatus.Format reports it, which can take as long as the active runs.
func (s *ClusterService) SetFormat(ctx context.Context, format int) (FormatStatus, error) {
	var f FormatStatus
	err := s.conn.doCall(ctx, call{method: http.MethodPut, path: formatPath, body: FormatRequest{Format: format}}, &f)

	return f, err
}

// Recover makes all nodes continue with an etcd that was restored from an older snapshot. It returns the
// cluster's record with its new epoch. It returns task.ErrConflict if no node has reported that etcd was
// restored.
func (s *ClusterService) Recover(ctx context.Context) (task.Cluster, error) {
	var k task.Cluster
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/cluster/recover"}, &k)

	return k, err
}
