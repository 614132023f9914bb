package ui

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/ui/browsertest"
	"github.com/carillonhq/carillon/pkg/task"
)

// Without a session pages lead to the login page, and nothing else tells anything.
func TestServer_NeedsSession(t *testing.T) {
	w := newWorld(t)
	nobody := w.as("")

	for _, path := range []string{"/ui/tasks", "/ui/nodes?x=1", "/ui/none"} {
		a := nobody.get(path)
		if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/login?"+(url.Values{"next": {path}}).Encode() {
			t.Errorf("GET %s: %d to %q", path, a.StatusCode, a.Header.Get("Location"))
		}
	}

	if a := nobody.get("/ui/live?at=/ui/tasks"); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("GET /ui/live: %d, want 401", a.StatusCode)
	}
	if a := nobody.get("/ui/live?at=/ui/tasks", header("HX-Request", "true")); a.StatusCode != http.StatusOK || !strings.Contains(a.body, "event: login\n") {
		t.Errorf("GET /ui/live from a page: %d %q, want a stream that asks to sign in", a.StatusCode, a.body)
	}
	if a := nobody.get("/v1/tasks"); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("GET /v1/tasks: %d, want 401", a.StatusCode)
	}
	if a := w.as("user:ann").get("/v1/tasks"); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("GET /v1/tasks with a cookie: %d, want 401: the API takes no cookie", a.StatusCode)
	}
	if a := nobody.get("/"); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui" {
		t.Errorf("GET / of a browser: %d to %q", a.StatusCode, a.Header.Get("Location"))
	}
	if a := nobody.get("/", header("Accept", "*/*")); a.StatusCode != http.StatusNotFound {
		t.Errorf("GET / of curl: %d, want the API's 404", a.StatusCode)
	}
}

// A form of another site is refused, whoever is signed in.
func TestServer_RefusesOtherSites(t *testing.T) {
	w := newWorld(t)
	ann := w.as("user:ann")

	for _, edit := range []func(*http.Request){
		header("Sec-Fetch-Site", "cross-site"),
		func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "https://evil.example") },
	} {
		if a := ann.do(http.MethodPost, "/ui/theme", url.Values{"theme": {"dark"}}, edit); a.StatusCode != http.StatusForbidden {
			t.Errorf("POST of another site: %d, want 403", a.StatusCode)
		}
	}

	if a := ann.do(http.MethodPost, "/ui/theme", url.Values{"theme": {"dark"}, "at": {"/ui/nodes"}}); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/nodes" {
		t.Errorf("POST of the page itself: %d to %q", a.StatusCode, a.Header.Get("Location"))
	}
}

// Every answer has the security headers, and no page has inline script or style.
func TestServer_SetsSecurityHeaders(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")

	for _, path := range []string{"/ui/tasks", "/ui/nodes", "/ui/login", "/ui/none"} {
		a := w.as("user:ann").get(path)
		h := a.Header
		if h.Get("Content-Security-Policy") != contentSecurityPolicy || h.Get("Referrer-Policy") != "same-origin" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("GET %s: headers %v", path, h)
		}

		low := strings.ToLower(a.body)
		if strings.Contains(low, " style=") || strings.Contains(low, "<style") || strings.Contains(low, "<script>") || strings.Contains(low, " onclick=") {
			t.Errorf("GET %s: inline script or style:\n%s", path, a.body)
		}
	}
}

// The address to return to after a login cannot lead elsewhere.
func TestLocalTarget_StaysHere(t *testing.T) {
	for target, want := range map[string]string{
		"/ui/tasks?q=a%26b": "/ui/tasks?q=a%26b", "/ui": "/ui", "": "/ui", "/": "/ui", "/v1/tasks": "/ui", "/uix": "/ui",
		"https://evil.example/ui/tasks": "/ui", "//evil.example/ui/": "/ui", `/\evil.example/ui`: "/ui", "/ui/..//evil.example": "/ui",
		"/ui/../v1/tasks": "/ui", "/ui/%2e%2e//evil.example": "/ui", "/ui//evil.example": "/ui", "/ui/./tasks": "/ui",
		"javascript:alert(1)": "/ui", "/ui/tasks#x": "/ui/tasks", "/ui\\@evil": "/ui",
	} {
		if got := localTarget(target); got != want {
			t.Errorf("%q leads to %q, want %q", target, got, want)
		}
	}
}

// A viewer of one namespace sees only what it may, and a list that it may not read at all names the missing right.
func TestServer_ShowsWhatTheViewerMayRead(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "prod-task")
	w.create("test", "test-task")
	w.Bind("user:bob", "viewer", "prod")
	bob := w.as("user:bob")

	page := bob.page("/ui/tasks")
	want(t, page, "prod-task", "user:bob", "viewer in prod")
	if strings.Contains(page, "test-task") || strings.Contains(page, ">test<") {
		t.Errorf("the page of bob shows what is in another namespace:\n%s", page)
	}

	a := bob.get("/ui/nodes")
	if a.StatusCode != http.StatusForbidden {
		t.Fatalf("GET /ui/nodes: %d", a.StatusCode)
	}
	want(t, a.body, "may not read nodes", "binding of the role viewer in the whole cluster", "You may not do this")
}

// What users have written cannot change a page or its links.
func TestServer_ShowsHostileTexts(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web", func(s *task.Spec) {
		s.Description = `</td><script>alert(1)</script>"'&`
		s.Labels = map[string]string{"team": "x"}
	})
	ann := w.as("user:ann")

	page := ann.page("/ui/tasks")
	want(t, page, "&lt;script&gt;alert(1)")
	for _, q := range []string{`"><script>alert(1)</script>`, `x&ns=other`, `name~"a`, "state:failing' or"} {
		a := ann.get("/ui/tasks?" + url.Values{"q": {q}, "tz": {q}, "sort": {"name"}}.Encode())
		if strings.Contains(a.body, "<script>alert") {
			t.Errorf("query %q is script in the page:\n%s", q, a.body)
		}
	}
}

// A page names the other nodes that serve it to viewers who may read nodes, unless a proxy is in front of them.
func TestNav_OtherNodes(t *testing.T) {
	board := task.Board{Nodes: []task.BoardNode{
		{Name: "web-3", Address: "http://web-3:7070", Roles: []string{task.RoleScheduler, task.RoleAPI}},
		{Name: "node-a", Address: "http://node-a:7070", Roles: []string{task.RoleAPI}},
		{Name: "worker", Address: "http://worker:7070", Roles: []string{task.RoleExecutor}},
		{Name: "starting", Roles: []string{task.RoleAPI}},
		{Name: "web-2", Address: "http://web-2:7070", Roles: []string{task.RoleAPI}},
	}}

	for _, c := range []struct {
		name   string
		counts counts
		origin string
		want   []OtherNode
	}{
		{"all", counts{known: true, readsFleet: true, board: board}, "", []OtherNode{{"web-2", "http://web-2:7070"}, {"web-3", "http://web-3:7070"}}},
		{"no right", counts{known: true, board: board}, "", nil},
		{"not known", counts{readsFleet: true, board: board}, "", nil},
		{"proxy", counts{known: true, readsFleet: true, board: board}, "https://carillon.example.com", nil},
	} {
		v := &View{server: &Server{Config: Config{Node: "node-a", Origin: c.origin}}, counts: c.counts}
		if got := v.OtherNodes(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The tests in the browser open a page of each screen. They have a build tag, so this test says what they lack.
func TestScreens_AreTestedInTheBrowser(t *testing.T) {
	for _, s := range screens() {
		if !slices.ContainsFunc(browsertest.Pages, func(p browsertest.Page) bool { return p.Screen == s.Name }) {
			t.Errorf("add a page of the screen %q to browsertest.Pages", s.Name)
		}
	}
}
