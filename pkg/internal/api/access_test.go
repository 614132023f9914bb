package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// as makes a request with a token.
func (w *world) as(token, method, path, body string, header ...string) response {
	w.t.Helper()
	q := request{method: method, path: path, body: body, header: map[string]string{"Authorization": "Bearer " + token}}
	for i := 0; i+1 < len(header); i += 2 {
		q.header[header[i]] = header[i+1]
	}

	return w.do(q)
}

// decode decodes the body of an answer.
func decode(t *testing.T, body string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), v); err != nil {
		t.Fatalf("%s: %s", err, body)
	}
}

// wantStatus checks the status and the code of an answer.
func wantStatus(t *testing.T, what string, r response, status int, code string) {
	t.Helper()
	if r.status != status || code != "" && r.Code != code {
		t.Errorf("%s: %d %s, want %d %s", what, r.status, r.body, status, code)
	}
}

// unchanged fails if do changes anything in etcd.
func (w *world) unchanged(what string, do func()) {
	w.t.Helper()
	before := w.dump()
	do()

	for key, value := range w.dump() {
		if before[key] != value {
			w.t.Errorf("%s has changed %s", what, key)
		}
	}
}

const mergePatch = "application/merge-patch+json"

// The change decides which verbs a request needs, whichever operation makes it.
func TestAccess_TheChangeDecides(t *testing.T) {
	w := newWorld(t)
	w.bind("user:olga", "operator", "default")
	w.bind("user:eve", "editor", "default")
	operator, editor := w.token("user:olga"), w.token("user:eve")
	const path = "/v1/namespaces/default/tasks/a"

	named := spec("a", "@daily")
	named.Action.Process.EnvFrom = []task.EnvFrom{{Secret: "db"}}
	named.Labels = map[string]string{"team": "web"}
	_, err := w.Tasks.Create(t.Context(), "default", named)
	must(t, err)

	for what, r := range map[string]func() response{
		"a patch that pauses and changes the action": func() response {
			return w.as(operator, "PATCH", path, `{"paused":true,"action":{"process":{"command":["id"]}}}`, "Content-Type", mergePatch)
		},
		"a patch that only changes the action": func() response {
			return w.as(operator, "PATCH", path, `{"action":{"process":{"command":["id"]}}}`, "Content-Type", mergePatch)
		},
		"a patch that pauses and relabels": func() response {
			return w.as(operator, "PATCH", path, `{"paused":true,"labels":{"team":"other"}}`, "Content-Type", mergePatch)
		},
		"a new task": func() response {
			return w.as(operator, "PUT", "/v1/namespaces/default/tasks/b", `{"name":"b","schedule":"@daily","action":{"noop":{}}}`)
		},
	} {
		w.unchanged(what, func() { wantStatus(t, what, r(), 403, client.CodeForbidden) })
	}

	wantStatus(t, "a patch that only pauses", w.as(operator, "PATCH", path, `{"paused":true}`, "Content-Type", mergePatch), 200, "")
	wantStatus(t, "a trigger without environment", w.as(operator, "POST", path+"/trigger", ""), 202, "")

	// The task decides what a run may bring with it, whoever triggers it.
	for who, token := range map[string]string{"an operator": operator, "an editor": editor} {
		what := "a trigger with environment by " + who
		w.unchanged(what, func() {
			wantStatus(t, what, w.as(token, "POST", path+"/trigger", `{"env":{"LD_PRELOAD":"/tmp/x.so"}}`), 422, task.CodeNotAllowed)
		})
	}

	wantStatus(t, "accepting a variable", w.as(editor, "PATCH", path, `{"accept":{"env":["DAY"]}}`, "Content-Type", mergePatch), 200, "")
	wantStatus(t, "a trigger with that variable", w.as(operator, "POST", path+"/trigger", `{"env":{"DAY":"b"}}`), 202, "")
}

// A task that names a secret needs use; so does a new command of a task that names one already.
func TestAccess_NamingASecretNeedsUse(t *testing.T) {
	w := newWorld(t)
	_, err := w.Roles.Put(t.Context(), task.Role{Name: "writer", Rules: []task.Rule{
		{Verbs: []string{"read", "create", "update", "delete"}, Objects: []string{"tasks"}},
	}}, client.Writing{})
	must(t, err)
	_, err = w.Bindings.Put(t.Context(), task.Binding{Name: "w", Role: "writer", Subjects: []string{"user:wim"}, Namespaces: []string{"default"}}, client.Writing{})
	must(t, err)

	token := w.token("user:wim")
	body := func(name, command, secret string) string {
		return fmt.Sprintf(`{"name":%q,"schedule":"@daily","action":{"process":{"command":[%q]%s}}}`, name, command, secret)
	}
	const withSecret = `,"env_from":[{"secret":"db"}]`

	wantStatus(t, "without a secret", w.as(token, "POST", "/v1/namespaces/default/tasks", body("a", "true", "")), 201, "")

	for _, c := range []struct{ what, method, name, body, kind string }{
		{"a new task", "POST", "", body("b", "true", withSecret), "application/json"},
		{"a change", "PUT", "/a", body("a", "true", withSecret), "application/json"},
		{"a patch", "PATCH", "/a", `{"action":{"process":{"env_from":[{"secret":"db"}]}}}`, mergePatch},
	} {
		w.unchanged(c.what, func() {
			r := w.as(token, c.method, "/v1/namespaces/default/tasks"+c.name, c.body, "Content-Type", c.kind)
			if wantStatus(t, c.what, r, 403, client.CodeForbidden); !strings.Contains(r.Detail, "use secrets") {
				t.Errorf("%s: %s", c.what, r.Detail)
			}
		})
	}

	named := spec("n", "@daily")
	named.Action.Process.EnvFrom = []task.EnvFrom{{Secret: "db"}}
	_, err = w.Tasks.Create(t.Context(), "default", named)
	must(t, err)

	w.unchanged("another command", func() {
		wantStatus(t, "another command", w.as(token, "PATCH", "/v1/namespaces/default/tasks/n", `{"action":{"process":{"command":["env"]}}}`, "Content-Type", mergePatch), 403, client.CodeForbidden)
	})
	wantStatus(t, "another schedule", w.as(token, "PATCH", "/v1/namespaces/default/tasks/n", `{"schedule":"@hourly"}`, "Content-Type", mergePatch), 200, "")

	// A run with another environment could print the secret, for example with PATH. So accepting one needs as much as
	// another command.
	w.unchanged("accepting a variable", func() {
		wantStatus(t, "accepting a variable", w.as(token, "PATCH", "/v1/namespaces/default/tasks/n", `{"accept":{"env":["PATH"]}}`, "Content-Type", mergePatch), 403, client.CodeForbidden)
	})
}

// A version that the namespace no longer allows does not come back, by whichever way.
func TestAccess_AVersionThatIsNoLongerAllowedStaysGone(t *testing.T) {
	w := newWorld(t)
	s := spec("a", "@daily")
	s.Action.Process.User = "root"
	_, err := w.Tasks.Create(t.Context(), "default", s)
	must(t, err)
	_, err = w.Tasks.Patch(t.Context(), "default", "a", []byte(`{"action":{"process":{"user":"www"}}}`), 0)
	must(t, err)

	change, err := w.Namespaces.Put(t.Context(), task.Namespace{Name: "default", RunAs: []string{"www"}}, client.Writing{})
	must(t, err)
	if change.ForbiddenCount != 0 || change.Checked != 1 {
		t.Errorf("the answer is %+v", change)
	}

	w.bind("user:eve", "editor", "default")
	editor := w.token("user:eve")
	for what, r := range map[string]func() response{
		"rollback": func() response {
			return w.as(editor, "POST", "/v1/namespaces/default/tasks/a/rollback", `{"generation":1}`)
		},
		"patch": func() response {
			return w.as(editor, "PATCH", "/v1/namespaces/default/tasks/a", `{"action":{"process":{"user":"root"}}}`, "Content-Type", mergePatch)
		},
		"admin": func() response {
			return w.as(w.secret, "PATCH", "/v1/namespaces/default/tasks/a", `{"action":{"process":{"user":"root"}}}`, "Content-Type", mergePatch)
		},
		"shell": func() response {
			return w.as(editor, "POST", "/v1/namespaces/default/tasks", `{"name":"b","schedule":"@daily","action":{"process":{"shell":"id"}}}`)
		},
	} {
		w.unchanged(what, func() { wantStatus(t, what, r(), 422, "") })
	}

	change, err = w.Namespaces.Put(t.Context(), task.Namespace{Name: "default", RunAs: []string{"backup"}}, client.Writing{})
	must(t, err)
	if change.ForbiddenCount != 1 || len(change.Forbidden) != 1 || change.Forbidden[0].Name != "a" {
		t.Errorf("the answer is %+v", change)
	}

	// A task that is no longer allowed can still be paused.
	wantStatus(t, "pause", w.as(editor, "POST", "/v1/namespaces/default/tasks/a/pause", ""), 200, "")
}

// A binding with labels reaches exactly the tasks that have them, before and after a change.
func TestAccess_LabelsCannotBeWornOrShed(t *testing.T) {
	w := newWorld(t)
	_, err := w.Bindings.Put(t.Context(), task.Binding{Name: "web", Role: "editor", Subjects: []string{"user:wes"}, Namespaces: []string{"default"}, Labels: map[string]string{"team": "web"}}, client.Writing{})
	must(t, err)
	token := w.token("user:wes")

	for name, labels := range map[string]map[string]string{"mine": {"team": "web"}, "theirs": {"team": "db"}, "bare": nil} {
		s := spec(name, "@daily")
		s.Labels = labels
		_, err := w.Tasks.Create(t.Context(), "default", s)
		must(t, err)
	}

	w.active("node-a", "theirs", id(1, "aaaa"))
	_, err = w.Tasks.Patch(t.Context(), "default", "theirs", []byte(`{"timeout":"1m","paused":true}`), 0)
	must(t, err)
	const tasks = "/v1/namespaces/default/tasks"
	for _, c := range []struct {
		what, method, path, body, kind string
		status                         int
	}{
		{"a change of one's own", "PATCH", "/mine", `{"timeout":"1m"}`, mergePatch, 200},
		{"take another's", "PATCH", "/theirs", `{"labels":{"team":"web"}}`, mergePatch, 403},
		{"take one without labels", "PATCH", "/bare", `{"labels":{"team":"web"}}`, mergePatch, 403},
		{"give one's own away", "PATCH", "/mine", `{"labels":{"team":"db"}}`, mergePatch, 403},
		{"shed the label", "PATCH", "/mine", `{"labels":null}`, mergePatch, 403},
		{"pause and relabel", "PATCH", "/mine", `{"paused":true,"labels":{"team":"db"}}`, mergePatch, 403},
		{"replace another's", "PUT", "/theirs", `{"name":"theirs","schedule":"@daily","labels":{"team":"web"},"action":{"noop":{}}}`, "application/json", 403},
		{"trigger another's", "POST", "/theirs/trigger", "", "", 403},
		{"pause one without labels", "POST", "/bare/pause", "", "", 403},
		{"delete another's", "DELETE", "/theirs", "", "", 403},
		{"create without the label", "POST", "", `{"name":"new","schedule":"@daily","action":{"noop":{}}}`, "application/json", 403},
		{"create with another value", "POST", "", `{"name":"new","schedule":"@daily","labels":{"team":"web2"},"action":{"noop":{}}}`, "application/json", 403},
		{"create with the label", "POST", "", `{"name":"new","schedule":"@daily","labels":{"team":"web"},"action":{"noop":{}}}`, "application/json", 201},
		{"set a secret: secrets have no labels", "PUT", "/../secrets/s", `{"values":{"a":"b"}}`, "application/json", 403},
		{"freeze the namespace", "PUT", "/../freeze", `{"reason":"x"}`, "application/json", 403},
		{"unfreeze the namespace", "DELETE", "/../freeze", "", "", 403},
		{"roll another's back", "POST", "/theirs/rollback", "", "", 403},
		{"resume another's", "POST", "/theirs/resume", "", "", 403},
		{"cancel a run of another's", "POST", "/theirs/runs/" + id(1, "aaaa") + "/cancel", "", "", 403},
		{"give the label's rights on", "PUT", "/../../../bindings/b", `{"role":"viewer","subjects":["user:x"],"namespaces":["default"]}`, "application/json", 403},
		{"read another's, of the same namespace", "GET", "/theirs", "", "", 200},
	} {
		path := strings.ReplaceAll(strings.ReplaceAll(tasks+c.path, "/namespaces/default/tasks/../../..", ""), "/tasks/..", "")
		header := []string{}
		if c.kind != "" {
			header = []string{"Content-Type", c.kind}
		}

		do := func() { wantStatus(t, c.what, w.as(token, c.method, path, c.body, header...), c.status, "") }
		if c.status == 403 {
			w.unchanged(c.what, do)
		} else {
			do()
		}
	}
}

// A batch is judged line by line, also when its lines share a transaction.
func TestAccess_LinesOfABatchAreJudgedApart(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "editor", "default")
	token := w.token("user:eve")
	w.namespace(task.Namespace{Name: "default", RunAs: []string{"www"}})

	var body strings.Builder
	line := func(ns, name, process string) {
		fmt.Fprintf(&body, `{"namespace":%q,"name":%q,"schedule":"@daily","action":{"process":{"command":["true"]%s}}}`+"\n", ns, name, process)
	}
	line("default", "a", "")
	line("other", "b", "")
	line("default", "c", `,"user":"root"`)
	line("ghost", "d", "")
	line("default", "e", `,"user":"www"`)

	r := w.as(token, "POST", "/v1/tasks:batch", body.String(), "Content-Type", "application/x-ndjson")
	var got []string
	for text := range strings.Lines(r.body) {
		var res client.BatchResult
		decode(t, text, &res)
		status := 200
		if res.Error != nil {
			status = res.Error.Status
		}
		got = append(got, fmt.Sprintf("%s %d", res.Name, status))
	}
	slices.Sort(got)
	if want := "a 200, b 404, c 422, d 404, e 200"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s: %s", got, want, r.body)
	}

	var names []string
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		for _, ns := range []string{"default", "other", "ghost"} {
			if _, err := w.store.Task(t.Context(), ref(ns, name)); err == nil {
				names = append(names, name)
			}
		}
	}
	if !slices.Equal(names, []string{"a", "e"}) {
		t.Errorf("there are %v", names)
	}
}

// A batch does not reveal what exists in a namespace that its caller cannot read, neither to a caller that asks for
// tasks that do not exist yet, nor to one that guesses the whole task.
func TestAccess_ABatchTellsNothingOfWhatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "editor", "default")
	token := w.token("user:eve")
	for _, ns := range []string{"default", "other"} {
		_, err := w.Tasks.Create(t.Context(), ns, spec("a", "@daily"))
		must(t, err)
	}

	same, err := json.Marshal(spec("a", "@daily"))
	must(t, err)
	line := func(ns, name string) string {
		return strings.NewReplacer(`"name":"a"`, fmt.Sprintf(`"name":%q`, name), `"namespace":"default"`, fmt.Sprintf(`"namespace":%q`, ns)).Replace(string(same)) + "\n"
	}
	if !strings.Contains(line("other", "b"), `"namespace":"other"`) {
		t.Fatal(line("other", "b"))
	}

	for _, query := range []string{"?dry_run=true", "?dry_run=true&create_only=true", "?dry_run=true&full=true", "", "?create_only=true"} {
		// The first line is a task that exists, so that the next group reads what is stored before it writes.
		r := w.as(token, "POST", "/v1/tasks:batch"+query, line("default", "a")+line("other", "a")+line("other", "b"), "Content-Type", "application/x-ndjson")
		var got []string
		for text := range strings.Lines(r.body) {
			var res client.BatchResult
			decode(t, text, &res)
			if res.Namespace == "other" {
				if res.Error == nil || res.Task != nil || res.Revision != 0 {
					t.Errorf("%s: %s", query, text)
					continue
				}
				got = append(got, res.Error.Detail)
			}
		}
		if len(got) != 2 || got[0] != got[1] {
			t.Errorf("%s: the answers reveal whether a task exists: %v", query, got)
		}
	}
}

// All freezes are in one record. A binding for a prefix of namespaces does not fill it with namespaces that do not
// exist.
func TestAccess_NoFreezeOfANamespaceWithoutARecord(t *testing.T) {
	w := newWorld(t)
	w.bind("user:olga", "operator", "o*")
	token := w.token("user:olga")

	w.unchanged("a freeze", func() {
		wantStatus(t, "a freeze", w.as(token, "PUT", "/v1/namespaces/other-2/freeze", `{"reason":"x"}`), 404, client.CodeNotFound)
	})
	wantStatus(t, "a freeze of a namespace", w.as(token, "PUT", "/v1/namespaces/other/freeze", `{"reason":"x"}`), 200, "")
}

// Nobody gives more than they hold, whichever record would give it.
func TestAccess_NobodyGivesMoreThanTheyHold(t *testing.T) {
	w := newWorld(t)
	w.bind("user:nina", "namespace-admin", "default")
	w.clock.advance(time.Minute)
	token := w.token("user:nina")
	until := w.clock.now().Add(time.Hour).Format(time.RFC3339)

	_, err := w.Bindings.Put(t.Context(), task.Binding{Name: "all", Role: "viewer", Subjects: []string{"user:vic"}, Namespaces: []string{"*"}}, client.Writing{})
	must(t, err)

	for _, c := range []struct {
		what, method, path, body string
		status                   int
		code                     string
	}{
		{"the cluster", "PUT", "/v1/bindings/x", `{"role":"viewer","subjects":["user:nina"],"cluster":true}`, 403, client.CodeForbidden},
		{"another namespace", "PUT", "/v1/bindings/x", `{"role":"viewer","subjects":["user:nina"],"namespaces":["other"]}`, 404, client.CodeNotFound},
		{"both", "PUT", "/v1/bindings/x", `{"role":"viewer","subjects":["user:nina"],"namespaces":["default","other"]}`, 404, client.CodeNotFound},
		{"a prefix", "PUT", "/v1/bindings/x", `{"role":"viewer","subjects":["user:nina"],"namespaces":["default*"]}`, 404, client.CodeNotFound},
		{"every namespace", "PUT", "/v1/bindings/x", `{"role":"viewer","subjects":["user:nina"],"namespaces":["*"]}`, 404, client.CodeNotFound},
		{"somebody else's binding", "DELETE", "/v1/bindings/all", "", 404, client.CodeNotFound},
		{"over somebody else's binding", "PUT", "/v1/bindings/all", `{"role":"viewer","subjects":["user:nina"],"namespaces":["default"]}`, 422, task.CodeNotAllowed},
		{"a role of her own", "PUT", "/v1/roles/x", `{"rules":[{"verbs":["*"],"objects":["*"]}]}`, 403, client.CodeForbidden},
		{"a token of an admin", "POST", "/v1/tokens", `{"subject":"user:ann","until":"` + until + `"}`, 403, client.CodeForbidden},
		{"a scoped token of an admin", "POST", "/v1/tokens", `{"subject":"user:ann","until":"` + until + `","scope":{"role":"admin","namespaces":["default"]}}`, 403, client.CodeForbidden},
		{"a service's token elsewhere", "POST", "/v1/tokens", `{"subject":"service:ci","scope":{"role":"viewer","namespaces":["other"]}}`, 404, client.CodeNotFound},
		{"a service's token everywhere", "POST", "/v1/tokens", `{"subject":"service:ci","scope":{"role":"viewer"}}`, 403, client.CodeForbidden},
		{"the namespace's limits", "PUT", "/v1/namespaces/default", `{"run_as":["root"]}`, 403, client.CodeForbidden},
		{"disable an admin", "POST", "/v1/subjects/user:ann/disable", "", 403, client.CodeForbidden},
		{"reset", "POST", "/v1/access/reset", "", 403, client.CodeForbidden},
	} {
		w.unchanged(c.what, func() { wantStatus(t, c.what, w.as(token, c.method, c.path, c.body), c.status, c.code) })
	}

	// What she holds, she gives; and not for longer than she holds it.
	wantStatus(t, "her own role", w.as(token, "PUT", "/v1/bindings/default.x", `{"role":"namespace-admin","subjects":["user:otto"],"namespaces":["default"]}`), 200, "")
	_, err = w.Bindings.Put(t.Context(), task.Binding{Name: "short", Role: "namespace-admin", Subjects: []string{"user:tim"}, Namespaces: []string{"ops"}, Until: task.At(w.clock.now().Add(time.Hour))}, client.Writing{})
	must(t, err)
	tim := w.token("user:tim")
	wantStatus(t, "longer", w.as(tim, "PUT", "/v1/bindings/ops.y", `{"role":"viewer","subjects":["user:otto"],"namespaces":["ops"]}`), 403, client.CodeTooBroad)
	wantStatus(t, "as long", w.as(tim, "PUT", "/v1/bindings/ops.y", `{"role":"viewer","subjects":["user:otto"],"namespaces":["ops"],"until":"`+until+`"}`), 200, "")
	wantStatus(t, "more verbs", w.as(tim, "PUT", "/v1/bindings/ops.z", `{"role":"admin","subjects":["user:otto"],"namespaces":["ops"],"until":"`+until+`"}`), 200, "") // in a namespace, admin is namespace-admin
}

// A caller who changes a role cannot give others more rights than the caller holds.
func TestAccess_ARoleIsNotWidenedWhereItIsBound(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	for _, r := range []task.Role{
		{Name: "granter", Rules: []task.Rule{{Verbs: []string{"read", "grant"}, Objects: []string{"access"}}}},
		{Name: "small", Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}},
	} {
		_, err := w.Roles.Put(ctx, r, client.Writing{Create: true})
		must(t, err)
	}
	for _, b := range []task.Binding{
		{Name: "g", Role: "granter", Subjects: []string{"user:greg"}, Cluster: true},
		{Name: "s", Role: "small", Subjects: []string{"user:sam", "user:greg"}, Namespaces: []string{"default"}},
	} {
		_, err := w.Bindings.Put(ctx, b, client.Writing{Create: true})
		must(t, err)
	}
	w.clock.advance(time.Minute)

	greg := w.token("user:greg")
	widened := `{"rules":[{"verbs":["read","update"],"objects":["tasks"]}]}`
	w.unchanged("a wider role", func() {
		wantStatus(t, "a wider role", w.as(greg, "PUT", "/v1/roles/small", widened), 403, client.CodeTooBroad)
	})
	w.unchanged("admin for himself", func() {
		wantStatus(t, "admin for himself", w.as(greg, "PUT", "/v1/bindings/me", `{"role":"admin","subjects":["user:greg"],"cluster":true}`), 403, client.CodeTooBroad)
	})
	w.unchanged("a token of an admin", func() {
		body := fmt.Sprintf(`{"subject":"user:ann","until":%q}`, w.clock.now().Add(time.Hour).Format(time.RFC3339))
		wantStatus(t, "a token of an admin", w.as(greg, "POST", "/v1/tokens", body), 403, client.CodeTooBroad)
	})

	// The scope of a token is a use of a role, too: a token of an administrator must not become more than it was.
	_, err := w.Roles.Put(ctx, task.Role{Name: "scope", Rules: []task.Rule{{Verbs: []string{"read", "grant"}, Objects: []string{"access"}}}}, client.Writing{Create: true})
	must(t, err)
	scoped := fmt.Sprintf(`{"subject":"user:ann","until":%q,"scope":{"role":"scope"}}`, w.clock.now().Add(time.Hour).Format(time.RFC3339))
	made := w.as(greg, "POST", "/v1/tokens", scoped)
	wantStatus(t, "a token of an admin with a scope", made, 201, "")
	var ofAdmin client.NewToken
	decode(t, made.body, &ofAdmin)
	for what, token := range map[string]string{"its maker": greg, "its holder": ofAdmin.Secret} {
		w.unchanged("a wider scope by "+what, func() {
			wantStatus(t, "a wider scope by "+what, w.as(token, "PUT", "/v1/roles/scope", `{"rules":[{"verbs":["*"],"objects":["*"]}]}`), 403, client.CodeTooBroad)
		})
	}
	w.clock.advance(time.Minute)

	// The old role's bindings do not apply to a new role of the same name.
	wantStatus(t, "delete a role in use", w.as(greg, "DELETE", "/v1/roles/small", ""), 409, client.CodeInUse)
	must(t, w.Bindings.Delete(ctx, "s", 0))
	old, err := w.Roles.Get(ctx, "small")
	must(t, err)
	must(t, w.Roles.Delete(ctx, "small", old.Revision))
	again, err := w.Roles.Put(ctx, task.Role{Name: "small", Rules: old.Rules}, client.Writing{Create: true})
	must(t, err)
	if again.UID == old.UID || again.UID == "" {
		t.Errorf("the uids are %q and %q", old.UID, again.UID)
	}

	r := w.as(w.secret, "PUT", "/v1/bindings/s", `{"role":"small","role_uid":"`+old.UID+`","subjects":["user:sam"],"namespaces":["default"]}`)
	wantStatus(t, "the uid of the old role", r, 422, "")
}

func TestAccess_RefusesRecordsThatMakeNoSense(t *testing.T) {
	w := newWorld(t)
	past, later := w.clock.now().Add(-time.Second).Format(time.RFC3339), w.clock.now().Add(91*24*time.Hour).Format(time.RFC3339)

	for _, c := range []struct{ what, method, path, body, field string }{
		{"an unknown verb", "PUT", "/v1/roles/r", `{"rules":[{"verbs":["read","fly"],"objects":["tasks"]}]}`, "rules[0].verbs"},
		{"an unknown kind", "PUT", "/v1/roles/r", `{"rules":[{"verbs":["read"],"objects":["cats"]}]}`, "rules[0].objects"},
		{"a rule that allows nothing", "PUT", "/v1/roles/r", `{"rules":[{"verbs":["trigger"],"objects":["secrets"]}]}`, "rules[0]"},
		{"no rules", "PUT", "/v1/roles/r", `{"rules":[]}`, "rules"},
		{"a built-in role", "PUT", "/v1/roles/viewer", `{"rules":[{"verbs":["*"],"objects":["*"]}]}`, "name"},
		{"a selector for labels", "PUT", "/v1/roles/r", `{"rules":[{"verbs":["read"],"objects":["tasks"],"labels":{"env":"!= prod"}}]}`, "rules[0].labels"},
		{"another name than the path's", "PUT", "/v1/roles/r", `{"name":"q","rules":[{"verbs":["read"],"objects":["tasks"]}]}`, "name"},
		{"an unknown field", "PUT", "/v1/roles/r", `{"deny":[]}`, "deny"},
		{"a binding of no role", "PUT", "/v1/bindings/b", `{"role":"ghost","subjects":["user:a"],"namespaces":["default"]}`, "role"},
		{"a binding of nobody", "PUT", "/v1/bindings/b", `{"role":"viewer","subjects":[],"namespaces":["default"]}`, "subjects"},
		{"a binding nowhere", "PUT", "/v1/bindings/b", `{"role":"viewer","subjects":["user:a"]}`, "namespaces"},
		{"a glob in the middle", "PUT", "/v1/bindings/b", `{"role":"viewer","subjects":["user:a"],"namespaces":["team-?"]}`, "namespaces[0]"},
		{"a subject without a kind", "PUT", "/v1/bindings/b", `{"role":"viewer","subjects":["ann"],"namespaces":["default"]}`, "subjects[0]"},
		{"root as a subject", "PUT", "/v1/bindings/b", `{"role":"admin","subjects":["unix:root"],"namespaces":["default"]}`, "subjects[0]"},
		{"a binding that has ended", "PUT", "/v1/bindings/b", `{"role":"viewer","subjects":["user:a"],"namespaces":["default"],"until":"` + past + `"}`, "until"},
		{"a token that has ended", "POST", "/v1/tokens", `{"until":"` + past + `"}`, "until"},
		{"a token without an end", "POST", "/v1/tokens", `{}`, "until"},
		{"an editor's token without an end", "POST", "/v1/tokens", `{"scope":{"role":"editor"}}`, "until"},
		{"a person's token of 91 days", "POST", "/v1/tokens", `{"until":"` + later + `"}`, "until"},
		{"a token of a certificate", "POST", "/v1/tokens", `{"subject":"cert:x","scope":{"role":"viewer"}}`, "subject"},
		{"a token of root", "POST", "/v1/tokens", `{"subject":"unix:root","scope":{"role":"viewer"}}`, "subject"},
		{"a token with no network", "POST", "/v1/tokens", `{"scope":{"role":"viewer"},"cidrs":["10.0.0.1"]}`, "cidrs[0]"},
		{"a token with bits after its prefix", "POST", "/v1/tokens", `{"scope":{"role":"viewer"},"cidrs":["10.0.0.1/8"]}`, "cidrs[0]"},
		{"a token with IPv4 in IPv6", "POST", "/v1/tokens", `{"scope":{"role":"viewer"},"cidrs":["::ffff:10.0.0.0/104"]}`, "cidrs[0]"},
		{"a token of no role", "POST", "/v1/tokens", `{"scope":{"role":"ghost"},"until":"` + w.clock.now().Add(time.Hour).Format(time.RFC3339) + `"}`, "scope.role"},
		{"a namespace with a glob", "PUT", "/v1/namespaces/n", `{"run_as":["www*"]}`, "run_as[0]"},
		{"a namespace with a relative file", "PUT", "/v1/namespaces/n", `{"env_files":["etc/env"]}`, "env_files[0]"},
		{"an audit log of no time", "GET", "/v1/audit-log?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "", "until"},
		{"no subject", "POST", "/v1/subjects/ann/disable", "", "subject"},
	} {
		w.unchanged(c.what, func() {
			if r := w.as(w.secret, c.method, c.path, c.body); r.status/100 != 4 || r.status == 404 || !strings.HasPrefix(r.Field, c.field) {
				t.Errorf("%s: %d, field %q: %s", c.what, r.status, r.Field, r.body)
			}
		})
	}
}

func TestAccess_ConditionsAndUnchangedRecords(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	role := task.Role{Name: "r", Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}}
	binding := task.Binding{Name: "b", Role: access.RoleViewer, Subjects: []string{"user:bob"}, Namespaces: []string{"default"}}
	namespace := task.Namespace{Name: "n", RunAs: []string{"www"}}

	for what, put := range map[string]func(client.Writing, string) (int64, error){
		"role": func(o client.Writing, text string) (int64, error) {
			role.Description = text
			got, err := w.Roles.Put(ctx, role, o)
			return got.Revision, err
		},
		"binding": func(o client.Writing, text string) (int64, error) {
			binding.Reason = text
			got, err := w.Bindings.Put(ctx, binding, o)
			return got.Revision, err
		},
		"namespace": func(o client.Writing, text string) (int64, error) {
			namespace.Description = text
			got, err := w.Namespaces.Put(ctx, namespace, o)
			return got.Revision, err
		},
	} {
		w.clock.advance(time.Minute)

		if _, err := put(client.Writing{Revision: 7}, ""); err == nil {
			t.Errorf("%s: a revision of what does not exist", what)
		}

		first, err := put(client.Writing{Create: true}, "")
		must(t, err)
		wantError(t, second(put(client.Writing{Create: true}, "")), task.ErrExists, client.CodeExists)

		same, err := put(client.Writing{Revision: first}, "")
		must(t, err)
		if same != first {
			t.Errorf("%s: the same again is written: revisions %d and %d", what, first, same)
		}

		next, err := put(client.Writing{Revision: first}, "more")
		must(t, err)
		if next <= first {
			t.Errorf("%s: revisions %d and %d", what, first, next)
		}
		wantError(t, second(put(client.Writing{Revision: first}, "yet more")), task.ErrStale, client.CodeStale)
	}
}

// The fence is written at most ten times a second; the eleventh waits with a 429.
func TestAccess_IsNotChangedTooOften(t *testing.T) {
	w := newWorld(t)
	w.clock.advance(time.Minute) // the bootstrap has written it, too
	refused := 0
	for i := range 15 {
		r := w.as(w.secret, "PUT", fmt.Sprintf("/v1/namespaces/n%d", i), `{}`)
		if r.status == 429 && r.header.Get("Retry-After") != "" {
			refused++
		} else if r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	if refused != 5 {
		t.Errorf("%d of 15 were refused", refused)
	}

	w.clock.advance(time.Second)
	wantStatus(t, "a second later", w.as(w.secret, "PUT", "/v1/namespaces/n99", `{}`), 200, "")
}

// No change takes the last administrator away who can act without an end.
func TestAccess_KeepsAnAdministrator(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	end := task.At(w.clock.now().Add(time.Hour))

	for what, err := range map[string]error{
		"delete its token":   w.Tokens.Delete(ctx, tokenID(w.secret)),
		"delete its binding": w.Bindings.Delete(ctx, "ann", 0),
		"disable it":         second(w.Subjects.Disable(ctx, "user:ann")),
		"give it an end":     second(w.Bindings.Put(ctx, task.Binding{Name: "ann", Role: "admin", Subjects: []string{"user:ann"}, Cluster: true, Until: end}, client.Writing{})),
		"make it a viewer":   second(w.Bindings.Put(ctx, task.Binding{Name: "ann", Role: "viewer", Subjects: []string{"user:ann"}, Cluster: true}, client.Writing{})),
		"give it to others":  second(w.Bindings.Put(ctx, task.Binding{Name: "ann", Role: "admin", Subjects: []string{"user:bob"}, Cluster: true}, client.Writing{})),
	} {
		if e := wantError(t, err, task.ErrConflict, client.CodeLastAdmin); e.Status != http.StatusConflict {
			t.Errorf("%s: %v", what, e)
		}
	}

	// With a certificate beside it, it can go.
	_, err := w.Bindings.Put(ctx, task.Binding{Name: "root", Role: "admin", Subjects: []string{"cert:root"}, Cluster: true}, client.Writing{})
	must(t, err)
	w.bind("user:zoe", "admin")
	zoe := w.token("user:zoe", func(t *task.Token) { t.Until = end })
	wantStatus(t, "disable", w.as(zoe, "POST", "/v1/subjects/user:ann/disable", ""), 200, "")
	wantStatus(t, "its token", w.as(w.secret, "GET", "/v1/whoami", ""), 401, "")
	wantStatus(t, "enable", w.as(zoe, "POST", "/v1/subjects/user:ann/enable", ""), 200, "")
	wantStatus(t, "its token again", w.as(w.secret, "GET", "/v1/whoami", ""), 200, "")
	must(t, w.Tokens.Delete(ctx, tokenID(w.secret)))
	wantStatus(t, "the deleted token", w.as(w.secret, "GET", "/v1/whoami", ""), 401, "")
}

func TestAccess_TokensOfOnesOwn(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "editor", "default")
	w.bind("user:vic", "viewer", "default")
	eve := w.token("user:eve")
	vic := w.token("user:vic")
	end := w.clock.now().Add(time.Hour).Format(time.RFC3339)

	create := func(token, body string) (client.NewToken, response) {
		t.Helper()
		r := w.as(token, "POST", "/v1/tokens", body)
		var made client.NewToken
		if r.status == http.StatusCreated {
			decode(t, r.body, &made)
		}
		return made, r
	}

	made, r := create(eve, `{"until":"`+end+`","scope":{"role":"operator","namespaces":["default"]},"reason":"ci","cidrs":["127.0.0.0/8"]}`)
	wantStatus(t, "create", r, 201, "")
	if made.Subject != "user:eve" || made.Scope.RoleUID != access.BuiltInUID || made.Secret == "" {
		t.Errorf("created %+v", made)
	}

	// The secret is nowhere else.
	for _, path := range []string{"/v1/tokens", "/v1/tokens/" + made.ID, "/v1/whoami"} {
		if r := w.as(eve, "GET", path, ""); r.status != 200 || strings.Contains(r.body, strings.Split(made.Secret, "_")[2]) {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	for key, value := range w.dump() {
		if strings.Contains(value, strings.Split(made.Secret, "_")[2]) {
			t.Errorf("%s has the secret", key)
		}
	}

	// The scope narrows what the subject may do, and the networks where from.
	wantStatus(t, "outside the scope", w.as(made.Secret, "POST", "/v1/namespaces/default/tasks", `{"name":"a","schedule":"@daily","action":{"noop":{}}}`), 403, "")
	wantStatus(t, "inside the scope", w.as(made.Secret, "GET", "/v1/namespaces/default/tasks", ""), 200, "")
	wantStatus(t, "another network", w.as(made.Secret, "GET", "/v1/namespaces/default/tasks", "", "X-Test-From", "192.0.2.1"), 401, "")

	// A token with a scope makes no other tokens, and deletes none but itself.
	_, r = create(made.Secret, `{"until":"`+end+`","scope":{"role":"viewer","namespaces":["default"]}}`)
	wantStatus(t, "a token of a token", r, 403, client.CodeForbidden)
	wantStatus(t, "another token of its subject", w.as(made.Secret, "DELETE", "/v1/tokens/"+tokenID(eve), ""), 404, client.CodeNotFound)
	wantStatus(t, "somebody else's", w.as(vic, "DELETE", "/v1/tokens/"+made.ID, ""), 404, client.CodeNotFound)
	wantStatus(t, "somebody else's", w.as(vic, "GET", "/v1/tokens/"+made.ID, ""), 404, client.CodeNotFound)
	wantStatus(t, "itself", w.as(made.Secret, "DELETE", "/v1/tokens/"+made.ID, ""), 204, "")
	wantStatus(t, "afterwards", w.as(made.Secret, "GET", "/v1/whoami", ""), 401, "")

	// A clock that is not trusted.
	w.badTime = fmt.Errorf("it is 3 minutes off")
	_, r = create(eve, `{"until":"`+end+`"}`)
	wantStatus(t, "a token that ends, by a clock that is off", r, 503, client.CodeClock)
	w.badTime = nil
	expiring, _ := create(eve, `{"until":"`+end+`"}`)
	w.badTime = fmt.Errorf("it is 3 minutes off")
	wantStatus(t, "use of it, by a clock that is off", w.as(expiring.Secret, "GET", "/v1/whoami", ""), 401, "")
	wantStatus(t, "use of one without an end", w.as(eve, "GET", "/v1/whoami", ""), 200, "")
}

func TestAccess_WhoAmI(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "editor", "default", "ops")
	w.bind("user:eve", "node-operator")

	var me client.WhoAmI
	decode(t, w.as(w.token("user:eve"), "GET", "/v1/whoami", "").body, &me)
	if me.Subject != "user:eve" || me.Token == nil || len(me.Bindings) != 2 || !slices.Equal(me.Namespaces, []string{"default", "ops"}) || me.AllNamespaces || me.Host {
		t.Errorf("eve is %+v", me)
	}
	if got := fmt.Sprint(me.Cluster); got != "[{[read operate] [nodes] map[]} {[read] [cluster] map[]}]" {
		t.Errorf("she may do %s", got)
	}

	decode(t, w.as(w.token("user:nobody"), "GET", "/v1/whoami", "").body, &me)
	if me.Subject != "user:nobody" || len(me.Bindings)+len(me.Namespaces)+len(me.Cluster) != 0 {
		t.Errorf("nobody is %+v", me)
	}

	mine, err := w.Access.WhoAmI(t.Context())
	must(t, err)
	if !mine.AllNamespaces || len(mine.Cluster) != 5 {
		t.Errorf("ann is %+v", mine)
	}
}

// The audit log has who did it, in both orders, in pages, and with filters; others see what their namespaces had.
func TestAccess_AuditLog(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	begun := w.clock.now()
	for i := range 30 {
		w.clock.advance(time.Duration(i) * time.Minute)
		w.create(fmt.Sprintf("t%02d", i), "@daily")
	}
	_, err := w.Tasks.Create(ctx, "other", spec("far", "@daily"))
	must(t, err)
	_, err = w.Tasks.Pause(ctx, "default", "t03", 0)
	must(t, err)

	list := func(o client.AuditLogOptions) []task.AuditRecord {
		t.Helper()
		var all []task.AuditRecord
		for r, err := range w.AuditLog.List(ctx, o) {
			must(t, err)
			all = append(all, r)
		}
		return all
	}

	newest, oldest := list(client.AuditLogOptions{}), list(client.AuditLogOptions{OldestFirst: true})
	slices.Reverse(oldest)
	ids := func(list []task.AuditRecord) string {
		var s []string
		for _, r := range list {
			s = append(s, r.ID)
		}
		return strings.Join(s, " ")
	}
	if len(newest) != 32 || ids(newest) != ids(oldest) {
		t.Errorf("%d records, and %d in the other order", len(newest), len(oldest))
	}
	if r := newest[len(newest)-1]; r.Subject != "user:ann" || r.Token != tokenID(w.secret) || r.Operation != "create-task" || r.Node != "node-a" || r.Address != "127.0.0.1" ||
		r.Revision == 0 || len(r.Objects) != 1 || r.Objects[0].Name != "t00" {
		t.Errorf("the first record is %+v", r)
	}

	for what, c := range map[string]struct {
		o    client.AuditLogOptions
		want int
	}{
		"an operation":    {client.AuditLogOptions{Operation: "pause-task"}, 1},
		"a namespace":     {client.AuditLogOptions{Namespace: "other"}, 1},
		"a name":          {client.AuditLogOptions{Kind: "task", Name: "t03"}, 2},
		"a subject":       {client.AuditLogOptions{Subject: "user:bob"}, 0},
		"since":           {client.AuditLogOptions{Since: begun.Add(10 * time.Minute)}, 28},
		"until":           {client.AuditLogOptions{Until: begun.Add(10 * time.Minute)}, 4},
		"until, forwards": {client.AuditLogOptions{Until: begun.Add(10 * time.Minute), OldestFirst: true}, 4},
		"a limit":         {client.AuditLogOptions{Limit: 3}, 3},
	} {
		if got := list(c.o); len(got) != c.want {
			t.Errorf("%s: %d records, want %d", what, len(got), c.want)
		}
	}

	// Pages of two are the same list.
	var paged []task.AuditRecord
	path := "/v1/audit-log?limit=2"
	for range 100 {
		var page client.List[task.AuditRecord]
		decode(t, w.as(w.secret, "GET", path, "").body, &page)
		paged = append(paged, page.Items...)
		if page.Next == "" {
			break
		}
		path = "/v1/audit-log?limit=2&page=" + page.Next
	}
	if ids(paged) != ids(newest) {
		t.Errorf("in pages of two: %d records", len(paged))
	}

	w.bind("user:nina", "namespace-admin", "default")
	var seen client.List[task.AuditRecord]
	decode(t, w.as(w.token("user:nina"), "GET", "/v1/audit-log", "").body, &seen)
	if len(seen.Items) != 31 {
		t.Errorf("the namespace's admin sees %d records", len(seen.Items))
	}
}

// Only root on the host resets access. The reset restores an administrator that was removed.
func TestReset(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	h := w.handlerAs(0)
	user := w.handlerAs(1000)

	call := func(h http.Handler) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, "POST", "/v1/access/reset", nil))
		return rec
	}

	if rec := call(user); rec.Code != 403 {
		t.Errorf("another trusted user: %d %s", rec.Code, rec.Body)
	}

	rec := call(h)
	if rec.Code != 201 {
		t.Fatalf("root: %d %s", rec.Code, rec.Body)
	}

	var made client.NewToken
	decode(t, rec.Body.String(), &made)
	if made.Subject != "service:bootstrap" {
		t.Errorf("created %+v", made)
	}

	var me client.WhoAmI
	decode(t, w.as(made.Secret, "GET", "/v1/whoami", "").body, &me)
	if !me.AllNamespaces || len(me.Cluster) != 5 {
		t.Errorf("it is %+v", me)
	}

	var records int
	for r, err := range w.AuditLog.List(ctx, client.AuditLogOptions{Operation: "reset-access"}) {
		must(t, err)
		if records++; r.Subject != "unix:uid=0" {
			t.Errorf("recorded %+v", r)
		}
	}
	if records != 2 { // the binding and the token
		t.Errorf("%d audit records", records)
	}
	if w.log.FilterMessageSnippet("access was reset").Len() != 1 {
		t.Error("it is not in the log")
	}
}

// handlerAs is node-a's API over its unix socket, as a user sees it.
func (w *world) handlerAs(uid uint32) http.Handler {
	w.t.Helper()
	h, err := api.New(api.Config{Store: w.store, Access: w.keeper, Cluster: w.cluster, Node: "node-a", Ref: ref, Now: w.clock.now, Logger: w.logger})
	must(w.t, err)

	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = "@"
		h.ServeHTTP(rw, r.WithContext(api.WithTrustedUser(r.Context(), uid)))
	})
}

// isProof reports whether an operation is a proof of the keeper that its access records are current.
func isProof(op clientv3.Op) bool {
	if !op.IsTxn() {
		return false
	}

	_, then, _ := op.Txn()
	reads := func(i int, key string) bool {
		return then[i].IsGet() && strings.HasSuffix(string(then[i].KeyBytes()), key)
	}

	return len(then) == 2 && reads(0, "/access/fence") && reads(1, "/access/token-changes")
}

// 100,000 requests with tokens that are unknown, malformed, or of a wrong checksum read nothing from etcd, and write
// nothing. What the keeper reads to prove its records current, every two seconds and for every caller, is not counted.
func TestLogins_BadTokensCostEtcdNothing(t *testing.T) {
	var calls atomic.Int64
	etcd := kvtest.Memory(t)
	etcd.KV = etcdhook.KV(etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if !isProof(op) {
			calls.Add(1)
		}
		return next(ctx, op)
	})

	w := newWorldOn(t, etcd)
	h, err := api.New(api.Config{Store: w.store, Access: w.keeper, Cluster: w.cluster, Node: "node-a", Ref: ref, Now: w.clock.now})
	must(t, err)

	unknown, _ := authority.NewSecret()
	parts := strings.Split(unknown, "_")
	swapped := parts[0] + "_" + parts[1] + "_" + flip(parts[2])
	bad := []string{
		"Bearer " + unknown, "Bearer " + swapped, "Bearer " + w.secret[:len(w.secret)-1], "Bearer carillon_../../cluster/xx_" + parts[2], "Bearer ", "Basic x", "Bearer " + strings.Repeat("a", 8000),
	}
	calls.Store(0)
	statuses := map[int]int{}
	requests := 100_000
	if testing.Short() {
		requests = 10_000
	}

	for i := range requests {
		r := httptest.NewRequestWithContext(t.Context(), []string{"GET", "POST", "DELETE"}[i%3], "/v1/namespaces/default/tasks", nil)
		r.RemoteAddr = net.JoinHostPort(fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), "4711")
		r.Header.Set("Authorization", bad[i%len(bad)])
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		statuses[rec.Code]++
	}

	if n := calls.Load(); n != 0 {
		t.Errorf("%d calls of etcd", n)
	}
	if statuses[401]+statuses[429] != requests {
		t.Errorf("the statuses are %v", statuses)
	}
}

// flip changes one letter of a secret, so that its checksum is wrong.
func flip(s string) string {
	c := "a"
	if s[0] == 'a' {
		c = "b"
	}
	return c + s[1:]
}
