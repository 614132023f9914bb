package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// changeText lists the fields of a change.
func changeText(c *client.Change) string {
	if c == nil {
		return "no change in the answer"
	}

	text := c.Result
	for _, f := range c.Fields {
		text += " " + strings.ReplaceAll(f.String(), " ", "")
	}

	return text
}

// A dry run checks everything that the write checks, says what it would do, and writes nothing.
func TestDryRun_OfRolesAndNamespaces(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	rules := func(verbs ...string) []task.Rule { return []task.Rule{{Verbs: verbs, Objects: []string{"tasks"}}} }

	role := task.Role{Name: "deployer", Rules: rules("read")}
	w.unchanged("dry runs of creations", func() {
		r, err := w.Roles.DryRunPut(ctx, role, client.Writing{Create: true})
		must(t, err)
		if got := changeText(r.DryRun); !strings.HasPrefix(got, "created rules:none→") || r.UID != "" || r.Revision != 0 {
			t.Errorf("a new role: %s, %+v", got, r)
		}

		n, err := w.Namespaces.DryRunPut(ctx, task.Namespace{Name: "billing", RunAs: []string{"billing"}}, client.Writing{Create: true})
		must(t, err)
		if got := changeText(n.DryRun); got != "created run_as:none→[billing]" && got != `created run_as:none→["billing"]` || n.Revision != 0 {
			t.Errorf("a new namespace: %s, %+v", got, n)
		}

		l, err := w.NodeLimits.DryRunPut(ctx, task.NodeLimit{Name: "web-*", Labels: []string{"zone=a"}}, client.Writing{Create: true})
		must(t, err)
		if got := changeText(l.DryRun); !strings.HasPrefix(got, "created labels:none→") || l.Revision != 0 {
			t.Errorf("a new limit: %s, %+v", got, l)
		}
	})

	was, err := w.Roles.Put(ctx, role, client.Writing{})
	must(t, err)
	s := spec("shell", "@daily")
	s.Action = task.Action{Process: &task.Process{Shell: "true"}}
	_, err = w.Tasks.Create(ctx, "default", s)
	must(t, err)
	ns, err := w.Namespaces.Get(ctx, "default")
	must(t, err)
	w.clock.advance(time.Second)

	w.unchanged("dry runs of changes", func() {
		r, err := w.Roles.DryRunPut(ctx, role, client.Writing{Revision: was.Revision})
		must(t, err)
		if got := changeText(r.DryRun); got != "unchanged" || r.Revision != was.Revision {
			t.Errorf("the same role: %s", got)
		}

		wider := role
		wider.Description, wider.Rules = "Deploys", rules("read", "update")
		r, err = w.Roles.DryRunPut(ctx, wider, client.Writing{})
		must(t, err)
		if got := changeText(r.DryRun); !strings.HasPrefix(got, "configured description:none→Deploys rules:") || r.UID != was.UID || !r.UpdatedAt.Equal(was.UpdatedAt.Time) {
			t.Errorf("a wider role: %s, %+v", got, r)
		}

		// Nobody learns by a dry run that a write would succeed which would be refused.
		_, err = w.Roles.DryRunPut(ctx, role, client.Writing{Revision: was.Revision + 1})
		wantError(t, err, task.ErrStale, client.CodeStale)
		_, err = w.Roles.DryRunPut(ctx, role, client.Writing{Create: true})
		wantError(t, err, task.ErrExists, client.CodeExists)
		_, err = w.Roles.DryRunPut(ctx, task.Role{Name: "deployer", Rules: rules("fly")}, client.Writing{})
		wantError(t, err, task.ErrInvalid, task.CodeBadValue)

		tight := ns
		tight.Shell = false
		n, err := w.Namespaces.DryRunPut(ctx, tight, client.Writing{})
		must(t, err)
		if got := changeText(n.DryRun); got != "configured shell:true→none" || n.ForbiddenCount != 1 || n.Forbidden[0].Name != "shell" || n.Shell {
			t.Errorf("a tighter namespace: %s, %+v", got, n)
		}
	})
	if now, err := w.Namespaces.Get(ctx, "default"); err != nil || !now.Shell {
		t.Errorf("%+v, %v", now, err)
	}
}

// A dry run does not tell more than the write would.
func TestDryRun_OfRolesIsRefusedLikeTheWrite(t *testing.T) {
	w := newWorld(t)
	w.role("narrow", task.Rule{Verbs: []string{"read"}, Objects: []string{"tasks"}})
	w.bindRole("user:vic", "narrow", "default")
	w.role("granter", task.Rule{Verbs: []string{"grant", "read"}, Objects: []string{"access", "bindings"}})
	_, err := w.Bindings.Put(t.Context(), task.Binding{Name: "granters", Role: "granter", Subjects: []string{"user:gil"}, Cluster: true}, client.Writing{})
	must(t, err)
	granter, nobody := w.token("user:gil"), w.token("user:nob")

	w.unchanged("refused dry runs", func() {
		wantStatus(t, "more than the caller holds", w.as(granter, "PUT", "/v1/roles/narrow?dry_run=true", `{"rules":[{"verbs":["delete"],"objects":["tasks"]}]}`), 403, client.CodeTooBroad)
		for _, path := range []string{"/v1/roles/x", "/v1/namespaces/default", "/v1/namespaces/x", "/v1/node-limits/x"} {
			r := w.as(nobody, "PUT", path+"?dry_run=true", map[bool]string{true: `{"rules":[{"verbs":["read"],"objects":["tasks"]}]}`, false: `{}`}[strings.Contains(path, "roles")])
			wantStatus(t, fmt.Sprint("nobody: ", path), r, 403, client.CodeForbidden)
		}
	})
}

// The answer to a dry run contains what the record has now, so it needs the right to read it.
func TestDryRun_ShowsNoRecordsThatTheCallerMayNotRead(t *testing.T) {
	w := newWorld(t)
	rule := func(verb, object string) task.Rule {
		return task.Rule{Verbs: []string{verb}, Objects: []string{object}}
	}
	w.role("hidden", rule("use", "secrets"))
	w.namespace(task.Namespace{Name: "vault", RunAs: []string{"hidden"}})
	_, err := w.NodeLimits.Put(t.Context(), task.NodeLimit{Name: "vault-*", Labels: []string{"team=hidden"}}, client.Writing{})
	must(t, err)

	// Each may write the records, and read none of them.
	w.role("ns-writer", rule("update", "namespaces"), rule("create", "namespaces"))
	w.role("granter", rule("grant", "access"), rule("read", "tasks"))
	for subject, role := range map[string]string{"user:nina": "ns-writer", "user:gil": "granter"} {
		_, err := w.Bindings.Put(t.Context(), task.Binding{Name: role, Role: role, Subjects: []string{subject}, Cluster: true}, client.Writing{})
		must(t, err)
	}
	nina, gil := w.token("user:nina"), w.token("user:gil")

	const rules = `{"rules":[{"verbs":["read"],"objects":["tasks"]}]}`
	w.unchanged("dry runs by callers who may not read", func() {
		for _, c := range []struct {
			name, token, path, body string
			status                  int
		}{
			{"a namespace", nina, "/v1/namespaces/vault", `{}`, 404},
			{"a role", gil, "/v1/roles/hidden", rules, 403},
			{"a limit", gil, "/v1/node-limits/vault-*", `{"labels":[]}`, 403},
			{"a new namespace", nina, "/v1/namespaces/new", `{}`, 200},
			{"a new role", gil, "/v1/roles/new", rules, 200},
			{"a new limit", gil, "/v1/node-limits/new-*", `{"labels":[]}`, 200},
		} {
			r := w.as(c.token, "PUT", c.path+"?dry_run=true", c.body)
			if r.status != c.status {
				t.Errorf("%s: %d, want %d: %s", c.name, r.status, c.status, r.body)
			}
			if strings.Contains(strings.ReplaceAll(r.body, "/hidden", ""), `hidden"`) {
				t.Errorf("%s: the answer shows the record: %s", c.name, r.body)
			}
		}
	})
}

// A dry run of a deletion is refused if the deletion is, and also if the caller may not read the task that it shows.
func TestDryRun_OfADeletionIsRefusedLikeTheDeletion(t *testing.T) {
	w := newWorld(t)
	for _, team := range []string{"web", "data"} {
		s := spec(team, "@daily")
		s.Labels = map[string]string{"team": team}
		_, err := w.Tasks.Create(t.Context(), "default", s)
		must(t, err)
	}
	w.role("web-deleter", task.Rule{Verbs: []string{"delete"}, Objects: []string{"tasks"}, Labels: map[string]string{"team": "web"}},
		task.Rule{Verbs: []string{"read"}, Objects: []string{"tasks"}})
	w.role("blind-deleter", task.Rule{Verbs: []string{"delete"}, Objects: []string{"tasks"}})
	w.bindRole("user:wes", "web-deleter", "default")
	w.bindRole("user:bo", "blind-deleter", "default")
	wes, bo := w.token("user:wes"), w.token("user:bo")

	const path = "/v1/namespaces/default/tasks/"
	w.unchanged("dry runs", func() {
		wantStatus(t, "a task with the label", w.as(wes, "DELETE", path+"web?dry_run=true", ""), 200, "")
		wantStatus(t, "a task without the label", w.as(wes, "DELETE", path+"data?dry_run=true", ""), 403, client.CodeForbidden)
		wantStatus(t, "the deletion of a task without the label", w.as(wes, "DELETE", path+"data", ""), 403, client.CodeForbidden)
		if r := w.as(bo, "DELETE", path+"web?dry_run=true", ""); r.status != 404 || strings.Contains(r.body, "daily") {
			t.Errorf("without the right to read: %d %s", r.status, r.body)
		}
	})
}
