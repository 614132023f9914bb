package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The body of a request is a message to its target. A patch of another field does not change it, and a patch of the body
// replaces all of it.
func TestPatch_KeepsOrReplacesTheBodyOfARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := "/v1/namespaces/default/tasks/order"

	body := func() string {
		got, err := w.Tasks.Get(t.Context(), "default", "order")
		must(t, err)
		return string(got.Action.HTTP.JSON)
	}

	const first = `{"big":12345678901234567890,"far":1e400,"none":null,"list":[1.0]}`
	wantStatus(t, "create", w.as(w.secret, "POST", "/v1/namespaces/default/tasks",
		`{"name":"order","schedule":"@manual","action":{"http":{"url":"https://api.corp/orders","json":`+first+`}}}`), 201, "")
	if got := body(); got != first {
		t.Errorf("created with %s", got)
	}

	for _, step := range []struct{ patch, want string }{
		{`{"labels":{"a":"b"}}`, first},
		{`{"action":{"http":{"headers":{"X":"y"}}}}`, first},
		{`{"action":{"http":{"json":{"big":1,"none":null}}}}`, `{"big":1,"none":null}`},
		{`{"action":{"http":{"json":[null]}}}`, `[null]`},
		{`{"action":{"http":{"json":null}}}`, ""},
	} {
		wantStatus(t, step.patch, w.as(w.secret, "PATCH", path, step.patch, "Content-Type", mergePatch), 200, "")
		if got := body(); got != step.want {
			t.Errorf("after %s: %s, want %s", step.patch, got, step.want)
		}
	}

	wantStatus(t, "two bodies", w.as(w.secret, "PATCH", path, `{"action":{"http":{"body":"a","json":1}}}`, "Content-Type", mergePatch), 422, task.CodeBadValue)
	wantStatus(t, "two actions", w.as(w.secret, "PATCH", path, `{"action":{"noop":{}}}`, "Content-Type", mergePatch), 422, task.CodeBadValue)
}

// A user needs the right to use a secret to send it anywhere, and to change where a task that names it sends it.
func TestHTTP_SecretsNeedUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.Roles.Put(t.Context(), task.Role{Name: "writer", Rules: []task.Rule{
		{Verbs: []string{"read", "create", "update", "delete"}, Objects: []string{"tasks"}},
	}}, client.Writing{})
	must(t, err)
	_, err = w.Bindings.Put(t.Context(), task.Binding{Name: "w", Role: "writer", Subjects: []string{"user:wim"}, Namespaces: []string{"default"}}, client.Writing{})
	must(t, err)

	token := w.token("user:wim")
	document := func(name, fields string) string {
		return `{"name":"` + name + `","schedule":"@daily","action":{"http":{` + fields + `}}}`
	}

	wantStatus(t, "without a secret", w.as(token, "POST", "/v1/namespaces/default/tasks", document("a", `"url":"https://a"`)), 201, "")

	for _, fields := range []string{
		`"url":"secret:api/url"`,
		`"url":"https://a/${secret:api/key}"`,
		`"url":"https://a","headers":{"X":"${secret:api/key}"}`,
		`"url":"https://a","json":{"a":["${secret:api/key}"]}`,
		`"url":"https://a","form":{"a":"${secret:api/key}"}`,
		`"url":"https://a","body":"secret:api/key"`,
		`"url":"https://a","auth":{"bearer":"api/key"}`,
		`"url":"https://a","auth":{"basic":"api/key"}`,
		`"url":"https://a","auth":{"signature":"api/key"}`,
		`"url":"https://a","tls":{"cert":"secret:api/key"}`,
	} {
		r := w.as(token, "PUT", "/v1/namespaces/default/tasks/a", document("a", fields))
		if wantStatus(t, fields, r, 403, client.CodeForbidden); !strings.Contains(r.Detail, "use secrets") {
			t.Errorf("%s: %s", fields, r.Detail)
		}
	}

	named := spec("n", "@daily")
	named.Action = task.Action{HTTP: &task.HTTP{URL: "https://a", Auth: &task.HTTPAuth{Bearer: "api/key"}, JSON: json.RawMessage(`{}`)}}
	_, err = w.Tasks.Create(t.Context(), "default", named)
	must(t, err)

	wantStatus(t, "another target", w.as(token, "PATCH", "/v1/namespaces/default/tasks/n", `{"action":{"http":{"url":"https://evil.example"}}}`, "Content-Type", mergePatch), 403, client.CodeForbidden)
	wantStatus(t, "another schedule", w.as(token, "PATCH", "/v1/namespaces/default/tasks/n", `{"schedule":"@hourly"}`, "Content-Type", mergePatch), 200, "")
}
