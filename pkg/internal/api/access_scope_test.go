package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// A token with a scope shows nothing of its subject that lies outside.
func TestAccess_ATokenShowsOnlyWhatItsScopeContains(t *testing.T) {
	w := newWorld(t)
	w.bind("service:ci", "editor", "default", "prod")
	w.bind("service:ci", "operator", "ops")
	w.bind("service:ci", "viewer")
	all := w.token("service:ci")
	within := w.token("service:ci", func(t *task.Token) {
		t.Scope = &task.TokenScope{Role: "editor", RoleUID: access.BuiltInUID, Namespaces: []string{"default"}}
	})

	var me client.WhoAmI
	decode(t, w.as(within, "GET", "/v1/whoami", "").body, &me)
	if len(me.Bindings) != 2 {
		t.Errorf("the bindings are %+v", me.Bindings)
	}
	for _, b := range me.Bindings {
		if !b.Cluster && (len(b.Namespaces) != 1 || b.Namespaces[0] != "default") {
			t.Errorf("a binding outside of the scope: %+v", b)
		}
	}

	list := w.as(within, "GET", "/v1/tokens", "")
	if wantStatus(t, "tokens", list, 200, ""); strings.Contains(list.body, tokenID(all)) || !strings.Contains(list.body, tokenID(within)) {
		t.Errorf("the tokens are %s", list.body)
	}
	wantStatus(t, "itself", w.as(within, "GET", "/v1/tokens/"+tokenID(within), ""), 200, "")
	wantStatus(t, "another token", w.as(within, "GET", "/v1/tokens/"+tokenID(all), ""), 404, client.CodeNotFound)

	list = w.as(all, "GET", "/v1/tokens", "")
	if !strings.Contains(list.body, tokenID(all)) || !strings.Contains(list.body, tokenID(within)) {
		t.Errorf("the tokens of a token without a scope are %s", list.body)
	}
}

// A service that works elsewhere, too, is not the business of one namespace alone.
func TestAccess_NoTokenOfAServiceThatHoldsMoreElsewhere(t *testing.T) {
	w := newWorld(t)
	w.bind("user:nora", "namespace-admin", "default")
	w.bind("service:here", "editor", "default")
	w.bind("service:more", "editor", "default")
	w.bind("service:more", "viewer", "ops")
	w.bind("service:nodes", "node-operator")
	nora := w.token("user:nora")
	end := w.clock.now().Add(time.Hour).Format(time.RFC3339)
	create := func(token, subject string) response {
		return w.as(token, "POST", "/v1/tokens", `{"subject":"`+subject+`","until":"`+end+`","scope":{"role":"viewer","namespaces":["default"]}}`)
	}

	for _, subject := range []string{"service:more", "service:nodes"} {
		w.unchanged(subject, func() { wantStatus(t, subject, create(nora, subject), 403, client.CodeForbidden) })
		wantStatus(t, subject+", by an administrator", create(w.secret, subject), 201, "")
	}
	wantStatus(t, "a service of this namespace only", create(nora, "service:here"), 201, "")
}
