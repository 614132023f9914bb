package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// A namespace that is created later with the name of a deleted one inherits nothing from it: no freeze, and no token.
func TestAccess_ANamespaceInUseIsNotDeleted(t *testing.T) {
	w := newWorld(t)
	const other = "/v1/namespaces/other"

	wantStatus(t, "freeze", w.do(request{method: "PUT", path: other + "/freeze", body: `{"reason":"x"}`}), 200, "")
	w.unchanged("a frozen namespace", func() {
		r := w.do(request{method: "DELETE", path: other})
		if wantStatus(t, "a frozen namespace", r, 409, client.CodeInUse); !strings.Contains(r.Detail, "frozen") {
			t.Error(r.Detail)
		}
	})
	wantStatus(t, "unfreeze", w.do(request{method: "DELETE", path: other + "/freeze"}), 200, "")

	in := func(namespaces ...string) func(*task.Token) {
		return func(t *task.Token) {
			t.Scope = &task.TokenScope{Role: "viewer", RoleUID: access.BuiltInUID, Namespaces: namespaces}
		}
	}
	w.token("user:pat", in("o*", "ops"))
	w.token("user:old", in("other"), until(w.clock.now().Add(-time.Hour))) // can do nothing any more
	token := w.token("user:tom", in("default", "other"))
	w.unchanged("a namespace of a scope", func() {
		r := w.do(request{method: "DELETE", path: other})
		if wantStatus(t, "a namespace of a scope", r, 409, client.CodeInUse); !strings.Contains(r.Detail, tokenID(token)) {
			t.Error(r.Detail)
		}
	})
	must(t, w.Tokens.Delete(t.Context(), tokenID(token)))

	// The freeze of the cluster is not one of the namespace.
	wantStatus(t, "freeze the cluster", w.do(request{method: "PUT", path: "/v1/cluster/freeze", body: `{"reason":"x"}`}), 200, "")
	wantStatus(t, "an unused namespace", w.do(request{method: "DELETE", path: other}), 204, "")
}

// A freeze that begins while the record of its namespace is deleted does not survive it.
func TestAccess_AFreezeAndADeletionExcludeEachOther(t *testing.T) {
	w := newWorld(t)
	frozen := false
	w.writes.set(func(txn kv.Txn) {
		for _, op := range txn.Then {
			if !frozen && op.IsDelete() && string(op.KeyBytes()) == w.store.Keys().Namespace("other") {
				frozen = true
				w.put(w.store.Keys().Freezes(), task.Freezes{Holding: []task.Freeze{{Namespace: "other", Since: task.At(w.clock.now())}}})
			}
		}
	}, nil)

	wantStatus(t, "the deletion", w.do(request{method: "DELETE", path: "/v1/namespaces/other"}), 409, client.CodeInUse)
	if !frozen {
		t.Error("the test has not frozen the namespace")
	}
	wantStatus(t, "the namespace", w.do(request{method: "GET", path: "/v1/namespaces/other"}), 200, "")
}
