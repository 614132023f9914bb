package ui

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// keep lets the browser keep the cookie of an answer, as browsers do. It reports whether there is one.
func (b *browser) keep(a answer) bool {
	for _, c := range a.Cookies() {
		if strings.HasSuffix(c.Name, "carillon-"+b.w.Record.ID) {
			b.cookie = c.Value
			return true
		}
	}
	return false
}

// isLogin reports whether an answer leads to the login page, and from there back to a page.
func isLogin(a answer, next string) bool {
	return a.StatusCode == http.StatusSeeOther && a.Header.Get("Location") == client.LoginPath+"?"+url.Values{"next": {next}}.Encode()
}

func TestSession_EndsAfterAnHourWithoutUse(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	b := w.as("user:ann")

	w.Clock.Advance(maxIdle - time.Second)
	if a := b.get("/ui/nodes"); a.StatusCode != http.StatusOK || !b.keep(a) {
		t.Fatalf("before the hour is over: %d, cookies %v", a.StatusCode, a.Cookies())
	}
	w.Clock.Advance(maxIdle - time.Second)
	if a := b.do(http.MethodPost, "/ui/tasks/prod/web/pause", url.Values{"at": {"/ui/tasks/prod/web"}}); a.Header.Get("Location") != "/ui/tasks/prod/web" || !b.keep(a) {
		t.Fatalf("a form: %d to %q, cookies %v", a.StatusCode, a.Header.Get("Location"), a.Cookies())
	}

	w.Clock.Advance(maxIdle)
	for path, next := range map[string]string{"/ui/nodes": "/ui/nodes", "/ui/tasks?q=web": "/ui/tasks?q=web", "/ui/none": "/ui/none"} {
		if a := b.get(path); !isLogin(a, next) || b.keep(a) {
			t.Errorf("GET %s after an hour: %d to %q", path, a.StatusCode, a.Header.Get("Location"))
		}
	}
	if a := b.do(http.MethodPost, "/ui/tasks/prod/web/resume", url.Values{"at": {"/ui/tasks/prod/web"}}); !isLogin(a, "/ui/tasks/prod/web") {
		t.Errorf("a form after an hour: %d to %q", a.StatusCode, a.Header.Get("Location"))
	}
	if a := b.get("/ui/login?next=%2Fui%2Fnodes"); a.StatusCode != http.StatusOK {
		t.Errorf("the login page after an hour: %d to %q", a.StatusCode, a.Header.Get("Location"))
	}
	if a := b.get("/ui/live?at=%2Fui%2Fnodes", header("HX-Request", "true")); !strings.Contains(a.body, "event: "+eventLogin) {
		t.Errorf("a stream after an hour: %s", a.body)
	}
}

// The time of the last use is written to the cookie at most once a minute.
func TestSession_IsRenewedOnceAMinute(t *testing.T) {
	w := newWorld(t)
	b := w.as("user:ann")

	w.Clock.Advance(renewAfter - time.Second)
	if a := b.get("/ui/nodes"); a.StatusCode != http.StatusOK || b.keep(a) {
		t.Errorf("within a minute: %d, cookies %v", a.StatusCode, a.Cookies())
	}

	w.Clock.Advance(time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	stream := b.open(ctx, http.MethodGet, "/ui/live?at=%2Fui%2Fnodes", nil, header("HX-Request", "true"))
	if len(stream.Cookies()) != 0 {
		t.Errorf("a stream renews the cookie: %v", stream.Cookies())
	}
	cancel()
	must(t, stream.Body.Close())

	a := b.get("/ui/nodes")
	former := b.cookie
	if !b.keep(a) || b.cookie == former {
		t.Fatalf("after a minute: %d, cookies %v", a.StatusCode, a.Cookies())
	}
	if c := a.Cookies()[0]; !c.HttpOnly || !c.Secure || c.Path != "/" || c.SameSite != http.SameSiteLaxMode || c.MaxAge != int(maxSession/time.Second) {
		t.Errorf("the cookie is %+v", c)
	}

	w.Clock.Advance(time.Second)
	if b.keep(b.get("/ui/nodes")) {
		t.Error("the cookie is renewed again after a second")
	}
}

// A cookie without Secure, for browsers that accept no other on loopback, keeps its name.
func TestSession_RenewsThePlainCookie(t *testing.T) {
	w := newWorld(t)
	b, name := w.as("user:ann"), "carillon-"+w.Record.ID
	cookie := b.cookie
	b.cookie = ""

	w.Clock.Advance(renewAfter)
	a := b.get("/ui/nodes", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: name, Value: cookie}) })
	if c := a.Cookies(); a.StatusCode != http.StatusOK || len(c) != 1 || c[0].Name != name || c[0].Secure {
		t.Errorf("%d, cookies %v", a.StatusCode, c)
	}
}

// Any node of the cluster continues a session, and no node continues a session that has become idle without its knowledge.
func TestSession_IsIdleAtAllNodes(t *testing.T) {
	w := newWorld(t)
	other, err := New(Config{API: w.API("node-b", nil), Access: w.Keeper, Key: w.Store.LoginKey, Cluster: w.Record.ID, Node: "node-b", Now: w.Clock.Now})
	must(t, err)
	b := w.as("user:ann")
	at := func(s *Server) answer {
		b.client.Transport = &transport{api: s, remote: "192.0.2.1:4711"}
		return b.get("/ui/nodes")
	}

	for range 4 {
		for _, s := range []*Server{w.ui, other} {
			w.Clock.Advance(maxIdle - time.Minute)
			if a := at(s); a.StatusCode != http.StatusOK || !b.keep(a) {
				t.Fatalf("at %s: %d", s.Node, a.StatusCode)
			}
		}
	}

	w.Clock.Advance(maxIdle)
	for _, s := range []*Server{other, w.ui} {
		if a := at(s); !isLogin(a, "/ui/nodes") {
			t.Errorf("an idle session at %s: %d", s.Node, a.StatusCode)
		}
	}
}

// A page that is open does not prolong its session. Its stream ends, and the browser connects again with the cookie that it has
// then: another page may have renewed it.
func TestLive_StreamIsNoUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.as("user:ann")
		s := b.tab("/ui/nodes")
		s.after(time.Second)

		const check = sessionBeats * beatEvery
		w.Clock.Advance(maxIdle - 2*check)
		if s.after(check); s.isOver() {
			t.Error("the stream has ended early")
		}
		// The browser uses another page, and so the session goes on.
		if a := b.get("/ui/tasks"); !b.keep(a) {
			t.Fatalf("another page: %d, cookies %v", a.StatusCode, a.Cookies())
		}
		list := s.after(2 * check)
		if isEnd := func(e event) bool { return e.name == eventLogin }; !s.isOver() || slices.ContainsFunc(list, isEnd) {
			t.Errorf("the stream of an old cookie has ended: %v, with %v", s.isOver(), list)
		}

		again := b.tab("/ui/nodes")
		if again.after(time.Second); again.isOver() {
			t.Error("the stream of the renewed cookie has ended")
		}

		w.Clock.Advance(maxIdle)
		if again.after(check); !again.isOver() {
			t.Error("the stream has not ended")
		}
		last := b.tab("/ui/nodes")
		if e := one(t, last.after(time.Second)); e.name != eventLogin || !last.isOver() {
			t.Errorf("the stream of an idle session says %+v", e)
		}
	})
}

// Only nodes of the cluster can make a cookie or change the time in it. The secret cannot be taken out of it.
func TestCookie_IsSealed(t *testing.T) {
	w, neighbor := newWorld(t), newWorld(t)
	b := w.as("user:ann")
	if strings.Contains(b.cookie, b.secret) || strings.Contains(b.cookie, "carillon") {
		t.Errorf("the cookie %s shows the secret", b.cookie)
	}
	if _, err := w.apiFor(b.secret).Access.WhoAmI(t.Context()); err != nil {
		t.Fatal(err)
	}

	middle := len(b.cookie) / 2
	changed := "A"
	if b.cookie[middle] == 'A' {
		changed = "B"
	}
	for name, cookie := range map[string]string{
		"the secret": b.secret, "another cluster": neighbor.cookieOf(b.secret), "nothing": "", "junk": "junk", "long": strings.Repeat("A", 5000),
		"cut off": b.cookie[:len(b.cookie)-4], "changed": b.cookie[:middle] + changed + b.cookie[middle+1:],
	} {
		b.cookie = cookie
		if a := b.get("/ui/nodes"); !isLogin(a, "/ui/nodes") {
			t.Errorf("%s: %d", name, a.StatusCode)
		}
	}
}

// A login ends the session that it replaces, also an idle one, and so does signing out.
func TestLogin_EndsIdleSessions(t *testing.T) {
	w := newWorld(t)
	b := w.as("user:ann")
	w.Clock.Advance(maxIdle)
	b.enter(b.do(http.MethodPost, "/ui/login", url.Values{"token": {w.Token("user:ann")}}))
	if n := len(w.records()[task.TokenKindSession]); n != 1 {
		t.Errorf("there are %d sessions, want the new one", n)
	}

	w.Clock.Advance(maxIdle)
	b.do(http.MethodPost, "/ui/logout", url.Values{})
	if n := len(w.records()[task.TokenKindSession]); n != 0 {
		t.Errorf("after signing out, there are %d sessions", n)
	}
}

// A node that has just started while etcd does not answer sends nobody to the login page: it cannot know whether the session is
// valid. It reads the key again when it is asked again.
func TestServer_WaitsForTheKey(t *testing.T) {
	var reads int
	fail := true
	var w *world
	w = newWorld(t, func(c *Config) {
		c.Key = func(ctx context.Context) ([KeyBytes]byte, error) {
			if reads++; fail {
				return [KeyBytes]byte{}, errors.New("etcd does not answer")
			}
			return w.Store.LoginKey(ctx)
		}
	})

	for _, path := range []string{"/ui/nodes", "/ui/login"} {
		if a := w.as("").get(path); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || !strings.Contains(a.body, "cannot check your session") {
			t.Errorf("GET %s without the key: %d %s", path, a.StatusCode, a.body)
		}
	}
	a := w.as("").get("/ui/live?at=%2Fui%2Fnodes", header("HX-Request", "true"))
	if !strings.Contains(a.body, "event: "+eventFault) || !strings.Contains(a.body, `"away":true`) || strings.Contains(a.body, eventLogin) {
		t.Errorf("a stream without the key: %s", a.body)
	}

	// The manual needs no session.
	if page := w.as("").page("/docs/operations.html"); !strings.Contains(page, "etcd") {
		t.Errorf("the manual without the key: %s", page)
	}

	fail, reads = false, 0
	b := w.as("user:ann")
	for range 3 {
		b.page("/ui/nodes")
	}
	if reads != 1 {
		t.Errorf("the key was read %d times, want once", reads)
	}
}
