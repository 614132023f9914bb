package alert

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// maxOutput is the most bytes of the end of an output in ALERT_JSON.
const maxOutput = 600

// Document is the value of ALERT_JSON.
type Document struct {
	Title    string    `json:"title"`
	Action   string    `json:"action"`
	Key      string    `json:"key"`
	Severity string    `json:"severity"`
	Receiver string    `json:"receiver"`
	At       task.Time `json:"at"`
	URL      string    `json:"url,omitempty"`
	Test     bool      `json:"test,omitempty"`

	Opened   []DocumentAlert `json:"opened,omitempty"`
	Closed   []DocumentAlert `json:"closed,omitempty"`
	Repeated []DocumentAlert `json:"repeated,omitempty"`
	// NotNamed is how many alerts of the message are not in these lists.
	NotNamed int `json:"not_named,omitempty"`

	Open     map[string]int `json:"open,omitempty"` // by namespace, with those of this message
	Silenced int            `json:"silenced,omitempty"`
}

// DocumentAlert is an alert in a Document.
type DocumentAlert struct {
	Namespace string                 `json:"namespace,omitempty"`
	Task      string                 `json:"task,omitempty"`
	Code      string                 `json:"code,omitempty"`
	Kind      task.AlertKind         `json:"kind"`
	Key       string                 `json:"key"`
	Severity  string                 `json:"severity"`
	Since     task.Time              `json:"since,omitzero"`
	Deadline  task.Time              `json:"deadline,omitzero"`
	More      map[task.AlertKind]int `json:"more,omitempty"`
	Closed    *task.AlertClose       `json:"closed,omitempty"`

	// A plain message has none of the following.
	Text         string            `json:"text,omitempty"` // what happened, in words
	Failures     int               `json:"failures,omitempty"`
	Run          string            `json:"run,omitempty"`
	Node         string            `json:"node,omitempty"`
	State        task.State        `json:"state,omitempty"`
	ExitCode     *int              `json:"exit_code,omitempty"`
	HTTPStatus   int               `json:"http_status,omitempty"`
	Output       string            `json:"output,omitempty"`
	Description  string            `json:"description,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	LastSuccess  task.Time         `json:"last_success,omitzero"`
	Next         task.Time         `json:"next,omitzero"`
	NoNext       string            `json:"no_next,omitempty"`
	Openings     int               `json:"openings,omitempty"`
	Acknowledged *task.AlertMark   `json:"acknowledged,omitempty"`
	URL          string            `json:"url,omitempty"`
}

// json returns ALERT_JSON, at most MaxJSON bytes. If it is too long, the last alerts have no texts, and then they are only counted.
func (w *writer) json() string {
	detailed := len(w.named)
	if w.m.Plain {
		detailed = 0
	}

	text := w.encodeDocument(w.named, detailed)
	for ; len(text) > MaxJSON && detailed > 0; text = w.encodeDocument(w.named, detailed) {
		detailed--
	}

	for named := w.named; len(text) > MaxJSON && len(named) > 0; text = w.encodeDocument(named, 0) {
		named = named[:len(named)-1]
	}

	if len(text) <= MaxJSON {
		return text
	}

	// Only the numbers of thousands of namespaces can still be too long.
	least := *w.m
	least.Opened, least.Closed, least.Repeated, least.PublicURL = nil, nil, nil, ""
	least.Unnamed, least.Open = 0, map[string]int{"": totalCount(w.m.Open)}

	return newWriter(&least).encodeDocument(nil, 0)
}

// totalCount returns the sum of counts.
func totalCount(counts map[string]int) int {
	sum := 0
	for _, n := range counts {
		sum += n
	}

	return sum
}

// encodeDocument returns the document with some of the alerts of the message, the first of them with details.
func (w *writer) encodeDocument(named []*Item, detailed int) string {
	d := Document{
		Title: w.title, Action: w.action(), Key: w.key(), Severity: w.m.severity(), Receiver: short(w.m.Receiver), At: task.At(w.m.Now),
		URL: w.url(w.single), Test: w.m.Test, Open: map[string]int{}, Silenced: w.m.Silenced,
		NotNamed: len(w.m.Opened) + len(w.m.Closed) + len(w.m.Repeated) - len(named) + w.m.Unnamed,
	}

	for ns, n := range w.m.Open {
		d.Open[short(ns)] += n
	}

	for i, item := range named {
		a := w.documentAlert(item, i >= detailed)
		switch w.changes[item] {
		case isOpened:
			d.Opened = append(d.Opened, a)
		case isClosed:
			d.Closed = append(d.Closed, a)
		case isRepeated:
			d.Repeated = append(d.Repeated, a)
		}
	}

	// A text is the same whether it is part of HTML or not. Escaped, it would be longer.
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(d) // cannot fail: all parts can be encoded

	return strings.TrimSuffix(b.String(), "\n")
}

// shortActor returns who did something, of limited length.
func shortActor(a *task.Actor) *task.Actor {
	if a == nil {
		return nil
	}
	return &task.Actor{Subject: short(a.Subject), Token: short(a.Token), Certificate: short(a.Certificate)}
}

// documentAlert returns an alert of the message. A brief one has no texts of its task.
func (w *writer) documentAlert(item *Item, brief bool) DocumentAlert {
	a := &item.Alert
	d := DocumentAlert{
		Namespace: short(a.Namespace), Task: short(a.Task), Code: short(a.Code), Kind: a.Kind, Key: FormatKey(KeyOf(w.m.Cluster, a)), Severity: a.Severity(),
		Since: a.Since, Deadline: a.Deadline, More: a.More,
	}
	if a.Closed != nil {
		d.Closed = &task.AlertClose{At: a.Closed.At, Why: task.AlertReason(short(string(a.Closed.Why))), Run: short(a.Closed.Run), Failures: a.Closed.Failures}
	}
	if brief {
		return d
	}

	d.Text, d.Failures, d.Run, d.URL = cutBytes(w.whatHappened(item), maxLine), a.Failures, short(a.Run), w.url(item)
	d.LastSuccess, d.Next, d.NoNext, d.Openings = item.LastSuccess, item.Next, short(item.NextWords), a.Openings
	if d.Closed != nil {
		d.Closed.By = shortActor(a.Closed.By)
	}
	if a.Acknowledged != nil {
		d.Acknowledged = &task.AlertMark{At: a.Acknowledged.At, By: shortActor(a.Acknowledged.By)}
	}

	for _, name := range []string{task.LabelOwner, task.LabelRunbook, task.LabelSeverity} {
		if value := short(a.Labels[name]); value != "" {
			if d.Labels == nil {
				d.Labels = map[string]string{}
			}
			d.Labels[name] = value
		}
	}

	if item.Task != nil {
		d.Description = cutBytes(firstLine(item.Task.Description), maxLine)
	}
	if r := item.Run; r != nil && w.changes[item] != isClosed { // of a closed alert, this is the run that closed it
		d.Node, d.State, d.ExitCode, d.HTTPStatus = short(r.Node), r.State, r.ExitCode, r.HTTPStatus
	}
	if w.mayShowOutput(item) {
		if d.Output = lastBytes(strings.TrimSpace(Clean(item.Run.OutputTail)), maxOutput); d.Output == "" {
			d.Output = cutBytes(messageOf(item.Run), maxOutput)
		}
	}

	return d
}
