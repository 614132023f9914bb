package cluster

import (
	"context"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the cluster and its etcd.
type Handlers struct {
	Store   *store.Store
	Ref     func(namespace, name string) record.Ref // says where a task lives
	Cluster task.Cluster
	Node    string // this one's name
	Version string // Carillon's
	Etcd    string // how etcdctl reaches an etcd that only this node knows; else empty
	Now     httpapi.Clock
	// Writable says why this node must change nothing.
	Writable func() error
	// FreezeWithin is how long a freeze waits for the nodes to confirm it.
	FreezeWithin time.Duration

	// Authenticate finds the caller of a request anew: an audit may take minutes.
	Authenticate func(ctx context.Context, r *http.Request) (httpapi.Caller, error)
	Problems     httpapi.ProblemWriter
	Log          *zap.Logger

	auditing atomic.Bool
}

// Routes are the operations of the cluster and its etcd.
func (h *Handlers) Routes() []*httpapi.Operation {
	var (
		freeze     = reflect.TypeFor[client.FreezeStatus]()
		freezeBody = &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.FreezeRequest]()}
	)
	const get, post, put, patches, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

	return []*httpapi.Operation{
		{ID: "get-cluster", Method: get, Path: "/v1/cluster", Tag: "cluster", Summary: "How the cluster fares",
			Status: 200, Answer: reflect.TypeFor[client.ClusterStatus](), Handler: httpapi.NoQuery(h.getCluster)},
		{ID: "set-cluster", Method: patches, Path: "/v1/cluster", Tag: "cluster", Summary: "Change settings of the cluster",
			Body: &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.ClusterSettings]()}, Writes: true, Status: 200,
			Answer: reflect.TypeFor[client.ClusterSettings](), Errors: []int{409}, Handler: httpapi.NoQuery(h.setCluster)},
		{ID: "recover-cluster", Method: post, Path: "/v1/cluster/recover", Tag: "cluster", Summary: "Go on with an etcd that was restored from an older snapshot",
			Description: "Bumps the cluster's epoch: all nodes forget what they knew, and begin anew on what etcd holds now.",
			Writes:      true, Recovers: true, Status: 200, Answer: reflect.TypeFor[task.Cluster](), Errors: []int{409}, Handler: httpapi.NoQuery(h.recoverCluster)},
		{ID: "get-format", Method: get, Path: "/v1/cluster/format", Tag: "cluster", Summary: "The format of the cluster's records, and what is in the way of another",
			Status: 200, Answer: reflect.TypeFor[client.FormatStatus](), Handler: httpapi.NoQuery(h.getFormat)},
		{ID: "set-format", Method: put, Path: "/v1/cluster/format", Tag: "cluster", Summary: "Use the newest format of records that is possible, or go back to an older one",
			Body: &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.FormatRequest]()}, Writes: true, Status: 200,
			Answer: reflect.TypeFor[client.FormatStatus](), Errors: []int{409}, Handler: httpapi.NoQuery(h.setFormat)},
		{ID: "get-freeze", Method: get, Path: clusterFreeze, Tag: "cluster", Summary: "Whether the cluster is frozen", Status: 200, Answer: freeze, Handler: httpapi.NoQuery(h.getFreeze)},
		{ID: "freeze", Method: put, Path: clusterFreeze, Tag: "cluster", Summary: "Stop all firing", Description: freezeAbout,
			Body: freezeBody, Writes: true, Status: 200, Answer: freeze, Errors: []int{409, 504}, Handler: httpapi.NoQuery(h.putFreeze)},
		{ID: "unfreeze", Method: del, Path: clusterFreeze, Tag: "cluster", Summary: "Let firing go on, from now",
			Writes: true, Status: 200, Answer: freeze, Errors: []int{404, 409}, Handler: httpapi.NoQuery(h.deleteFreeze)},
		{ID: "get-namespace-freeze", Method: get, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "Whether a namespace is frozen", Status: 200, Answer: freeze, Handler: httpapi.NoQuery(h.getFreeze)},
		{ID: "freeze-namespace", Method: put, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "Stop all firing in a namespace", Description: freezeAbout,
			Body: freezeBody, Writes: true, Status: 200, Answer: freeze, Errors: []int{409, 504}, Handler: httpapi.NoQuery(h.putFreeze)},
		{ID: "unfreeze-namespace", Method: del, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "Let firing go on in a namespace, from now",
			Writes: true, Status: 200, Answer: freeze, Errors: []int{404, 409}, Handler: httpapi.NoQuery(h.deleteFreeze)},
		{ID: "list-members", Method: get, Path: "/v1/cluster/members", Tag: "cluster", Summary: "List the members of etcd",
			Status: 200, Answer: reflect.TypeFor[client.List[client.EtcdMember]](), Handler: httpapi.NoQuery(h.listMembers)},
		{ID: "add-member", Method: post, Path: "/v1/cluster/members", Tag: "cluster", Summary: "Add a member to the embedded etcd",
			Description: "It votes once its agent has started, with an empty data directory and --initial-cluster-state existing, and has caught up.",
			Body:        &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.AddMemberRequest]()}, Writes: true, Status: 201,
			Answer: reflect.TypeFor[client.MemberChange](), Errors: []int{409}, Handler: httpapi.NoQuery(h.addMember)},
		{ID: "remove-member", Method: del, Path: "/v1/cluster/members/{member}", Tag: "cluster", Summary: "Remove a member from the embedded etcd, for good",
			Writes: true, Status: 200, Answer: reflect.TypeFor[client.MemberChange](), Errors: []int{409}, Handler: httpapi.NoQuery(h.removeMember)},
		{ID: "audit", Method: get, Path: "/v1/audit", Tag: "cluster", Summary: "Check the cluster against the promises",
			Description: auditAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.AuditLine](), AnswerType: httpapi.TypeLines,
			Errors: []int{409}, Handler: httpapi.Query(h.audit)},
		{ID: "repair", Method: post, Path: "/v1/audit:repair", Tag: "cluster", Summary: "Mend findings of an audit, where that is safe",
			Description: "Each is decided anew and written in transactions that compare all that was read: what has changed since the audit is left alone. " +
				"Findings after one that failed are not tried.",
			Body:   &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.Repairs](), Doc: "At most 100 findings, as the audit named them."},
			Writes: true, Status: 200, Answer: reflect.TypeFor[client.List[task.RepairResult]](), Handler: httpapi.NoQuery(h.repair)},
		{ID: "get-version", Method: get, Path: "/v1/version", Tag: "cluster", Summary: "What answers",
			Status: 200, Answer: reflect.TypeFor[client.Version](), Handler: httpapi.NoQuery(h.version)},
	}
}

const freezeAbout = "Answers when it holds: no tick is decided to run any more, and no node that is present starts anything. " +
	"Ticks are skipped, what waits waits on, what runs goes on. One that holds already stays as it is."
