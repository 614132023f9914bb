package ui

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// The form has an input for every field of a task, with what the tags of the field say.
func TestBuilder_HasEveryField(t *testing.T) {
	w := newWorld(t)
	page := w.as("user:ann").page("/ui/tasks/new")
	covered := []string{"action.process.command", "action.process.shell", "action.http.json", "action.noop"} // by the kind, the command and the body

	for _, f := range task.Flatten(task.SpecFields()) {
		if f.Type == "object" || slices.Contains(covered, f.Path) || strings.Contains(f.Path, "[]") {
			continue
		}
		if n := strings.Count(page, `name="`+f.Path+`"`); n != 1 {
			t.Errorf("the form has %d inputs %s", n, f.Path)
		}
	}

	want(t, page, `title="Each wait varies at random by up to this fraction of it. (number, 0 to 1)"`, "skip (default)", "<option>replace</option>", "empty: the daemon&#39;s")
}

// Fields of all types are edited as texts, and stay as they are if nobody edits them.
func TestBuilder_EditsFieldsOfAllTypes(t *testing.T) {
	w := newWorld(t)
	ledger, mask := task.Duration(48*time.Hour), false
	w.create("prod", "web", func(s *task.Spec) {
		s.Retry.On, s.Retry.ExitCodes = []task.State{task.Failed, task.Lost}, []int{3, 4}
		s.Target.Count, s.Output.Limit, s.Output.Mask, s.History.Ledger = task.All, 10<<20, &mask, &ledger
		s.Description = "one\ntwo\n"
		s.Start = task.At(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC))
		s.Action.Process.EnvFrom = []task.EnvFrom{{File: "/etc/env", Optional: true}}
		s.Action.Process.Stdin = &task.Stdin{Text: "\nx\n"}
		s.Action.Process.Groups = []string{}
		s.Accept.Env = []string{"a b", "c"}
	})
	ann, before := w.as("user:ann"), w.stored("prod", "web")

	form := builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("save: %d %s", a.StatusCode, a.body)
	}
	if changes := task.Differences(before.Spec, w.stored("prod", "web").Spec); len(changes) > 0 {
		t.Errorf("the form has changed %q", changes)
	}

	for path, text := range map[string]string{
		"retry.on": "failed timed_out", "retry.exit_codes": "7", "retry.jitter": "0.5", "target.count": "", "output.mask": "true", "history.ledger": "",
		"start": "2026-12-24 18:00", "timezone": "Europe/Berlin", "accept.env": `["DAY"]`, "action.process.limits.memory": "64Mi", "action.process.stdin.text": "y",
		"shadow": "true", "action.http.redirects": "3",
	} {
		form.Set(path, text)
	}
	if a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("save: %d %s", a.StatusCode, a.body)
	}

	s := w.stored("prod", "web").Spec
	if !slices.Equal(s.Retry.On, []task.State{task.Failed, task.TimedOut}) || !slices.Equal(s.Retry.ExitCodes, []int{7}) || s.Retry.Jitter != 0.5 ||
		s.Target.Count != 1 || !s.Output.MasksSecrets() || s.History.Ledger != nil || !s.Start.Equal(time.Date(2026, 12, 24, 17, 0, 0, 0, time.UTC)) ||
		!slices.Equal(s.Accept.Env, []string{"DAY"}) || s.Action.Process.Limits.Memory != 64<<20 || s.Action.Process.Stdin.Text != "y" || !s.Shadow || s.Action.HTTP != nil {
		t.Errorf("got %+v", s)
	}

	form = builderForm(t, ann.page("/ui/tasks/prod/web/edit"))
	form.Set("retry.factor", "0.5")
	form.Set("paused_until", "tomorrow")
	a := ann.do(http.MethodPost, "/ui/tasks/prod/web/edit/save", form)
	want(t, a.body, `<details class="more" open>`, `id="retry.factor-error"`, "0.5 is not between 1 and 100", `id="paused_until-error"`)
}
