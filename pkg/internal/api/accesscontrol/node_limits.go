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

// maxNodeLimits is the maximum number of limits in the cluster.
const maxNodeLimits = 2000

// listNodeLimits serves the limits of the labels of nodes.
func (h *Handlers) listNodeLimits(c *httpapi.Call, q httpapi.PageQuery) (httpapi.Answer, error) {
	v, err := h.Keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	return pageOf(c, q, v.NodeLimits(), func(l task.NodeLimit) string { return l.Name })
}

// getNodeLimit serves one limit.
func (h *Handlers) getNodeLimit(c *httpapi.Call) (httpapi.Answer, error) {
	v, err := h.Keeper.Current(c.Context())
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
// decides which hosts may run the tasks of a namespace, and whoever drains nodes must not change that.
func (h *Handlers) setNodeLimit(c *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
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

	err := h.change(c, func(v *authority.View, rights *httpapi.Rights) error {
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

		now := h.Now.Stamp()
		if !is {
			l.CreatedAt, l.CreatedBy = now, c.Actor()
		}
		l.UpdatedAt, l.UpdatedBy = now, c.Actor()

		var err error
		l.Revision, err = h.Store.As(rights).PutNodeLimit(c.Context(), old.Revision, l, h.Now())

		return httpapi.About("node limit "+l.Name, err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.settle(c, func(v *authority.View) bool { return v.Fence >= l.Revision })

	change := client.NodeLimitChange{NodeLimit: l, DryRun: dry}
	if c.Rights().Allows(access.Need{Verb: access.Read, Kind: access.Nodes}) {
		h.findIgnored(c.Context(), c.Rights().View(), &change)
	}

	return answerRecord(change, l.Revision)
}

// findIgnored adds the labels of present nodes that a limit does not allow. Without an answer of etcd the list stays empty:
// the limit has been written.
func (h *Handlers) findIgnored(ctx context.Context, v *authority.View, change *client.NodeLimitChange) {
	nodes, err := h.Store.Nodes(ctx)
	if err != nil {
		return
	}

	for _, n := range v.IgnoredWith(change.NodeLimit, nodes) {
		change.Nodes = append(change.Nodes, client.LimitedNode{Name: n.Name, IgnoredLabels: n.IgnoredLabels})
	}
}

// deleteNodeLimit serves the deletion of a limit.
func (h *Handlers) deleteNodeLimit(c *httpapi.Call) (httpapi.Answer, error) {
	name := c.Request.PathValue("limit")

	err := h.change(c, func(v *authority.View, rights *httpapi.Rights) error {
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

		return httpapi.About("node limit "+name, h.Store.As(rights).DeleteNodeLimit(c.Context(), name, l.Revision, h.Now()))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.settle(c, func(v *authority.View) bool { _, is := v.NodeLimit(name); return !is })

	return httpapi.Answer{Status: http.StatusNoContent}, nil
}
