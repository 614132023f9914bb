// Package alerts contains the API handlers for alerts and silences. They list alerts with what each receiver knows of them,
// note who works on an alert, and write silences.
//
// Lists read key ranges of etcd, so they are exact, also while nodes are lost. Alerts are opened and closed by the owners of the shards,
// and receivers are notified by the leader; this package does neither.
package alerts

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve alerts and silences. They are safe for concurrent use.
type Handlers struct {
	Store  *store.Store
	Ref    func(namespace, name string) record.Ref // maps a task to its shard
	Views  *views.Viewer
	Shards int // the number of shards
	Now    httpapi.Clock
	// ClockFault returns an error if this node's clock cannot be trusted. A silence that ends by such a clock could last for years.
	ClockFault func() error
}

const (
	alertsAbout = "Open alerts or, with closed=true, those that were closed in the last two hours. receivers says what each receiver knows of an alert, and why it gets no messages. " +
		"The list is in no particular order. A page may have fewer items than its limit, or none, and still have a next page."
	acknowledgeAbout = "Notes that the caller works on the alert. An acknowledged alert is not sent again while it stays open. " +
		"Another caller can take it over in the same way. If the alert opens again after it was closed, nobody works on it."
)

// Routes returns the operations on alerts, rules and silences.
func (h *Handlers) Routes() []*httpapi.Operation {
	var (
		list     = reflect.TypeFor[client.List[task.AlertStatus]]()
		one      = reflect.TypeFor[task.AlertStatus]()
		silences = reflect.TypeFor[client.List[task.AlertSilence]]()
	)
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete

	return append(h.ruleRoutes(), []*httpapi.Operation{
		{ID: "list-all-alerts", Method: get, Path: "/v1/alerts", Tag: "alerts", Summary: "List the alerts of all namespaces, and those about the cluster",
			Description: alertsAbout, Status: 200, Answer: list, Handler: httpapi.Query(h.listAlerts)},
		{ID: "list-alerts", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.InNamespace + "/alerts", Tag: "alerts", Summary: "List the alerts of a namespace",
			Description: alertsAbout, Status: 200, Answer: list, Handler: httpapi.Query(h.listAlerts)},
		{ID: "task-alerts", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.OfTask + "/alerts", Tag: "alerts", Summary: "Read the alerts of a task, and whether its receivers get messages",
			Description: "The answer has the open alerts of the task with what each receiver knows of them, and those that were closed a short time ago.",
			Status:      200, Answer: reflect.TypeFor[task.TaskAlerts](), Handler: httpapi.NoQuery(h.taskAlerts)},
		{ID: "acknowledge-alert", Verb: access.Retry, Kind: access.Runs, Method: post, Path: httpapi.OfTask + "/alerts/{kind}/acknowledge", Tag: "alerts", Summary: "Acknowledge an alert of a task",
			Description: acknowledgeAbout, Writes: true, Status: 200, Answer: one, Errors: []int{409}, Handler: httpapi.NoQuery(h.acknowledgeAlert)},
		{ID: "acknowledge-cluster-alert", Verb: access.Operate, Kind: access.Cluster, Method: post, Path: "/v1/cluster/alerts/{code}/acknowledge", Tag: "alerts", Summary: "Acknowledge an alert about the cluster",
			Description: acknowledgeAbout, Writes: true, Status: 200, Answer: one, Errors: []int{409}, Handler: httpapi.NoQuery(h.acknowledgeClusterAlert)},
		{ID: "list-all-silences", Method: get, Path: "/v1/silences", Tag: "alerts", Summary: "List the silences of all namespaces, the first to end first",
			Description: "The list contains the silences of all namespaces that you may read.",
			Status:      200, Answer: silences, Handler: httpapi.NoQuery(h.listSilences)},
		{ID: "list-silences", Verb: access.Read, Kind: access.Runs, Method: get, Path: httpapi.InNamespace + "/silences", Tag: "alerts", Summary: "List the silences of a namespace, the first to end first",
			Description: "A silence holds messages of alerts back until it ends. The alerts stay open.",
			Status:      200, Answer: silences, Handler: httpapi.NoQuery(h.listSilences)},
		{ID: "create-silence", Verb: access.Pause, Kind: access.Tasks, Method: post, Path: httpapi.InNamespace + "/silences", Tag: "alerts", Summary: "Hold back messages about the alerts of some tasks",
			Description: silenceAbout, Body: &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.SilenceRequest]()},
			DryAnswer: reflect.TypeFor[client.Silenced](), Writes: true, Status: 201, Answer: reflect.TypeFor[client.Silenced](), Errors: []int{409}, Handler: httpapi.Query(h.createSilence)},
		{ID: "end-silence", Verb: access.Pause, Kind: access.Tasks, Method: del, Path: httpapi.InNamespace + "/silences/{silence}", Tag: "alerts", Summary: "End a silence before its time",
			Description: "What is still open is then sent as if it had just opened, unless the receivers were notified before.",
			Writes:      true, Status: 200, Answer: reflect.TypeFor[task.AlertSilence](), Errors: []int{409}, Handler: httpapi.NoQuery(h.endSilence)},
	}...)
}

// listQuery are the parameters of a list of alerts.
type listQuery struct {
	Closed   bool   `query:"closed" default:"false" doc:"Lists the alerts that were closed in the last two hours, instead of the open ones."`
	Selector string `query:"selector" doc:"Only alerts of tasks whose labels match: \"team = data, env in (prod, staging)\"."`
	httpapi.PageQuery
}

// listAlerts serves the alerts of a namespace, or of all that the caller may read.
func (h *Handlers) listAlerts(c *httpapi.Call, q listQuery) (httpapi.Answer, error) {
	selector, err := task.ParseSelector(q.Selector)
	if err != nil {
		return httpapi.Answer{}, task.Under("selector", err)
	}

	namespaces, err := readableNamespaces(c)
	if err != nil {
		return httpapi.Answer{}, err
	}
	p, err := c.Paging(q.PageQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	ofCluster := c.Request.PathValue("ns") == "" && c.Rights().Allows(access.Need{Verb: access.Read, Kind: access.Cluster})
	list, next, err := h.Store.ListAlerts(c.Context(), store.AlertPage{Shards: h.Shards, Namespaces: namespaces, Cluster: ofCluster, After: p.After, Limit: p.Limit})
	if err != nil {
		return httpapi.Answer{}, err
	}

	list = slices.DeleteFunc(list, func(a task.Alert) bool { return a.IsOpen() == q.Closed || !selector.Matches(a.Labels) })

	views, err := h.Views.Alerts(c.Context(), list)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Page(c, p, views, next)
}

// readableNamespaces returns the namespace in the path or, without one, those whose runs the caller may read; nil: all.
func readableNamespaces(c *httpapi.Call) ([]string, error) {
	if c.Request.PathValue("ns") == "" {
		return ask.Intersect(c.Rights().Readable(access.Tasks), c.Rights().Readable(access.Runs)), nil
	}

	ns, err := c.Namespace()

	return []string{ns}, err
}

// taskAlerts serves the alerts of a task.
func (h *Handlers) taskAlerts(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	all, err := h.Views.TaskAlerts(c.Context(), ref)

	return httpapi.Answer{Status: http.StatusOK, Body: all}, err
}

// acknowledgeAlert serves the acknowledgement of an alert of a task.
func (h *Handlers) acknowledgeAlert(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	kind := task.AlertKind(c.Request.PathValue("kind"))
	if !slices.Contains(task.TaskAlertKinds[:], kind) {
		return httpapi.Answer{}, task.NoneOf(task.CodeBadValue, "kind", string(kind), task.TaskAlertKindNames()...)
	}

	return h.acknowledge(c, ref, func() (task.Alert, error) {
		if err := c.Rights().RequireOnTask(c.Context(), h.Store, ref, access.Retry, access.Runs); err != nil {
			return task.Alert{}, err
		}

		list, err := h.Store.AlertsOf(c.Context(), ref)
		if err != nil {
			return task.Alert{}, err
		}

		i := slices.IndexFunc(list, func(a task.Alert) bool { return a.Kind == kind })
		if i < 0 {
			return task.Alert{}, httpapi.Fail(http.StatusNotFound, client.CodeNotFound, "task %s has no open alert of the kind %s", ref, kind)
		}

		return list[i], nil
	})
}

// acknowledgeClusterAlert serves the acknowledgement of an alert about the cluster.
func (h *Handlers) acknowledgeClusterAlert(c *httpapi.Call) (httpapi.Answer, error) {
	code := c.Request.PathValue("code")
	if err := task.CheckName("code", code); err != nil {
		return httpapi.Answer{}, err
	}

	return h.acknowledge(c, record.Ref{}, func() (task.Alert, error) {
		if err := c.Rights().Require(access.Need{Verb: access.Operate, Kind: access.Cluster}); err != nil {
			return task.Alert{}, err
		}
		return h.Store.ClusterAlert(c.Context(), code)
	})
}

// acknowledge notes that the caller works on the alert that read authorizes and returns. Who works on it already is not written again, so
// that the alert says since when.
func (h *Handlers) acknowledge(c *httpapi.Call, ref record.Ref, read func() (task.Alert, error)) (httpapi.Answer, error) {
	var a task.Alert
	err := httpapi.RetryConflict(c.Context(), func() (err error) {
		if a, err = read(); err != nil {
			return err
		}

		if a.Since.IsZero() { // only the key is known, and the write would replace the rest
			return httpapi.Fail(http.StatusConflict, client.CodeUnreadable, "the record of alert %s cannot be read", a.FullName()).
				WithHint("a newer version of Carillon may have written it; ask a node of that version")
		}
		if !a.IsOpen() {
			return httpapi.Fail(http.StatusConflict, client.CodeConflict, "alert %s was closed at %s: %s", a.FullName(), a.Closed.At.Format(time.RFC3339), a.Closed.Why).
				WithHint("nobody has to work on it")
		}
		if k := a.Acknowledged; k != nil && k.By.Is(c.Actor().Subject) {
			return nil
		}

		a, err = h.Store.As(c.Rights()).AcknowledgeAlert(c.Context(), ref, a, task.AlertMark{At: h.Now.Stamp(), By: c.Actor()})

		return httpapi.About(a.FullName(), err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	views, err := h.Views.Alerts(c.Context(), []task.Alert{a})
	if err != nil {
		return httpapi.Answer{}, fmt.Errorf("read the acknowledged alert: %w", err)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: views[0]}, nil
}
