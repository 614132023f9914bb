package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// world is a cluster with everything that it runs on, and the observers.
type world struct {
	t      *testing.T
	ctx    context.Context // ends after the cleanup
	seed   uint64
	mark   string // of all its processes
	net    string // 127.a.b, for this run only
	dir    string
	logs   string
	keys   record.Keys
	mutant string // that the daemons have; see scripts/chaos.sh
	began  time.Time

	members   []*member
	nodes     []*node
	links     []*link
	client    *kv.Client // directly to etcd
	recorder  *recorder.Recorder
	compacted int64
	closers   []func()

	target *target // of HTTP tasks

	extra       *node // a node that joins and leaves
	small       *node // a node with a small disk
	noSmallDisk string

	long        bool // see size
	shards      int
	ticking     map[int]bool // shards that have a tick each second
	probes      string       // a file
	wasFull     bool         // etcd took deletions only for some time
	seen        int          // events that decided has counted
	decided     int
	ticksBefore int
	wrongClocks []check.WrongClock
	failures    []string // guarantees that were broken, in addition to the findings of package check

	finalCounts map[string]float64
}

// size determines how much of everything a run has.
type size struct {
	nodes, shards int
	load          float64 // 1: about 300 tasks
	smallDisk     bool
	long          bool // no other tests use the machine
}

// newWorld starts etcd, daemons, recorder and load. Everything ends with the test.
func newWorld(t *testing.T, seed uint64, s size) *world {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(os.Getpid()))) // independent of the seed, because several runs may share a machine
	ctx, cancel := context.WithCancel(context.Background())
	keys, err := record.NewKeys(record.DefaultPrefix)
	w := &world{
		t: t, ctx: ctx, seed: seed, mark: fmt.Sprintf("%d.%d", os.Getpid(), r.Uint32()), keys: keys, shards: s.shards, long: s.long, mutant: os.Getenv("CHAOS_MUTANT"),
		net: fmt.Sprintf("127.%d.%d", 1+r.IntN(250), r.IntN(250)), ticking: map[int]bool{}, began: time.Now(),
	}
	w.must(err)
	w.dir, err = os.MkdirTemp("", "carillon-chaos-")
	w.must(err)
	w.logs, w.probes = filepath.Join(w.dir, "logs"), filepath.Join(w.dir, "probes.log")
	w.must(os.Mkdir(w.logs, 0o700))
	t.Cleanup(func() { w.end(); cancel() })

	w.target, err = openTarget(w.ip(200)+":8080", w.probes)
	w.must(err)
	w.closers = append(w.closers, w.target.close)
	w.must(w.startReaper())
	w.must(w.startEtcd(ctx))
	observer, err := w.dial(w.members...)
	w.must(err)
	w.recorder, err = recorder.Start(ctx, observer, keys)
	w.must(err)

	for i := range s.nodes {
		n, err := w.addNode(i + 1)
		w.must(err)

		if i == 1 && s.smallDisk {
			w.smallDisk(n)
		}

		w.must(w.startNode(n))

		if i == 0 { // it creates the cluster
			w.must(w.eventually(3*time.Minute, n.ready))
		}
	}

	for _, n := range w.nodes {
		w.must(w.eventually(3*time.Minute, n.ready))
	}

	w.must(w.connect())
	w.must(w.setLostAfter())
	w.must(w.openNamespaces())

	for _, n := range w.nodes {
		w.scrape(n)
		n.idle = n.goroutines
	}

	w.must(w.openReceivers())
	w.must(w.load(s.load))

	return w
}

func (w *world) ip(i int) string { return fmt.Sprintf("%s.%d", w.net, i) }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// say logs an event, with the time since the beginning.
func (w *world) say(format string, args ...any) {
	w.t.Helper()
	w.t.Logf("%7.2fs  %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// fail records a broken guarantee. The run continues.
func (w *world) fail(promise, format string, args ...any) {
	w.t.Helper()
	f := fmt.Sprintf("%s at %.2fs: %s", promise, time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
	w.failures = append(w.failures, f)
	w.t.Error(f)
}

// end ends all processes. It keeps the directory only if a failure was found.
func (w *world) end() {
	for _, n := range w.nodes {
		_ = n.process.signal(syscall.SIGKILL)
	}

	for _, m := range w.members {
		_ = m.process.signal(syscall.SIGKILL)
	}

	sweep(w.mark)

	for _, c := range slices.Backward(w.closers) {
		c()
	}

	for _, k := range w.links {
		k.close()
	}

	if w.t.Failed() || os.Getenv("CARILLON_CHAOS_KEEP") != "" {
		w.t.Logf("seed %d; logs, history and probe log are kept in %s", w.seed, w.dir)
		return
	}

	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Error(err)
	}
}

// eventually repeats a function until it succeeds, and otherwise returns its last error.
func (w *world) eventually(most time.Duration, try func() error) error {
	deadline := time.Now().Add(most)

	for {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", most, err)
		}

		time.Sleep(50 * time.Millisecond)
	}
}

// fleet returns the nodes, owners and watermarks in etcd, at one revision.
func (w *world) fleet() (present map[string]bool, owners map[int]string, marks map[int]record.Watermark, err error) {
	nodes, nodesEnd := kv.Prefix(w.keys.Nodes())
	own, ownEnd := kv.Prefix(w.keys.Owners())

	ops := []clientv3.Op{clientv3.OpGet(nodes, clientv3.WithRange(nodesEnd)), clientv3.OpGet(own, clientv3.WithRange(ownEnd))}
	for i := range w.shards {
		ops = append(ops, clientv3.OpGet(w.keys.Watermark(i)))
	}

	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
	defer cancel()

	res, err := w.client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, nil, nil, err
	}

	s := store.New(w.client, kv.Direct(w.client), w.keys)
	present, owners, marks = map[string]bool{}, map[int]string{}, map[int]record.Watermark{}
	for _, n := range record.DecodeNodes(s.Keys(), res.Responses[0].GetResponseRange().Kvs) {
		present[n.Name] = true
	}

	for _, o := range record.DecodeOwners(s.Keys(), res.Responses[1].GetResponseRange().Kvs) {
		owners[o.Shard] = o.Node
	}

	for i := range w.shards {
		for _, e := range res.Responses[2+i].GetResponseRange().Kvs {
			if m, err := record.DecodeWatermark(e.Value); err == nil {
				marks[i] = m
			}
		}
	}

	return present, owners, marks, nil
}

const (
	convergence = 20 * time.Second // G16
	nearNow     = 2500 * time.Millisecond
)

// settled returns nil if every expected node is present, every shard has one of them as its owner, and every tick
// is decided up to a moment ago.
func (w *world) settled() error {
	present, owners, marks, err := w.fleet()
	if err != nil {
		return err
	}

	var faults []string
	for _, n := range w.nodes {
		if n.exits {
			continue
		}
		switch {
		case n.process.running():
		case n.frozenLong:
			if err := w.restartKilled(n); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s has ended by itself", n.name)
		}

		if !present[n.name] {
			faults = append(faults, n.name+" is absent")
		}
	}

	for i := range w.shards {
		switch at := marks[i].Time; {
		case !present[owners[i]]:
			faults = append(faults, fmt.Sprintf("shard %d is owned by %q, which is absent", i, owners[i]))
		case w.ticking[i] && time.Since(at.Time) > nearNow:
			faults = append(faults, fmt.Sprintf("shard %d of %s is decided up to %s ago", i, owners[i], time.Since(at.Time).Round(time.Millisecond)))
		}
	}

	if faults != nil {
		return errors.New(strings.Join(faults, "; "))
	}

	return nil
}

// converge waits until the cluster is settled, and returns how long that took.
func (w *world) converge() (time.Duration, error) {
	began := time.Now()
	err := w.eventually(w.promised(convergence), w.settled)
	took := time.Since(began)
	if err == nil && took > convergence {
		w.say("settled after %s, beside other tests", took.Round(time.Millisecond))
	}

	return took, err
}

// promised returns how long something may take. A long run has its machine to itself. The short one shares it with
// other tests, which may leave it a fraction of two processors.
func (w *world) promised(most time.Duration) time.Duration {
	if w.long {
		return most
	}
	return 4 * most
}

// countDecided returns how many runs were decided since the recording began.
func (w *world) countDecided() int {
	events := w.recorder.Events()
	for _, e := range events[w.seen:] {
		if _, ok := w.keys.ParseRun(e.Key); ok && e.CreateRevision == e.ModRevision && !e.Deleted {
			w.decided++
		}
	}

	w.seen = len(events)
	return w.decided
}
