package api_test

import (
	"net/url"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestCan_AnswersAsTheServerJudges: about the caller with its scope, and about others only to those who read access.
func TestCan_AnswersAsTheServerJudges(t *testing.T) {
	w := newWorld(t)
	eve := w.token("user:eve")
	wantStatus(t, "bind", w.as(w.secret, "PUT", "/v1/bindings/eve", `{"role":"editor","subjects":["user:eve"],"namespaces":["default"],"labels":{"env":"dev"}}`), 200, "")

	ask := func(token, query string) client.Decision {
		t.Helper()
		r := w.as(token, "GET", "/v1/access/can?"+query, "")
		wantStatus(t, query, r, 200, "")
		var d client.Decision
		decode(t, r.body, &d)
		return d
	}

	dev := "&labels=" + url.QueryEscape("env=dev")
	for _, c := range []struct {
		query   string
		allowed bool
		reason  string
	}{
		{"verb=update&kind=tasks&namespace=default" + dev, true, ""},
		{"verb=update&kind=tasks&namespace=default", false, "it depends on the labels of the task"},
		{"verb=update&kind=tasks&namespace=other" + dev, false, "the role editor would allow it"},
		{"verb=operate&kind=nodes", false, "a binding of the role node-operator in the whole cluster would allow it"},
	} {
		if d := ask(eve, c.query); d.Allowed != c.allowed || d.Reason != c.reason || d.Subject != "user:eve" {
			t.Errorf("%s: %+v", c.query, d)
		}
		if d := ask(w.secret, c.query+"&subject=user:eve"); d.Allowed != c.allowed || d.Subject != "user:eve" {
			t.Errorf("%s, asked by an admin: %+v", c.query, d)
		}
	}

	if d := ask(w.secret, "verb=create&kind=tasks&namespace=none"); !d.Allowed || d.Reason != "but there is no namespace none" {
		t.Errorf("in a namespace without a record: %+v", d)
	}

	scoped := w.token("user:eve", func(t *task.Token) { t.Scope = &task.TokenScope{Role: "viewer", RoleUID: access.BuiltInUID} })
	if d := ask(scoped, "verb=update&kind=tasks&namespace=default"+dev); d.Allowed || d.Reason != "the scope of the token does not include this right" {
		t.Errorf("with a scope: %+v", d)
	}

	wantStatus(t, "about somebody else", w.as(eve, "GET", "/v1/access/can?verb=read&kind=nodes&subject=user:bob", ""), 403, client.CodeForbidden)

	for _, query := range []string{"", "verb=read", "verb=read&kind=task", "verb=trigger&kind=secrets", "verb=*&kind=tasks", "verb=read&kind=tasks", "verb=read&kind=nodes&namespace=default",
		"verb=read&kind=nodes" + dev, "verb=read&kind=tasks&namespace=default&labels=x", "verb=read&kind=nodes&subject=bob"} {
		wantStatus(t, query, w.as(w.secret, "GET", "/v1/access/can?"+query, ""), 422, "")
	}
}
