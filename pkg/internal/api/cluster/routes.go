package cluster

import (
	"context"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the cluster and its etcd. They are safe for concurrent use.
type Handlers struct {
	Store   *store.Store
	Ref     func(namespace, name string) record.Ref // maps a task to its shard
	Asker   *ask.Asker                              // asks the owners of the shards
	Cluster task.Cluster
	Node    string // the name of this node
	Version string // the version of Carillon
	Etcd    string // the arguments with which etcdctl reaches an embedded etcd; else empty
	Now     httpapi.Clock
	// Writable returns an error if this node must not change anything.
	Writable func() error
	// BootstrapToken returns a token that never expires and that the cluster no longer needs (access.Table).
	BootstrapToken func() (task.Token, bool)
	// FreezeWithin limits how long a freeze waits for the nodes to confirm it.
	FreezeWithin time.Duration

	// CheckStream returns why the caller may no longer read the answer. An audit may take minutes.
	CheckStream func(ctx context.Context, r *http.Request) error
	Problems    httpapi.ProblemWriter
	Log         *zap.Logger

	auditing atomic.Bool // an audit is running on this node
}

// Routes returns the operations on the cluster and its etcd.
func (h *Handlers) Routes() []*httpapi.Operation {
	var (
		freeze     = reflect.TypeFor[client.FreezeStatus]()
		freezeBody = &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.FreezeRequest]()}
	)
	const get, post, put, patches, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

	return []*httpapi.Operation{
		{ID: "get-cluster", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/v1/cluster", Tag: "cluster", Summary: "Read the state of the cluster",
			Status: 200, Answer: reflect.TypeFor[client.ClusterStatus](), Handler: httpapi.NoQuery(h.getCluster)},
		{ID: "set-cluster", Verb: access.Operate, Kind: access.Cluster, Method: patches, Path: "/v1/cluster", Tag: "cluster", Summary: "Change settings of the cluster",
			Body: &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.ClusterSettings]()}, Writes: true, Status: 200,
			Answer: reflect.TypeFor[client.ClusterSettings](), Errors: []int{409}, Handler: httpapi.NoQuery(h.setCluster)},
		{ID: "recover-cluster", Verb: access.Operate, Kind: access.Cluster, Method: post, Path: "/v1/cluster/recover", Tag: "cluster", Summary: "Recover after etcd was restored from an older snapshot",
			Description: "Increments the cluster's epoch: all nodes discard their state and reload it from etcd.",
			Writes:      true, Recovers: true, Status: 200, Answer: reflect.TypeFor[task.Cluster](), Errors: []int{409}, Handler: httpapi.NoQuery(h.recoverCluster)},
		{ID: "get-format", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/v1/cluster/format", Tag: "cluster", Summary: "Read the record format, and what blocks a change of it",
			Status: 200, Answer: reflect.TypeFor[client.FormatStatus](), Handler: httpapi.NoQuery(h.getFormat)},
		{ID: "set-format", Verb: access.Operate, Kind: access.Cluster, Method: put, Path: "/v1/cluster/format", Tag: "cluster", Summary: "Change the record format to the newest possible or an older one",
			Body: &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.FormatRequest]()}, Writes: true, Status: 200,
			Answer: reflect.TypeFor[client.FormatStatus](), Errors: []int{409}, Handler: httpapi.NoQuery(h.setFormat)},
		{ID: "get-freeze", Verb: access.Read, Kind: access.Cluster, Method: get, Path: clusterFreeze, Tag: "cluster", Summary: "Read the freeze of the cluster", Status: 200, Answer: freeze, Handler: httpapi.NoQuery(h.getFreeze)},
		{ID: "freeze", Verb: access.Operate, Kind: access.Cluster, Method: put, Path: clusterFreeze, Tag: "cluster", Summary: "Freeze the cluster: stop all firing", Description: freezeAbout,
			Body: freezeBody, Writes: true, Status: 200, Answer: freeze, Errors: []int{409, 504}, Handler: httpapi.NoQuery(h.putFreeze)},
		{ID: "unfreeze", Verb: access.Operate, Kind: access.Cluster, Method: del, Path: clusterFreeze, Tag: "cluster", Summary: "End the freeze of the cluster",
			Writes: true, Status: 200, Answer: freeze, Errors: []int{404, 409}, Handler: httpapi.NoQuery(h.deleteFreeze)},
		{ID: "get-namespace-freeze", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "Read the freeze of a namespace", Status: 200, Answer: freeze, Handler: httpapi.NoQuery(h.getFreeze)},
		{ID: "freeze-namespace", Verb: access.Pause, Kind: access.Tasks, Method: put, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "Freeze a namespace: stop its firing", Description: freezeAbout,
			Body: freezeBody, Writes: true, Status: 200, Answer: freeze, Errors: []int{409, 504}, Handler: httpapi.NoQuery(h.putFreeze)},
		{ID: "unfreeze-namespace", Verb: access.Pause, Kind: access.Tasks, Method: del, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "End the freeze of a namespace",
			Writes: true, Status: 200, Answer: freeze, Errors: []int{404, 409}, Handler: httpapi.NoQuery(h.deleteFreeze)},
		{ID: "list-members", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/v1/cluster/members", Tag: "cluster", Summary: "List the etcd members",
			Status: 200, Answer: reflect.TypeFor[client.List[client.EtcdMember]](), Handler: httpapi.NoQuery(h.listMembers)},
		{ID: "add-member", Verb: access.Operate, Kind: access.Cluster, Method: post, Path: "/v1/cluster/members", Tag: "cluster", Summary: "Add a member to the embedded etcd",
			Description: "The member votes after its agent has started with an empty data directory and --initial-cluster-state existing, and has caught up.",
			Body:        &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.AddMemberRequest]()}, Writes: true, Status: 201,
			Answer: reflect.TypeFor[client.MemberChange](), Errors: []int{409}, Handler: httpapi.NoQuery(h.addMember)},
		{ID: "remove-member", Verb: access.Operate, Kind: access.Cluster, Method: del, Path: "/v1/cluster/members/{member}", Tag: "cluster", Summary: "Remove a member from the embedded etcd permanently",
			Writes: true, Status: 200, Answer: reflect.TypeFor[client.MemberChange](), Errors: []int{409}, Handler: httpapi.NoQuery(h.removeMember)},
		{ID: "audit", Verb: access.Read, Kind: access.Audit, Method: get, Path: "/v1/audit", Tag: "cluster", Summary: "Check the cluster's records against its guarantees (a consistency audit)",
			Description: auditAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.AuditLine](), AnswerType: httpapi.TypeLines,
			Errors: []int{409}, Handler: httpapi.Query(h.serveAudit)},
		{ID: "repair", Verb: access.Operate, Kind: access.Cluster, Method: post, Path: "/v1/audit:repair", Tag: "cluster", Summary: "Repair findings of a consistency audit where that is safe",
			Description: "Each finding is checked again and repaired in a transaction that compares everything it read, so findings that changed since the audit are left alone. " +
				"After a failed repair, the remaining findings are not tried.",
			Body:   &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.Repairs](), Doc: "At most 100 findings, as returned by the audit."},
			Writes: true, Status: 200, Answer: reflect.TypeFor[client.List[task.RepairResult]](), Handler: httpapi.NoQuery(h.serveRepair)},
		{ID: "get-version", Method: get, Path: "/v1/version", Tag: "cluster", Summary: "Read the version of the node",
			Status: 200, Answer: reflect.TypeFor[client.Version](), Handler: httpapi.NoQuery(h.serveVersion)},
	}
}

const freezeAbout = "Answers when the freeze is effective: no new runs are decided, and no present node starts a run. " +
	"Ticks are skipped, queued runs keep waiting, active runs continue. An existing freeze stays unchanged."
