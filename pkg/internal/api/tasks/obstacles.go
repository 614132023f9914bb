package tasks

import (
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// obstacles says why the runs of tasks could not start as things are now: by the records of namespaces, and by the nodes that
// this node knows. It judges each entry once.
type obstacles struct {
	known   *authority.View
	nodes   []task.Node // nil: not known
	reasons map[*task.Entry]string
}

func (h *Handlers) newObstacles(c *httpapi.Call) *obstacles {
	o := &obstacles{known: c.Rights().View(), reasons: map[*task.Entry]string{}}
	if h.Nodes != nil {
		o.nodes = o.known.LimitNodes(h.Nodes())
	}

	return o
}

// of returns the reason with which the runs of a task would fail or wait; "" if none is known. A shadow's ticks start nothing.
func (o *obstacles) of(namespace string, e *task.Entry) string {
	reason, judged := o.reasons[e]
	if !judged {
		reason = o.judge(namespace, e)
		o.reasons[e] = reason
	}

	return reason
}

func (o *obstacles) judge(namespace string, e *task.Entry) string {
	if e.Shadow {
		return ""
	}

	n := o.known.Namespace(namespace)
	if n == nil || access.Forbidden(n, &e.Action) != "" {
		return task.ReasonNamespace
	}

	// The run of a workflow begins without a node. What its steps need is not in the entry.
	if e.Action.Workflow != nil {
		return ""
	}

	target := e.Target
	target.Selector = access.JoinSelector(n, target.Selector)

	switch takers := len(target.Takers(o.nodes, e.Action.NeedsKey())); {
	case o.nodes == nil || target.Enough(takers):
		return ""
	case takers > 0:
		return task.ReasonCount
	}

	return task.ReasonNoNode
}
