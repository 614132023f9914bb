package ui

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// builderFields are the inputs of the form, as texts. The names of the inputs are the paths of the fields of a task.
type builderFields struct {
	Name, Namespace, Labels, Schedule, After string
	Kind, Process, Env, Headers, Body        string
	// Texts has all other fields of the table of fields, by their paths. Each is empty if the field has its default.
	Texts map[string]string
}

// The kinds of actions.
const (
	kindCommand = "command"
	kindShell   = "shell"
	kindHTTP    = "http"
	kindNoop    = "noop"
	kindSteps   = "workflow"
)

// inputs returns where the value of each input is that has a form of its own, such as one pair on each line.
func (f *builderFields) inputs() map[string]*string {
	return map[string]*string{
		"name": &f.Name, "namespace": &f.Namespace, "labels": &f.Labels, "schedule": &f.Schedule, "after": &f.After,
		"kind": &f.Kind, "action.process": &f.Process, "action.process.env": &f.Env, "action.http.headers": &f.Headers, "action.http.body": &f.Body,
	}
}

// plainFields returns the fields whose inputs have the text of --set: all but those with an input of their own, the parts of
// the action that these inputs cover, and the fields inside a list.
var plainFields = sync.OnceValue(func() []task.Field {
	covered := map[string]bool{"action.noop": true, "action.process.command": true, "action.process.shell": true, "action.http.json": true}
	for path := range (&builderFields{}).inputs() {
		covered[path] = true
	}

	return slices.DeleteFunc(task.Flatten(task.SpecFields()), func(f task.Field) bool {
		return covered[f.Path] || f.Type == "object" || strings.Contains(f.Path, "[]")
	})
})

// fieldsFrom returns the fields as they were entered.
func fieldsFrom(form url.Values) builderFields {
	f := builderFields{Texts: map[string]string{}}
	for name, value := range f.inputs() {
		*value = strings.ReplaceAll(form.Get(name), "\r\n", "\n")
	}
	for _, field := range plainFields() {
		if form.Has(field.Path) {
			f.Texts[field.Path] = asPosted(form.Get(field.Path))
		}
	}
	if use := form.Get("use"); use != "" { // the button that takes another minute
		f.Schedule = use
	}

	return f
}

// fieldsOf returns the fields of a task.
func fieldsOf(s task.Spec) builderFields {
	f := builderFields{
		Name: s.Name, Namespace: s.Namespace, Labels: pairsText(s.Labels), Schedule: strings.Join(s.Schedule, "\n"), After: sourcesText(s.After), Kind: kindCommand,
		Texts: plainTexts(s),
	}

	switch p := s.Action.Process; {
	case s.Action.Noop != nil:
		f.Kind = kindNoop
	case s.Action.Workflow != nil:
		f.Kind = kindSteps
	case s.Action.HTTP != nil:
		f.Kind, f.Headers, f.Body = kindHTTP, headersText(s.Action.HTTP.Headers), bodyField(s.Action.HTTP)
	case p != nil:
		f.Env, f.Process = pairsText(p.Env), wording.CommandLine(p.Command)
		if p.Shell != "" {
			f.Kind, f.Process = kindShell, p.Shell
		}
	}

	return f
}

// plainTexts returns the texts of the plain fields that differ from their defaults, by their paths.
func plainTexts(s task.Spec) map[string]string {
	texts := map[string]string{}
	least, err := manifest.MinimalSpec(s, false)
	if err != nil {
		return texts // a task that cannot be written as JSON does not exist
	}

	for _, f := range plainFields() {
		if value := valueAt(least, f.Path); value != nil {
			texts[f.Path] = plainText(value)
		}
	}

	return texts
}

// valueAt returns the value of a field in an object, or nil if it is not there.
func valueAt(object json.RawMessage, path string) json.RawMessage {
	for name := range strings.SplitSeq(path, ".") {
		var fields map[string]json.RawMessage
		if json.Unmarshal(object, &fields) != nil {
			return nil
		}
		object = fields[name]
	}

	return object
}

// plainText returns a value as in --set.
func plainText(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return asPosted(text)
	}

	// A list of words or numbers is easier to read without brackets.
	var list []any
	if json.Unmarshal(value, &list) == nil && len(list) > 0 {
		words := make([]string, len(list))
		for i, element := range list {
			words[i] = fmt.Sprint(element)
			if _, isObject := element.(map[string]any); isObject || words[i] == "" || strings.ContainsFunc(words[i], isListSeparator) {
				return wording.JSONText(value)
			}
		}
		return strings.Join(words, ", ")
	}

	return wording.JSONText(value)
}

// isListSeparator reports whether a character separates the elements of a list in an input.
func isListSeparator(r rune) bool { return r == ',' || unicode.IsSpace(r) }

// asPosted returns a text with the line breaks that a browser sends back, so that a text that nobody has edited is recognized.
func asPosted(text string) string {
	return strings.TrimPrefix(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text), "\n")
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
	before := plainTexts(*s)
	s.Name, s.Namespace = strings.TrimSpace(f.Name), strings.TrimSpace(f.Namespace)

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
	sources, err := parseSources(f.After)
	add(err)
	add(f.setSources(s, sources))

	if len(s.Schedule) == 0 {
		add(task.Invalid(task.CodeRequired, "schedule", "is required: a cron expression such as 30 2 * * *, @every 90s, or @manual; or name the tasks after which it runs"))
	}

	add(f.applyAction(s))
	add(f.applyTexts(s, before))

	if h := s.Action.HTTP; h != nil && h.URL == "" {
		add(task.Invalid(task.CodeRequired, "action.http.url", "is required: where the request goes"))
	}

	return errors.Join(faults...)
}

// setSources writes the tasks after which a task runs. A task without a schedule of its own then has the defaults of such tasks.
// With a schedule, there is no default for overlap, as in task files.
func (f builderFields) setSources(s *task.Spec, sources task.Sources) error {
	isNew := len(s.After) == 0
	if s.After = sources; len(sources) == 0 {
		return nil
	}

	if len(s.Schedule) == 0 {
		s.Schedule = task.Schedules{task.ManualSchedule}
	}
	switch {
	case !isNew || f.Texts["overlap"] != "":
	case s.Schedule.HasTicks():
		return task.Invalid(task.CodeRequired, "overlap", "is required for a task with a schedule and after")
	default:
		s.Overlap = task.DefaultsOf(*s).Overlap
	}

	return nil
}

// sourcesText returns the tasks after which a task runs, one on each line, with the results that it gets.
func sourcesText(sources task.Sources) string {
	lines := make([]string, len(sources))
	for i, s := range sources {
		lines[i] = strings.TrimSpace(s.String() + " " + strings.Join(s.Results, ", "))
	}

	return strings.Join(lines, "\n")
}

// parseSources reads the tasks after which a task runs: TASK or TASK:WHEN on each line, followed by names of results.
func parseSources(text string) (task.Sources, error) {
	var sources task.Sources
	for line := range strings.Lines(text) {
		words := strings.FieldsFunc(line, isListSeparator)
		if len(words) == 0 {
			continue
		}

		s := task.ParseSource(words[0])
		if s.Task == "" {
			return nil, task.Invalid(task.CodeBadValue, "after", "%s: write TASK, or TASK:failed, or TASK:ended", task.Quote(words[0]))
		}
		s.Results = words[1:]
		if len(s.Results) == 0 {
			s.Results = nil
		}
		sources = append(sources, s)
	}

	return sources, nil
}

// applyTexts writes the plain fields that have been edited. An empty text means the default.
func (f builderFields) applyTexts(s *task.Spec, before map[string]string) error {
	var faults []error
	changes := manifest.NewAssignments()

	for _, field := range plainFields() {
		text, posted := f.Texts[field.Path]
		isOfOtherKind := strings.HasPrefix(field.Path, "action.process.") && s.Action.Process == nil ||
			strings.HasPrefix(field.Path, "action.http.") && s.Action.HTTP == nil ||
			strings.HasPrefix(field.Path, "action.workflow.") && s.Action.Workflow == nil
		if !posted || isOfOtherKind || text == before[field.Path] {
			continue
		}

		if field.Type != "string" || field.MaxLen <= maxLine {
			text = strings.TrimSpace(text)
		}
		if field.Go.Kind() == reflect.Slice && !strings.HasPrefix(text, "[") {
			text = strings.Join(strings.FieldsFunc(text, isListSeparator), ",")
		}
		faults = append(faults, changes.Set(field.Path, text))
	}

	if err := manifest.ResolveTimes(changes.Patch, time.Time{}, func() (string, error) { return s.Timezone, nil }); err != nil {
		return errors.Join(append(faults, err)...)
	}

	changed, err := manifest.ApplyPatch(*s, changes.Patch)
	if err == nil {
		*s = changed
	}

	return errors.Join(append(faults, err)...)
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
	if f.Kind == kindSteps {
		// The form has no fields for steps: those of the YAML stay, and a new workflow begins with an example.
		if s.Action.Workflow == nil {
			s.Action = task.Action{Workflow: exampleWorkflow()}
		}
		return nil
	}

	p := task.Process{}
	if s.Action.Process != nil {
		p = *s.Action.Process
	}
	p.Command, p.Shell = nil, ""
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

// exampleWorkflow returns the steps with which a new workflow begins in the form.
func exampleWorkflow() *task.Workflow {
	shell := func(text string) *task.Process { return &task.Process{Shell: text} }

	return &task.Workflow{Steps: map[string]task.Step{
		"extract": {Process: shell(`echo 'files=["a.csv","b.csv"]' >> "$CARILLON_STATUS_FILE"`), Timeout: task.Duration(10 * time.Minute)},
		"load": {
			Needs: []string{"extract"}, Map: "${steps.extract.results.files}",
			Process: &task.Process{Shell: `echo "loading $FILE"`, Env: map[string]string{"FILE": "${item}"}},
		},
		"clean": {Needs: []string{"load"}, When: task.WhenAlways, Process: shell("echo cleaning up"), Timeout: task.Duration(5 * time.Minute)},
	}}
}

// bodyField returns the body of a request as the form shows it: JSON or text.
func bodyField(h *task.HTTP) string {
	if len(h.JSON) > 0 {
		return wording.JSONText(h.JSON)
	}
	return asPosted(h.Body)
}

// applyRequest writes the request of a task. A new body that is JSON is sent as JSON. A body that is a form has no field
// here, and stays.
func (f builderFields) applyRequest(s *task.Spec) (err error) {
	h := task.HTTP{}
	if s.Action.HTTP != nil {
		h = *s.Action.HTTP
	}

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

	s.Action = task.Action{HTTP: &h}

	return nil
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

// builderInput is an input for a plain field of a task.
type builderInput struct {
	View  *View
	Field task.Field
	Label string
	Value string
}

// maxLine is the maximum number of bytes of a text that is entered as one line.
const maxLine = 1024

// Input returns the input for a field. Without a label, it has the path of the field.
func (v *View) Input(p builderPage, path, label string) (builderInput, error) {
	f, ok := task.FindField(task.SpecFields(), path)
	if !ok {
		return builderInput{}, fmt.Errorf("%s is not a field of a task", path)
	}

	return builderInput{View: v, Field: f, Label: label, Value: p.Fields.Texts[path]}, nil
}

// ID returns the identifier of the input in the page.
func (i builderInput) ID() string { return "f-" + strings.ReplaceAll(i.Field.Path, ".", "-") }

// Class returns the class of the input.
func (i builderInput) Class() string { return kindClass(i.Field.Path) }

// kindClass returns the class of an input or a group: for which kind of action it is shown.
func kindClass(path string) string {
	switch {
	case strings.HasPrefix(path, "action.process"):
		return "for-process"
	case strings.HasPrefix(path, "action.http"):
		return "for-http"
	case strings.HasPrefix(path, "action.workflow"):
		return "for-workflow"
	}

	return ""
}

// Options returns the values among which one is chosen, apart from the default, or nil if the value is typed. They include the
// default of overlap, because a task with a schedule and sources has to choose.
func (i builderInput) Options() []string {
	var options []string
	switch i.Field.Type {
	case "boolean":
		options = []string{"true", "false"}
	case "string":
		options = slices.Clone(i.Field.Enum)
	}

	return slices.DeleteFunc(options, func(value string) bool { return value == i.Field.Default && i.Field.Path != "overlap" })
}

// IsText reports whether the value can have several lines.
func (i builderInput) IsText() bool { return i.Field.Type == "string" && i.Field.MaxLen > maxLine }

// Default describes the meaning of an empty input.
func (i builderInput) Default() string {
	return cmp.Or(wording.FieldDefault(i.Field), "not set")
}

// About returns what the field means, and which values it can have.
func (i builderInput) About() string { return i.Field.Doc + " (" + wording.FieldType(i.Field) + ")" }

// builderGroup is a group of inputs.
type builderGroup struct {
	Title string
	Paths []string
}

// Class returns the class of the group.
func (g builderGroup) Class() string { return kindClass(g.Title) }

// AnyFaulty reports whether an action has refused a field of the groups.
func (v *View) AnyFaulty(groups []builderGroup) bool {
	return slices.ContainsFunc(groups, func(g builderGroup) bool { return slices.ContainsFunc(g.Paths, v.Faulty) })
}

// shownFields are the plain fields that the form shows first. Its template lists them.
var shownFields = []string{
	"description", "timezone", "join", "jitter", "overlap", "missed.policy", "action.process.user", "action.process.dir", "action.http.method", "action.http.url",
	"action.http.expect.status", "action.workflow.on_failure", "timeout", "target.selector", "target.strategy", "target.count", "retry.attempts", "retry.backoff", "pause_after_failures", "history.keep",
	"alerts.notify", "alerts.failures", "alerts.success_within", "alerts.success_by",
}

// MoreFields returns the plain fields that the form does not show first, by the object that contains them.
func (p builderPage) MoreFields() []builderGroup {
	var groups []builderGroup
	for _, f := range plainFields() {
		if slices.Contains(shownFields, f.Path) {
			continue
		}

		title := "task"
		if at := strings.LastIndexByte(f.Path, '.'); at >= 0 {
			title = f.Path[:at]
		}

		at := slices.IndexFunc(groups, func(g builderGroup) bool { return g.Title == title })
		if at < 0 {
			at = len(groups)
			groups = append(groups, builderGroup{Title: title})
		}
		groups[at].Paths = append(groups[at].Paths, f.Path)
	}

	return groups
}
