package api

import (
	"context"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// clusterHandlers serve the cluster and its etcd.
type clusterHandlers struct {
	Store   *store.Store
	Ref     func(namespace, name string) store.Ref // says where a task lives
	Cluster task.Cluster
	Node    string // this one's name
	Version string // Carillon's
	Etcd    string // how etcdctl reaches an etcd that only this node knows; else empty
	Now     Clock
	// Writable says why this node must change nothing.
	Writable func() error
	// FreezeWithin is how long a freeze waits for the nodes to confirm it.
	FreezeWithin time.Duration

	// Authenticate finds the caller of a request anew: an audit may take minutes.
	Authenticate func(ctx context.Context, r *http.Request) (caller, error)
	Problems     problemWriter
	Log          *zap.Logger

	auditing atomic.Bool
}

// Routes are the operations of the cluster and its etcd.
func (h *clusterHandlers) Routes() []*route {
	var (
		freeze     = reflect.TypeFor[client.FreezeStatus]()
		freezeBody = &body{types: []string{jsonType}, of: reflect.TypeFor[client.FreezeRequest]()}
	)
	const get, post, put, patches, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

	return []*route{
		{id: "get-cluster", method: get, path: "/v1/cluster", tag: "cluster", summary: "How the cluster fares",
			status: 200, answer: reflect.TypeFor[client.ClusterStatus](), handler: NoQuery(h.getCluster)},
		{id: "set-cluster", method: patches, path: "/v1/cluster", tag: "cluster", summary: "Change settings of the cluster",
			body: &body{types: []string{jsonType}, of: reflect.TypeFor[client.ClusterSettings]()}, writes: true, status: 200,
			answer: reflect.TypeFor[client.ClusterSettings](), errors: []int{409}, handler: NoQuery(h.setCluster)},
		{id: "recover-cluster", method: post, path: "/v1/cluster/recover", tag: "cluster", summary: "Go on with an etcd that was restored from an older snapshot",
			about:  "Bumps the cluster's epoch: all nodes forget what they knew, and begin anew on what etcd holds now.",
			writes: true, mends: true, status: 200, answer: reflect.TypeFor[task.Cluster](), errors: []int{409}, handler: NoQuery(h.recoverCluster)},
		{id: "get-format", method: get, path: "/v1/cluster/format", tag: "cluster", summary: "The format of the cluster's records, and what is in the way of another",
			status: 200, answer: reflect.TypeFor[client.FormatStatus](), handler: NoQuery(h.getFormat)},
		{id: "set-format", method: put, path: "/v1/cluster/format", tag: "cluster", summary: "Use the newest format of records that is possible, or go back to an older one",
			body: &body{types: []string{jsonType}, of: reflect.TypeFor[client.FormatRequest]()}, writes: true, status: 200,
			answer: reflect.TypeFor[client.FormatStatus](), errors: []int{409}, handler: NoQuery(h.setFormat)},
		{id: "get-freeze", method: get, path: clusterFreeze, tag: "cluster", summary: "Whether the cluster is frozen", status: 200, answer: freeze, handler: NoQuery(h.getFreeze)},
		{id: "freeze", method: put, path: clusterFreeze, tag: "cluster", summary: "Stop all firing", about: freezeAbout,
			body: freezeBody, writes: true, status: 200, answer: freeze, errors: []int{409, 504}, handler: NoQuery(h.putFreeze)},
		{id: "unfreeze", method: del, path: clusterFreeze, tag: "cluster", summary: "Let firing go on, from now",
			writes: true, status: 200, answer: freeze, errors: []int{404, 409}, handler: NoQuery(h.deleteFreeze)},
		{id: "get-namespace-freeze", method: get, path: inNamespace + "/freeze", tag: "cluster", summary: "Whether a namespace is frozen", status: 200, answer: freeze, handler: NoQuery(h.getFreeze)},
		{id: "freeze-namespace", method: put, path: inNamespace + "/freeze", tag: "cluster", summary: "Stop all firing in a namespace", about: freezeAbout,
			body: freezeBody, writes: true, status: 200, answer: freeze, errors: []int{409, 504}, handler: NoQuery(h.putFreeze)},
		{id: "unfreeze-namespace", method: del, path: inNamespace + "/freeze", tag: "cluster", summary: "Let firing go on in a namespace, from now",
			writes: true, status: 200, answer: freeze, errors: []int{404, 409}, handler: NoQuery(h.deleteFreeze)},
		{id: "list-members", method: get, path: "/v1/cluster/members", tag: "cluster", summary: "List the members of etcd",
			status: 200, answer: reflect.TypeFor[client.List[client.EtcdMember]](), handler: NoQuery(h.listMembers)},
		{id: "add-member", method: post, path: "/v1/cluster/members", tag: "cluster", summary: "Add a member to the embedded etcd",
			about: "It votes once its agent has started, with an empty data directory and --initial-cluster-state existing, and has caught up.",
			body:  &body{types: []string{jsonType}, of: reflect.TypeFor[client.AddMemberRequest]()}, writes: true, status: 201,
			answer: reflect.TypeFor[client.MemberChange](), errors: []int{409}, handler: NoQuery(h.addMember)},
		{id: "remove-member", method: del, path: "/v1/cluster/members/{member}", tag: "cluster", summary: "Remove a member from the embedded etcd, for good",
			writes: true, status: 200, answer: reflect.TypeFor[client.MemberChange](), errors: []int{409}, handler: NoQuery(h.removeMember)},
		{id: "audit", method: get, path: "/v1/audit", tag: "cluster", summary: "Check the cluster against the promises",
			about: auditAbout, status: 200, stream: true, answer: reflect.TypeFor[client.AuditLine](), answerType: linesType,
			errors: []int{409}, handler: Query(h.audit)},
		{id: "repair", method: post, path: "/v1/audit:repair", tag: "cluster", summary: "Mend findings of an audit, where that is safe",
			about: "Each is decided anew and written in transactions that compare all that was read: what has changed since the audit is left alone. " +
				"Findings after one that failed are not tried.",
			body:   &body{types: []string{jsonType}, of: reflect.TypeFor[client.Repairs](), doc: "At most 100 findings, as the audit named them."},
			writes: true, status: 200, answer: reflect.TypeFor[client.List[task.RepairResult]](), handler: NoQuery(h.repair)},
		{id: "get-version", method: get, path: "/v1/version", tag: "cluster", summary: "What answers",
			status: 200, answer: reflect.TypeFor[client.Version](), handler: NoQuery(h.version)},
	}
}

const freezeAbout = "Answers when it holds: no tick is decided to run any more, and no node that is present starts anything. " +
	"Ticks are skipped, what waits waits on, what runs goes on. One that holds already stays as it is."
