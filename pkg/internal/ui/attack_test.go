package ui

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// A page sends its own forms with the header Origin. With the policy no-referrer, browsers send "null" instead, which looks
// like another site to a node without TLS, because there they send no Sec-Fetch-Site either.
func TestServer_OwnFormsHaveAnOrigin(t *testing.T) {
	w := newWorld(t)
	if got := w.as("").get("/ui/login").Header.Get("Referrer-Policy"); got != "same-origin" {
		t.Errorf("the login page has the Referrer-Policy %q, want same-origin", got)
	}

	plain := func(origin string) func(*http.Request) {
		return func(r *http.Request) {
			r.Host, r.URL.Host = "node-a.example:7070", "node-a.example:7070"
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", origin)
		}
	}
	form := url.Values{"token": {w.Token("user:ann")}}
	if a := w.as("").do(http.MethodPost, "/ui/login", form, plain("http://node-a.example:7070")); a.StatusCode != http.StatusSeeOther {
		t.Errorf("the form of the login page: %d %s", a.StatusCode, a.body)
	}
	if a := w.as("").do(http.MethodPost, "/ui/login", form, plain("null")); a.StatusCode != http.StatusForbidden {
		t.Errorf("a form without an origin: %d, want 403", a.StatusCode)
	}
}

// A link must not show a command line with flags that the link adds: --server would send the token of who copies the line
// elsewhere.
func TestView_CommandsHaveNoFlagsOfLinks(t *testing.T) {
	w := newWorld(t)
	ann := w.as("user:ann")
	const flag = "--server=https:evil"
	for path, want := range map[string]string{
		"/ui/tasks?q=" + flag:                             "carillon task list -A -- " + flag,
		"/ui/tasks?q=-state:paused":                       "carillon task list -A -state:paused",
		"/ui/tasks?sort=" + flag:                          "carillon task list -A",
		"/ui/tasks/bulk?do=pause&task=" + flag:            "carillon task pause --dry-run -- " + flag,
		"/ui/tasks/bulk?do=" + flag + "&task=a":           "carillon task",
		"/ui/tasks/new?from=prod/" + flag:                 "carillon task export -n prod -- " + flag,
		"/ui/load?q=" + flag + "&minute=" + flag:          "carillon load -- " + flag,
		"/ui/load?minute=2026-11-20T23:00:30%2B01:00":     "carillon load --minute 2026-11-20T22:00:00Z",
		"/ui/runs?ns=prod&task=" + flag:                   "carillon run list -n prod --limit 50 -- " + flag,
		"/ui/tasks/prod/" + flag:                          "",
		"/ui/tasks/prod/" + flag + "/edit":                "",
		"/ui/why/prod/" + flag:                            "",
		"/ui/runs/prod/" + flag:                           "",
		"/ui/nodes/" + flag:                               "",
		"/ui/events?kind=" + flag + "&ns=-v&task=" + flag: "carillon events --since 15m -n -v --kind " + flag + " --task " + flag,
	} {
		_, rest, found := strings.Cut(ann.get(path).body, `<code id="cli"`)
		_, rest, _ = strings.Cut(rest, ">")
		got, _, _ := strings.Cut(rest, "<")
		if got != want || found != (want != "") {
			t.Errorf("%s shows %q, want %q", path, got, want)
		}
	}
}

// A panic while a page is rendered for its viewers, or in its feed, is that of the page and not of the node.
func TestLive_SurvivesPanics(t *testing.T) {
	for name, screen := range map[string]Screen{
		"load": {Load: func(context.Context, *Request) (any, error) { panic("load") }},
		"feed": {
			Load: func(context.Context, *Request) (any, error) { return "x", nil },
			Feed: func(context.Context, *Request, string, func(FeedEvent) error) error { panic("feed") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				screen.Name, screen.Template, screen.Pattern, screen.Nav = "x", "nodes", "/ui/x", "x"
				screen.Title = func(*View) string { return "X" }
				w := newWorldWith(t, []Screen{screen}, embedded)

				s := w.as("user:ann").tab("/ui/x")
				events := s.after(refreshed)
				if name == "load" && (len(events) == 0 || events[0].name != eventFault) {
					t.Errorf("the stream says %q, want a fault", events)
				}
				if s.isOver() {
					t.Error("the stream has ended")
				}
			})
		})
	}
}

// countedBody counts the bytes that are read of it.
type countedBody struct {
	io.Reader
	n int
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.n += n
	return n, err
}

func (b *countedBody) Close() error { return nil }

// A caller who has no session cannot make a node hold large forms in memory: there can be a thousand at the same time.
func TestServer_ReadsNoLargeFormsWithoutSession(t *testing.T) {
	w := newWorld(t)
	for path, secret := range map[string]string{"/ui/login": "", "/ui/login/link": "", "/ui/theme": "", "/ui/logout": "", "/ui/tasks/prod/web/pause": "carillon_x_y"} {
		body := &countedBody{Reader: io.MultiReader(strings.NewReader("token="), bytes.NewReader(bytes.Repeat([]byte("x"), 3<<20)))}
		r := httptest.NewRequest(http.MethodPost, path, body)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		r.AddCookie(&http.Cookie{Name: "carillon-" + w.Record.ID, Value: secret})
		w.ui.ServeHTTP(httptest.NewRecorder(), r)
		if body.n > 128<<10 {
			t.Errorf("POST %s: %d bytes were read", path, body.n)
		}
	}
}

// A session that is bound to networks shows nothing elsewhere, not even its subject or the names of namespaces.
func TestServer_SessionIsBoundToItsNetworks(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	b := w.as("")
	b.secret = w.Token("user:ann", func(t *task.Token) {
		t.Kind, t.Until, t.CIDRs = task.TokenKindSession, task.At(w.Clock.Now().Add(time.Hour)), []string{"10.0.0.0/8"}
	})
	b.cookie = w.cookieOf(b.secret)

	for _, s := range screens() {
		path := strings.NewReplacer("{ns}", "prod", "{name}", "web", "{node}", "node-a", "{id}", "x").Replace(s.Pattern)
		if a := b.get(path); a.StatusCode != http.StatusSeeOther {
			t.Errorf("GET %s: %d, want the login page", path, a.StatusCode)
		}
	}
	if a := b.get("/ui/none"); a.StatusCode != http.StatusSeeOther {
		t.Errorf("GET /ui/none: %d, want the login page", a.StatusCode)
	}
}

// Neighbors of the same domain can give a browser cookies, but on an encrypted connection no message to show.
func TestServer_ShowsNoMessagesOfNeighbors(t *testing.T) {
	w := newWorld(t)
	planted := func(r *http.Request) { r.AddCookie(&http.Cookie{Name: messageCookie, Value: "your+session+is+over"}) }
	overTLS := func(r *http.Request) { r.Host, r.URL.Host = "carillon.example", "carillon.example" }
	w.ui.Origin = "https://carillon.example"

	if a := w.as("user:ann").get("/ui/tasks", planted, overTLS); a.StatusCode != http.StatusOK || strings.Contains(a.body, "your session is over") {
		t.Errorf("%d, and the page shows the message of another site", a.StatusCode)
	}
	if c := w.ui.cookieFor(&http.Request{Host: "carillon.example"}, messageCookie); c.Name != "__Host-carillon-message" || !c.Secure || c.Path != "/" {
		t.Errorf("the cookie of a message is %v", c)
	}
}

// One subject cannot take the streams of everybody.
func TestLive_SubjectsHaveShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "alpha")
		const sessions = maxViewersOf / maxViewersOfSession
		bob := func(session int) access.Caller {
			return access.Caller{Subject: "user:bob", Token: fmt.Sprint("bob", session)}
		}
		for i := range sessions {
			for range maxViewersOfSession {
				if !w.ui.hub.admit(bob(i)) {
					t.Fatal("too few streams are admitted")
				}
			}
			if w.ui.hub.admit(bob(i)) {
				t.Error("a session has more than its share")
			}
		}
		if w.ui.hub.admit(bob(sessions)) {
			t.Error("a subject has more than its share")
		}

		s := w.as("user:ann").tab("/ui/tasks")
		if got := s.after(refreshed); len(got) != 1 || s.isOver() {
			t.Errorf("the stream of another subject says %q and has ended: %v", got, s.isOver())
		}
	})
}

// On the address of ui_origin with https, browsers are told to use TLS always, and the cookie of the theme is a secure one.
func TestServer_SecureOrigin(t *testing.T) {
	w := newWorld(t)
	w.ui.Origin = "https://carillon.example"
	at := func(host string) func(*http.Request) {
		return func(r *http.Request) { r.Host, r.URL.Host = host, host }
	}

	for _, path := range []string{"/ui/tasks", "/ui/login", "/healthz", "/v1/tasks"} {
		if got := w.as("user:ann").get(path, at("carillon.example")).Header.Get("Strict-Transport-Security"); got != "max-age=31536000" {
			t.Errorf("%s: Strict-Transport-Security %q", path, got)
		}
		if got := w.as("user:ann").get(path, at("node-a:7070")).Header.Get("Strict-Transport-Security"); got != "" {
			t.Errorf("%s at another address: Strict-Transport-Security %q", path, got)
		}
	}

	for host, want := range map[string]string{"carillon.example": "__Host-carillon-theme", "127.0.0.1:7070": "carillon-theme"} {
		r := httptest.NewRequest(http.MethodPost, "/ui/theme", strings.NewReader("theme=dark"))
		r.Host = host
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer := httptest.NewRecorder()
		w.ui.ServeHTTP(answer, r)

		cookies := answer.Result().Cookies()
		if len(cookies) != 1 || cookies[0].Name != want || cookies[0].Secure != strings.HasPrefix(want, securePrefix) || cookies[0].Path != "/" {
			t.Fatalf("at %s, the cookie of the theme is %v", host, cookies)
		}

		shown := httptest.NewRequest(http.MethodGet, "/ui/login", http.NoBody)
		shown.Host = host
		shown.AddCookie(cookies[0])
		if got := w.ui.themeOf(shown); got != "dark" {
			t.Errorf("at %s, the theme is %q", host, got)
		}
	}
}
