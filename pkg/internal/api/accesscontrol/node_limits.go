package accesscontrol

import (
	"context"
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// nodeLimitHandlers serve the limits of the labels of nodes.
type nodeLimitHandlers struct {
	resource[task.NodeLimit]
}

func newNodeLimitHandlers(r *records) *nodeLimitHandlers {
	h := &nodeLimitHandlers{}
	h.resource = resource[task.NodeLimit]{
		records: r, what: "node limit", object: "node-limit", param: "limit", patterns: true,
		fields: func(l *task.NodeLimit) serverFields {
			return serverFields{&l.Name, nil, &l.CreatedAt, &l.UpdatedAt, &l.CreatedBy, &l.UpdatedBy, &l.Revision}
		},
		find: (*authority.View).NodeLimit, all: (*authority.View).NodeLimits, mayRead: requireReadNodes,
		check: checkNodeLimit, mayWrite: requireGrantAccess, checkCount: checkLimitCount,
		put: (*store.Store).PutNodeLimit, remove: h.removeNodeLimit,
	}

	return h
}

const setLimitAbout = "The name is that of a node, or a prefix of names that ends in *; the limit with the longest match applies to a node. " +
	"Labels that a node announces and its limit does not list do not count for the selectors of tasks and namespaces. The answer names the nodes that announce such labels now, if you may read nodes."

// Routes returns the operations on limits of the labels of nodes.
func (h *nodeLimitHandlers) Routes() []*httpapi.Operation {
	limit := reflect.TypeFor[task.NodeLimit]()

	return []*httpapi.Operation{
		{ID: "list-node-limits", Verb: access.Read, Kind: access.Nodes, Method: http.MethodGet, Path: "/v1/node-limits", Tag: "access", Summary: "List the limits of the labels of nodes",
			Description: "A limit names a node, or nodes with a prefix, and the labels that they may have.",
			Status:      200, Answer: reflect.TypeFor[client.List[task.NodeLimit]](), Handler: httpapi.Query(h.listAll)},
		{ID: "get-node-limit", Verb: access.Read, Kind: access.Nodes, Method: http.MethodGet, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Read the limit of the labels of a node, or of the nodes with a prefix",
			Description: "A limit names a node, or nodes with a prefix, and the labels that they may have.",
			Status:      200, Answer: limit, Tagged: true, Revalidated: true, Handler: httpapi.NoQuery(h.get)},
		{ID: "set-node-limit", Verb: access.Grant, Kind: access.Access, Method: http.MethodPut, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Limit which labels nodes may have", Description: setLimitAbout + dryRunAbout,
			Body: jsonBody(limit), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: reflect.TypeFor[client.NodeLimitChange](), Tagged: true, Errors: []int{409, 429}, Handler: httpapi.Query(h.setNodeLimit)},
		{ID: "delete-node-limit", Verb: access.Grant, Kind: access.Access, Method: http.MethodDelete, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Delete a limit of the labels of nodes",
			Description: "Afterwards, these nodes have all labels that they announce, unless another limit applies to them.",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.delete)},
	}
}

// maxNodeLimits is the maximum number of limits in the cluster.
const maxNodeLimits = 2000

// setNodeLimit serves writes of a limit.
func (h *nodeLimitHandlers) setNodeLimit(c *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	l, dry, err := h.set(c, q.DryRun)
	if err != nil {
		return httpapi.Answer{}, err
	}

	change := client.NodeLimitChange{NodeLimit: l, DryRun: dry}
	if c.Rights().Allows(access.Need{Verb: access.Read, Kind: access.Nodes}) {
		h.findIgnored(c.Context(), c.Rights().View(), &change)
	}

	return answerRecord(change, l.Revision)
}

// requireReadNodes refuses callers who may not read nodes.
func requireReadNodes(_ *httpapi.Call, _ *authority.View, rights *httpapi.Rights) error {
	return rights.Require(access.Need{Verb: access.Read, Kind: access.Nodes})
}

// requireGrantAccess refuses callers who may not write limits. That needs grant on access, and not operate on nodes: with a
// limit, an administrator decides which hosts may run the tasks of a namespace, and a caller who only drains nodes must not
// change that.
func requireGrantAccess(_ *httpapi.Call, _ *authority.View, rights *httpapi.Rights, _, _ *task.NodeLimit) error {
	return rights.Require(access.Need{Verb: access.Grant, Kind: access.Access})
}

// checkNodeLimit checks a limit in a request.
func checkNodeLimit(l *task.NodeLimit) error {
	if l.Labels == nil {
		l.Labels = []string{}
	}

	return access.CheckNodeLimit(l)
}

// checkLimitCount refuses a new limit if the cluster has too many.
func checkLimitCount(_ *httpapi.Call, v *authority.View) error {
	n := len(v.NodeLimits())
	if n < maxNodeLimits {
		return nil
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "the cluster has %d limits of nodes; at most %d are allowed", n, maxNodeLimits).
		WithHint("use one limit for all nodes with a prefix")
}

// removeNodeLimit deletes a limit.
func (h *nodeLimitHandlers) removeNodeLimit(c *httpapi.Call, rights *httpapi.Rights, l *task.NodeLimit) error {
	return h.store.As(rights).DeleteNodeLimit(c.Context(), l.Name, l.Revision, h.now())
}

// findIgnored adds the labels of present nodes that a limit does not allow. Without an answer of etcd the list stays empty:
// the limit has been written.
func (h *nodeLimitHandlers) findIgnored(ctx context.Context, v *authority.View, change *client.NodeLimitChange) {
	nodes, err := h.store.Nodes(ctx)
	if err != nil {
		return
	}

	for _, n := range v.IgnoredWith(change.NodeLimit, nodes) {
		change.Nodes = append(change.Nodes, client.LimitedNode{Name: n.Name, IgnoredLabels: n.IgnoredLabels})
	}
}
