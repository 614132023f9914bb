package api_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestAuth(t *testing.T) {
	w := newWorld(t)
	expired := w.token("user:ann", until(w.clock.now().Add(-time.Second)))
	soon := w.token("user:ann", until(w.clock.now().Add(time.Minute)))
	nobody := w.token("user:nobody")
	unknown, _ := authority.NewSecret()
	parts := strings.Split(w.secret, "_")
	other, _ := authority.NewSecret()
	for _, c := range []struct {
		what, header string
		status       int
	}{
		{"good", "Bearer " + w.secret, 200},
		{"scheme in another case", "bearer " + w.secret, 200},
		{"not yet expired", "Bearer " + soon, 200},
		{"none", "", 401},
		{"empty", "Bearer ", 401},
		{"another scheme", "Basic " + w.secret, 401},
		{"without a scheme", w.secret, 401},
		{"unknown", "Bearer " + unknown, 401},
		{"expired", "Bearer " + expired, 401},
		{"another's secret", "Bearer carillon_" + parts[1] + "_" + strings.Split(other, "_")[2], 401},
		{"cut short", "Bearer " + w.secret[:len(w.secret)-1], 401},
		{"its id only", "Bearer carillon_" + parts[1] + "_", 401},
		{"an id that leads elsewhere", "Bearer carillon_../../cluster/xx_" + parts[2], 401},
		{"without the right", "Bearer " + nobody, 403},
	} {
		r := w.do(request{method: "GET", path: "/v1/nodes", header: map[string]string{"Authorization": c.header}})
		if r.status != c.status {
			t.Errorf("%s: %d, want %d: %s", c.what, r.status, c.status, r.body)
		}

		if challenged := r.header.Get("WWW-Authenticate") != ""; challenged != (c.status == 401) {
			t.Errorf("%s: the answer has WWW-Authenticate: %v", c.what, challenged)
		}

		if strings.Contains(r.body, parts[2]) {
			t.Errorf("%s: the answer holds the secret", c.what)
		}
	}

	w.clock.advance(2 * time.Minute)

	if r := w.do(request{method: "GET", path: "/v1/nodes", header: map[string]string{"Authorization": "Bearer " + soon}}); r.status != 401 {
		t.Errorf("expired since: %d", r.status)
	}

	for path, want := range map[string]int{
		"/v1": 401, "/v1/": 401, "/v1/nothing": 401, "/v1/tasks": 401,
		"/healthz": 200, "/readyz": 200, "/metrics": 401, "/openapi.json": 200, "/openapi.yaml": 200, "/v2": 404,
	} {
		if r := w.do(request{method: "GET", path: path, noToken: true}); r.status != want {
			t.Errorf("%s without a token: %d, want %d", path, r.status, want)
		}
	}

	for key, value := range w.dump() {
		if strings.Contains(key, parts[2]) || strings.Contains(value, parts[2]) {
			t.Errorf("the secret is in etcd, in %s", key)
		}
	}
}

func TestReady(t *testing.T) {
	w := newWorld(t)
	must(t, w.Ready(t.Context()))
	w.ready = errors.New("shard 3 is 40 s behind")

	e := wantError(t, w.Ready(t.Context()), task.ErrUnavailable, client.CodeNotReady)
	if !strings.Contains(e.Message, "shard 3 is 40 s behind") {
		t.Errorf("not ready: %v", e)
	}

	// The reason is about the cluster, so that nobody gets it who is not known.
	for what, header := range map[string]map[string]string{"no token": nil, "a wrong token": {"Authorization": "Bearer " + w.secret[:len(w.secret)-1] + "x"}} {
		if r := w.do(request{method: "GET", path: "/readyz", header: header, noToken: header == nil}); r.status != 503 || strings.Contains(r.body, "shard") {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}
}
