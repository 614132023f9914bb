package api_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// tokens creates the records of tokens, and returns once the node knows them.
func (w *world) tokens(n int, edit func(i int, t *task.Token)) {
	w.t.Helper()
	last := ""
	for i := range n {
		_, tok := authority.NewSecret()
		edit(i, &tok.Token)
		must(w.t, w.store.CreateToken(w.t.Context(), tok))
		last = tok.ID
	}

	_, err := w.keeper.Await(w.t.Context(), func(v *authority.View) bool { return v.Created(last) > 0 })
	must(w.t, err)
}

// createdBy counts the tokens that a subject has created, as etcd has them.
func (w *world) createdBy(subject string) (n int) {
	w.t.Helper()
	v, err := w.keeper.Current(w.t.Context())
	must(w.t, err)

	for _, t := range v.Tokens() {
		if t.CreatedBy.Is(subject) {
			n++
		}
	}

	return n
}

// serviceToken is the request for a token of a service in the namespace default.
func serviceToken(name string) string {
	return fmt.Sprintf(`{"subject":"service:%s","scope":{"role":"viewer","namespaces":["default"]}}`, name)
}

func TestAccess_TokensAreLimited(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "namespace-admin", "default")
	eve := w.token("user:eve")
	past := task.At(w.clock.now().Add(-time.Hour))
	full := 64 // the most that one subject has

	w.tokens(full-1, func(_ int, tok *task.Token) { tok.Subject = "service:busy" })
	w.tokens(10, func(_ int, tok *task.Token) { tok.Subject, tok.Until = "service:busy", past })
	wantStatus(t, "beside expired tokens", w.as(eve, "POST", "/v1/tokens", serviceToken("busy")), http.StatusCreated, "")
	wantStatus(t, "one more than 64", w.as(eve, "POST", "/v1/tokens", serviceToken("busy")), http.StatusConflict, client.CodeConflict)
	wantStatus(t, "one more than 64, by an admin", w.as(w.secret, "POST", "/v1/tokens", serviceToken("busy")), http.StatusConflict, client.CodeConflict)

	// eve has created one. Of another subject with the same beginning of the name, the tokens do not count.
	w.tokens(500, func(i int, tok *task.Token) {
		tok.Subject, tok.CreatedBy = fmt.Sprintf("service:other-%d", i), &task.Actor{Subject: "user:eve2", Token: "x"}
	})
	wantStatus(t, "the second of eve", w.as(eve, "POST", "/v1/tokens", serviceToken("new-2")), http.StatusCreated, "")
	w.tokens(498, func(i int, tok *task.Token) {
		tok.Subject, tok.CreatedBy, tok.Until = fmt.Sprintf("service:many-%d", i), &task.Actor{Subject: "user:eve", Token: "x"}, past
	})
	// Expired tokens make room: the 501st of eve replaces one of them, and so does the next one.
	for _, name := range []string{"new-3", "new-4"} {
		wantStatus(t, "beside 498 expired ones of eve", w.as(eve, "POST", "/v1/tokens", serviceToken(name)), http.StatusCreated, "")
		if n := w.createdBy("user:eve"); n > 500 {
			t.Errorf("%d tokens of eve exist", n)
		}
	}

	w.clock.advance(time.Second)
	w.tokens(496, func(i int, tok *task.Token) {
		tok.Subject, tok.CreatedBy = fmt.Sprintf("service:valid-%d", i), &task.Actor{Subject: "user:eve", Token: "x"}
	})
	wantStatus(t, "the 501st valid one of eve", w.as(eve, "POST", "/v1/tokens", serviceToken("new-5")), http.StatusConflict, client.CodeConflict)

	w.tokens(500, func(i int, tok *task.Token) {
		tok.Subject, tok.CreatedBy = fmt.Sprintf("service:more-%d", i), &task.Actor{Subject: "user:ann", Token: "x"}
	})
	wantStatus(t, "the 501st of an admin", w.as(w.secret, "POST", "/v1/tokens", serviceToken("new-4")), http.StatusCreated, "")
}

func TestAccess_TokensAreNotChangedTooOften(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "namespace-admin", "default")
	eve := w.token("user:eve")
	path := "/v1/tokens/" + tokenID(w.token("service:old", func(tok *task.Token) {
		tok.Scope = &task.TokenScope{Role: "viewer", RoleUID: "builtin", Namespaces: []string{"default"}}
	}))

	for i := range 5 {
		wantStatus(t, "create", w.as(eve, "POST", "/v1/tokens", serviceToken(fmt.Sprint("s", i))), http.StatusCreated, "")
	}
	for what, r := range map[string]response{
		"the sixth within a second": w.as(eve, "POST", "/v1/tokens", serviceToken("s6")),
		"a deletion":                w.as(eve, "DELETE", path, ""),
	} {
		wantStatus(t, what, r, http.StatusTooManyRequests, client.CodeRateLimited)
		if r.header.Get("Retry-After") == "" {
			t.Errorf("%s: the answer has no Retry-After", what)
		}
	}

	for i := range 8 {
		wantStatus(t, "an admin", w.as(w.secret, "POST", "/v1/tokens", serviceToken(fmt.Sprint("a", i))), http.StatusCreated, "")
	}

	w.clock.advance(time.Second)
	wantStatus(t, "a second later", w.as(eve, "DELETE", path, ""), http.StatusNoContent, "")
}

func TestAccess_BindingsAreLimited(t *testing.T) {
	w := newWorld(t)
	n := len(w.keeper.View().Bindings())
	for i := range 2000 - n {
		name := fmt.Sprint("b", i)
		_, err := w.store.PutBinding(t.Context(), 0, task.Binding{
			Name: name, Role: "viewer", RoleUID: "builtin", Subjects: []string{"user:bob"}, Namespaces: []string{"default"},
		}, w.clock.now().Add(-24*time.Hour+time.Duration(i)*time.Second))
		must(t, err)
	}
	_, err := w.keeper.Await(t.Context(), func(v *authority.View) bool { return len(v.Bindings()) == 2000 })
	must(t, err)

	const body = `{"role":"viewer","subjects":["user:bob"],"namespaces":["default"]}`
	wantStatus(t, "one more", w.as(w.secret, "PUT", "/v1/bindings/more", body), http.StatusConflict, client.CodeConflict)
	wantStatus(t, "a change", w.as(w.secret, "PUT", "/v1/bindings/b0", body[:len(body)-1]+`,"reason":"x"}`), http.StatusOK, "")
	wantStatus(t, "a deletion", w.as(w.secret, "DELETE", "/v1/bindings/b1", ""), http.StatusNoContent, "")
	wantStatus(t, "in its place", w.as(w.secret, "PUT", "/v1/bindings/more", body), http.StatusOK, "")
}

func TestAccess_NamespaceAdminsLeaveRoomForAdministrators(t *testing.T) {
	w := newWorld(t)
	w.clock.advance(time.Minute) // the bootstrap has written the fence, too

	put := func(secret, name string) response {
		return w.as(secret, "PUT", "/v1/bindings/default."+name, `{"role":"viewer","subjects":["user:x"],"namespaces":["default"]}`)
	}

	subjects := []string{"user:eve", "user:bob", "user:cid"}
	for _, subject := range subjects {
		w.bind(subject, "namespace-admin", "default")
	}

	written := 0
	for _, subject := range subjects {
		secret, own := w.token(subject), 0
		for i := range 5 {
			r := put(secret, fmt.Sprint(subject[5:], i))
			if r.status == http.StatusTooManyRequests {
				break
			}
			wantStatus(t, subject, r, http.StatusOK, "")
			own++
		}
		if own > 3 {
			t.Errorf("%s has written %d bindings within a second", subject, own)
		}
		written += own
	}
	if written != 8 {
		t.Errorf("three subjects have written %d bindings within a second, want 8", written)
	}

	for i := range 2 {
		wantStatus(t, "an administrator", put(w.secret, fmt.Sprint("a", i)), http.StatusOK, "")
	}
	wantStatus(t, "the eleventh", put(w.secret, "a3"), http.StatusTooManyRequests, client.CodeRateLimited)
}
