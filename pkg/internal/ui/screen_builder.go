package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// newTaskScreen creates a task, and editTaskScreen changes one. Both show a form beside the task as YAML, and what the task
// would do. The page has two forms: one with fields, and one with the YAML. Each posts the whole task, so either can be
// used without scripts: the form with fields also contains the YAML that it began with, for the settings that it has no
// fields for.
func newTaskScreen() Screen {
	return Screen{
		Name: "new", Template: "builder", Pattern: "/ui/tasks/new", Nav: "tasks",
		Title: func(v *View) string {
			if from := v.Query.Get("from"); from != "" {
				return "Clone " + from
			}
			return "New task"
		},
		Load:    loadBuilder,
		Command: builderCommand,
		Actions: []Action{
			{Pattern: "/ui/tasks/new/preview", Run: previewTask},
			{Pattern: "/ui/tasks/new/save", Run: createTask},
		},
	}
}

func editTaskScreen() Screen {
	const pattern = "/ui/tasks/{ns}/{name}/edit"

	return Screen{
		Name: "edit", Template: "builder", Pattern: pattern, Nav: "tasks",
		Title:   func(v *View) string { return "Edit " + v.Value("name") },
		Load:    loadBuilder,
		Command: builderCommand,
		Actions: []Action{
			{Pattern: pattern + "/preview", Run: previewTask},
			{Pattern: pattern + "/save", Run: updateTask},
		},
	}
}

// builderPage is what the screens show.
type builderPage struct {
	Edit     bool
	Spec     task.Spec // what the forms contain
	Fields   builderFields
	YAML     string // what the form with YAML contains
	Base     string // the YAML that the form with fields adds to
	ByYAML   bool   // the form with YAML was sent
	Revision int64  // of the version that is edited
	Spaces   []string
	Zones    []string

	Preview  *builderPreview
	Conflict *builderConflict
}

// StepNames returns the names of the steps of a workflow, in an order in which they may run.
func (p builderPage) StepNames() []string {
	w := p.Spec.Action.Workflow
	if w == nil {
		return nil
	}
	order, cycle := w.StepNames()
	if cycle != nil {
		return slices.Sorted(maps.Keys(w.Steps))
	}

	return order
}

// builderConflict is a change that somebody else has made while the form was open.
type builderConflict struct {
	Revision int64 // of the stored version
	By       string
	At       task.Time
	Timezone string
	Fields   []fieldDiff // from the stored version to what was entered
}

// sentField is the field that says which of the two forms was sent. It must not be called "form": in the DOM, a field hides
// the property of its form that has the same name, and htmx reads the property form.
const sentField = "sent"

// The names of the two forms.
const (
	formFields = "fields"
	formYAML   = "yaml"
)

// isEdit reports whether a stored task is edited.
func isEdit(r *Request) bool { return r.Value("name") != "" }

func loadBuilder(ctx context.Context, r *Request) (any, error) {
	p := builderPage{
		Edit: isEdit(r), Spaces: r.Namespaces(), Zones: schedule.ZoneNames(""),
	}

	stored, err := storedSpec(ctx, r)
	if err != nil {
		return nil, err
	}
	p.Revision = stored.Revision

	if r.Form == nil {
		return p, p.showStored(ctx, r, stored.Spec)
	}

	return p, p.showEntered(ctx, r, stored)
}

// storedSpec returns the task that is edited or cloned, or a task with defaults.
func storedSpec(ctx context.Context, r *Request) (client.Task, error) {
	if isEdit(r) {
		return r.API.Tasks.Get(ctx, r.Value("ns"), r.Value("name"))
	}

	t := client.Task{}
	t.Spec = task.Defaults()
	switch {
	case r.Query.Has("receiver"):
		t.Spec = newReceiver()
	case r.Query.Has("workflow"):
		t.Action = task.Action{Workflow: exampleWorkflow()}
	}
	t.Namespace = cmp.Or(r.Query.Get("ns"), t.Namespace)
	from := r.Query.Get("from")
	if from == "" {
		return t, nil
	}

	ns, name, _ := strings.Cut(from, "/")
	source, err := r.API.Tasks.Get(ctx, ns, name)
	if err != nil {
		return t, err
	}

	t.Spec = source.Spec
	t.Name, t.Paused, t.PausedUntil, t.PauseReason = "", false, task.Time{}, ""

	return t, nil
}

// newReceiver returns a receiver of alerts that posts their text as many chat services expect it. Its address is missing.
func newReceiver() task.Spec {
	s := task.ReceiverDefaults(task.Action{HTTP: &task.HTTP{}})
	s.Action = task.Action{HTTP: &task.HTTP{JSON: json.RawMessage(`{"text":"${env.ALERT_TEXT}"}`)}}
	s.Accept.Env = []string{"ALERT_TEXT"}

	return s
}

// showStored fills in the forms with a task that nobody has changed yet.
func (p *builderPage) showStored(ctx context.Context, r *Request, s task.Spec) error {
	p.Spec, p.Fields = s, fieldsOf(s)
	var err error
	if p.YAML, err = yamlOf(s); err != nil {
		return err
	}
	p.Base = p.YAML

	if len(s.Schedule) > 0 && s.Name != "" {
		p.Preview, _ = makePreview(ctx, r, s) // it may be refused, for example by a namespace; saving says why
	}

	return nil
}

// showEntered fills in the forms with what was entered. The form that was sent is as it was, even if it is not valid. The
// other one shows the same task, if it is.
func (p *builderPage) showEntered(ctx context.Context, r *Request, stored client.Task) error {
	p.ByYAML = r.Form.Get(sentField) == formYAML
	p.YAML, p.Base = r.Form.Get("yaml"), r.Form.Get("base")
	if p.ByYAML {
		p.Base = p.YAML
	} else {
		p.YAML = p.Base
	}
	p.Fields = fieldsFrom(r.Form)

	s, err := enteredSpec(r)
	if err == nil {
		p.Spec = s
		text, err := yamlOf(s)
		if err != nil {
			return err
		}
		if p.ByYAML {
			p.Fields = fieldsOf(s)
		} else {
			p.YAML = text
		}
		p.Base = text
	} else if !p.ByYAML && s.Action.Workflow != nil {
		// The steps of a new workflow can be edited only in the YAML, so it shows them before the other fields are valid.
		text, err := yamlOf(s)
		if err != nil {
			return err
		}
		p.Spec, p.YAML, p.Base = s, text, text
	}
	p.Preview, _ = r.Result.(*builderPreview)

	if revision, _ := strconv.ParseInt(r.Form.Get("revision"), 10, 64); p.Edit && revision != stored.Revision {
		p.Conflict = &builderConflict{Revision: stored.Revision, By: stored.UpdatedBy.String(), At: stored.UpdatedAt, Timezone: stored.Timezone}
		if err == nil {
			p.Conflict.Fields = diffOf(stored.Spec, s)
		}
		if err == nil && p.Preview == nil {
			p.Preview, _ = makePreview(ctx, r, s)
		}
		p.Revision = revision
	}

	return nil
}

// enteredSpec returns the task that a form contains. Errors have the fields of the form; several are joined.
func enteredSpec(r *Request) (task.Spec, error) {
	ns := cmp.Or(r.Value("ns"), r.Form.Get("namespace"), task.Defaults().Namespace)
	byYAML := r.Form.Get(sentField) == formYAML
	text := r.Form.Get("base")
	if byYAML {
		text = r.Form.Get("yaml")
	}

	s, err := specFromYAML(text, ns, byYAML)
	if err != nil {
		return s, err
	}
	var faults []error
	if !byYAML {
		faults = append(faults, fieldsFrom(r.Form).apply(&s))
	}

	if isEdit(r) {
		for _, f := range []struct{ field, is, was string }{{"name", s.Name, r.Value("name")}, {"namespace", s.Namespace, r.Value("ns")}} {
			if f.is != f.was {
				faults = append(faults, task.Invalid(task.CodeBadValue, f.field, "%s: the %s of a task cannot change; it is %s", task.Quote(f.is), f.field, f.was))
			}
		}
	}

	return s, joinFormErrors(append(faults, manifest.CheckAll(&s))...)
}

// specFromYAML reads a task. If complete is not set, the text only has what the form with fields has no fields for, and may
// lack what a task needs. Errors are about the field "yaml", and say where they are.
func specFromYAML(text, ns string, complete bool) (task.Spec, error) {
	if !complete && strings.TrimSpace(text) == "" {
		s := task.Defaults()
		s.Namespace = ns
		return s, nil
	}

	objects, err := manifest.Read("task.yaml", []byte(text), ns)
	if err == nil && len(objects) != 1 {
		err = task.Invalid(task.CodeBadValue, "", "the text contains %d tasks; it must contain exactly one", len(objects))
	}
	if err == nil && complete {
		err = objects[0].Err
	}
	if err != nil {
		return task.Spec{}, locatedError(err)
	}

	return objects[0].Spec, nil
}

// locatedError is an error in the YAML, with its place in the message.
func locatedError(err error) error {
	var placed *manifest.Error
	if errors.As(err, &placed) {
		return task.Invalid(task.CodeBadValue, formYAML, "line %d, column %d: %s", placed.Line, placed.Column, placed.Err)
	}

	return task.Invalid(task.CodeBadValue, formYAML, "%s", err)
}

// previewTask shows what a task would do.
func previewTask(ctx context.Context, r *Request) (Done, error) {
	s, err := enteredSpec(r)
	if err != nil {
		return Done{}, err
	}
	p, err := makePreview(ctx, r, s)
	if err != nil {
		return Done{}, err
	}

	return Done{Result: p}, nil
}

// createTask creates the task of a form.
func createTask(ctx context.Context, r *Request) (Done, error) {
	s, err := enteredSpec(r)
	if err != nil {
		return Done{}, err
	}
	t, err := r.API.Tasks.Create(ctx, s.Namespace, s)
	if err != nil {
		return Done{}, err
	}

	return savedTask(r, t, client.Created)
}

// updateTask changes a task, unless somebody else has changed it since the form was opened.
func updateTask(ctx context.Context, r *Request) (Done, error) {
	s, err := enteredSpec(r)
	if err != nil {
		return Done{}, err
	}

	text := cmp.Or(r.Form.Get("over"), r.Form.Get("revision"))
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil || revision <= 0 {
		return Done{}, task.Invalid(task.CodeBadValue, "revision", "%s is not a revision; open the page again", task.Quote(text))
	}
	t, err := r.API.Tasks.Apply(ctx, s, client.ApplyOptions{Revision: revision})
	if errors.Is(err, task.ErrStale) {
		return Done{}, &client.Error{
			Status: http.StatusPreconditionFailed, Code: client.CodeStale,
			Message: "nothing was saved, because somebody else has changed the task since you opened this page", Hint: "compare both versions below",
		}
	}
	if err != nil {
		return Done{}, err
	}

	return savedTask(r, t, t.Result)
}

// savedTask leads to the page of a task that was written.
func savedTask(r *Request, t client.Task, result string) (Done, error) {
	message := result + " " + t.Name
	switch result {
	case client.Configured:
		message = "saved " + t.Name
	case client.Unchanged:
		message = "nothing has changed in " + t.Name
	}
	if !t.Next.IsZero() && !t.Paused {
		message += " · next " + t.Next.In(r.Zone(t.Timezone)).Format("Mon 2 Jan 15:04 MST")
	}
	for _, w := range t.Warnings {
		message += " · " + w
	}
	to, err := link("/ui/tasks/{}/{}", nil, []any{t.Namespace, t.Name})

	return Done{To: to, Message: message}, err
}

// builderCommand returns the command line that does the same.
func builderCommand(v *View) []string {
	if name := v.Value("name"); name != "" {
		return []string{"carillon", "task", "edit", name, "-n", v.Value("ns")}
	}
	if ns, name, ok := strings.Cut(v.Query.Get("from"), "/"); ok {
		return commandWith([]string{"carillon", "task", "export", "-n", ns}, []string{name})
	}
	return []string{"carillon", "apply", "-f", "task.yaml"}
}

// BuilderPath returns the path to which the forms post: for a preview, or to save.
func (v *View) BuilderPath(what string) (string, error) {
	if isEdit(v.Request) {
		return v.Link("/ui/tasks/{}/{}/edit/"+what, v.Value("ns"), v.Value("name"))
	}
	return v.Link("/ui/tasks/new/" + what)
}

// Invalid returns the attributes of a field of a form that an action has refused, and nothing for others.
func (v *View) Invalid(field string) template.HTMLAttr {
	if !v.Faulty(field) {
		return ""
	}
	return template.HTMLAttr(`aria-invalid="true" aria-describedby="` + field + `-error"`) //nolint:gosec // fields are paths of the table of fields, or literals of templates
}

// Fault returns the error of a field of a form, to be shown below it.
func (v *View) Fault(field string) template.HTML {
	if !v.Faulty(field) {
		return ""
	}
	return template.HTML(`<p class="error" id="` + field + `-error">` + template.HTMLEscapeString(v.Problem.messageAbout(field)) + `</p>`) //nolint:gosec // the text is escaped
}
