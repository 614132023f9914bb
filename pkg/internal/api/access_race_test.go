package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// A change that was authorised, and whose author loses the right for it before it commits, is not made: however the right
// is lost, and whichever record the change would write.
func TestAccess_AChangeLosesToARevocation(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	keys := w.store.Keys()
	end := task.At(w.clock.now().Add(time.Hour)).Format(time.RFC3339)

	revocations := map[string]func(subject, binding, token string) error{
		"the binding is deleted": func(_, binding, _ string) error {
			return w.store.DeleteBinding(ctx, binding, w.keeper.View().Mod(keys.Binding(binding)), w.clock.now().Add(-time.Hour))
		},
		"the binding is narrowed": func(subject, binding, _ string) error {
			_, err := w.store.PutBinding(ctx, w.keeper.View().Mod(keys.Binding(binding)), task.Binding{
				Name: binding, Role: "viewer", RoleUID: "builtin", Subjects: []string{subject}, Namespaces: []string{"default"}}, w.clock.now().Add(-time.Hour))
			return err
		},
		"the token is deleted": func(_, _, token string) error {
			return w.store.DeleteToken(ctx, token, w.keeper.View().Created(token))
		},
		"the subject is disabled": func(subject, _, _ string) error {
			return w.store.DisableSubject(ctx, subject, w.clock.now().Add(-time.Hour))
		},
	}
	changes := []struct{ what, method, path, body string }{
		{"a binding", "PUT", "/v1/bindings/NEW", `{"role":"viewer","subjects":["user:x"],"namespaces":["default"]}`},
		{"a token", "POST", "/v1/tokens", `{"subject":"service:NEW","until":"` + end + `","scope":{"role":"viewer","namespaces":["default"]}}`},
		{"a role", "PUT", "/v1/roles/NEW", `{"rules":[{"verbs":["read"],"objects":["tasks"]}]}`},
		{"a namespace", "PUT", "/v1/namespaces/NEW", `{}`},
		{"a disabled subject", "POST", "/v1/subjects/user:NEW/disable", ""},
		{"a task", "POST", "/v1/namespaces/default/tasks", `{"name":"NEW","schedule":"@daily","action":{"noop":{}}}`},
		{"no binding any more", "DELETE", "/v1/bindings/OLD", ""},
	}

	n := 0
	for how, revoke := range revocations {
		for _, c := range changes {
			n++
			w.clock.advance(2 * time.Minute)
			subject, binding, name := fmt.Sprintf("user:u%d", n), fmt.Sprintf("b%d", n), fmt.Sprintf("new%d", n)
			_, err := w.Bindings.Put(ctx, task.Binding{Name: binding, Role: "admin", Subjects: []string{subject}, Cluster: true}, client.Writing{})
			must(t, err)
			_, err = w.Bindings.Put(ctx, task.Binding{Name: "old-" + name, Role: "viewer", Subjects: []string{"user:y"}, Namespaces: []string{"default"}}, client.Writing{})
			must(t, err)
			token := w.token(subject)

			var once atomic.Bool
			w.writes.set(func(kv.Txn) {
				if once.CompareAndSwap(false, true) {
					if err := revoke(subject, binding, tokenID(token)); err != nil {
						t.Errorf("%s: %v", how, err)
					}
				}
			}, nil)

			named := strings.NewReplacer("NEW", name, "OLD", "old-"+name)
			r := w.as(token, c.method, named.Replace(c.path), named.Replace(c.body))
			w.writes.set(nil, nil)

			if r.status != http.StatusUnauthorized && r.status != http.StatusForbidden && r.status != http.StatusNotFound {
				t.Errorf("%s while %s: %d %s", c.what, how, r.status, r.body)
			}

			old := false
			for key, value := range w.dump() {
				if strings.Contains(value, tokenID(token)) && !strings.HasSuffix(key, "/"+tokenID(token)) || strings.HasSuffix(key, "/"+name) {
					t.Errorf("%s while %s: there is %s", c.what, how, key)
				}
				old = old || strings.HasSuffix(key, "/old-"+name)
			}
			if !old {
				t.Errorf("%s while %s: the other binding is gone", c.what, how)
			}
		}
	}
}

// Two administrators who take each other's rights at the same moment: one of them stays.
func TestAccess_TwoAdministratorsAgainstEachOther(t *testing.T) {
	for i := range 10 {
		w := newWorld(t)
		w.bind("user:bob", "admin")
		tokens := map[string]string{"user:ann": w.secret, "user:bob": w.token("user:bob")}
		w.clock.advance(time.Minute)

		var all sync.WaitGroup
		for who, token := range tokens {
			victim := map[string]string{"user:ann": "user:bob", "user:bob": "user:ann"}[who]
			all.Go(func() { w.as(token, "POST", "/v1/subjects/"+victim+"/disable", "") })
		}
		all.Wait()

		v, err := w.keeper.Current(t.Context())
		must(t, err)
		if v.Disabled("user:ann") == v.Disabled("user:bob") {
			t.Errorf("round %d: ann is disabled: %v; bob: %v", i, v.Disabled("user:ann"), v.Disabled("user:bob"))
		}
	}
}
