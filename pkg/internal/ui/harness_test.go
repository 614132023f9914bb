package ui

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// world is a cluster with the pages of one node, and a browser for each viewer.
type world struct {
	*apikit.Cluster
	t   testing.TB
	ui  *Server
	api http.Handler // may be replaced before a request
}

func newWorld(t testing.TB, edits ...func(*Config)) *world {
	t.Helper()
	parsed, err := embeddedTemplates()
	must(t, err)

	return newWorldOf(t, screens(), parsed, edits...)
}

// newWorldWith is newWorld with other screens.
func newWorldWith(t testing.TB, list []Screen, fsys fs.FS) *world {
	t.Helper()
	parsed, err := parseTemplates(fsys, list)
	must(t, err)

	return newWorldOf(t, list, parsed)
}

func newWorldOf(t testing.TB, list []Screen, parsed *templates, edits ...func(*Config)) *world {
	t.Helper()
	w := &world{Cluster: apikit.New(t, kvtest.Memory(t), nil, nil), t: t}
	w.api = w.API("node-a", nil)

	cfg := Config{
		API: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.api.ServeHTTP(rw, r) }), Access: w.Keeper, Key: w.Store.LoginKey,
		Cluster: w.Record.ID, Node: "node-a", Version: "1.2.3", Now: w.Clock.Now,
	}
	for _, edit := range edits {
		edit(&cfg)
	}

	var err error
	w.ui, err = newServer(cfg, list, parsed)
	must(t, err)

	return w
}

// apiWith returns the API with another configuration.
func (w *world) apiWith(edit func(*api.Config)) http.Handler { return w.API("node-a", edit) }

// loadAgain returns a function that loads a page as a stream does: each time with what it has returned before.
func (w *world) loadAgain(load func(context.Context, *Request) (any, error), at string) func() any {
	w.t.Helper()
	who, ok := w.ui.sessionWith(w.as("user:ann").secret)
	if !ok {
		w.t.Fatal("no session")
	}

	var last any
	return func() any {
		w.t.Helper()
		_, r := w.ui.screenAt(w.t.Context(), at)
		q, err := w.ui.newRequest(r, who)
		must(w.t, err)

		q.previous = last
		last, err = load(w.t.Context(), q)
		must(w.t, err)

		return last
	}
}

// browser is a browser with the session of one viewer. It follows no redirects.
type browser struct {
	w      *world
	secret string // of the session
	cookie string // its cookie; "" has none
	client *http.Client
}

// as returns a browser with a session of a subject; "" has none.
func (w *world) as(subject string) *browser {
	w.t.Helper()
	b := &browser{w: w, client: &http.Client{
		Transport:     &transport{api: w.ui, remote: "192.0.2.1:4711"},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if subject != "" {
		b.secret = w.Token(subject, func(t *task.Token) {
			t.Kind, t.Until = task.TokenKindSession, task.At(w.Clock.Now().Add(maxSession))
		})
		b.cookie = w.cookieOf(b.secret)
	}

	return b
}

// cookieOf returns the cookie of a session that a person uses now.
func (w *world) cookieOf(secret string) string {
	w.t.Helper()
	must(w.t, w.ui.cookies.prepare(w.t.Context()))

	return w.ui.cookies.seal(secret, w.Clock.Now())
}

// answer is an answer with its whole body.
type answer struct {
	*http.Response
	body string
}

// do sends a request; edits change it.
func (b *browser) do(method, path string, form url.Values, edits ...func(*http.Request)) answer {
	b.w.t.Helper()
	res := b.open(b.w.t.Context(), method, path, form, edits...)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(b.w.t, err)

	return answer{res, string(body)}
}

// open sends a request and returns the answer when it begins.
func (b *browser) open(ctx context.Context, method, path string, form url.Values, edits ...func(*http.Request)) *http.Response {
	b.w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://127.0.0.1:7070"+path, strings.NewReader(form.Encode()))
	must(b.w.t, err)

	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	if b.cookie != "" {
		r.AddCookie(&http.Cookie{Name: securePrefix + "carillon-" + b.w.Record.ID, Value: b.cookie})
	}
	r.Header.Set("Accept", "text/html")
	r.Host = r.URL.Host
	for _, edit := range edits {
		edit(r)
	}

	res, err := b.client.Do(r)
	must(b.w.t, err)

	return res
}

func (b *browser) get(path string, edits ...func(*http.Request)) answer {
	b.w.t.Helper()
	return b.do(http.MethodGet, path, nil, edits...)
}

// page gets a page that must exist.
func (b *browser) page(path string) string {
	b.w.t.Helper()
	a := b.get(path)
	if a.StatusCode != http.StatusOK {
		b.w.t.Fatalf("GET %s: %d %s", path, a.StatusCode, a.body)
	}

	return a.body
}

// header sets a header of a request.
func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// create creates a task.
func (w *world) create(ns, name string, edits ...func(*task.Spec)) {
	w.t.Helper()
	s := task.Defaults()
	s.Namespace, s.Name, s.Schedule, s.Action = ns, name, task.Schedules{"@hourly"}, task.Action{Process: &task.Process{Command: []string{"true"}}}
	for _, edit := range edits {
		edit(&s)
	}

	c, err := w.ui.clientAt(&transport{api: w.api}, w.Token("user:ann"))
	must(w.t, err)
	_, err = c.Tasks.Create(w.t.Context(), ns, s)
	must(w.t, err)
}

// trigger queues a run of a task.
func (w *world) trigger(ns, name string) task.Run {
	w.t.Helper()
	c, err := w.ui.clientAt(&transport{api: w.api}, w.Token("user:ann"))
	must(w.t, err)
	r, err := c.Tasks.Trigger(w.t.Context(), ns, name, nil)
	must(w.t, err)

	return r.Run
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want checks that a text contains others.
func want(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in:\n%s", p, text)
		}
	}
}
