package api_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/task"
)

func ringOf(keys ...secret.Key) func() (secret.Ring, error) {
	return func() (secret.Ring, error) { return secret.NewRing(keys...), nil }
}

// values decrypts a secret, as a node does for an attempt.
func (w *world) values(name string, keys ...secret.Key) map[string]string {
	w.t.Helper()
	r, err := w.store.Secret(w.t.Context(), "default", name)
	must(w.t, err)
	v, err := secret.NewRing(keys...).Open(secret.Name{Namespace: "default", Name: name, Generation: r.Generation}, r.Sealed, r.KeyID)
	must(w.t, err)

	return v
}

// withKeys returns a world whose nodes have keys: node-a the first one, node-b another one before that, node-c
// none.
func withKeys(t *testing.T) (w *world, b *client.Client, one, two secret.Key) {
	w, one, two = newWorld(t), secret.NewKey(), secret.NewKey()
	w.keys = map[string]func() (secret.Ring, error){"node-a": ringOf(one), "node-b": ringOf(two, one),
		"node-d": func() (secret.Ring, error) { return secret.Ring{}, errors.New("its file is gone") }}

	w.url = w.serve("node-a")
	w.Client = w.client(w.url)

	return w, w.client(w.serve("node-b")), one, two
}

func TestSecret_Life(t *testing.T) {
	t.Parallel()
	w, b, one, two := withKeys(t)
	ctx := t.Context()
	s, err := w.Secrets.Set(ctx, "default", "db", client.SecretRequest{Values: map[string]string{"user": "app", "password": "hunter2"}})
	must(t, err)

	if s.Generation != 1 || !slices.Equal(s.Keys, []string{"password", "user"}) || s.KeyID != one.ID() || s.UpdatedBy.String() != w.actor() || s.Change != task.SecretSet || s.Revision == 0 {
		t.Errorf("set: %+v", s)
	}

	s, err = w.Secrets.Set(ctx, "default", "db", client.SecretRequest{Values: map[string]string{"password": "hunter3"}, Remove: []string{"user"}})
	must(t, err)

	if got := w.values("db", one); !maps.Equal(got, map[string]string{"password": "hunter3"}) || s.Generation != 2 {
		t.Errorf("the values are %v, %+v", got, s)
	}

	// Rotation uses the first key of the node that receives the request.
	if s, err = b.Secrets.Rotate(ctx, "default", "db"); err != nil || s.KeyID != two.ID() || s.Change != task.SecretRotated || s.Generation != 3 {
		t.Errorf("rotated: %+v, %v", s, err)
	}

	if again, err := b.Secrets.Rotate(ctx, "default", "db"); err != nil || again.Revision != s.Revision {
		t.Errorf("rotated again: %+v, %v", again, err)
	}

	if got := w.values("db", two); got["password"] != "hunter3" {
		t.Errorf("the values are %v", got)
	}

	// node-a does not have that key, so it can only replace the whole secret.
	wantError(t, second(w.Secrets.Set(ctx, "default", "db", client.SecretRequest{Values: map[string]string{"a": "b"}})), task.ErrConflict, client.CodeNoKey)
	wantError(t, second(w.Secrets.Rotate(ctx, "default", "db")), task.ErrConflict, client.CodeNoKey)

	if s, err = w.Secrets.Set(ctx, "default", "db", client.SecretRequest{Values: map[string]string{"a": "b"}, Replace: true}); err != nil || s.Generation != 4 || len(s.Keys) != 1 {
		t.Errorf("replaced: %+v, %v", s, err)
	}

	must(t, second(w.Secrets.Set(ctx, "other", "x", client.SecretRequest{Values: map[string]string{"a": "b"}})))

	if all, err := w.Secrets.List(ctx, ""); err != nil || len(all) != 2 {
		t.Errorf("all: %+v, %v", all, err)
	}

	must(t, w.Secrets.Delete(ctx, "default", "db"))
	wantError(t, second(w.Client.Secrets.Get(ctx, "default", "db")), task.ErrNotFound, client.CodeNotFound)
	wantError(t, w.Secrets.Delete(ctx, "default", "db"), task.ErrNotFound, client.CodeNotFound)
	wantError(t, second(b.Secrets.Rotate(ctx, "default", "db")), task.ErrNotFound, client.CodeNotFound)

	if all, err := w.Secrets.List(ctx, "default"); err != nil || len(all) != 0 {
		t.Errorf("deleted, and listed: %+v, %v", all, err)
	}

	// A secret created later has another generation, so former values cannot be copied into it.
	if s, err = w.Secrets.Set(ctx, "default", "db", client.SecretRequest{Values: map[string]string{"a": "b"}}); err != nil || s.Generation != 6 {
		t.Errorf("set after the delete: %+v, %v", s, err)
	}

	for key, value := range w.dump() {
		if strings.Contains(value, "hunter") {
			t.Errorf("a value is in %s", key)
		}
	}
}

func TestSecret_WhatIsRefused(t *testing.T) {
	t.Parallel()
	w, _, one, _ := withKeys(t)
	c, d := w.client(w.serve("node-c")), w.client(w.serve("node-d"))
	ctx := t.Context()
	set := client.SecretRequest{Values: map[string]string{"a": "hunter2"}}
	wantError(t, second(c.Secrets.Set(ctx, "default", "db", set)), task.ErrConflict, client.CodeNoKey)
	wantError(t, second(d.Secrets.Set(ctx, "default", "db", set)), task.ErrConflict, client.CodeNoKey)
	must(t, second(w.Secrets.Set(ctx, "default", "db", set)))

	if _, err := c.Secrets.List(ctx, "default"); err != nil {
		t.Errorf("without a key, there is no error: %v", err)
	}

	for want, r := range map[string]client.SecretRequest{
		task.CodeRequired: {}, task.CodeBadEnv: {Values: map[string]string{"a-b": "hunter2"}}, task.CodeBadValue: {Remove: []string{"hunter2"}},
		task.CodeTooLong: {Values: map[string]string{"a": strings.Repeat("hunter2", 10_000)}},
	} {
		e := wantError(t, second(w.Secrets.Set(ctx, "default", "db", r)), task.ErrInvalid, want)
		if want != task.CodeBadValue && strings.Contains(e.Error(), "hunter") {
			t.Errorf("the error reveals the value: %v", e)
		}
	}

	put := func(body string, header map[string]string) response {
		return w.do(request{method: "PUT", path: "/v1/namespaces/default/secrets/db", body: body, header: header})
	}

	for _, body := range []string{`{"values": {"a": 7}}`, `{"hunter2": "x"}`, `{"values": {"a": "hunter2", "a": "hunter2"}}`, `hunter2`, `{"values": {"a": "hunter2"`} {
		if r := put(body, nil); r.status != 400 || strings.Contains(r.body, "hunter") {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}

	good := `{"values": {"a": "b"}}`
	if r := put(good, map[string]string{"If-Match": `"1"`}); r.status != 412 {
		t.Errorf("another revision: %d %s", r.status, r.body)
	}

	if r := put(good, map[string]string{"If-None-Match": "*"}); r.status != 409 {
		t.Errorf("an existing secret: %d %s", r.status, r.body)
	}

	// A role that may only read changes nothing.
	w.bind("user:vic", access.RoleViewer, "default")
	viewer := w.token("user:vic")

	for _, method := range []string{"PUT", "DELETE"} {
		body := ""
		if method == "PUT" {
			body = good
		}

		if r := w.do(request{method: method, path: "/v1/namespaces/default/secrets/db", body: body, header: map[string]string{"Authorization": "Bearer " + viewer}}); r.status != 403 {
			t.Errorf("%s by a viewer: %d", method, r.status)
		}
	}

	if got := w.values("db", one); got["a"] != "hunter2" {
		t.Errorf("what was refused was done: %v", got)
	}

	// A record that cannot be read can be replaced.
	w.put(w.store.Keys().Secret("default", "db"), "{}")

	if r := put(`{"values": {"a": "b"}, "replace": true}`, map[string]string{"If-Match": `"1"`}); r.status != 412 {
		t.Errorf("another revision of a damaged record: %d %s", r.status, r.body)
	}

	if r := put(good, nil); r.status != 409 || !strings.Contains(r.body, "replace") {
		t.Errorf("a damaged record: %d %s", r.status, r.body)
	}

	if s, err := w.Secrets.Set(ctx, "default", "db", client.SecretRequest{Values: map[string]string{"a": "b"}, Replace: true}); err != nil || s.Generation != 1 {
		t.Errorf("a damaged record written anew: %+v, %v", s, err)
	}

	w.put(w.store.Keys().Secret("default", "db"), "[")
	must(t, w.Secrets.Delete(ctx, "default", "db"))
}

// TestSecret_LosesNoWrite checks that concurrent writes through two nodes are based on each other.
func TestSecret_LosesNoWrite(t *testing.T) {
	t.Parallel()
	w, b, one, two := withKeys(t)
	const writers, writes = 4, 4
	var wg sync.WaitGroup

	for id := range writers {
		wg.Go(func() {
			for i := range writes {
				node := []*client.Client{b, w.Client}[id%2]
				for {
					_, err := node.Secrets.Set(t.Context(), "default", "db", client.SecretRequest{Values: map[string]string{fmt.Sprintf("k%d_%d", id, i): "v"}})
					var e *client.Error
					if errors.As(err, &e) && (e.Code == client.CodeConflict || e.Code == client.CodeNoKey) {
						node = b // it has both keys
						continue
					}

					if err != nil {
						t.Error(err)
					}

					break
				}
			}
		})
	}

	wg.Wait()
	got := w.values("db", two, one)
	r, err := w.store.Secret(t.Context(), "default", "db")
	if len(got) != writers*writes || err != nil || r.Generation != writers*writes {
		t.Errorf("%d values and generation %d of %d writes, %v", len(got), r.Generation, writers*writes, err)
	}
}
