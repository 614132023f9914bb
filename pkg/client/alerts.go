package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/carillonhq/carillon/pkg/task"
)

// AlertsService lists and acknowledges alerts, holds back messages about them, and tests receivers.
type AlertsService struct{ conn *connection }

// AlertListOptions select the alerts of a list.
type AlertListOptions struct {
	Namespace string // "": all namespaces, and the alerts about the cluster
	Closed    bool   // the alerts that were closed in the last two hours, instead of the open ones
	Selector  string // only alerts of tasks whose labels match
}

// List returns alerts, in no particular order.
func (s *AlertsService) List(ctx context.Context, o AlertListOptions) ([]task.AlertStatus, error) {
	path, err := namespacePath(o.Namespace, "/alerts")
	q := url.Values{}
	setIfNotEmpty(q, "selector", o.Selector)
	if o.Closed {
		q.Set("closed", "true")
	}

	return collectItems(iteratePages[task.AlertStatus](ctx, s.conn, path, q, pageSize, 0, err))
}

// ListByTask returns the alerts of a task, and whether its receivers get messages. It returns task.ErrNotFound if there is neither such a task
// nor an alert of it.
func (s *AlertsService) ListByTask(ctx context.Context, namespace, name string) (task.TaskAlerts, error) {
	var all task.TaskAlerts
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet}, &all, "alerts")

	return all, err
}

// Acknowledge notes that the caller works on an open alert of a task. It returns task.ErrConflict if the alert was closed.
func (s *AlertsService) Acknowledge(ctx context.Context, namespace, name string, kind task.AlertKind) (task.AlertStatus, error) {
	var a task.AlertStatus
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost}, &a, "alerts", string(kind), "acknowledge")

	return a, err
}

// AcknowledgeCluster is Acknowledge for an alert about the cluster.
func (s *AlertsService) AcknowledgeCluster(ctx context.Context, code string) (task.AlertStatus, error) {
	var a task.AlertStatus

	if err := task.CheckName("code", code); err != nil {
		return a, err
	}
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/cluster/alerts/" + code + "/acknowledge"}, &a)

	return a, err
}

// SilenceRequest is the body of a request to hold back messages. Glob or Selector is required, and Until or For.
type SilenceRequest struct {
	Glob     string        `json:"glob,omitempty" doc:"The names of the tasks, such as web-*; * for all tasks of the namespace."`
	Selector string        `json:"selector,omitempty" doc:"Alternative to glob: the labels of the tasks, such as team=data."`
	Until    task.Time     `json:"until,omitzero" doc:"When the silence ends, at most 30 days from now."`
	For      task.Duration `json:"for,omitzero" doc:"Alternative to until: the duration from now, by the clock of the server."`
	Reason   string        `json:"reason" doc:"At most 256 bytes."`
}

// Silenced is a new silence.
type Silenced struct {
	task.AlertSilence
	Alerts int `json:"alerts" doc:"The number of alerts that are open now and silenced by it."`
}

// Silence holds back messages about the alerts of some tasks of a namespace. With dryRun, it only checks the request and returns what would
// be silenced.
func (s *AlertsService) Silence(ctx context.Context, namespace string, r SilenceRequest, dryRun bool) (Silenced, error) {
	var silenced Silenced

	path, err := namespacePath(namespace, "/silences")
	if err != nil {
		return silenced, err
	}

	q := url.Values{}
	if dryRun {
		q.Set(dryRunParam, "true")
	}
	err = s.conn.doCall(ctx, call{method: http.MethodPost, path: path, query: q, body: r}, &silenced)

	return silenced, err
}

// Silences returns the silences of a namespace ("": of all namespaces) that are in force, the first to end first.
func (s *AlertsService) Silences(ctx context.Context, namespace string) ([]task.AlertSilence, error) {
	path, err := namespacePath(namespace, "/silences")
	if err != nil {
		return nil, err
	}

	return getItems[task.AlertSilence](ctx, s.conn, path)
}

// EndSilence ends a silence before its time. It returns task.ErrNotFound if there is none, or if it has ended.
func (s *AlertsService) EndSilence(ctx context.Context, namespace, id string) (task.AlertSilence, error) {
	var silence task.AlertSilence

	if err := task.CheckName("silence", id); err != nil {
		return silence, err
	}
	path, err := namespacePath(namespace, "/silences/"+id)
	if err != nil {
		return silence, err
	}
	err = s.conn.doCall(ctx, call{method: http.MethodDelete, path: path}, &silence)

	return silence, err
}

// AlertRuleRequest is the body of a request to create or replace a rule of alerts.
type AlertRuleRequest struct {
	Description string      `json:"description,omitempty" doc:"What it is for, as text."`
	Selector    string      `json:"selector,omitempty" doc:"The labels of the tasks, such as team=data; by default all tasks of the namespace."`
	Alerts      task.Alerts `json:"alerts" doc:"What is expected of them, as in the field alerts of a task."`
}

// AlertRuleChange is the answer to a change of a rule.
type AlertRuleChange struct {
	task.AlertRule
	Warnings []string `json:"warnings,omitempty" doc:"What the author should check, such as a receiver that does not exist."`
}

// Rules returns the rules of alerts of a namespace ("": of all namespaces), by name.
func (s *AlertsService) Rules(ctx context.Context, namespace string) ([]task.AlertRule, error) {
	path, err := namespacePath(namespace, "/alert-rules")
	if err != nil {
		return nil, err
	}

	return getItems[task.AlertRule](ctx, s.conn, path)
}

// Rule returns a rule of alerts. It returns task.ErrNotFound if there is none.
func (s *AlertsService) Rule(ctx context.Context, namespace, name string) (task.AlertRule, error) {
	var rule task.AlertRule
	path, err := rulePath(namespace, name)
	if err != nil {
		return rule, err
	}
	err = s.conn.doCall(ctx, call{method: http.MethodGet, path: path}, &rule)

	return rule, err
}

// SetRule creates or replaces a rule of alerts. With dryRun, it only checks the request and returns the rule as it would be.
func (s *AlertsService) SetRule(ctx context.Context, namespace, name string, r AlertRuleRequest, dryRun bool) (AlertRuleChange, error) {
	var change AlertRuleChange
	path, err := rulePath(namespace, name)
	if err != nil {
		return change, err
	}

	q := url.Values{}
	if dryRun {
		q.Set(dryRunParam, "true")
	}
	err = s.conn.doCall(ctx, call{method: http.MethodPut, path: path, query: q, body: r}, &change)

	return change, err
}

// DeleteRule deletes a rule of alerts. It returns task.ErrNotFound if there is none.
func (s *AlertsService) DeleteRule(ctx context.Context, namespace, name string) error {
	path, err := rulePath(namespace, name)
	if err != nil {
		return err
	}

	return s.conn.doCall(ctx, call{method: http.MethodDelete, path: path}, nil)
}

// rulePath returns the path of a rule.
func rulePath(namespace, name string) (string, error) {
	if err := task.CheckName("rule", name); err != nil {
		return "", err
	}
	if err := task.CheckName("namespace", namespace); err != nil {
		return "", err
	}

	return namespacePath(namespace, "/alert-rules/"+name)
}

// Test queues a run of a receiver with a message that says that it is a test.
func (s *AlertsService) Test(ctx context.Context, namespace, name string) (Triggered, error) {
	var r Triggered
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodPost}, &r, "test")

	return r, err
}
