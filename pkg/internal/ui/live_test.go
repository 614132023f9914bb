package ui

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// event is a message of a stream.
type event struct{ name, data, retry, id string }

// tab is an open page of a viewer: its stream, as far as it was read.
type tab struct {
	w     *world
	close func()

	mu     sync.Mutex
	events []event
	raw    strings.Builder
	ended  bool
}

// tab opens the stream of a page. It is read until the test ends.
func (b *browser) tab(at string) *tab {
	b.w.t.Helper()
	return b.tabWith(at)
}

// tabWith is tab with other headers.
func (b *browser) tabWith(at string, edits ...func(*http.Request)) *tab {
	b.w.t.Helper()
	ctx, cancel := context.WithCancel(b.w.t.Context())
	res := b.open(ctx, http.MethodGet, "/ui/live?"+(url.Values{"at": {at}}).Encode(), nil, append(edits, header("HX-Request", "true"))...)
	if got := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || got != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" || res.Header.Get("Content-Encoding") != "" {
		b.w.t.Fatalf("the stream begins with %d %v", res.StatusCode, res.Header)
	}

	s := &tab{w: b.w, close: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.read(res)
	}()
	b.w.t.Cleanup(func() { cancel(); <-done })

	return s
}

// read collects the events of a stream.
func (t *tab) read(res *http.Response) {
	defer res.Body.Close()

	var e event
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		t.mu.Lock()
		t.raw.WriteString(line + "\n")
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "":
			t.events = append(t.events, e)
			e = event{}
		case "event":
			e.name = value
		case "data":
			e.data += value + "\n"
		case "retry":
			e.retry = value
		case "id":
			e.id = value
		default:
			t.w.t.Errorf("the stream has the line %q", line)
		}
		t.mu.Unlock()
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}

// after lets some time pass, and returns the events that have come since the last call, but not those that only say how old
// the page is.
func (t *tab) after(d time.Duration) []event {
	t.w.Clock.Advance(d)
	time.Sleep(d)
	synctest.Wait()

	t.mu.Lock()
	defer t.mu.Unlock()

	var list []event
	for _, e := range t.events {
		if e.name != eventAge {
			list = append(list, e)
		}
	}
	t.events = nil

	return list
}

// bytes returns everything that has come.
func (t *tab) bytes() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.raw.String()
}

func (t *tab) isOver() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// one checks that there is one event, and returns it.
func one(t *testing.T, events []event) event {
	t.Helper()
	if len(events) != 1 {
		t.Fatalf("got %d events, want 1: %q", len(events), events)
	}
	return events[0]
}

// refreshed is long enough for a page to be rendered again.
const refreshed = 6 * time.Second

// A stream begins with all live parts. Then it sends only rows that change, and nothing if nothing changes.
func TestLive_SendsWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "alpha")
		w.create("prod", "beta")

		s := w.as("user:ann").tab("/ui/tasks")
		first := one(t, s.after(refreshed))
		want(t, first.data, `<hx-partial hx-target="#nav" hx-swap="innerMorph">`, `<hx-partial hx-target="#rows" hx-swap="innerMorph">`, "alpha", "beta", "2 tasks")
		if first.retry != "1000" {
			t.Errorf("the first message says retry %q", first.retry)
		}

		if got := s.after(time.Minute); len(got) != 0 {
			t.Fatalf("nothing has changed, but the stream says %q", got)
		}
		if n := strings.Count(s.bytes(), "event: age"); n < 5 {
			t.Errorf("%d signs of life within more than a minute, want one each 15 s", n)
		}

		c := w.clientOf("user:ann")
		_, err := c.Tasks.Pause(t.Context(), "prod", "beta", 0)
		must(t, err)
		change := one(t, s.after(refreshed)).data
		want(t, change, `hx-swap="outerMorph"><tr id="task-`, "beta", "paused (user:ann")
		if strings.Contains(change, "alpha") || strings.Contains(change, "#rows") {
			t.Errorf("one row has changed, but the stream says %s", change)
		}

		w.create("prod", "gamma")
		want(t, one(t, s.after(refreshed)).data, `hx-target="#rows"`, "gamma", "3 tasks")
	})
}

// clientOf returns a client of the API for a subject.
func (w *world) clientOf(subject string) *client.Client {
	w.t.Helper()
	c, err := w.ui.clientAt(&transport{api: w.api}, w.Token(subject))
	must(w.t, err)

	return c
}

// A page that shows the present state already is not sent again.
func TestLive_DoesNotRepeatThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "alpha")
		lists := w.countLists()
		ann := w.as("user:ann")

		_, rest, _ := strings.Cut(ann.page("/ui/tasks?tz=UTC"), `hx-sse:connect="`)
		address, _, _ := strings.Cut(rest, `"`)
		u, err := url.Parse(html.UnescapeString(address))
		must(t, err)
		if got := u.Query().Get("at"); got != "/ui/tasks?tz=UTC" {
			t.Fatalf("the page is %q for its stream", got)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		res := ann.open(ctx, http.MethodGet, u.String(), nil, header("HX-Request", "true"))
		s := &tab{w: w}
		s.read(res)
		if strings.Contains(s.raw.String(), "<hx-partial") || !strings.Contains(s.raw.String(), "event: age\ndata: 0\n") {
			t.Errorf("the page has everything, but the stream says %s", s.raw.String())
		}
		if n := lists(); n != 1 {
			t.Errorf("the page and its stream have asked for the list %d times", n)
		}
	})
}

// What a page was made of is used for its stream only while it is recent, and only by viewers with the same rights.
func TestLive_UsesThePageOnlyForItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "prod-one")
		w.create("test", "test-one")
		w.Bind("user:bob", "viewer", "prod")
		lists := w.countLists()
		ann, bob := w.as("user:ann"), w.as("user:bob")

		want(t, ann.page("/ui/tasks"), "test-one")
		s := bob.tab("/ui/tasks")
		if e := one(t, s.after(100*time.Millisecond)); strings.Contains(e.data, "test-one") || lists() != 2 {
			t.Errorf("after %d lists, bob sees %s", lists(), e.data)
		}

		ann.page("/ui/tasks?q=prod*")
		w.Clock.Advance(2 * justLoadedFor)
		before := lists()
		ann.tab("/ui/tasks?q=prod*")
		synctest.Wait()
		if n := lists() - before; n != 1 {
			t.Errorf("the page is old, and the stream has asked %d times", n)
		}

		// The message of an action is for one viewer.
		a := ann.do(http.MethodPost, "/ui/tasks/prod/prod-one/pause", url.Values{"at": {"/ui/tasks?sort=next"}})
		ann.get("/ui/tasks?sort=next", func(r *http.Request) {
			for _, c := range a.Cookies() {
				r.AddCookie(c)
			}
		})
		before = lists()
		ann.tab("/ui/tasks?sort=next")
		synctest.Wait()
		if n := lists() - before; n != 1 {
			t.Errorf("the page shows a message, and the stream has asked %d times", n)
		}
	})
}

// Viewers with different rights who have the same page open never get each other's rows, and viewers with the same rights
// share one rendering.
func TestLive_SeparatesViewersByRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		lists := w.countLists()
		w.create("prod", "prod-one")
		w.create("test", "test-one")
		for _, subject := range []string{"user:bob", "user:fay"} {
			w.Bind(subject, "viewer", "prod")
		}
		w.Bind("user:cid", "viewer", "test")

		bobBrowser, cidBrowser := w.as("user:bob"), w.as("user:cid")
		ann, bob, fay, cid := w.as("user:ann").tab("/ui/tasks"), bobBrowser.tab("/ui/tasks"), w.as("user:fay").tab("/ui/tasks"), cidBrowser.tab("/ui/tasks")
		ann.after(refreshed)
		before := lists()
		ann.after(20 * time.Second)
		if n := lists() - before; n > 8*3+3 {
			t.Errorf("%d lists within 20 s for three kinds of rights, want about 24", n)
		}

		c := w.clientOf("user:ann")
		for _, name := range []string{"prod-one", "test-one"} {
			_, err := c.Tasks.Pause(t.Context(), strings.Split(name, "-")[0], name, 0)
			must(t, err)
			w.create(strings.Split(name, "-")[0], name+"-more")
			ann.after(refreshed)
		}
		w.Bind("user:cid", "operator", "test")
		ann.after(refreshed)

		for _, c := range []struct {
			name             string
			text             string
			prod, test, both bool
		}{
			{"ann", ann.bytes(), true, true, true}, {"bob", bob.bytes(), true, false, false}, {"fay", fay.bytes(), true, false, false}, {"cid", cid.bytes(), false, true, false},
			{"bob's page", bobBrowser.page("/ui/tasks"), true, false, false}, {"cid's page", cidBrowser.page("/ui/tasks"), false, true, false},
		} {
			if got := strings.Contains(c.text, "prod-one-more"); got != c.prod {
				t.Errorf("%s: rows of prod: %v, want %v", c.name, got, c.prod)
			}
			if got := strings.Contains(c.text, "test-one-more"); got != c.test {
				t.Errorf("%s: rows of test: %v, want %v", c.name, got, c.test)
			}
			if !c.both && strings.Contains(c.text, "prod-") && strings.Contains(c.text, "test-") {
				t.Errorf("%s has names of both namespaces:\n%s", c.name, c.text)
			}
		}
	})
}

// countLists counts the lists of tasks that pages ask the API for.
func (w *world) countLists() func() int {
	var mu sync.Mutex
	n := 0
	inner := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/v1/tasks" {
			mu.Lock()
			n++
			mu.Unlock()
		}
		inner.ServeHTTP(rw, r)
	})

	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// If the rights of a viewer change, its stream starts over with what it may read now. If its credential ends, the stream
// ends.
func TestLive_FollowsRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "prod-one")
		w.create("test", "test-one")
		w.Bind("user:bob", "viewer", "prod")
		bob := w.as("user:bob")
		s := bob.tab("/ui/tasks")
		want(t, one(t, s.after(refreshed)).data, "prod-one")

		more := w.Bind("user:bob", "viewer", "test")
		if e := one(t, s.after(refreshed)); !strings.Contains(e.data, "test-one") || !strings.Contains(e.data, `hx-target="#nav"`) {
			t.Errorf("after a grant, the stream says %q, want the whole state", e.data)
		}

		key := w.Store.Keys().Binding(more)
		must(t, w.Store.DeleteBinding(t.Context(), more, w.Keeper.View().Mod(key), w.Clock.Now()))
		if e := one(t, s.after(refreshed)); strings.Contains(e.data, "test-one") {
			t.Errorf("after the grant has ended, the stream says %q", e.data)
		}

		id := strings.Split(bob.secret, "_")[1]
		must(t, w.Store.DeleteToken(t.Context(), id, w.Keeper.View().Created(id)))
		if e := one(t, s.after(refreshed)); e.name != eventLogin || !s.isOver() {
			t.Errorf("after the token is gone, the stream says %q and has ended: %v", e, s.isOver())
		}
	})
}

// A rendering during which the rights of the viewer for whom it is made have changed is shown to nobody else.
func TestLive_DropsRenderingsDuringChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "prod-one")
		w.create("test", "test-one")
		for _, subject := range []string{"user:bob", "user:fay"} {
			w.Bind(subject, "viewer", "prod")
		}

		// While a list is read for either of them, that one becomes an administrator.
		inner := w.api
		var once sync.Once
		armed := make(chan struct{})
		w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			select {
			case <-armed:
				if r.URL.Path == "/v1/tasks" {
					once.Do(func() {
						token, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer carillon_"), "_")
						known, _ := w.Keeper.View().Token(token)
						w.Bind(known.Subject, "admin")
					})
				}
			default:
			}
			inner.ServeHTTP(rw, r)
		})

		bob, fay := w.as("user:bob").tab("/ui/tasks"), w.as("user:fay").tab("/ui/tasks")
		bob.after(refreshed)
		close(armed)
		bob.after(refreshed)
		bob.after(refreshed)

		got := []bool{strings.Contains(bob.bytes(), "test-one"), strings.Contains(fay.bytes(), "test-one")}
		if got[0] == got[1] {
			t.Errorf("one of the viewers became an administrator, but rows of test reached bob: %v, fay: %v", got[0], got[1])
		}
	})
}

// While the API cannot answer, viewers keep what they see, and know it. A page that is opened then shows the last known
// state to those who have seen it.
func TestLive_KeepsLastKnownState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "alpha")
		ann, eve := w.as("user:ann"), w.as("user:ann")

		var away atomic.Bool
		inner := w.api
		w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if away.Load() {
				httpapi.NewProblemWriter(w.Logger).Write(rw, r, httpapi.Fail(http.StatusServiceUnavailable, client.CodeUnavailable, "etcd is away"))
				return
			}
			inner.ServeHTTP(rw, r)
		})

		s := ann.tab("/ui/tasks")
		s.after(refreshed)
		away.Store(true)

		fault := one(t, s.after(refreshed))
		want(t, fault.data, "etcd is away", `"away":true`)
		if fault.name != eventFault || len(s.after(time.Minute)) != 0 {
			t.Errorf("the stream says %q, want one fault", fault)
		}

		a := ann.get("/ui/tasks")
		want(t, a.body, "alpha", "last known state", "etcd is away", "data-away", "hx-sse:connect", `data-age="`+strconv.Itoa(int((time.Minute+refreshed).Milliseconds())))
		if a.StatusCode != http.StatusServiceUnavailable || strings.Contains(a.body, "data-empty") {
			t.Errorf("GET /ui/tasks without etcd: %d", a.StatusCode)
		}

		// A page without a state waits for it.
		empty := eve.get("/ui/tasks")
		want(t, empty.body, "etcd is away", "data-away", "data-empty", "hx-sse:connect")
		if strings.Contains(empty.body, "alpha") {
			t.Error("the last known state is shown to a session that has not seen it")
		}

		away.Store(false)
		got := s.after(refreshed)
		if len(got) != 2 || got[1].name != eventBack || !strings.Contains(got[0].data, "alpha") {
			t.Errorf("when etcd is back, the stream says %q", got)
		}
	})
}

// Beyond the limit a stream brings one state, and asks the page to come back later.
func TestLive_LimitsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "alpha")
		for i := range maxViewers {
			session := fmt.Sprint(i % (maxViewers / maxViewersOfSession))
			if !w.ui.hub.admit(access.Caller{Subject: "user:" + fmt.Sprint(i%(maxViewers/maxViewersOf)), Token: session}) {
				t.Fatal("too few streams are admitted")
			}
		}

		s := w.as("user:ann").tab("/ui/tasks")
		got := s.after(refreshed)
		if len(got) != 2 || got[0].retry != "5000" || !strings.Contains(got[0].data, "alpha") || got[1].name != eventBusy || !s.isOver() {
			t.Errorf("the stream says %q and has ended: %v", got, s.isOver())
		}
	})
}

// Streams end with the node, and leave nothing behind.
func TestLive_EndsWithTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := make(chan struct{})
		w := newWorld(t, func(c *Config) { c.Ends = ends })
		s := w.as("user:ann").tab("/ui/nodes")
		s.after(time.Second)
		close(ends)
		s.after(0)
		if !s.isOver() || len(w.ui.hub.watches) != 0 || w.ui.hub.all != 0 || len(w.ui.hub.viewers) != 0 || len(w.ui.hub.sessions) != 0 {
			t.Errorf("the stream has ended: %v; %d pages are rendered for %d viewers", s.isOver(), len(w.ui.hub.watches), w.ui.hub.all)
		}
	})
}

// At most one message waits for a viewer; then it gets the whole state.
func TestViewer_GetsWholeStateIfSlow(t *testing.T) {
	v := &viewer{wake: make(chan struct{}, 1)}
	state := func(n byte) *pageState { return &pageState{parts: []part{{"rows", []byte{n}, ""}}} }

	v.begin(state(1), nil)
	v.give([]byte("change"), state(2))
	if p := v.take(); p.message != nil || p.whole.parts[0].content[0] != 2 {
		t.Errorf("after the first state and a change: %v", p)
	}

	v.give([]byte("change"), state(3))
	if p := v.take(); string(p.message) != "change" || p.whole != nil {
		t.Errorf("after a change: %v", p)
	}

	v.give([]byte("one"), state(4))
	v.give([]byte("two"), state(5))
	v.give(nil, state(6))
	if p := v.take(); p.message != nil || p.whole.parts[0].content[0] != 6 {
		t.Errorf("after two changes: %v", p)
	}
}

// Line ends in texts of users do not end a line of the stream.
func TestStream_EscapesLineEnds(t *testing.T) {
	var b bytes.Buffer
	appendData(&b, []byte("a\r\revent: login\r\n\r\nb\n"))
	if got := b.String(); got != "data: a&#13;&#13;event: login&#13;\ndata: &#13;\ndata: b\ndata: \n" {
		t.Errorf("got %q", got)
	}
}

// Only rows that differ are sent, unless something else differs, too.
func TestChanges_SendsRows(t *testing.T) {
	page := func(content string) *pageState { return &pageState{parts: []part{{"rows", []byte(content), ""}}} }
	row := func(id, text string) string { return `<tr id="` + id + `"><td>` + text + `</td></tr>` }

	for _, c := range []struct{ name, old, now, want string }{
		{"same", row("a", "1"), row("a", "1"), ""},
		{"a row", "x" + row("a", "1") + row("b", "1") + "y", "x" + row("a", "1") + row("b", "2") + "y", `<hx-partial hx-target="#b" hx-swap="outerMorph">` + row("b", "2") + "</hx-partial>\n"},
		{"more", row("a", "1"), row("a", "1") + row("b", "1"), `<hx-partial hx-target="#rows" hx-swap="innerMorph">` + row("a", "1") + row("b", "1") + "</hx-partial>\n"},
		{"order", row("a", "1") + row("b", "1"), row("b", "1") + row("a", "1"), `<hx-partial hx-target="#rows" hx-swap="innerMorph">` + row("b", "1") + row("a", "1") + "</hx-partial>\n"},
		{"around", row("a", "1") + "x", row("a", "2") + "y", `<hx-partial hx-target="#rows" hx-swap="innerMorph">` + row("a", "2") + "y</hx-partial>\n"},
		{"no rows", "x", "y", `<hx-partial hx-target="#rows" hx-swap="innerMorph">y</hx-partial>` + "\n"},
		{"cut off", `<tr id="a">x`, `<tr id="a">y`, `<hx-partial hx-target="#rows" hx-swap="innerMorph"><tr id="a">y</hx-partial>` + "\n"},
	} {
		if got := string(encodeChanges(page(c.old), page(c.now))); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// Between two scans, only the tasks that a page shows are read, by their names.
func TestTasks_RefreshesRowsByName(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web-a")
	w.create("prod", "web-b")
	w.create("test", "web-c")

	var asked []string
	api := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/tasks") && r.Method == http.MethodGet {
			asked = append(asked, r.URL.Query().Get("q"))
		}
		api.ServeHTTP(rw, r)
	})

	ann := w.as("user:ann")
	who, ok := w.ui.sessionWith(ann.secret)
	if !ok {
		t.Fatal("no session")
	}
	var last any
	load := func() tasksPage {
		t.Helper()
		asked = nil
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/ui/tasks?q=name~web&sort=next", http.NoBody)
		must(t, err)
		q, err := w.ui.newRequest(r, who)
		must(t, err)
		q.previous = last
		last, err = loadTasks(t.Context(), q)
		must(t, err)

		return last.(tasksPage)
	}

	first := load()
	if len(first.Tasks) != 3 || !strings.Contains(asked[0], "name~web") {
		t.Fatalf("%d tasks; asked %q", len(first.Tasks), asked)
	}

	ann.do(http.MethodPost, "/ui/tasks/prod/web-b/pause", url.Values{"at": {"/ui/tasks"}})
	w.create("prod", "web-new")
	w.Clock.Advance(refreshEvery)
	second := load()
	if len(asked) != 1 || asked[0] != "name:prod/web-a,prod/web-b,test/web-c" {
		t.Errorf("asked %q", asked)
	}
	if len(second.Tasks) != 3 || second.Count != first.Count || !second.Tasks[1].Paused || first.Tasks[1].Paused {
		t.Errorf("%d tasks, %s; the second one is paused: %t, and was: %t", len(second.Tasks), second.Count, second.Tasks[1].Paused, first.Tasks[1].Paused)
	}

	w.Clock.Advance(scanEvery - refreshEvery)
	if third := load(); len(third.Tasks) != 4 || !strings.Contains(asked[0], "name~web") {
		t.Errorf("%d tasks; asked %q", len(third.Tasks), asked)
	}
}
