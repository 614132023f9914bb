package api_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestAccept_ATriggerGivesWhatTheTaskAccepts(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.make("a", "@daily", func(s *task.Spec) { s.Accept = task.Accept{Args: 2, Env: []string{"DAY"}, Target: true} })

	// A caller who may trigger the task may give what it accepts, without any other right.
	w.bind("user:bob", "operator", "default")
	bob := w.token("user:bob")
	r := w.as(bob, "POST", "/v1/namespaces/default/tasks/a/trigger", `{"args":["--day","$(x)"],"env":{"DAY":"sesame"},"target":"n7"}`)
	wantStatus(t, "a trigger", r, http.StatusAccepted, "")

	runs, err := w.Runs.List(ctx, client.RunListOptions{})
	must(t, err)
	if len(runs) != 1 {
		t.Fatalf("%d runs", len(runs))
	}
	if got := runs[0]; !slices.Equal(got.Args, []string{"--day", "$(x)"}) || got.TargetNode != "n7" || !slices.Equal(got.EnvNames, []string{"DAY"}) {
		t.Errorf("the record is %+v", got)
	}

	var stored task.Waiting
	_, value, _ := strings.Cut(w.dump()[w.store.Keys().Queued(ref("default", "a"), runs[0].ID)], " ")
	must(t, json.Unmarshal([]byte(value), &stored))
	if stored.Env["DAY"] != "sesame" || len(stored.Args) != 2 || stored.TargetNode != "n7" {
		t.Errorf("queued: %s", value)
	}

	for what, body := range map[string]string{
		"args":   `{"args":["a","b","c"]}`,
		"env":    `{"env":{"DAY":"1","PATH":"/tmp"}}`,
		"target": `{"target":"N7 "}`,
	} {
		w.unchanged(what, func() {
			if r := w.as(bob, "POST", "/v1/namespaces/default/tasks/a/trigger", body); r.status != http.StatusUnprocessableEntity || !strings.Contains(r.body, `"`+what) {
				t.Errorf("%s: %d %s", what, r.status, r.body)
			}
		})
	}
}

// A dead run is repeated with what it was given, if its task still accepts that.
func TestAccept_ARetryGivesTheSame(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.make("a", "@daily", func(s *task.Spec) { s.Accept = task.Accept{Env: []string{"A"}} })
	one, two := w.dead(ref("default", "a"), "", 1), w.dead(ref("default", "a"), "", 2)

	again, err := w.Runs.Retry(ctx, "default", "a", one)
	must(t, err)
	if !slices.Equal(again.EnvNames, []string{"A"}) {
		t.Errorf("%+v", again)
	}

	wantStatus(t, "another task", w.do(request{method: "PATCH", path: "/v1/namespaces/default/tasks/a", body: `{"accept":null}`, header: map[string]string{"Content-Type": mergePatch}}), 200, "")
	w.unchanged("a retry", func() {
		r := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks/a/runs/" + two + "/retry"})
		if r.status != http.StatusConflict || !strings.Contains(r.body, "the task has changed") {
			t.Errorf("%d %s", r.status, r.body)
		}
	})
}

// A run waits for the node that its request names, so the answer warns if there is no such node.
func TestTrigger_WarnsIfNoNodeTakesTheRun(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.known = func() []task.Node {
		return []task.Node{{Name: "web-3", State: task.NodeReady, Slots: 1, Roles: []string{task.RoleExecutor}}}
	}
	w.url = w.serve("node-b")
	w.Client = w.client(w.url)
	w.make("a", "@daily", func(s *task.Spec) { s.Accept = task.Accept{Target: true} })

	for node, warnings := range map[string]int{"web-3": 0, "web-33": 1, "": 0} {
		got, err := w.Tasks.TriggerWith(ctx, "default", "a", client.TriggerRequest{Target: node}, 0)
		must(t, err)
		if len(got.Warnings) != warnings || len(got.WarningDetails) != warnings {
			t.Errorf("target %q: warnings %q, %+v", node, got.Warnings, got.WarningDetails)
		}
		if warnings > 0 && got.WarningDetails[0].Code != task.WarnNoNodeMatches {
			t.Errorf("target %q: code %s", node, got.WarningDetails[0].Code)
		}
	}
}
