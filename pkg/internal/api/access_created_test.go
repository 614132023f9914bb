package api_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// putMany writes records below access/, and returns once the node knows them.
func (w *world) putMany(n int, one func(i int) (key string, value any)) {
	w.t.Helper()
	var ops []clientv3.Op
	last := ""
	for i := range n {
		key, value := one(i)
		ops, last = append(ops, clientv3.OpPut(key, record.Encode(value))), key
	}

	for len(ops) > 0 {
		k := min(len(ops), 100)
		_, err := w.etcd.Txn(context.Background()).Then(ops[:k]...).Commit()
		must(w.t, err)
		ops = ops[k:]
	}

	_, err := w.keeper.Await(w.t.Context(), func(v *authority.View) bool { return v.Mod(last) > 0 })
	must(w.t, err)
}

// One subject must not use up what all may create: other namespaces need bindings, too.
func TestAccess_BindingsAndRolesOfACreatorAreLimited(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "namespace-admin", "default")
	w.role("granter", task.Rule{Verbs: []string{"grant", "read"}, Objects: []string{"access"}})
	_, err := w.Bindings.Put(t.Context(), task.Binding{Name: "granters", Role: "granter", Subjects: []string{"user:gil"}, Cluster: true}, client.Writing{})
	must(t, err)
	eve, gil := w.token("user:eve"), w.token("user:gil")

	binding := func(creator, prefix string) func(i int) (string, any) {
		return func(i int) (string, any) {
			b := task.Binding{Name: fmt.Sprint(prefix, i), Role: "viewer", RoleUID: access.BuiltInUID, Subjects: []string{"user:vic"}, Namespaces: []string{"default"}, CreatedBy: &task.Actor{Subject: creator, Token: "x"}}
			return w.store.Keys().Binding(b.Name), b
		}
	}
	put := func(token, path, body string) response {
		w.clock.advance(time.Second)
		return w.as(token, "PUT", path, body)
	}
	const view = `{"role":"viewer","subjects":["user:vic"],"namespaces":["default"]}`

	w.putMany(499, binding("user:eve", "e"))
	w.putMany(500, binding("user:eve2", "o"))
	wantStatus(t, "the 500th of eve", put(eve, "/v1/bindings/default.last", view), http.StatusOK, "")
	wantStatus(t, "the 501st of eve", put(eve, "/v1/bindings/default.more", view), http.StatusConflict, client.CodeConflict)
	wantStatus(t, "a change of one", put(eve, "/v1/bindings/e1", `{"role":"viewer","subjects":["user:tom"],"namespaces":["default"]}`), http.StatusOK, "")
	wantStatus(t, "one of an admin", put(w.secret, "/v1/bindings/default.more", view), http.StatusOK, "")

	const rules = `{"rules":[{"verbs":["read"],"objects":["tasks"]}]}`
	w.putMany(500, func(i int) (string, any) {
		r := task.Role{Name: fmt.Sprint("r", i), UID: task.NewUID(), Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}, CreatedBy: &task.Actor{Subject: "user:gil", Token: "x"}}
		return w.store.Keys().Role(r.Name), r
	})
	wantStatus(t, "the 501st role of gil", put(gil, "/v1/roles/more", rules), http.StatusConflict, client.CodeConflict)
	wantStatus(t, "a change of one", put(gil, "/v1/roles/r1", `{"rules":[{"verbs":["read"],"objects":["runs"]}]}`), http.StatusOK, "")
	wantStatus(t, "one of an admin", put(w.secret, "/v1/roles/more", rules), http.StatusOK, "")
}

// A subject that may grant can create further subjects, each with a limit of its own. Together they must not keep the
// administrators from granting.
func TestAccess_TheLastBindingsAreReservedForAdministrators(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "namespace-admin", "default")
	eve := w.token("user:eve")

	w.putMany(1800, func(i int) (string, any) {
		b := task.Binding{
			Name: fmt.Sprint("s", i), Role: "viewer", RoleUID: access.BuiltInUID, Subjects: []string{"user:vic"}, Namespaces: []string{"default"},
			CreatedBy: &task.Actor{Subject: fmt.Sprintf("service:s%d", i%4), Token: "x"},
		}
		return w.store.Keys().Binding(b.Name), b
	})

	const view = `{"role":"viewer","subjects":["user:vic"],"namespaces":["default"]}`
	w.clock.advance(time.Second)
	wantStatus(t, "one more of eve", w.as(eve, "PUT", "/v1/bindings/default.more", view), http.StatusConflict, client.CodeConflict)
	wantStatus(t, "one more of an admin", w.as(w.secret, "PUT", "/v1/bindings/more", view), http.StatusOK, "")
}

// Requests that arrive together must not exceed a limit together: what commits in between counts, too.
func TestAccess_LimitsOfCreatorsHoldForRequestsAtTheSameTime(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.bind("user:eve", "namespace-admin", "default")
	eve := w.token("user:eve")

	binding := func(name string) task.Binding {
		return task.Binding{Name: name, Role: "viewer", RoleUID: access.BuiltInUID, Subjects: []string{"user:vic"}, Namespaces: []string{"default"}, CreatedBy: &task.Actor{Subject: "user:eve", Token: "x"}}
	}
	w.putMany(499, func(i int) (string, any) {
		b := binding(fmt.Sprint("e", i))
		return w.store.Keys().Binding(b.Name), b
	})

	var once atomic.Bool
	w.writes.set(func(kv.Txn) {
		if once.CompareAndSwap(false, true) {
			_, err := w.store.PutBinding(ctx, 0, binding("other"), w.clock.now().Add(-time.Hour))
			must(t, err)
		}
	}, nil)

	w.clock.advance(time.Second)
	r := w.as(eve, "PUT", "/v1/bindings/default.last", `{"role":"viewer","subjects":["user:vic"],"namespaces":["default"]}`)
	wantStatus(t, "the 501st of eve", r, http.StatusConflict, client.CodeConflict)
}
