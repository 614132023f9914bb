package api_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
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
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const shards = apikit.Shards

// clock is the wall clock of all nodes.
type clock struct{ *apikit.Clock }

func (c clock) now() time.Time          { return c.Now() }
func (c clock) advance(d time.Duration) { c.Advance(d) }

// spool is output kept in memory.
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

// writes counts commits, and may answer in etcd's place.
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

// world is an etcd with a cluster in it, and one node's API. The etcd is a store in memory,
// except in tests of what the API makes of etcd itself.
type world struct {
	keys    map[string]func() (secret.Ring, error) // of nodes that have any; by name
	t       *testing.T
	etcd    *kv.Client
	hook    atomic.Pointer[etcdHook]
	store   *store.Store
	cluster task.Cluster
	clock   clock
	writes  *writes
	spool   spool
	logs    logs.Source // nil: spool
	logger  *zap.Logger
	log     *observer.ObservedLogs // what is a warning, or worse
	ready   error
	badTime error

	stateTimeout  time.Duration          // 0: as usual
	onlyTLS       bool                   // nodes that are served speak TLS, to others
	strangers     map[string]bool        // nodes that the others do not know
	freezeTimeout time.Duration          // 0: as usual
	lateAudit     func(task.AuditRecord) // Config.LateAudit, if set before serve
	backupFile    string                 // where nodes store backups; "": they make none
	maxScanned    int                    // 0: as usual
	owners        map[string]ask         // what nodes answer for their shards, by node; without an entry, for all shards
	restored      error                  // why nothing may be changed
	stubborn      error                  // why nodes take no states
	ends          chan struct{}          // closed: streams end
	noHub         bool                   // nodes that are served have no hub for events
	beat          time.Duration          // of streams
	panics        atomic.Bool
	hold          atomic.Pointer[chan struct{}] // creates wait for it
	wrote         func(answer []byte)           // called after each write of an answer, if set before serve
	configure     func(*http.Server)            // changes the server before it starts, if set before serve
	authentic     func(context.Context, string) // Config.Authenticated
	refusedLogin  func(task.AuditRecord)        // Config.RefusedLogin
	logins        *oidclogin.Logins             // Config.Logins, if set before serve
	keeper        *authority.Keeper
	kit           *apikit.Cluster
	known         func() []task.Node // Config.Nodes, if set before serve
	secret        string
	url           string
	*client.Client
}

func ref(ns, name string) record.Ref { return apikit.Ref(ns, name) }

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, kvtest.Memory(t))
}

func newWorldOn(t *testing.T, etcd *kv.Client) *world {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	w := &world{t: t, log: logs, logger: zap.New(core), etcd: etcd, spool: spool{}, writes: &writes{}}
	etcd.KV = etcdhook.KV(etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if hook := w.hook.Load(); hook != nil {
			return (*hook)(ctx, op, next)
		}
		return next(ctx, op)
	})
	w.kit = apikit.New(t, etcd, func(c kv.Committer) kv.Committer { w.writes.Committer = c; return w.writes }, w.logger)
	w.store, w.cluster, w.clock, w.keeper = w.kit.Store, w.kit.Record, clock{w.kit.Clock}, w.kit.Keeper
	w.secret = w.token("user:ann")
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)

	return w
}

// etcdHook is called instead of each operation of etcd, which it may execute with next.
type etcdHook func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error)

// hookEtcd sets the hook of a world whose node runs already.
func (w *world) hookEtcd(hook etcdHook) { w.hook.Store(&hook) }

// token creates a token, and returns its secret once the node accepts it.
func (w *world) token(subject string, edits ...func(*task.Token)) string {
	w.t.Helper()
	return w.kit.Token(subject, edits...)
}

// tokenID is the id of the token with this secret.
func tokenID(secret string) string { return strings.Split(secret, "_")[1] }

// until edits a token so that it expires.
func until(at time.Time) func(*task.Token) { return apikit.Until(at) }

// bind gives a built-in role to a subject, in namespaces or, without any, in the cluster.
func (w *world) bind(subject, role string, namespaces ...string) {
	w.t.Helper()
	w.kit.Bind(subject, role, namespaces...)
}

// namespace writes the record of a namespace, over the one that the node knows.
func (w *world) namespace(n task.Namespace) {
	w.t.Helper()
	w.kit.Namespace(n)
}

// access writes an access record, and returns once the node knows it.
func (w *world) access(key string, write func(now time.Time) (int64, error)) {
	w.t.Helper()
	w.kit.Access(key, write)
}

// keyOf is the key of a node in every world.
func keyOf(node string) ed25519.PrivateKey { return apikit.Key(node) }

// peer is a node as the others know it: they know all, present or not, but strangers.
func (w *world) peer(name string) (task.Node, bool) {
	return task.Node{Name: name, Instance: "i-" + name, PublicKey: api.PublicKey(keyOf(name)), Roles: []string{task.RoleAPI}}, !w.strangers[name]
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
		Store: w.store, Access: w.keeper, Cluster: w.cluster, Node: node, Ref: ref, Now: w.clock.now, Logs: logs, Version: "1.2.3", Logger: w.logger,
		Instance: "i-" + node, Key: keyOf(node), Peer: w.peer, TLS: w.onlyTLS,
		Registerer: reg, Gatherer: reg, Authenticated: w.authentic, RefusedLogin: w.refusedLogin, Ends: w.ends, Heartbeat: w.beat,
		Ready: func() error {
			if w.panics.Load() {
				panic("on purpose")
			}
			return w.ready
		},
		Logins: w.logins, LoginRedirect: func(provider string) (string, error) {
			return "http://127.0.0.1:7070" + client.LoginCallbackPath(provider), nil
		},
		LateAudit: w.lateAudit, BackupFile: w.backupFile, BackupHeartbeat: time.Millisecond, DialEtcd: func(ctx context.Context, endpoint string) (*kv.Client, error) {
			return kv.Dial(ctx, kv.Config{Endpoints: []string{endpoint}})
		},
		Address:  func() string { return "http://" + node + ".example.com:7070" },
		Ask:      w.ownerOf(node),
		Keys:     w.keys[node],
		Nodes:    w.known,
		Writable: func() error { return w.restored }, FreezeTimeout: w.freezeTimeout, MostScanned: w.maxScanned,
		Events:    w.runHub(),
		PageQuiet: time.Minute, // what pages tell comes last in etcd
		SetState:  func(ctx context.Context, state string, by *task.Actor) error { return w.takes(ctx, node, state, by) }, StateTimeout: w.stateTimeout,
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
			rw = observedWriter{rw, w.wrote}
		}

		if from := r.Header.Get("X-Test-From"); from != "" { // as if it came from there
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

// runHub runs a hub for events until the test ends.
func (w *world) runHub() *eventlog.Hub {
	if w.noHub {
		return nil
	}

	hub := eventlog.NewHub(eventlog.New(w.etcd, w.store.Keys()), nil)
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = hub.Run(ctx) }()
	w.t.Cleanup(func() { stop(); <-done })

	return hub
}

// ask answers a query for the shards of a node.
type ask = func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error)

// ownerOf returns what a node answers for its shards. Without schedulers, the node reads all records for each query.
func (w *world) ownerOf(node string) ask {
	if answer, ok := w.owners[node]; ok {
		return answer
	}
	return w.kit.Owner(node).Ask
}

// observedWriter tells of each write, when it has gone out.
type observedWriter struct {
	http.ResponseWriter
	wrote func([]byte)
}

func (o observedWriter) Unwrap() http.ResponseWriter { return o.ResponseWriter }

func (o observedWriter) Write(b []byte) (int, error) {
	n, err := o.ResponseWriter.Write(b)
	_ = http.NewResponseController(o.ResponseWriter).Flush()
	o.wrote(b)

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

// call makes a request as curl would.
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

// dump is everything in etcd, by key.
func (w *world) dump() map[string]string {
	w.t.Helper()
	res, err := w.etcd.Get(w.t.Context(), w.store.Keys().Root(), clientv3.WithPrefix())
	must(w.t, err)

	all := map[string]string{}
	for _, e := range res.Kvs {
		all[string(e.Key)] = strconv.FormatInt(e.ModRevision, 10) + " " + string(e.Value)
	}

	return all
}

// put writes a key as nothing of ours would.
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

// wantError checks which error a client's call returned.
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
