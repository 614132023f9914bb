package ui

import (
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// builderFields are the fields of the form, as texts. The names of the inputs are the paths of the fields of a task.
type builderFields struct {
	Name, Namespace, Description, Labels string
	Schedule, Timezone, Jitter           string
	Kind, Process, Env, User, Dir        string
	Method, URL, Headers, Body, Expect   string
	Timeout, Overlap, Missed             string
	Attempts, Backoff, PauseAfter        string
	Selector, Strategy, Count, Keep      string
}

// The kinds of actions.
const (
	kindCommand = "command"
	kindShell   = "shell"
	kindHTTP    = "http"
	kindNoop    = "noop"
)

// inputs returns where the value of each input is.
func (f *builderFields) inputs() map[string]*string {
	return map[string]*string{
		"name": &f.Name, "namespace": &f.Namespace, "description": &f.Description, "labels": &f.Labels,
		"schedule": &f.Schedule, "timezone": &f.Timezone, "jitter": &f.Jitter,
		"kind": &f.Kind, "action.process": &f.Process, "action.process.env": &f.Env, "action.process.user": &f.User, "action.process.dir": &f.Dir,
		"action.http.method": &f.Method, "action.http.url": &f.URL, "action.http.headers": &f.Headers, "action.http.body": &f.Body,
		"action.http.expect.status": &f.Expect,
		"timeout":                   &f.Timeout, "overlap": &f.Overlap, "missed.policy": &f.Missed,
		"retry.attempts": &f.Attempts, "retry.backoff": &f.Backoff, "pause_after_failures": &f.PauseAfter,
		"target.selector": &f.Selector, "target.strategy": &f.Strategy, "target.count": &f.Count, "history.keep": &f.Keep,
	}
}

// fieldsFrom returns the fields as they were entered.
func fieldsFrom(form url.Values) builderFields {
	var f builderFields
	for name, value := range f.inputs() {
		*value = strings.ReplaceAll(form.Get(name), "\r\n", "\n")
	}
	if use := form.Get("use"); use != "" { // the button that takes another minute
		f.Schedule = use
	}

	return f
}

// fieldsOf returns the fields of a task.
func fieldsOf(s task.Spec) builderFields {
	f := builderFields{
		Name: s.Name, Namespace: s.Namespace, Description: s.Description, Labels: pairsText(s.Labels),
		Schedule: strings.Join(s.Schedule, "\n"), Timezone: s.Timezone, Kind: kindCommand,
		Overlap: s.Overlap, Missed: s.Missed.Policy, Attempts: strconv.Itoa(s.Retry.Attempts), Backoff: s.Retry.Backoff.String(),
		Selector: s.Target.Selector, Strategy: s.Target.Strategy, Count: s.Target.Count.String(), Keep: strconv.Itoa(s.History.Keep),
	}
	if s.Jitter > 0 {
		f.Jitter = s.Jitter.String()
	}
	if s.Timeout > 0 {
		f.Timeout = s.Timeout.String()
	}
	if s.PauseAfter > 0 {
		f.PauseAfter = strconv.Itoa(s.PauseAfter)
	}

	switch p := s.Action.Process; {
	case s.Action.Noop != nil:
		f.Kind = kindNoop
	case s.Action.HTTP != nil:
		h := s.Action.HTTP
		f.Kind, f.Method, f.URL, f.Body = kindHTTP, h.Method, h.URL, bodyField(h)
		f.Headers, f.Expect = headersText(h.Headers), strings.Join(h.Expect.Status, ", ")
	case p != nil:
		f.Env, f.User, f.Dir = pairsText(p.Env), p.User, p.Dir
		f.Process = wording.CommandLine(p.Command)
		if p.Shell != "" {
			f.Kind, f.Process = kindShell, p.Shell
		}
	}

	return f
}

// pairsText returns names and values, one pair on each line.
func pairsText(pairs map[string]string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		lines = append(lines, name+"="+pairs[name])
	}
	return strings.Join(lines, "\n")
}

// headersText returns the headers of a request, one on each line.
func headersText(headers map[string]string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		lines = append(lines, name+": "+headers[name])
	}
	return strings.Join(lines, "\n")
}

// parseHeaders reads headers, one on each line.
func parseHeaders(text string) (map[string]string, error) {
	const field = "action.http.headers"
	var headers map[string]string

	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}

		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, task.Invalid(task.CodeBadValue, field, "%s: write one NAME: VALUE on each line", task.Quote(line))
		}
		if _, twice := headers[name]; twice {
			return nil, task.Invalid(task.CodeDuplicate, field, "%s is set twice", task.Quote(name))
		}

		if headers == nil {
			headers = map[string]string{}
		}
		headers[name] = strings.TrimSpace(value)
	}

	return headers, nil
}

// apply writes the fields into a task. Parts of the task without a field in the form stay as they are. It returns the errors of all fields
// that cannot be read, joined.
func (f builderFields) apply(s *task.Spec) error {
	s.Name, s.Namespace, s.Description = strings.TrimSpace(f.Name), strings.TrimSpace(f.Namespace), f.Description
	s.Timezone, s.Overlap, s.Missed.Policy = strings.TrimSpace(f.Timezone), f.Overlap, f.Missed
	s.Target.Selector, s.Target.Strategy = strings.TrimSpace(f.Selector), f.Strategy

	if s.Timezone == "" {
		s.Timezone = task.Defaults().Timezone
	}
	var faults []error
	add := func(err error) { faults = append(faults, err) }
	labels, err := parsePairs("labels", f.Labels)
	s.Labels = labels
	add(err)

	s.Schedule = nil
	for line := range strings.Lines(f.Schedule) {
		if line = strings.TrimSpace(line); line != "" {
			s.Schedule = append(s.Schedule, line)
		}
	}
	if len(s.Schedule) == 0 {
		add(task.Invalid(task.CodeRequired, "schedule", "is required: a cron expression such as 30 2 * * *, @every 90s, or @manual"))
	}

	add(f.applyAction(s))
	add(f.applyNumbers(s))

	return errors.Join(faults...)
}

// applyAction writes what the task does.
func (f builderFields) applyAction(s *task.Spec) (err error) {
	if f.Kind == kindNoop {
		s.Action = task.Action{Noop: &task.Noop{}}
		return nil
	}
	if f.Kind == kindHTTP {
		return f.applyRequest(s)
	}

	p := task.Process{}
	if s.Action.Process != nil {
		p = *s.Action.Process
	}
	p.User, p.Dir, p.Command, p.Shell = strings.TrimSpace(f.User), strings.TrimSpace(f.Dir), nil, ""
	if p.Env, err = parsePairs("action.process.env", f.Env); err != nil {
		return err
	}

	if strings.TrimSpace(f.Process) == "" {
		return task.Invalid(task.CodeRequired, "action.process", "is required: what the task runs")
	}
	if f.Kind == kindShell {
		p.Shell = f.Process
	} else if p.Command, err = splitCommand(f.Process); err != nil {
		return err
	}
	s.Action = task.Action{Process: &p}

	return nil
}

// bodyField returns the body of a request as the form shows it: JSON or text. It has the line breaks that a browser sends
// back, so that a body that nobody has edited is recognized.
func bodyField(h *task.HTTP) string {
	if len(h.JSON) > 0 {
		return wording.JSONText(h.JSON)
	}
	return strings.TrimPrefix(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(h.Body), "\n")
}

// applyRequest writes the request of a task. A new body that is JSON is sent as JSON. A body that is a form has no field
// here, and stays.
func (f builderFields) applyRequest(s *task.Spec) (err error) {
	h := task.HTTP{}
	if s.Action.HTTP != nil {
		h = *s.Action.HTTP
	}

	h.Method, h.URL = f.Method, strings.TrimSpace(f.URL)
	if f.Body != bodyField(&h) {
		wasText := h.Body != ""
		h.JSON, h.Body = nil, f.Body

		if b, err := json.Marshal(json.RawMessage(strings.TrimSpace(f.Body))); !wasText && err == nil {
			h.JSON, h.Body = b, ""
		}
	}

	// Headers that nobody has edited stay as they are, with their spaces.
	if f.Headers != headersText(h.Headers) {
		if h.Headers, err = parseHeaders(f.Headers); err != nil {
			return err
		}
	}

	h.Expect.Status = nil
	for status := range strings.FieldsFuncSeq(f.Expect, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		h.Expect.Status = append(h.Expect.Status, status)
	}

	if h.URL == "" {
		return task.Invalid(task.CodeRequired, "action.http.url", "is required: where the request goes")
	}
	s.Action = task.Action{HTTP: &h}

	return nil
}

// applyNumbers writes durations and numbers. An empty field means its default.
func (f builderFields) applyNumbers(s *task.Spec) error {
	std := task.Defaults()
	var faults []error
	for _, d := range []struct {
		field, text string
		to          *task.Duration
		empty       task.Duration
	}{{"jitter", f.Jitter, &s.Jitter, 0}, {"timeout", f.Timeout, &s.Timeout, 0}, {"retry.backoff", f.Backoff, &s.Retry.Backoff, std.Retry.Backoff}} {
		*d.to = d.empty
		if text := strings.TrimSpace(d.text); text != "" {
			v, err := task.ParseDuration(d.field, text)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			*d.to = v
		}
	}

	count := int(s.Target.Count)
	for _, n := range []struct {
		field, text string
		to          *int
		empty       int
	}{{"retry.attempts", f.Attempts, &s.Retry.Attempts, std.Retry.Attempts}, {"pause_after_failures", f.PauseAfter, &s.PauseAfter, 0}, {"history.keep", f.Keep, &s.History.Keep, std.History.Keep}, {"target.count", f.Count, &count, 1}} {
		*n.to = n.empty
		switch text := strings.TrimSpace(n.text); {
		case text == "":
		case text == "all" && n.field == "target.count":
			*n.to = int(task.All)
		default:
			v, err := strconv.Atoi(text)
			if err != nil {
				faults = append(faults, task.Invalid(task.CodeBadValue, n.field, "%s is not a number", task.Quote(text)))
				continue
			}
			*n.to = v
		}
	}
	s.Target.Count = task.Count(count)

	return errors.Join(faults...)
}

// splitCommand splits a command line into words. Quotes and backslashes work as in a shell; nothing else does.
func splitCommand(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune // the quote that is open; 0: none
	open, escaped := false, false

	for _, c := range text {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			open, escaped = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, open = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if open {
				words = append(words, word.String())
				word.Reset()
			}
			open = false
		default:
			open = true
			word.WriteRune(c)
		}
	}

	if quote != 0 || escaped {
		return nil, task.Invalid(task.CodeBadValue, "action.process", "%s: a quote is not closed, or a backslash is at the end", task.Quote(text))
	}
	if open {
		words = append(words, word.String())
	}

	return words, nil
}
