package api_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/api/logs"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

const shards = 8

// clock is a wall clock that a test sets.
type clock struct{ ms atomic.Int64 }

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// spool stores output in memory.
type spool map[string]string

func (s spool) Open(ns, name, run string, attempt int) (io.ReadSeekCloser, error) {
	text, ok := s[fmt.Sprintf("%s/%s/%s/%d", ns, name, run, attempt)]
	if !ok {
		return nil, fmt.Errorf("spool: %w", os.ErrNotExist)
	}

	return struct {
		io.ReadSeeker
		io.Closer
	}{strings.NewReader(text), io.NopCloser(nil)}, nil
}

func (s spool) Active(ns, name, run string, attempt int) bool { return false }

func (s spool) Watch(ns, name, run string, attempt int) (<-chan struct{}, func(), error) {
	return nil, func() {}, nil
}

func (s spool) Times(ns, name, run string, attempt int, from int64) ([]task.Mark, error) {
	return nil, nil
}

// writes counts commits, and can replace their results.
type writes struct {
	kv.Committer
	mu     sync.Mutex
	count  int
	before func(kv.Txn) // called before each commit
	after  func(kv.Result, error) (kv.Result, error)
}

func (w *writes) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	w.mu.Lock()
	w.count++
	before, after := w.before, w.after
	w.mu.Unlock()

	if before != nil {
		before(t)
	}

	res, err := w.Committer.Commit(ctx, t)
	if after != nil {
		res, err = after(res, err)
	}

	return res, err
}

func (w *writes) set(before func(kv.Txn), after func(kv.Result, error) (kv.Result, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after, w.count = before, after, 0
}

func (w *writes) committed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// world is an etcd with a cluster, and one node's API. Its etcd is a store in memory, except in tests of the
// API's use of etcd itself.
type world struct {
	keys    map[string]func() (secret.Ring, error) // by node, for those that have keys
	t       *testing.T
	etcd    *kv.Client
	store   *store.Store
	cluster task.Cluster
	clock   *clock
	writes  *writes
	spool   spool
	logs    logs.Source // nil: spool
	logger  *zap.Logger
	log     *observer.ObservedLogs // warnings and errors
	ready   error
	badTime error

	stateWithin  time.Duration   // 0: the default
	onlyTLS      bool            // nodes report that they use TLS
	strangers    map[string]bool // nodes that the others do not know
	freezeWithin time.Duration   // 0: the default
	mostScanned  int             // 0: the default
	parts        map[string]part // of the board, by node
	restored     error           // why changes are refused
	stubborn     error           // why nodes cannot change their state
	ends         chan struct{}   // when closed, streams end
	beat         time.Duration   // of streams
	panics       atomic.Bool
	hold         atomic.Pointer[chan struct{}] // creates wait for it
	wrote        func(answer []byte)           // called after each write of an answer, if set before serve
	configure    func(*http.Server)            // changes the server before it starts, if set before serve
	authentic    func(context.Context)         // Config.Authenticated
	secret       string
	url          string
	*client.Client
}

func ref(ns, name string) record.Ref {
	return record.Ref{Namespace: ns, Name: name, Shard: shard.Of(ns, name, shards)}
}

var worlds atomic.Int32

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, kvtest.Memory(t))
}

func newWorldOn(t *testing.T, etcd *kv.Client) *world {
	t.Helper()
	prefix := fmt.Sprintf("/test-%d", worlds.Add(1))
	keys, err := record.NewKeys(prefix)
	must(t, err)
	core, logs := observer.New(zap.WarnLevel)
	w := &world{t: t, log: logs, logger: zap.New(core), etcd: etcd, clock: &clock{}, spool: spool{}, writes: &writes{Committer: kv.Direct(etcd)}}
	w.clock.ms.Store(time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC).UnixMilli())
	w.store = store.New(etcd, w.writes, keys)
	w.cluster, _, err = w.store.Bootstrap(t.Context(), shards, w.clock.now())
	must(t, err)
	w.secret = w.token(func(tok *record.Token) { tok.Who = "ann" })
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)

	return w
}

// token writes a new token into etcd.
func (w *world) token(edit func(*record.Token)) string {
	w.t.Helper()
	secret, id, tok := api.NewToken()
	edit(&tok)
	must(w.t, w.store.CreateToken(w.t.Context(), id, tok))

	return secret
}

// keyOf returns the key of a node, which is the same in every world.
func keyOf(node string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(node))
	return ed25519.NewKeyFromSeed(seed[:])
}

// peer returns a node as the others see it. They know all nodes except strangers, present or not.
func (w *world) peer(name string) (task.Node, bool) {
	return task.Node{Name: name, Instance: "i-" + name, PublicKey: api.PublicKey(keyOf(name))}, !w.strangers[name]
}

// serve starts the API of a node and returns its address.
func (w *world) serve(node string) string {
	w.t.Helper()
	reg := prometheus.NewRegistry()

	logs := w.logs
	if logs == nil {
		logs = w.spool
	}

	h, err := api.New(api.Config{
		Store: w.store, Cluster: w.cluster, Node: node, Ref: ref, Now: w.clock.now, Logs: logs, Version: "1.2.3", Logger: w.logger,
		Instance: "i-" + node, Key: keyOf(node), Peer: w.peer, TLS: w.onlyTLS,
		Registerer: reg, Gatherer: reg, Authenticated: w.authentic, Ends: w.ends, Heartbeat: w.beat,
		Ready: func() error {
			if w.panics.Load() {
				panic("on purpose")
			}
			return w.ready
		},
		Board:    w.parts[node],
		Keys:     w.keys[node],
		Writable: func() error { return w.restored }, FreezeWithin: w.freezeWithin, MostScanned: w.mostScanned,
		PageQuiet: time.Minute, // the last change in etcd is always an event, so no page waits that long
		SetState:  func(ctx context.Context, state, by string) error { return w.takes(ctx, node, state, by) }, StateWithin: w.stateWithin,
		Clock: func() error {
			if hold := w.hold.Load(); hold != nil {
				<-*hold
			}
			return w.badTime
		},
	})

	must(w.t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.wrote != nil {
			rw = overheard{rw, w.wrote}
		}

		if from := r.Header.Get("X-Test-From"); from != "" { // as if it came from that address
			r.RemoteAddr = from + ":4711"
		}

		h.ServeHTTP(rw, r)
	}))

	if w.configure != nil {
		w.configure(s.Config)
	}

	s.Start()
	w.t.Cleanup(s.Close)

	return s.URL
}

// overheard reports each write after it was sent.
type overheard struct {
	http.ResponseWriter
	wrote func([]byte)
}

func (t overheard) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t overheard) Write(b []byte) (int, error) {
	n, err := t.ResponseWriter.Write(b)
	_ = http.NewResponseController(t.ResponseWriter).Flush()
	t.wrote(b)

	return n, err
}

func (w *world) client(url string) *client.Client {
	w.t.Helper()
	transport := &http.Transport{}
	w.t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(client.Config{Server: url, Token: w.secret, Timeout: time.Minute, HTTP: &http.Client{Transport: transport}})
	must(w.t, err)

	return c
}

// call sends a request as curl would.
type request struct {
	method, path, body string
	header             map[string]string
	noToken            bool
}

type response struct {
	status int
	header http.Header
	body   string
	client.Problem
}

func (w *world) do(q request) response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), q.method, w.url+q.path, strings.NewReader(q.body))
	must(w.t, err)

	if !q.noToken {
		req.Header.Set("Authorization", "Bearer "+w.secret)
	}

	if q.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}

	for k, v := range q.header {
		if req.Header.Set(k, v); v == "" {
			req.Header.Del(k)
		}
	}

	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	must(w.t, err)
	defer res.Body.Close()

	b, err := io.ReadAll(res.Body)
	must(w.t, err)
	r := response{status: res.StatusCode, header: res.Header, body: string(b)}

	if res.StatusCode >= 400 && q.method != http.MethodHead {
		if got := res.Header.Get("Content-Type"); got != "application/problem+json" {
			w.t.Errorf("%s %s: %d with Content-Type %q: %s", q.method, q.path, res.StatusCode, got, b)
		}

		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()

		if err := d.Decode(&r.Problem); err != nil {
			w.t.Errorf("%s %s: not a problem: %v: %s", q.method, q.path, err, b)
		}

		if r.Status != res.StatusCode || r.Code == "" || r.Detail == "" || r.Title == "" {
			w.t.Errorf("%s %s: an incomplete problem: %s", q.method, q.path, b)
		}
	}

	return r
}

// dump returns everything in etcd, by key.
func (w *world) dump() map[string]string {
	w.t.Helper()
	res, err := w.etcd.Get(w.t.Context(), w.store.Keys().Root(), clientv3.WithPrefix())
	must(w.t, err)

	all := map[string]string{}
	for _, e := range res.Kvs {
		all[string(e.Key)] = fmt.Sprintf("%d %s", e.ModRevision, e.Value)
	}

	return all
}

// put writes a key directly, as no code of Carillon would.
func (w *world) put(key string, value any) {
	w.t.Helper()
	text, ok := value.(string)
	if !ok {
		b, err := json.Marshal(value)
		must(w.t, err)
		text = string(b)
	}

	_, err := w.etcd.Put(w.t.Context(), key, text)
	must(w.t, err)
}

func (w *world) entry(r record.Ref) task.Entry {
	w.t.Helper()
	st, err := w.store.Task(w.t.Context(), r)
	must(w.t, err)

	return st.Entry
}

func spec(name, schedule string) task.Spec {
	s := task.Defaults()
	s.Name, s.Schedule, s.Action = name, task.Schedules{schedule}, task.Action{Process: &task.Process{Command: []string{"true"}}}
	return s
}

func (w *world) create(name, schedule string) client.Task {
	w.t.Helper()
	got, err := w.Tasks.Create(w.t.Context(), "default", spec(name, schedule))
	must(w.t, err)

	return got
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks the error of a client's call.
func wantError(t *testing.T, err, is error, code string) *client.Error {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v, not one of the client", err)
	}

	if is != nil && !errors.Is(err, is) || e.Code != code {
		t.Fatalf("got status %d, code %q (%v); want %v, code %q", e.Status, e.Code, err, is, code)
	}

	return e
}
