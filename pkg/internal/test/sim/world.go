package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// simulationStart is the time at which simulations begin. A synctest bubble begins in the year 2000, which is
// before any time that tasks expect.
var simulationStart = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// clockChange is when the clocks of America/New_York, the zone of some tasks, go back by an hour.
var clockChange = time.Date(2026, 11, 1, 6, 0, 0, 0, time.UTC)

// world is a cluster and everything around it, in one bubble.
type world struct {
	t         testing.TB
	opts      Options
	workloads []workload // those that the seed has drawn
	rng       *rand.Rand // of the scenario; only one goroutine draws from it
	weather   weather    // of links that are created from now on
	dir       string     // of all data directories
	began     time.Time

	store  *kvmem.Store                           // the in-memory etcd
	skewed time.Duration                          // the largest error that any clock had
	full   bool                                   // etcd was full for some time
	dial   func(context.Context) *clientv3.Client // returns a client of etcd: of store, unless a test replaces it
	net    *network
	admin  *store.Store      // the simulation's own access, without faults
	etcd   *kv.Client        // the client of admin
	names  []string          // of all nodes, in the order of their creation
	nodes  map[string]*node  // by name
	all    []*process        // all processes that were ever started
	fault  map[string]func() // how to end what is wrong now

	founded sync.Once // guards the creation of the cluster's record

	life         context.Context // ends with the simulation
	background   sync.WaitGroup  // goroutines that outlive the call that started them
	probes       probes          // what the attempts did
	targets      targets         // what requests are sent to
	acks         acks            // what the API answered
	wrongAnswers []string        // what the API has said about past ticks that is wrong
	evaluated    time.Time       // see check.Options.Evaluated
	calm         []check.Period  // see check.Options.Calm
	edits        edits           // how they were written
	deliveries   deliveries      // what watches delivered, if lists are judged

	// mu guards the fields below, and the nodes' map and directories.
	mu       sync.Mutex
	times    map[int64]time.Time // when each revision was written, by the clock of the simulation
	story    []string            // lines of the report
	counts   map[string]int      // how often something was reached
	token    string              // of the simulation itself, which is never revoked; "" before there is a cluster
	accounts []*account          // of users; set before the first node starts
}

// newWorld returns a cluster without nodes.
func newWorld(t testing.TB, life context.Context, seed uint64, o Options) *world {
	w := &world{
		t: t, opts: o, rng: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), began: time.Now(), store: kvmem.New(kvmem.Config{}), net: newNetwork(life),
		nodes: map[string]*node{}, fault: map[string]func(){}, life: life, counts: map[string]int{}, times: map[int64]time.Time{},
		edits: edits{failed: map[record.Ref]int{}, uncompared: map[int64]bool{}},
	}
	w.dial = w.store.Client
	w.etcd = kv.Wrap(w.dial(life), 0)

	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		w.abort(err)
	}

	w.admin = store.New(w.etcd, kv.Direct(w.etcd), keys)

	return w
}

// abort fails the test when the simulation cannot continue.
func (w *world) abort(err error) {
	w.t.Helper()
	w.t.Error(err)
	w.t.FailNow()
}

// logLine adds a line to the story.
func (w *world) logLine(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, fmt.Sprintf("%s %s", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

// Write adds the nodes' log lines to the story. It implements zapcore.WriteSyncer together with Sync.
func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.story = append(w.story, strings.TrimRight(string(b), "\n"))

	return len(b), nil
}

func (w *world) Sync() error { return nil }

// countReached counts that something was reached.
func (w *world) countReached(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[path]++
}

// clientOf returns a client of a node's API; nil before a token exists.
func (w *world) clientOf(n *node) *client.Client { return w.clientWith(n, w.firstToken()) }

// clientWith returns a client of a node's API that has a token; nil if that is "".
func (w *world) clientWith(n *node, token string) *client.Client {
	if token == "" {
		return nil
	}

	c, err := client.New(client.Config{Server: "http://" + n.address, Token: token, Timeout: 8 * time.Second, HTTP: w.newHTTPClient()})
	if err != nil {
		w.abort(err)
	}

	return c
}

// firstToken returns the token that was created with the cluster; "" before that.
func (w *world) firstToken() string {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.token
}

// outlivingContext returns a context for work that outlives its caller. It has the caller's values and ends with
// the simulation.
func (w *world) outlivingContext(ctx context.Context) context.Context { return outliving{w.life, ctx} }

// outliving ends with one context and has the values of another.
type outliving struct {
	context.Context
	values context.Context
}

func (o outliving) Value(key any) any { return o.values.Value(key) }

// pickRandom draws an element of a list.
func pickRandom[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// durationBetween draws a duration between two limits, in whole milliseconds above the lower one.
func durationBetween(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1)).Truncate(time.Millisecond)
}

// sleep waits in virtual time.
func (w *world) sleep(d time.Duration) { clock.Sleep(w.life, d) }

// waitUntil waits until a condition holds, and reports whether it does. It gives up after a time.
func (w *world) waitUntil(most time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(most); time.Now().Before(deadline); w.sleep(100 * time.Millisecond) {
		if holds() {
			return true
		}
	}

	return holds()
}

// isIdle reports whether no run waits or is active.
func (w *world) isIdle() bool {
	for _, prefix := range []string{w.admin.Keys().Runs(), w.admin.Keys().Root() + "shards/"} {
		resp, err := w.etcd.Get(w.life, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			w.abort(fmt.Errorf("look whether all is quiet: %w", err))
		}

		for _, kv := range resp.Kvs {
			if prefix == w.admin.Keys().Runs() || strings.Contains(string(kv.Key), "/queue/") || strings.Contains(string(kv.Key), "/parts/") {
				return false
			}
		}
	}

	return true
}
