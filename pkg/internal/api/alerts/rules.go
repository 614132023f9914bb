package alerts

import (
	"cmp"
	"errors"
	"net/http"
	"reflect"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

const ruleAbout = "The rule applies to the tasks of the namespace that its selector matches and that have no alerts of their own. If several rules match a task, " +
	"the first one by name applies. The right to update tasks with the labels that the selector compares with one value is needed. Nothing is written if the rule stays the same."

// ruleRoutes returns the operations on rules.
func (h *Handlers) ruleRoutes() []*httpapi.Operation {
	const ofRule = httpapi.InNamespace + "/alert-rules/{rule}"
	one, many := reflect.TypeFor[task.AlertRule](), reflect.TypeFor[client.List[task.AlertRule]]()

	return []*httpapi.Operation{
		{ID: "list-all-alert-rules", Method: http.MethodGet, Path: "/v1/alert-rules", Tag: "alerts", Summary: "List the rules of alerts of all namespaces",
			Description: "The list contains the rules of all namespaces that you may read.",
			Status:      200, Answer: many, Handler: httpapi.NoQuery(h.listRules)},
		{ID: "list-alert-rules", Verb: access.Read, Kind: access.Tasks, Method: http.MethodGet, Path: httpapi.InNamespace + "/alert-rules", Tag: "alerts", Summary: "List the rules of alerts of a namespace",
			Description: "A rule sets the expectations of all tasks of the namespace that it selects.",
			Status:      200, Answer: many, Handler: httpapi.NoQuery(h.listRules)},
		{ID: "get-alert-rule", Verb: access.Read, Kind: access.Tasks, Method: http.MethodGet, Path: ofRule, Tag: "alerts", Summary: "Read a rule of alerts",
			Description: "A rule sets the expectations of all tasks of the namespace that it selects.",
			Status:      200, Answer: one, Handler: httpapi.NoQuery(h.getRule)},
		{ID: "set-alert-rule", Verb: access.Update, Kind: access.Tasks, Method: http.MethodPut, Path: ofRule, Tag: "alerts", Summary: "Create or replace a rule of alerts",
			Description: ruleAbout, Body: &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.AlertRuleRequest]()},
			DryAnswer: reflect.TypeFor[client.AlertRuleChange](), Writes: true, Status: 200, Answer: reflect.TypeFor[client.AlertRuleChange](), Errors: []int{409}, Handler: httpapi.Query(h.setRule)},
		{ID: "delete-alert-rule", Verb: access.Update, Kind: access.Tasks, Method: http.MethodDelete, Path: ofRule, Tag: "alerts", Summary: "Delete a rule of alerts",
			Description: "The alerts that it has opened close.", Writes: true, Status: 204, Errors: []int{409}, Handler: httpapi.NoQuery(h.deleteRule)},
	}
}

// listRules serves the rules of a namespace, or of all whose tasks the caller may read.
func (h *Handlers) listRules(c *httpapi.Call) (httpapi.Answer, error) {
	var namespaces []string
	if c.Request.PathValue("ns") != "" {
		ns, err := c.Namespace()
		if err != nil {
			return httpapi.Answer{}, err
		}
		namespaces = []string{ns}
	} else if namespaces = c.Rights().Readable(access.Tasks); namespaces == nil {
		namespaces = c.Rights().View().Namespaces()
	}

	list, err := h.Store.AlertRules(c.Context(), namespaces)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.All(list)
}

// ruleName returns the rule in the path after checking it.
func ruleName(c *httpapi.Call) (ns, name string, err error) {
	if ns, err = c.Namespace(); err != nil {
		return "", "", err
	}
	name = c.Request.PathValue("rule")

	return ns, name, task.CheckName("rule", name)
}

// getRule serves a rule.
func (h *Handlers) getRule(c *httpapi.Call) (httpapi.Answer, error) {
	ns, name, err := ruleName(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	rule, err := h.Store.AlertRule(c.Context(), ns, name)

	return httpapi.Answer{Status: http.StatusOK, Body: rule}, err
}

// ruleQuery are the parameters of a change of a rule.
type ruleQuery struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Checks everything but writes nothing."`
}

// setRule serves a new rule, or a change of one.
func (h *Handlers) setRule(c *httpapi.Call, q ruleQuery) (httpapi.Answer, error) {
	ns, name, err := ruleName(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var body client.AlertRuleRequest
	if err := c.Decode(&body); err != nil {
		return httpapi.Answer{}, err
	}

	wanted := task.AlertRule{Namespace: ns, Name: name, Description: body.Description, Selector: body.Selector, Alerts: body.Alerts}
	if err := alert.CheckRule(&wanted); err != nil {
		return httpapi.Answer{}, err
	}

	out := client.AlertRuleChange{}
	err = httpapi.RetryConflict(c.Context(), func() error {
		if err := requireUpdate(c, &wanted); err != nil {
			return err
		}
		if err := c.Rights().RequireNamespace(ns); err != nil {
			return err
		}

		former, err := h.Store.AlertRule(c.Context(), ns, name)
		isNew := errors.Is(err, task.ErrNotFound)
		switch {
		case isNew:
			if err := h.checkRoom(c, ns); err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			// Who changes a rule also takes it away from the tasks that it applies to.
			if err := requireUpdate(c, &former); err != nil {
				return err
			}
		}

		out.AlertRule = wanted
		out.CreatedAt, out.CreatedBy, out.Revision = former.CreatedAt, former.CreatedBy, former.Revision
		out.UpdatedAt, out.UpdatedBy = former.UpdatedAt, former.UpdatedBy
		if !isNew && reflect.DeepEqual(out.AlertRule, former) {
			return nil
		}

		out.UpdatedAt, out.UpdatedBy = h.Now.Stamp(), c.Actor()
		if isNew {
			out.CreatedAt, out.CreatedBy = out.UpdatedAt, out.UpdatedBy
		}
		if q.DryRun {
			return nil
		}

		out.AlertRule, err = h.Store.As(c.Rights()).PutAlertRule(c.Context(), out.AlertRule)

		return httpapi.About(ns+"/"+name, err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}
	out.Warnings = h.ruleWarnings(c, &out.AlertRule)

	return httpapi.Answer{Status: http.StatusOK, Body: out}, nil
}

// checkRoom refuses a further rule in a namespace with many. Each task is compared with the rules of its namespace when they change.
// Concurrent requests may exceed the limit by their number.
func (h *Handlers) checkRoom(c *httpapi.Call, ns string) error {
	list, err := h.Store.AlertRules(c.Context(), []string{ns})
	if err == nil && len(list) >= task.MaxAlertRules {
		err = httpapi.Fail(http.StatusUnprocessableEntity, task.CodeTooMany, "namespace %s has %d alert rules, which is the maximum", ns, len(list)).
			WithHint("delete some of them, or select more tasks with one rule")
	}

	return err
}

// ruleWarnings says which receivers of a rule get no alerts. The rule has been written, so a failure of etcd only means that a warning is
// missing.
func (h *Handlers) ruleWarnings(c *httpapi.Call, rule *task.AlertRule) (list []string) {
	read, err := h.Views.AcceptingReceivers(c.Context(), rule.Namespace, rule.Alerts.Receivers(rule.Namespace))
	if err != nil {
		return nil
	}

	for _, name := range rule.Alerts.Receivers(rule.Namespace) {
		if !slices.Contains(read, name) {
			list = append(list, "alerts.notify: "+name+" is no receiver of the alerts of namespace "+rule.Namespace+"; it gets none until it is")
		}
	}

	return list
}

// requireUpdate refuses a change of a rule unless the caller may update each task that it can apply to. All of these have the labels that
// the selector compares with one value.
func requireUpdate(c *httpapi.Call, rule *task.AlertRule) error {
	need := access.Need{Verb: access.Update, Kind: access.Tasks, Namespace: rule.Namespace}
	if selector, err := task.ParseSelector(rule.Selector); err == nil {
		need.Labels = selector.Equalities()
	}

	return c.Rights().Require(need)
}

// deleteRule serves the deletion of a rule.
func (h *Handlers) deleteRule(c *httpapi.Call) (httpapi.Answer, error) {
	ns, name, err := ruleName(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = httpapi.RetryConflict(c.Context(), func() error {
		rule, err := h.Store.AlertRule(c.Context(), ns, name)
		if errors.Is(err, task.ErrNotFound) {
			// Only who may update something there learns that it does not exist.
			return cmp.Or(c.Rights().RequireSomewhere(access.Need{Verb: access.Update, Kind: access.Tasks, Namespace: ns}), err)
		}
		if err != nil {
			return err
		}
		if err := requireUpdate(c, &rule); err != nil {
			return err
		}

		return httpapi.About(ns+"/"+name, h.Store.As(c.Rights()).DeleteAlertRule(c.Context(), rule))
	})

	return httpapi.Answer{Status: http.StatusNoContent}, err
}
