package api_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// announce writes the record of a present node that runs tasks, with labels.
func (w *world) announce(name string, labels map[string]string) {
	w.t.Helper()
	labels = maps.Clone(labels)
	labels["node"] = name
	w.put(w.store.Keys().Node(name), task.Node{Name: name, State: task.NodeReady, Roles: []string{task.RoleExecutor}, Slots: 4, Labels: labels})
}

// Readers of nodes see which labels count, and which are ignored. The answer to a change names the nodes that it concerns.
func TestNodeLimits_DecideWhichLabelsCount(t *testing.T) {
	w := newWorld(t)
	w.announce("web-1", map[string]string{"zone": "a", "team": "vault"})
	w.announce("vault-1", map[string]string{"zone": "a", "team": "vault"})
	ctx := t.Context()

	change, err := w.NodeLimits.Put(ctx, task.NodeLimit{Name: "*", Labels: []string{"zone=*"}}, client.Writing{Create: true})
	must(t, err)
	if len(change.Nodes) != 2 || change.Revision == 0 || change.CreatedBy.String() != w.actor() {
		t.Errorf("the answer: %+v", change)
	}

	w.clock.advance(time.Second)
	change, err = w.NodeLimits.Put(ctx, task.NodeLimit{Name: "vault-*", Labels: []string{"zone=*", "team=vault"}}, client.Writing{})
	must(t, err)
	if len(change.Nodes) != 0 {
		t.Errorf("the answer: %+v", change)
	}

	for name, ignored := range map[string]string{"web-1": "vault", "vault-1": ""} {
		n, err := w.Nodes.Get(ctx, name)
		must(t, err)
		if n.IgnoredLabels["team"] != ignored || n.Labels["zone"] != "a" || (n.Labels["team"] == "") != (ignored != "") {
			t.Errorf("%s: %v, ignored %v", name, n.Labels, n.IgnoredLabels)
		}
	}

	list, err := w.NodeLimits.List(ctx)
	must(t, err)
	if len(list) != 2 || list[0].Name != "*" || list[1].Name != "vault-*" {
		t.Errorf("the list: %+v", list)
	}

	got, err := w.NodeLimits.Get(ctx, "vault-*")
	must(t, err)
	_, err = w.NodeLimits.Put(ctx, task.NodeLimit{Name: "vault-*"}, client.Writing{Revision: got.Revision - 1})
	wantError(t, err, task.ErrStale, client.CodeStale)
	_, err = w.NodeLimits.Put(ctx, task.NodeLimit{Name: "vault-*"}, client.Writing{Create: true})
	wantError(t, err, task.ErrExists, client.CodeExists)
	_, err = w.NodeLimits.Get(ctx, "vault-1")
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	w.clock.advance(time.Second)
	must(t, w.NodeLimits.Delete(ctx, "*", 0))
	nodes, err := w.Nodes.List(ctx)
	must(t, err)
	for _, n := range nodes {
		if n.IgnoredLabels != nil {
			t.Errorf("%s: ignored %v", n.Name, n.IgnoredLabels)
		}
	}

	var records []task.AuditRecord
	for r, err := range w.AuditLog.List(ctx, client.AuditLogOptions{Kind: "node-limit", OldestFirst: true}) {
		must(t, err)
		records = append(records, r)
	}
	if len(records) != 3 || records[0].Operation != "set-node-limit" || records[0].Objects[0].Name != "*" || records[2].Operation != "delete-node-limit" {
		t.Errorf("the audit records: %+v", records)
	}
}

// Who drains nodes does not decide which namespaces' tasks they may run.
func TestNodeLimits_AreWrittenByAdministrators(t *testing.T) {
	w := newWorld(t)
	w.bind("user:olga", "node-operator")
	operator := w.token("user:olga")

	w.unchanged("a node operator", func() {
		wantStatus(t, "set", w.as(operator, "PUT", "/v1/node-limits/web-1", `{"labels":["*"]}`), 403, client.CodeForbidden)
		wantStatus(t, "delete", w.as(operator, "DELETE", "/v1/node-limits/web-1", ""), 403, client.CodeForbidden)
		wantStatus(t, "dry run", w.as(operator, "PUT", "/v1/node-limits/web-1?dry_run=true", `{"labels":["*"]}`), 403, client.CodeForbidden)
	})
	w.unchanged("bad input", func() {
		for path, body := range map[string]string{
			"web-1":   `{"labels":["zone"]}`,
			"web-*-1": `{"labels":["zone=*"]}`,
			"web-2":   `{"name":"web-1","labels":["zone=*"]}`,
			"Web":     `{"labels":["zone=*"]}`,
			"a%2Fb":   `{"labels":["zone=*"]}`,
			"web-3":   `{"labels":["zone=a*"]}`,
			"web-4":   `{"labels":["zone=*"],"roles":["executor"]}`,
		} {
			if r := w.do(request{method: "PUT", path: "/v1/node-limits/" + path, body: body}); r.status != 422 && r.status != 400 {
				t.Errorf("%s %s: %d %s", path, body, r.status, r.body)
			}
		}
	})
}

// A warning about a task that no node runs knows the limits of nodes, and the node selector of the namespace.
func TestNodeLimits_CountForWarnings(t *testing.T) {
	w := newWorld(t)
	w.present("node-a", "")
	limits := task.NodeLimit{Name: "*", Labels: []string{"zone=*"}}
	_, err := w.NodeLimits.Put(t.Context(), limits, client.Writing{})
	must(t, err)

	n := *w.keeper.View().Namespace("default")
	n.Nodes = "team = vault"
	w.namespace(n)

	warnings := func(name string) string {
		s := spec(name, "@daily")
		got, err := w.Tasks.Create(t.Context(), "default", s)
		must(t, err)
		return strings.Join(got.Warnings, "; ")
	}

	w.known = func() []task.Node {
		return []task.Node{{Name: "web-1", State: task.NodeReady, Roles: []string{task.RoleExecutor}, Slots: 4, Labels: map[string]string{"team": "vault"}}}
	}
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)

	if got, want := warnings("a"), `namespace default: no node that matches "team = vault" accepts runs now; runs wait until one does`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	w.clock.advance(time.Second)
	must(t, w.NodeLimits.Delete(t.Context(), "*", 0))
	if got := warnings("b"); got != "" {
		t.Errorf("without a limit: %q", got)
	}
}
