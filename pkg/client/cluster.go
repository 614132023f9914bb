package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

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

const (
	backupPath = "/v1/cluster/backup"
	zstdType   = "application/zstd"
)

// Backup returns a backup of the cluster as a stream of zstd: frames that decoders skip, one of which contains a manifest, and then the
// snapshot of etcd. Only `carillon backup` should interpret it. Read returns an error other than io.EOF if the stream was cut off. The
// caller must close the stream. Config.Timeout limits only the wait for the first byte.
//
// It returns task.ErrConflict if the node already makes a backup.
func (s *ClusterService) Backup(ctx context.Context) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(s.conn.timeout, func() { cancel(context.DeadlineExceeded) })
	res, err := s.conn.sendCall(ctx, call{method: http.MethodGet, path: backupPath, stream: true})
	timer.Stop()
	if err != nil {
		cancel(nil)
		return nil, err
	}

	if res.Header.Get("Content-Type") != zstdType {
		defer cancel(nil)
		defer res.Body.Close()
		return nil, s.conn.notCarillon(res)
	}

	return &LogStream{conn: s.conn, body: res.Body, cancel: cancel}, nil
}

// MembersService reads the members of etcd, and changes those of an embedded etcd.
type MembersService struct{ conn *connection }

const membersPath = "/v1/cluster/members"

// List returns the members of etcd.
func (s *MembersService) List(ctx context.Context) ([]EtcdMember, error) {
	return getItems[EtcdMember](ctx, s.conn, membersPath)
}

// Add adds a member to the embedded etcd. The agent of that name joins when it starts
// with the MemberChange.InitialCluster that Add returns.
func (s *MembersService) Add(ctx context.Context, m AddMemberRequest) (MemberChange, error) {
	var change MemberChange
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: membersPath, body: m}, &change)

	return change, err
}

// Remove removes a member from the embedded etcd, by its name or its id.
func (s *MembersService) Remove(ctx context.Context, name string) (MemberChange, error) {
	var change MemberChange

	if err := task.CheckName("member", name); err != nil {
		return change, err
	}

	err := s.conn.doCall(ctx, call{method: http.MethodDelete, path: membersPath + "/" + name}, &change)

	return change, err
}

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

// ShardsService reads the shards of the cluster.
type ShardsService struct{ conn *connection }

// List returns all shards, with their owners.
func (s *ShardsService) List(ctx context.Context) ([]task.Shard, error) {
	return getItems[task.Shard](ctx, s.conn, "/v1/shards")
}

// FreezesService reads, begins and ends freezes. While a namespace or the whole cluster is frozen, none of its
// tasks starts a run.
type FreezesService struct{ conn *connection }

// FreezeStatus describes the freeze of a namespace or of the whole cluster.
type FreezeStatus struct {
	Namespace   string       `json:"namespace,omitempty" doc:"Empty: the whole cluster."`
	Tasks       int64        `json:"tasks" doc:"The number of its tasks."`
	Freeze      *task.Freeze `json:"freeze,omitempty" doc:"The freeze in effect, which may be the cluster's; absent if not frozen."`
	Revision    int64        `json:"revision" doc:"The revision of the freeze record. Ticks and dispatches after this revision respect it. 0 without a record."`
	Unconfirmed []string     `json:"unconfirmed" doc:"Nodes that have not yet confirmed this revision. Runs that were in their inboxes before may still start."`
	Changed     bool         `json:"changed,omitempty" doc:"The request has started or ended a freeze."`
}

// FreezeRequest is the body of a request to freeze.
type FreezeRequest struct {
	Reason string `json:"reason" doc:"The reason for the freeze, which users see."`
}

// Get returns the freeze of a namespace ("": of the whole cluster).
func (s *FreezesService) Get(ctx context.Context, namespace string) (FreezeStatus, error) {
	return s.doFreeze(ctx, namespace, call{method: http.MethodGet})
}

// Begin freezes a namespace ("": the whole cluster). It returns when the freeze is effective: no tick is
// decided to run any more, and no present node starts a run. An existing freeze stays unchanged.
//
// The error has CodeNotConfirmed if a node did not confirm the freeze in time. The freeze is in force then, but
// runs that were already in that node's inbox may still start. The error is task.ErrConflict while nodes may
// run a version of Carillon without freezes.
func (s *FreezesService) Begin(ctx context.Context, namespace, reason string) (FreezeStatus, error) {
	return s.doFreeze(ctx, namespace, call{method: http.MethodPut, body: FreezeRequest{Reason: reason}})
}

// End ends the freeze of exactly this namespace ("": of the whole cluster). It returns task.ErrNotFound if
// there is none.
func (s *FreezesService) End(ctx context.Context, namespace string) (FreezeStatus, error) {
	return s.doFreeze(ctx, namespace, call{method: http.MethodDelete})
}

// doFreeze sends a call about the freeze of a namespace, or of the whole cluster if namespace is "".
func (s *FreezesService) doFreeze(ctx context.Context, namespace string, k call) (FreezeStatus, error) {
	var status FreezeStatus

	k.path = "/v1/cluster/freeze"
	if namespace != "" {
		path, err := namespacePath(namespace, "/freeze")
		if err != nil {
			return status, err
		}
		k.path = path
	}

	err := s.conn.doCall(ctx, k, &status)

	return status, err
}

// AuditService audits the cluster's records and repairs findings.
type AuditService struct{ conn *connection }

// AuditLine is one line of the answer to an audit. Exactly one field is set.
type AuditLine struct {
	Progress *task.AuditProgress `json:"progress,omitempty" doc:"The progress of the audit."`
	Audit    *task.Audit         `json:"audit,omitempty" doc:"The findings; only in the last line."`
	Error    *Problem            `json:"error,omitempty" doc:"The error that ended the audit; only in the last line."`
}

// Repairs is the body of a repair request.
type Repairs struct {
	Findings []task.RepairRequest `json:"findings" doc:"The findings to repair, as an audit has reported them."`
}

// AuditOptions are the options of an audit.
type AuditOptions struct {
	// Pause is the time between the two reads of a suspicious record, in whole seconds from 1 to 60; 0 means the
	// server's default.
	Pause time.Duration
	// Tell, if set, is called with the progress of the audit about once a second.
	Tell func(task.AuditProgress)
}

// Run makes the server audit the cluster's records against Carillon's guarantees. It takes as long as the
// server needs to read all records, plus o.Pause. Each wait for a progress report is limited to Config.Timeout
// plus the longer of o.Pause and a minute.
func (s *AuditService) Run(ctx context.Context, o AuditOptions) (task.Audit, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	limit := s.conn.timeout + max(o.Pause, time.Minute)
	quiet := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no progress of the audit for %s: %w", limit, context.DeadlineExceeded)) })
	defer quiet.Stop()

	q := url.Values{}

	if o.Pause > 0 {
		q.Set("pause", strconv.Itoa(int(o.Pause/time.Second)))
	}

	res, err := s.conn.sendCall(ctx, call{method: http.MethodGet, path: "/v1/audit", query: q, stream: true})
	if err != nil {
		return task.Audit{}, err
	}

	defer res.Body.Close()

	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != linesType {
		return task.Audit{}, s.conn.notCarillon(res)
	}

	// The answer is a line for each report of progress, then one with the result or with
	// the error that ended the audit. An answer that ends before that was cut off.
	in := bufio.NewReader(res.Body)

	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}

			if cause := context.Cause(ctx); cause != nil {
				err = fmt.Errorf("%w: %w", err, cause)
			}

			return task.Audit{}, s.conn.errorWithoutAnswer(err, false)
		}

		quiet.Reset(limit)

		var l AuditLine
		if err := json.Unmarshal(bytes.TrimSpace(line), &l); err != nil {
			return task.Audit{}, s.conn.notCarillon(res)
		}

		switch {
		case l.Audit != nil:
			return *l.Audit, nil
		case l.Error != nil:
			return task.Audit{}, problemError(l.Error)
		case l.Progress != nil && o.Tell != nil:
			o.Tell(*l.Progress)
		}
	}
}

// Repair makes the server repair findings, at most 100 in one call. The results have the order of the findings.
// The server stops at the first repair that fails, so later findings have no result.
func (s *AuditService) Repair(ctx context.Context, findings []task.RepairRequest) ([]task.RepairResult, error) {
	var l List[task.RepairResult]
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/audit:repair", body: Repairs{findings}}, &l)

	return l.Items, err
}
