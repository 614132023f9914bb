package accesscontrol

import (
	"context"
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// nodeLimitHandlers serve the limits of the labels of nodes.
type nodeLimitHandlers struct {
	*records
}

const setLimitAbout = "The name is that of a node, or a prefix of names that ends in *; the limit with the longest match applies to a node. " +
	"Labels that a node announces and its limit does not list do not count for the selectors of tasks and namespaces. The answer names the nodes that announce such labels now, if you may read nodes."

// Routes returns the operations on limits of the labels of nodes.
func (h *nodeLimitHandlers) Routes() []*httpapi.Operation {
	limit := reflect.TypeFor[task.NodeLimit]()

	return []*httpapi.Operation{
		{ID: "list-node-limits", Verb: access.Read, Kind: access.Nodes, Method: http.MethodGet, Path: "/v1/node-limits", Tag: "access", Summary: "List the limits of the labels of nodes",
			Status: 200, Answer: reflect.TypeFor[client.List[task.NodeLimit]](), Handler: httpapi.Query(h.listNodeLimits)},
		{ID: "get-node-limit", Verb: access.Read, Kind: access.Nodes, Method: http.MethodGet, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Read the limit of the labels of a node, or of the nodes with a prefix",
			Status: 200, Answer: limit, Tagged: true, Handler: httpapi.NoQuery(h.getNodeLimit)},
		{ID: "set-node-limit", Verb: access.Grant, Kind: access.Access, Method: http.MethodPut, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Limit which labels nodes may have", Description: setLimitAbout + dryRunAbout,
			Body: jsonBody(limit), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: reflect.TypeFor[client.NodeLimitChange](), Tagged: true, Errors: []int{409, 429}, Handler: httpapi.Query(h.setNodeLimit)},
		{ID: "delete-node-limit", Verb: access.Grant, Kind: access.Access, Method: http.MethodDelete, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Delete a limit of the labels of nodes",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.deleteNodeLimit)},
	}
}

// maxNodeLimits is the maximum number of limits in the cluster.
const maxNodeLimits = 2000

// listNodeLimits serves the limits of the labels of nodes.
func (h *nodeLimitHandlers) listNodeLimits(c *httpapi.Call, q httpapi.PageQuery) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	return pageOf(c, q, v.NodeLimits(), func(l task.NodeLimit) string { return l.Name })
}

// getNodeLimit serves one limit.
func (h *nodeLimitHandlers) getNodeLimit(c *httpapi.Call) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	name := c.Request.PathValue("limit")
	l, ok := v.NodeLimit(name)
	if !ok {
		return httpapi.Answer{}, notFound("node limit", task.Quote(name))
	}

	return answerRecord(l, l.Revision)
}

// setNodeLimit serves writes of a limit. They need grant on access, and not operate on nodes: with a limit, an administrator
// decides which hosts may run the tasks of a namespace, and a caller who only drains nodes must not change that.
func (h *nodeLimitHandlers) setNodeLimit(c *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	var l task.NodeLimit
	var dry *client.Change
	if err := c.Decode(&l); err != nil {
		return httpapi.Answer{}, err
	}
	if err := sameName(&l.Name, c.Request.PathValue("limit")); err != nil {
		return httpapi.Answer{}, err
	}
	if err := access.CheckNodeLimit(&l); err != nil {
		return httpapi.Answer{}, err
	}
	if l.Labels == nil {
		l.Labels = []string{}
	}

	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
			return err
		}

		old, is := v.NodeLimit(l.Name)
		if err := checkConditions(c, "node limit", l.Name, old.Revision); err != nil {
			return err
		}

		if n := len(v.NodeLimits()); !is && n >= maxNodeLimits {
			return httpapi.Fail(http.StatusConflict, client.CodeConflict, "the cluster has %d limits of nodes; at most %d are allowed", n, maxNodeLimits).
				WithHint("use one limit for all nodes with a prefix")
		}

		l.CreatedAt, l.CreatedBy, l.UpdatedAt, l.UpdatedBy, l.Revision = old.CreatedAt, old.CreatedBy, old.UpdatedAt, old.UpdatedBy, old.Revision
		if q.DryRun {
			if is {
				if err := rights.Require(access.Need{Verb: access.Read, Kind: access.Nodes}); err != nil {
					return err
				}
			}
			old.Name = l.Name
			dry = wouldChange(is, old, l)
			return nil
		}
		if is && reflect.DeepEqual(l, old) {
			return nil
		}

		now := h.now.Stamp()
		if !is {
			l.CreatedAt, l.CreatedBy = now, c.Actor()
		}
		l.UpdatedAt, l.UpdatedBy = now, c.Actor()

		rights.Describe(task.AuditObject{Kind: "node-limit", Name: l.Name, Changes: task.AccessChanges(existing(is, &old), &l)})
		var err error
		l.Revision, err = h.store.As(rights).PutNodeLimit(c.Context(), old.Revision, l, h.now())

		return httpapi.About("node limit "+l.Name, err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Fence >= l.Revision })

	change := client.NodeLimitChange{NodeLimit: l, DryRun: dry}
	if c.Rights().Allows(access.Need{Verb: access.Read, Kind: access.Nodes}) {
		h.findIgnored(c.Context(), c.Rights().View(), &change)
	}

	return answerRecord(change, l.Revision)
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

// deleteNodeLimit serves the deletion of a limit.
func (h *nodeLimitHandlers) deleteNodeLimit(c *httpapi.Call) (httpapi.Answer, error) {
	name := c.Request.PathValue("limit")

	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
			return err
		}

		l, is := v.NodeLimit(name)
		if !is {
			return notFound("node limit", task.Quote(name))
		}
		if err := checkConditions(c, "node limit", name, l.Revision); err != nil {
			return err
		}

		rights.Describe(task.AuditObject{Kind: "node-limit", Name: name, Changes: task.AccessChanges(&l, nil)})

		return httpapi.About("node limit "+name, h.store.As(rights).DeleteNodeLimit(c.Context(), name, l.Revision, h.now()))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { _, is := v.NodeLimit(name); return !is })

	return httpapi.Answer{Status: http.StatusNoContent}, nil
}
