package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// sse is a stream of events as received by an HTTP client.
type sse struct {
	t     *testing.T
	res   *http.Response
	lines *bufio.Scanner
}

// listen requests a stream; header may be nil.
func (w *world) listen(url, path string, header http.Header) sse {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, url+path, nil)
	must(w.t, err)

	if header != nil {
		req.Header = header
	}

	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+w.secret)
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	must(w.t, err)
	w.t.Cleanup(func() { res.Body.Close() })

	return sse{w.t, res, bufio.NewScanner(res.Body)}
}

// message returns the lines of the next message, or nil at the end of the stream.
func (s sse) message() (m []string) {
	s.t.Helper()

	for s.lines.Scan() {
		if s.lines.Text() == "" {
			return m
		}
		m = append(m, s.lines.Text())
	}

	must(s.t, s.lines.Err())

	return nil
}

// event returns the next event, without heartbeats.
func (s sse) event() (e task.Event) {
	s.t.Helper()

	for {
		m := s.message()
		if m == nil {
			s.t.Fatal("the stream has ended")
		}

		if i := slices.IndexFunc(m, func(l string) bool { return strings.HasPrefix(l, "data: ") }); i >= 0 {
			must(s.t, json.Unmarshal([]byte(m[i][len("data: "):]), &e))
			if m[0] != "id: "+e.ID {
				s.t.Fatalf("%v is not the message of %s", m, e.ID)
			}
			return e
		}
	}
}

func TestEvents_AreAStream(t *testing.T) {
	w := newWorld(t)
	w.create("before", "@daily")

	s := w.listen(w.url, "/v1/events", nil)
	if s.res.StatusCode != 200 || s.res.Header.Get("Content-Type") != "text/event-stream" || s.res.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s, %v", s.res.Status, s.res.Header)
	}

	if m := s.message(); len(m) != 1 || m[0] != "retry: 2000" {
		t.Errorf("it begins with %q", m)
	}

	begins := s.message()
	if len(begins) != 1 || !strings.HasPrefix(begins[0], "id: ") {
		t.Fatalf("then %q: not where it begins", begins)
	}

	a := w.create("a", "@daily")
	e := s.event()
	if e.Kind != task.EventTask || e.Action != task.ChangeCreated || e.Task != "a" || e.Actor.String() != w.actor() || e.Revision != a.Revision || e.UID != a.UID {
		t.Errorf("%+v", e)
	}

	_, err := w.Tasks.Trigger(t.Context(), "default", "a", nil)
	must(t, err)

	if e := s.event(); e.Kind != task.EventRun || e.Action != task.ActionQueued || e.State != "queued" || e.Reason != task.ReasonManual {
		t.Errorf("%+v", e)
	}

	// A new stream continues after the last event that its caller knows.
	for _, how := range []struct {
		path   string
		header http.Header
	}{
		{"/v1/events?after=" + e.ID, nil},
		{"/v1/events?after=1", http.Header{"Last-Event-Id": {e.ID}}},
		{"/v1/events", http.Header{"Last-Event-Id": {fmt.Sprint(a.Revision)}}},
	} {
		if got := w.listen(w.url, how.path, how.header).event(); got.Action != task.ActionQueued {
			t.Errorf("%s %v: %+v", how.path, how.header, got)
		}
	}
}

func TestEvents_TellHowFarTheyAre(t *testing.T) {
	w := newWorld(t)
	w.beat, w.ends = 20*time.Millisecond, make(chan struct{})
	url := w.serve("node-b")
	s := w.listen(url, "/v1/events?kind=node", nil)
	a := w.create("a", "@daily") // it does not receive this one

	for {
		m := s.message()
		if m == nil {
			t.Fatal("the stream has ended")
		}

		if slices.Equal(m, []string{fmt.Sprint("id: ", a.Revision)}) {
			break
		}
	}

	close(w.ends)

	for s.message() != nil { // it ends properly and is not cut off
	}
}

func TestEvents_EndWithTheirToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beat = 20 * time.Millisecond
	s := w.listen(w.serve("node-b"), "/v1/events", nil)
	s.message()
	w.clock.advance(time.Hour)
	_, err := w.etcd.Delete(t.Context(), w.store.Keys().Token(strings.Split(w.secret, "_")[1]))
	must(t, err)

	for s.message() != nil {
	}

	if r := w.do(request{method: "GET", path: "/v1/events", noToken: true}); r.status != 401 {
		t.Errorf("without a token: %d", r.status)
	}
}

func TestEvents_ArePages(t *testing.T) {
	w := newWorld(t)
	since := w.create("zero", "@daily")

	var names []string
	for i := range 7 {
		names = append(names, fmt.Sprint("t", i))
		w.create(names[i], "@daily")
	}

	o := client.EventOptions{Namespace: "default", After: fmt.Sprint(since.Revision)}
	page, err := w.Events.ListPage(t.Context(), o, 3)
	must(t, err)

	if len(page.Items) != 3 || !page.More || page.Last != page.Items[2].ID {
		t.Errorf("the first page: %+v", page)
	}

	var got []string
	for e, err := range w.Client.Events.All(t.Context(), o) {
		must(t, err)
		got = append(got, e.Task)
	}

	if !slices.Equal(got, names) {
		t.Errorf("received %v", got)
	}

	// The last events, instead of the first ones. The page after them begins now.
	tail := o
	tail.Tail = true
	last, err := w.Events.ListPage(t.Context(), tail, 2)
	if err != nil || len(last.Items) != 2 || last.Items[1].Task != "t6" || !last.Earlier || last.More {
		t.Errorf("the tail: %+v, %v", last, err)
	}
	if all, err := w.Events.ListPage(t.Context(), tail, 7); err != nil || len(all.Items) != 7 || all.Earlier || all.Last != last.Last {
		t.Errorf("a long tail: %+v, %v", all, err)
	}

	// Events of the last revisions.
	if few, err := w.Events.ListPage(t.Context(), client.EventOptions{Revisions: 2}, 0); err != nil || len(few.Items) != 2 || few.Items[1].Task != "t6" {
		t.Errorf("of two revisions: %+v, %v", few, err)
	}
	if all, err := w.Events.ListPage(t.Context(), client.EventOptions{Revisions: 100_000, Namespace: "default"}, 0); err != nil || len(all.Items) != 8 {
		t.Errorf("of all revisions: %+v, %v", all, err)
	}

	o.After = page.Last
	if page, err = w.Events.ListPage(t.Context(), o, 100); err != nil || len(page.Items) != 4 || page.More {
		t.Errorf("the second page: %+v, %v", page, err)
	}

	o.After = page.Last
	if page, err = w.Events.ListPage(t.Context(), o, 100); err != nil || len(page.Items) != 0 || page.More || page.Last != o.After {
		t.Errorf("the last page: %+v, %v", page, err)
	}

	page, err = w.Events.ListPage(t.Context(), client.EventOptions{Since: w.clock.now().Add(-time.Hour)}, 0)
	if must(t, err); len(page.Items) < 8 {
		t.Errorf("since an hour: %+v", page)
	}

	if r := w.do(request{method: "GET", path: "/v1/events?after=1"}); !strings.Contains(r.body, `"action":"made"`) || r.header.Get("Content-Type") != "application/json" {
		t.Errorf("%v: %s", r.header, r.body)
	}
}

func TestEvents_OfWhatIsAskedFor(t *testing.T) {
	w := newWorld(t)
	begin := w.create("zero", "@daily").Revision
	k := w.store.Keys()
	w.create("a", "@daily")
	_, err := w.Tasks.Create(t.Context(), "ops", spec("a", "@daily"))
	must(t, err)
	_, err = w.Tasks.Trigger(t.Context(), "ops", "a", nil)
	must(t, err)
	w.put(k.Node("n1"), task.Node{State: task.NodeReady})
	w.put(k.Owner(3), map[string]string{"node": "n1"})
	w.put(k.Freezes(), task.Freezes{Holding: []task.Freeze{{Since: task.At(w.clock.now()), By: task.NewActor("ann")}}})
	w.put(k.Freezes(), task.Freezes{Holding: []task.Freeze{{Namespace: "ops", Since: task.At(w.clock.now())}}})

	for _, tt := range []struct {
		o    client.EventOptions
		want string
	}{
		{client.EventOptions{}, "task/created task/created run/queued node/joined shard/assigned cluster/frozen cluster/frozen cluster/unfrozen"},
		{client.EventOptions{Namespace: "default"}, "task/created cluster/frozen cluster/unfrozen"},
		{client.EventOptions{Namespace: "ops"}, "task/created run/queued cluster/frozen cluster/frozen cluster/unfrozen"},
		{client.EventOptions{Namespace: "ops", Task: "a"}, "task/created run/queued"},
		{client.EventOptions{Namespace: "ops", Kinds: []string{"run", "node"}}, "run/queued node/joined"},
		{client.EventOptions{Kinds: []string{"shard"}}, "shard/assigned"},
	} {
		tt.o.After = fmt.Sprint(begin)
		var got []string
		for e, err := range w.Client.Events.All(t.Context(), tt.o) {
			must(t, err)
			got = append(got, e.Kind+"/"+e.Action)
		}

		if strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: %v, want %s", tt.o, got, tt.want)
		}
	}
}

func TestEvents_RefuseWhatTheyDoNotKnow(t *testing.T) {
	w := newWorld(t)

	for path, field := range map[string]string{
		"/v1/events?after=x": "after", "/v1/events?after=-1": "after", "/v1/events?after=12.0": "after", "/v1/events?after=012": "after",
		"/v1/events?after=1.99999999999": "after", "/v1/events?kind=node,nodes": "kind", "/v1/events?kind=": "kind", "/v1/events?since=soon": "since",
		"/v1/events?since=2026-11-20T22:00:00Z&after=5": "since", "/v1/events?limit=0": "limit", "/v1/events?task=a": "task",
		"/v1/namespaces/default/events?task=A": "task", "/v1/namespaces/X/events": "namespace",
	} {
		if r := w.do(request{method: "GET", path: path}); r.status != 422 || r.Field != field {
			t.Errorf("%s: %d %s, field %q", path, r.status, r.Detail, r.Field)
		}
	}

	if r := w.do(request{method: "GET", path: "/v1/events", header: map[string]string{"Last-Event-ID": "x"}}); r.status != 422 || r.Field != "Last-Event-ID" {
		t.Errorf("%d, field %q", r.status, r.Field)
	}
}

// Without a hub, each reader has a watch of its own, as readers of older events have with one.
func TestEvents_OfSoManyCallersOnly(t *testing.T) {
	w := newWorld(t)
	w.noHub = true
	w.url = w.serve("node-b")
	w.Client = w.client(w.url)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	// One subject may have a quarter of all streams.
	for i := range 4 {
		subject := fmt.Sprint("user:u", i)
		w.bind(subject, "viewer")
		first, second := w.token(subject), w.token(subject)

		for range 8 {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/events", nil)
			must(t, err)
			req.Header = http.Header{"Accept": {"text/event-stream"}, "Authorization": {"Bearer " + first}}
			res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			must(t, err)
			defer res.Body.Close()
			if res.StatusCode != 200 {
				t.Fatalf("%s: %s", subject, res.Status)
			}
		}

		if i < 3 {
			r := w.as(second, "GET", "/v1/events", "")
			if wantStatus(t, "one more of "+subject, r, 429, client.CodeBusy); !strings.Contains(r.Detail, subject) || r.header.Get("Retry-After") == "" {
				t.Errorf("%s, %v", r.Detail, r.header)
			}
		}
	}

	_, err := w.Events.ListPage(t.Context(), client.EventOptions{}, 0)
	if e := wantError(t, err, task.ErrUnavailable, client.CodeBusy); e.Status != 429 {
		t.Errorf("%+v", e)
	}

	cancel()

	for { // streams that have ended make room
		if _, err = w.Events.ListPage(t.Context(), client.EventOptions{}, 0); err == nil {
			return
		}

		if !errors.Is(err, task.ErrUnavailable) {
			t.Fatal(err)
		}

		time.Sleep(5 * time.Millisecond)
	}
}

// Streams of new events share a watch, so there may be more of them than watches.
func TestEvents_OfManyCallersShareAWatch(t *testing.T) {
	w := newWorld(t)
	const streams = 40

	var all []sse
	for range streams {
		s := w.listen(w.url, "/v1/events", nil)
		if s.res.StatusCode != 200 {
			t.Fatal(s.res.Status)
		}

		s.message()
		s.message() // where it begins
		all = append(all, s)
	}

	a := w.create("a", "@daily")

	for _, s := range all {
		if e := s.event(); e.Revision != a.Revision {
			t.Fatalf("%+v", e)
		}
	}

	r := w.do(request{method: "GET", path: "/metrics"})
	for _, line := range []string{fmt.Sprint("carillon_event_readers ", streams), "carillon_event_own_watches 0", "carillon_event_readers_behind_total 0"} {
		if !strings.Contains(r.body, "\n"+line+"\n") {
			t.Errorf("/metrics does not contain %s", line)
		}
	}
}

// The client continues where it was, even if connections end at any point.
func TestFollow_GoesOnWhereItWas(t *testing.T) {
	w := newWorld(t)
	cuts := make(chan struct{}, 1)
	lost, back := 0, 0
	o := client.EventOptions{Namespace: "default", Kinds: []string{task.EventTask}, After: fmt.Sprint(w.create("zero", "@daily").Revision),
		Lost: func(err error) {
			if err == nil {
				back++
			} else {
				lost++
			}
		}}

	const tasks = 12
	n := 0
	for e, err := range w.client(w.proxy(w.url, cuts)).Events.Follow(t.Context(), o) {
		must(t, err)

		if e.Task != fmt.Sprint("t", n) {
			t.Fatalf("event %d is %+v", n, e)
		}

		if n++; n == tasks {
			break
		}

		if n%4 == 0 {
			cuts <- struct{}{}
		}

		w.create(fmt.Sprint("t", n), "@daily")
	}

	if lost == 0 || lost != back {
		t.Errorf("lost %d times, back %d times", lost, back)
	}
}

// proxy forwards streams, and cuts off the open one on request. It creates the first task when it has one.
func (w *world) proxy(to string, cuts chan struct{}) string {
	first := true
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()

		req, _ := http.NewRequestWithContext(ctx, r.Method, to+r.URL.RequestURI(), nil)
		req.Header = r.Header.Clone()

		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			rw.WriteHeader(http.StatusBadGateway)
			return
		}

		defer res.Body.Close()

		if first {
			first = false
			w.create("t0", "@daily")
		}

		rw.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		rw.WriteHeader(res.StatusCode)
		pieces := make(chan []byte)
		go func() {
			defer close(pieces)
			for b := make([]byte, 64); ; {
				n, err := res.Body.Read(b)
				if err != nil {
					return
				}

				select {
				case pieces <- slices.Clone(b[:n]):
				case <-ctx.Done():
					return
				}
			}
		}()

		for {
			select {
			case <-cuts:
				panic(http.ErrAbortHandler)
			case b, ok := <-pieces:
				if !ok {
					return
				}
				_, _ = rw.Write(b)
				_ = http.NewResponseController(rw).Flush()
			}
		}
	}))

	w.t.Cleanup(s.Close)

	return s.URL
}

// A stream that can show nothing is not opened, and one that can no longer show anything ends.
func TestEvents_NeedARightToSeeAny(t *testing.T) {
	w := newWorld(t)
	w.beat = 20 * time.Millisecond
	url := w.serve("node-b")
	wantStatus(t, "no rights", w.as(w.token("user:none"), "GET", "/v1/events", ""), 403, client.CodeForbidden)

	w.bind("user:gil", "viewer", "gone-*") // no such namespace
	wantStatus(t, "no namespace", w.as(w.token("user:gil"), "GET", "/v1/events", "", "Accept", "text/event-stream"), 403, client.CodeForbidden)

	w.bind("user:nat", "node-operator")
	wantStatus(t, "nodes", w.as(w.token("user:nat"), "GET", "/v1/events", ""), 200, "")

	_, err := w.Bindings.Put(t.Context(), task.Binding{Name: "vic", Role: "viewer", Subjects: []string{"user:vic"}, Namespaces: []string{"default"}}, client.Writing{})
	must(t, err)
	admin := w.secret
	w.secret = w.token("user:vic")
	s := w.listen(url, "/v1/events", nil)
	w.secret = admin
	if s.res.StatusCode != 200 {
		t.Fatal(s.res.Status)
	}
	s.message()
	must(t, w.Bindings.Delete(t.Context(), "vic", 0))

	for s.message() != nil {
	}
}
