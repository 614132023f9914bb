package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
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

// A list of a namespace that does not exist is an error, so that a script with a mistyped name does not take it for empty.
// Callers who may not read a namespace cannot tell whether it exists.
func TestAccess_ANamespaceThatDoesNotExistHasNoLists(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", access.RoleAdmin, "default")
	eve := w.token("user:eve")

	for _, list := range []string{"tasks", "next", "load", "events", "runs", "runs?dead=true", "alerts", "silences", "alert-rules", "alert-rules/a", "secrets", "freeze", "tasks/a", "tasks/a/runs"} {
		missing := w.do(request{method: "GET", path: "/v1/namespaces/typo/" + list})
		wantStatus(t, list, missing, http.StatusNotFound, client.CodeNotFound)
		if missing.Detail != `there is no namespace "typo", or you may not read it` {
			t.Errorf("%s: %s", list, missing.Detail)
		}

		hidden, absent := w.as(eve, "GET", "/v1/namespaces/prod/"+list, ""), w.as(eve, "GET", "/v1/namespaces/typo/"+list, "")
		wantStatus(t, list, hidden, http.StatusNotFound, client.CodeNotFound)
		if want := strings.ReplaceAll(hidden.body, "prod", "typo"); absent.body != want {
			t.Errorf("%s: of a missing namespace: %s, of a hidden one: %s", list, absent.body, want)
		}
	}

	wantStatus(t, "an empty list", w.do(request{method: "GET", path: "/v1/namespaces/ops/tasks"}), http.StatusOK, "")
}

// lateKeeper knows no change of the access records until it is asked for the current ones.
type lateKeeper struct {
	*authority.Keeper
	view *authority.View
}

func (k *lateKeeper) View() *authority.View { return k.view }

func (k *lateKeeper) Current(ctx context.Context) (*authority.View, error) {
	v, err := k.Keeper.Current(ctx)
	if err == nil {
		k.view = v
	}
	return v, err
}

// A namespace that another node has just created is found, although this node has not seen its record yet.
func TestAccess_ANewNamespaceIsReadAtOnce(t *testing.T) {
	w := newWorld(t)
	late := &lateKeeper{w.keeper, w.keeper.View()}
	w.namespace(task.Namespace{Name: "new"})

	judge := &httpapi.Judge{Keeper: late, Node: "node-b", Now: w.clock.now}
	rights := judge.RightsOf(httpapi.Caller{Who: "user:ann"}, "list-tasks")
	must(t, rights.RequireNamespaceNow(t.Context(), "new"))

	var f *httpapi.Failure
	if err := rights.RequireNamespaceNow(t.Context(), "typo"); !errors.As(err, &f) || f.Status != http.StatusNotFound {
		t.Errorf("a namespace that does not exist: %v", err)
	}
}
