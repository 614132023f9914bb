package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// simulationStart is when simulations begin: bubbles begin in 2000, which is no time for tasks.
var simulationStart = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// world is a cluster and all that is around it, in one bubble.
type world struct {
	t         testing.TB
	opts      Options
	workloads []workload
	rng       *rand.Rand // of the scenario: one goroutine draws from it
	weather   weather
	dir       string

	store  *kvmem.Store
	skewed time.Duration                          // by which a clock was wrong at most
	full   bool                                   // it was, for a time
	dial   func(context.Context) *clientv3.Client // a client of etcd: of store, unless a test has another
	net    *network
	admin  *store.Store // the simulation's own eyes and hands, without faults
	etcd   *kv.Client
	names  []string // of all nodes there will be
	nodes  map[string]*node
	all    []*process        // that ever were
	fault  map[string]func() // how to end what is wrong now

	founded sync.Once // the record of the cluster is there

	life       context.Context // ends with the simulation
	background sync.WaitGroup  // what outlives the calls that began it
	probes     probes
	acks       acks

	mu     sync.Mutex
	times  map[int64]time.Time // of the revisions, by the clock of the simulation
	story  []string
	counts map[string]int
}

func newWorld(t testing.TB, life context.Context, seed uint64, o Options) *world {
	w := &world{
		t: t, opts: o, rng: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), store: kvmem.New(kvmem.Config{}), net: newNetwork(),
		nodes: map[string]*node{}, fault: map[string]func(){}, life: life, counts: map[string]int{}, times: map[int64]time.Time{},
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

// abort ends a simulation that cannot go on.
func (w *world) abort(err error) {
	w.t.Helper()
	w.t.Error(err)
	w.t.FailNow()
}

// logLine adds a line to the story of the simulation.
func (w *world) logLine(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, fmt.Sprintf("%s %s", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

// Write takes the nodes' log lines into the story.
func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.story = append(w.story, strings.TrimRight(string(b), "\n"))

	return len(b), nil
}

func (w *world) Sync() error { return nil }

// countReached notes that something was reached.
func (w *world) countReached(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// clientOf is a client of a node's API; nil before there is a token.
func (w *world) clientOf(n *node) *client.Client {
	token := w.firstToken()
	if token == "" {
		return nil
	}

	c, err := client.New(client.Config{Server: "http://" + n.address, Token: token, Timeout: 8 * time.Second, HTTP: w.newHTTPClient()})
	if err != nil {
		w.abort(err)
	}

	return c
}

// firstToken is what the first node has written; "" before.
func (w *world) firstToken() string {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, n := range w.nodes {
		if b, err := os.ReadFile(filepath.Join(n.dir, "token")); err == nil {
			return strings.TrimSpace(string(b))
		}
	}

	return ""
}

// outlivingContext is a context for what outlives its caller; it keeps the caller's values, and ends with the simulation.
func (w *world) outlivingContext(ctx context.Context) context.Context { return outliving{w.life, ctx} }

type outliving struct {
	context.Context
	values context.Context
}

func (o outliving) Value(key any) any { return o.values.Value(key) }

// pickRandom draws one of a list.
func pickRandom[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// durationBetween draws a duration.
func durationBetween(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1)).Truncate(time.Millisecond)
}

// sleep lets virtual time go by.
func (w *world) sleep(d time.Duration) { clock.Sleep(w.life, d) }

// waitUntil waits until a condition holds, for at most a time.
func (w *world) waitUntil(most time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(most); time.Now().Before(deadline); w.sleep(100 * time.Millisecond) {
		if holds() {
			return true
		}
	}

	return holds()
}

// isIdle says whether nothing waits or runs.
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
