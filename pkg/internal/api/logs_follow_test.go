package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// liveOutput is the output of active attempts, in addition to a spool's.
type liveOutput struct {
	spool
	mu       sync.Mutex
	text     map[string][]byte // by attempt
	active   map[string]bool
	watches  map[string][]chan struct{}
	endReads int // how often a reader reached the end of the current output
}

func newLiveOutput(s spool) *liveOutput {
	return &liveOutput{spool: s, text: map[string][]byte{}, active: map[string]bool{}, watches: map[string][]chan struct{}{}}
}

func (l *liveOutput) Open(ns, name, run string, attempt int) (io.ReadSeekCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	key := fmt.Sprintf("%s/%s/%s/%d", ns, name, run, attempt)
	if _, ok := l.text[key]; !ok {
		if l.active[key] {
			return &growingReader{l: l}, nil
		}
		return l.spool.Open(ns, name, run, attempt)
	}

	return &growingReader{l: l, key: key}, nil
}

// growingReader reads a text that grows, as a file does.
type growingReader struct {
	l   *liveOutput
	key string
	at  int64
}

func (g *growingReader) Read(b []byte) (int, error) {
	g.l.mu.Lock()
	defer g.l.mu.Unlock()

	text := g.l.text[g.key]
	if g.at >= int64(len(text)) {
		g.l.endReads++
		return 0, io.EOF
	}

	n := copy(b, text[g.at:])
	g.at += int64(n)

	return n, nil
}

func (g *growingReader) Seek(offset int64, whence int) (int64, error) {
	g.l.mu.Lock()
	defer g.l.mu.Unlock()

	switch whence {
	case io.SeekCurrent:
		offset += g.at
	case io.SeekEnd:
		offset += int64(len(g.l.text[g.key]))
	}

	if offset > 16<<40 {
		return 0, syscall.EINVAL // as ext4 reports it
	}

	g.at = offset

	return offset, nil
}

func (*growingReader) Close() error { return nil }

func (l *liveOutput) Active(ns, name, run string, attempt int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active[fmt.Sprintf("%s/%s/%s/%d", ns, name, run, attempt)]
}

func (l *liveOutput) Watch(ns, name, run string, attempt int) (<-chan struct{}, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	key, c := fmt.Sprintf("%s/%s/%s/%d", ns, name, run, attempt), make(chan struct{}, 1)
	l.watches[key] = append(l.watches[key], c)

	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watches, key)
	}, nil
}

// write changes an attempt's output, and sets whether it is still active.
func (l *liveOutput) write(key, text string, active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	key = "default/" + key
	if l.active[key] = active; text != "" {
		l.text[key] = append(l.text[key], text...)
	}

	for _, c := range l.watches[key] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// forget removes an attempt's output.
func (l *liveOutput) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.text, "default/"+key)
}

func (l *liveOutput) followers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.watches)
}

// startLiveRun returns a world in which a run of task a is in the inbox of node-a, with the API of node-b as well.
func startLiveRun(t *testing.T) (w *world, l *liveOutput, run string, others map[string]*client.Client) {
	return startLiveRunOn(newWorld(t))
}

// startLiveRunOn is like startLiveRun, for a given world.
func startLiveRunOn(w *world) (_ *world, l *liveOutput, run string, others map[string]*client.Client) {
	w.ends = make(chan struct{})
	l = newLiveOutput(w.spool)
	w.logs = l
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)
	w.create("a", "@daily")
	run = id(1, "aaaa")
	w.present("node-a", w.url)

	return w, l, run, map[string]*client.Client{"its node": w.Client, "another node": w.client(w.serve("node-b"))}
}

// expect reads the text that must come next.
func expect(t *testing.T, r io.Reader, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if n, err := io.ReadFull(r, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v; want %q", b[:n], err, want)
	}
}

func expectEnd(t *testing.T, r io.Reader) {
	t.Helper()
	if b, err := io.ReadAll(r); len(b) > 0 || err != nil {
		t.Errorf("at the end %q, %v", b, err)
	}
}

// A follower receives existing output, new output and then the end: from the node itself and through another
// one, from the start, from the middle, and from the last lines on.
func TestFollowLogs_BacklogThenLiveThenTheEnd(t *testing.T) {
	w, l, run, where := startLiveRun(t)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	l.write("a/"+run+"/1", "one\ntwo\n", true)
	type reader struct {
		*client.LogStream
		what string
	}
	var readers []reader
	for at, c := range where {
		for what, o := range map[string]client.LogOptions{"one\ntwo\n": {}, "two\n": {From: 4}, "two\n\x00": {Tail: 1}} {
			s, err := c.Logs.Follow(t.Context(), "default", "a", run, o)
			must(t, err)

			want := strings.TrimSuffix(what, "\x00")
			if s.From != int64(8-len(want)) {
				t.Errorf("%s: %+v begins at %d", at, o, s.From)
			}

			expect(t, s, want)
			readers = append(readers, reader{s, at})
		}
	}

	l.write("a/"+run+"/1", "three\n", true)

	for _, r := range readers {
		expect(t, r, "three\n")
	}

	l.write("a/"+run+"/1", "last", false)

	for _, r := range readers {
		expect(t, r, "last")
		expectEnd(t, r)
		must(t, r.Close())
	}

	eventually(t, func() bool { return l.followers() == 0 })
	// For an ended attempt, the result is the same as without follow.
	w.ended("a", run, task.Succeeded, func(r *task.Run) { r.Node = "node-a" })

	s, err := w.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{Tail: 1})
	if got := read(t, s, err); got != "last" {
		t.Errorf("after its end: %q", got)
	}
}

// The node that receives the forwarded request does not read the run while the attempt runs there.
func TestFollowLogs_ThroughAnotherNodeLooksTheRunUpOnce(t *testing.T) {
	etcd := kvtest.Memory(t)
	var lookUps atomic.Int32
	etcd.KV = etcdhook.KV(etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if op.IsTxn() {
			_, then, _ := op.Txn()
			if slices.ContainsFunc(then, func(o clientv3.Op) bool { return o.IsGet() && strings.Contains(string(o.KeyBytes()), "/history/") }) {
				lookUps.Add(1)
			}
		}

		return next(ctx, op)
	})

	w, l, run, where := startLiveRunOn(newWorldOn(t, etcd))
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	key := "a/" + run + "/1"
	l.write(key, "one\n", true)

	c := where["another node"]
	lookUps.Store(0)

	// The first node accepts a prefix of the id, and forwards the whole id.
	s, err := c.Logs.Follow(t.Context(), "default", "a", run[:len(run)-1], client.LogOptions{})
	must(t, err)
	defer s.Close()

	expect(t, s, "one\n")
	l.write(key, "two\n", true)
	expect(t, s, "two\n")
	l.write(key, "", false)
	expectEnd(t, s)

	if n := lookUps.Load(); n != 1 {
		t.Errorf("the run is looked up %d times", n)
	}

	// Once the attempt has ended, only the record determines the answer.
	w.ended("a", run, task.Succeeded, func(r *task.Run) { r.Node = "node-a" })
	lookUps.Store(0)
	again, err := c.Logs.Open(t.Context(), "default", "a", run, client.LogOptions{})
	if got := read(t, again, err); got != "one\ntwo\n" {
		t.Errorf("after its end: %q", got)
	}

	if n := lookUps.Load(); n != 2 {
		t.Errorf("after its end, the run is looked up %d times", n)
	}
}

// If a run's node has not started it yet, the follower waits until it has output, has ended without any, or is
// on another node.
func TestFollowLogs_WaitsForTheStart(t *testing.T) {
	t.Parallel()
	w, l, run, where := startLiveRun(t)
	dispatched := func(node string) {
		w.ended("a", run, task.Dispatched, func(r *task.Run) { r.Node = node })
	}

	for at, c := range where {
		dispatched("node-a")
		s, err := c.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
		must(t, err)
		l.write("a/"+run+"/1", "", true)
		l.write("a/"+run+"/1", "begun\n", true)
		expect(t, s, "begun\n")
		l.write("a/"+run+"/1", "", false)
		expectEnd(t, s)
		must(t, s.Close())
		l.forget("a/" + run + "/1")

		s, err = c.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
		must(t, err)
		w.ended("a", run, task.Succeeded, func(r *task.Run) { r.Node = "node-a" }) // without a process
		expectEnd(t, s)
		must(t, s.Close())

		dispatched("node-a")
		s, err = c.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
		must(t, err)
		dispatched("node-c")

		if b, err := io.ReadAll(s); len(b) > 0 || !errors.Is(err, task.ErrUnavailable) {
			t.Errorf("%s: of a run that has moved: %q, %v", at, b, err)
		}

		must(t, s.Close())
	}
}

// beginning is the output of an attempt that starts just after the second check of whether it is active.
type beginning struct {
	*liveOutput
	asked atomic.Int32
	begin func()
}

func (b *beginning) Active(ns, name, run string, attempt int) bool {
	is := b.liveOutput.Active(ns, name, run, attempt)
	if b.asked.Add(1) == 2 {
		b.begin()
	}
	return is
}

// An attempt that starts between two checks has not ended.
func TestFollowLogs_OfWhatBeginsWhileItIsLookedAt(t *testing.T) {
	w, l, run, _ := startLiveRun(t)
	key := "a/" + run + "/1"
	b := &beginning{liveOutput: l, begin: func() { l.write(key, "", true) }}
	w.logs = b
	c := w.client(w.serve("node-a"))
	w.ended("a", run, task.Dispatched, func(r *task.Run) { r.Node = "node-a" })
	s, err := c.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
	must(t, err)
	defer s.Close()

	eventually(t, func() bool { return b.asked.Load() >= 2 })

	for _, text := range []string{"begun\n", "more\n"} {
		l.write(key, text, true)
		expect(t, s, text)
	}

	l.write(key, "last", false)
	expect(t, s, "last")
	expectEnd(t, s)
}

// A node that stops aborts its streams, including forwarded ones, so that a reader does not take partial output
// for the whole.
func TestFollowLogs_IsCutOffWhenTheNodeStops(t *testing.T) {
	w, l, run, where := startLiveRun(t)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	l.write("a/"+run+"/1", "one\n", true)

	var streams []*client.LogStream
	for _, c := range where {
		s, err := c.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
		must(t, err)
		expect(t, s, "one\n")
		streams = append(streams, s)
	}

	close(w.ends)

	for _, s := range streams {
		if b, err := io.ReadAll(s); len(b) > 0 || !errors.Is(err, task.ErrUnavailable) {
			t.Errorf("%q, %v", b, err)
		}
		must(t, s.Close())
	}
}

// The node that forwards a stream stops or fails; the one that has the output continues.
//
// Verifies: G47
func TestFollowLogs_IsCutOffWhenTheOtherNodeDies(t *testing.T) {
	w, _, run, _ := startLiveRun(t)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-z" })
	dying := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("follow") != "true" || r.URL.Query().Get("from") != "7" {
			t.Errorf("passed on as %s", r.URL)
		}

		_, _ = io.WriteString(rw, "half")
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	}))

	t.Cleanup(dying.Close)
	w.present("node-z", dying.URL)

	s, err := w.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{From: 7})
	if err == nil {
		defer s.Close()
		_, err = io.ReadAll(s)
	}

	if !errors.Is(err, task.ErrUnavailable) {
		t.Errorf("taken for whole: %v", err)
	}
}

// Many small writes lead to few answers. A reader that has disconnected causes none.
func TestFollowLogs_ManyWritesAreFewAnswers(t *testing.T) {
	w, l, run, _ := startLiveRun(t)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	l.write("a/"+run+"/1", "0\n", true)
	s, err := w.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
	must(t, err)
	expect(t, s, "0\n")
	began := time.Now()

	const writes = 1000
	for range writes {
		l.write("a/"+run+"/1", "x\n", true)
		time.Sleep(10 * time.Microsecond)
	}

	expect(t, s, strings.Repeat("x\n", writes))
	rounds := int(time.Since(began)/(100*time.Millisecond)) + 3
	l.mu.Lock()
	looked := l.endReads
	l.mu.Unlock()

	if looked > rounds {
		t.Errorf("looked %d times in %s", looked, time.Since(began))
	}

	must(t, s.Close())
	eventually(t, func() bool { return l.followers() == 0 })
}

// The number of followers of a node is limited. Others receive an error, and can ask another node.
func TestFollowLogs_AreBounded(t *testing.T) {
	w, l, run, _ := startLiveRun(t)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	l.write("a/"+run+"/1", "x", true)
	var streams []*client.LogStream
	defer func() {
		for _, s := range streams {
			_ = s.Close()
		}
	}()

	// One subject may have a quarter of all followers.
	admin := w.secret
	for i := range 4 {
		subject := fmt.Sprint("user:u", i)
		w.bind(subject, "viewer")
		w.secret = w.token(subject)
		c := w.client(w.url)

		for range 64 {
			s, err := c.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
			must(t, err)
			streams = append(streams, s)
		}

		if i < 3 {
			_, err := c.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
			if e := wantError(t, err, task.ErrUnavailable, client.CodeBusy); !strings.Contains(e.Message, subject) {
				t.Errorf("one more: %+v", e)
			}
		}
	}
	w.secret = admin

	_, err := w.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
	wantError(t, err, task.ErrUnavailable, client.CodeBusy)

	if m := w.do(request{method: "GET", path: "/metrics"}); !strings.Contains(m.body, "\ncarillon_log_followers 256\n") {
		t.Error("the metric does not say so")
	}

	must(t, streams[0].Close())
	eventually(t, func() bool {
		s, err := w.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
		if err == nil {
			streams = append(streams, s)
		}
		return err == nil
	})
}

// A reader that does not read blocks nobody, and receives all output in the end.
func TestFollowLogs_AReaderThatDoesNotReadHoldsUpNothing(t *testing.T) {
	w, l, run, _ := startLiveRun(t)
	const much, buffer = 4 << 20, 256 << 10 // more than sockets can buffer
	w.serveAnew(func(s *http.Server) {
		s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			_ = c.(*net.TCPConn).SetWriteBuffer(buffer)
			return ctx
		}
	})

	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			_ = c.(*net.TCPConn).SetReadBuffer(buffer)
		}
		return c, err
	}}

	t.Cleanup(transport.CloseIdleConnections)
	slow, err := client.New(client.Config{Server: w.url, Token: w.secret, HTTP: &http.Client{Transport: transport}})
	must(t, err)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	l.write("a/"+run+"/1", strings.Repeat("x", much), true)
	s, err := slow.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
	must(t, err)
	expect(t, s, "x")
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for range 1000 {
			l.write("a/"+run+"/1", "y", true)
		}
		l.write("a/"+run+"/1", "", false)
	}()

	select {
	case <-wrote:
	case <-time.After(time.Minute):
		t.Fatal("the attempt waits for its reader")
	}

	// The output that it finally reads is complete.
	n, err := io.Copy(io.Discard, s)
	if n != much+1000-1 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}

	must(t, s.Close())
}

// The token is checked again during the stream.
func TestFollowLogs_EndWithTheToken(t *testing.T) {
	w := newWorld(t)
	w.beat = 20 * time.Millisecond
	l := newLiveOutput(w.spool)
	w.logs = l
	url := w.serve("node-a")
	w.create("a", "@daily")
	run := id(1, "aaaa")
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	l.write("a/"+run+"/1", "x", true)
	w.secret = w.token("user:ann", until(w.clock.now().Add(time.Minute)))
	s, err := w.client(url).Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{})
	must(t, err)
	defer s.Close()

	expect(t, s, "x")
	w.clock.advance(2 * time.Minute)

	if _, err := io.ReadAll(s); !errors.Is(err, task.ErrUnavailable) {
		t.Errorf("with a token that was deleted: %v", err)
	}
}

// A request for an offset beyond the output waits for the attempt's end.
func TestFollowLogs_BeyondTheOutput(t *testing.T) {
	w, l, run, _ := startLiveRun(t)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	l.write("a/"+run+"/1", "one\n", true)

	streams := map[int64]io.ReadCloser{}
	for _, from := range []int64{6, math.MaxInt64 / 2} {
		s, err := w.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{Attempt: 1, From: from})
		must(t, err)
		defer s.Close()

		streams[from] = s
	}

	l.write("a/"+run+"/1", "two\n", false)

	for from, s := range streams {
		if b, err := io.ReadAll(s); len(b) != map[int64]int{6: 2}[from] || err != nil {
			t.Errorf("from %d: %q, %v", from, b, err)
		}
	}
}

func TestFollowLogs_RefusesWhatCannotBe(t *testing.T) {
	w, _, run, _ := startLiveRun(t)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	path := "/v1/namespaces/default/tasks/a/runs/" + run + "/logs?"

	for query, field := range map[string]string{"follow=1": "follow", "from=-1": "from", "from=1&tail=1": "from", "follow=true&from=x": "from"} {
		if r := w.do(request{method: "GET", path: path + query}); r.status != http.StatusUnprocessableEntity || r.Field != field {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}

	r := w.do(request{method: "GET", path: path + "follow=true", header: map[string]string{"Range": "bytes=0-1"}})
	if r.status != http.StatusUnprocessableEntity || r.Field != "Range" {
		t.Errorf("with a range: %d %s", r.status, r.body)
	}
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()

	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to pass")
		}
	}
}
