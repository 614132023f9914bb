package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The end of a run's output is output: only callers with the right to read it get it, by whichever answer.
func TestAccess_TheEndOfTheOutputNeedsOutput(t *testing.T) {
	const secret = "the-password-is-hunter2"
	w := newWorld(t)
	w.bind("user:aud", "auditor")
	w.bind("user:vic", "viewer", "default")
	_, err := w.Bindings.Put(t.Context(), task.Binding{
		Name: "lab", Role: "viewer", Subjects: []string{"user:lab"}, Namespaces: []string{"default"}, Labels: map[string]string{"team": "web"},
	}, client.Writing{})
	must(t, err)

	made := w.create("a", "@hourly")
	at := id(1, made.UID)
	w.ended("a", at, task.Failed, func(r *task.Run) { r.UID, r.OutputTail = made.UID, secret })
	r := ref("default", "a")
	w.put(w.store.Keys().DeadRun(r, at), task.Waiting{Run: w.ended("a", at, task.Failed, func(r *task.Run) { r.UID, r.OutputTail = made.UID, secret })})

	const base = "/v1/namespaces/default"
	paths := []string{
		base + "/tasks/a", base + "/tasks", "/v1/tasks?recent=3",
		base + "/tasks/a/runs", base + "/runs", "/v1/runs", base + "/runs?task=a", base + "/tasks/a/runs?dead=true", "/v1/runs?dead=true",
		base + "/tasks/a/runs/" + at, base + "/runs/" + at, base + "/tasks/a/why?at=2026-11-20T20:01:00Z",
	}

	for subject, has := range map[string]bool{"user:aud": false, "user:vic": true, "user:lab": false} {
		token := w.token(subject)
		for _, path := range paths {
			answer := w.as(token, "GET", path, "")
			if wantStatus(t, subject+" "+path, answer, 200, ""); !strings.Contains(answer.body, at) {
				t.Errorf("%s %s: without the run: %s", subject, path, answer.body)
			}
			if strings.Contains(answer.body, secret) != has {
				t.Errorf("%s %s: has the output: %v, want %v: %s", subject, path, !has, has, answer.body)
			}
		}
	}
}

// Answers to changes of runs contain no output either.
func TestAccess_AnswersToChangesOfRunsHaveNoOutputWithoutTheRight(t *testing.T) {
	const secret = "the-password-is-hunter2"
	w := newWorld(t)
	w.role("janitor", task.Rule{Verbs: []string{"read"}, Objects: []string{"tasks"}}, task.Rule{Verbs: []string{"read", "cancel", "pause", "retry"}, Objects: []string{"runs"}})
	w.bindRole("user:jan", "janitor", "default")
	token := w.token("user:jan")

	made := w.create("a", "@hourly")
	dead := id(1, made.UID)
	w.put(w.store.Keys().DeadRun(ref("default", "a"), dead), task.Waiting{Run: task.Run{
		UID: made.UID, State: task.Failed, Attempt: 1, Trigger: task.TriggerSchedule, OutputSummary: task.OutputSummary{OutputTail: secret},
	}})
	active := id(2, made.UID)
	w.put(w.store.Keys().Run("node-a", ref("default", "a"), active), task.Assigned{Instance: "i", Run: task.Run{
		UID: made.UID, State: task.Running, Attempt: 1, Trigger: task.TriggerSchedule, OutputSummary: task.OutputSummary{OutputTail: secret},
	}})

	for _, path := range []string{dead + "/dismiss", active + "/pause", active + "/resume", active + "/cancel"} {
		answer := w.as(token, "POST", "/v1/namespaces/default/tasks/a/runs/"+path, "")
		if wantStatus(t, path, answer, 200, ""); strings.Contains(answer.body, secret) {
			t.Errorf("%s: %s", path, answer.body)
		}
	}
}

// What tells of runs needs read on runs, also in the view of a task.
func TestAccess_RunsOfATaskNeedReadOnRuns(t *testing.T) {
	w := newWorld(t)
	w.role("planner", task.Rule{Verbs: []string{"read", "update"}, Objects: []string{"tasks"}})
	w.bindRole("user:pia", "planner", "default")
	token := w.token("user:pia")
	made := w.create("a", "@hourly")
	run := id(1, made.UID)
	w.ended("a", run, task.Failed, func(r *task.Run) { r.UID = made.UID })
	w.active("node-a", "a", id(2, made.UID))

	const base = "/v1/namespaces/default/tasks"
	for _, path := range []string{base + "/a", base + "?recent=5", "/v1/tasks?recent=5"} {
		answer := w.as(token, "GET", path, "")
		if wantStatus(t, path, answer, 200, ""); strings.Contains(answer.body, "last_run") || strings.Contains(answer.body, `"recent"`) || strings.Contains(answer.body, made.UID+`"`) && strings.Contains(answer.body, run) {
			t.Errorf("%s: %s", path, answer.body)
		}
	}

	answer := w.as(token, "PATCH", base+"/a", `{"timeout":"1m"}`, "Content-Type", mergePatch)
	if wantStatus(t, "a change", answer, 200, ""); strings.Contains(answer.body, "last_run") {
		t.Errorf("a change: %s", answer.body)
	}

	wantStatus(t, "why", w.as(token, "GET", base+"/a/why", ""), 403, client.CodeForbidden)
	for _, order := range []string{"last", "lateness"} {
		wantStatus(t, "order by "+order, w.as(token, "GET", base+"?sort="+order, ""), 403, client.CodeForbidden)
	}
}

// role creates a role.
func (w *world) role(name string, rules ...task.Rule) {
	w.t.Helper()
	_, err := w.Roles.Put(w.t.Context(), task.Role{Name: name, Rules: rules}, client.Writing{})
	must(w.t, err)
}

// bindRole gives a role to a subject in namespaces.
func (w *world) bindRole(subject, role string, namespaces ...string) {
	w.t.Helper()
	_, err := w.Bindings.Put(w.t.Context(), task.Binding{Name: fmt.Sprint("b", task.NewUID()), Role: role, Subjects: []string{subject}, Namespaces: namespaces}, client.Writing{})
	must(w.t, err)
}
