package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
)

// trio is a cluster of three embedded members, each with its own directory.
type trio struct {
	t       *testing.T
	dir     string
	members map[string]string
	running map[string]*embedded.Server
	logs    *observer.ObservedLogs
	log     *zap.Logger
	mu      sync.Mutex
	away    map[string][]string // the missing members that were reported to each member while it waited
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	tr := &trio{t: t, dir: t.TempDir(), members: map[string]string{}, running: map[string]*embedded.Server{}, away: map[string][]string{}}
	for _, name := range []string{"a", "b", "c"} {
		tr.members[name] = peerURL(t)
	}

	core, logs := observer.New(zap.WarnLevel)
	tr.logs, tr.log = logs, zap.New(core)
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, s := range tr.running {
			wg.Go(func() { _ = s.Close() })
		}
		wg.Wait()
	})

	return tr
}

// peerPorts contains the ports of all members, including stopped ones that may start again.
var peerPorts sync.Map

// peerURL returns a URL with a free port that stays free while its member is stopped. No other test uses it: other
// packages use higher ports, and the kernel assigns ports from another range.
func peerURL(t *testing.T) string {
	t.Helper()
	var err error
	for range 100 {
		port := 12_000 + rand.N(8_000)
		if _, ok := peerPorts.LoadOrStore(port, true); ok {
			continue
		}

		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			defer l.Close()
			return "http://" + l.Addr().String()
		}
	}

	t.Fatal(err)

	return ""
}

func (tr *trio) path(name string) string { return filepath.Join(tr.dir, name) }

func (tr *trio) config(name string, join bool) embedded.Config {
	return embedded.Config{
		Dir: tr.path(name), Name: name, Tick: 20 * time.Millisecond, Election: 200 * time.Millisecond,
		Peers: &embedded.Peers{Members: tr.members, Join: join}, Logger: tr.log.With(zap.String("of", name)),
		Waiting: func(missing []string) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			if missing != nil {
				tr.away[name] = missing
			}
		},
	}
}

func (tr *trio) begin(cfg embedded.Config) (*embedded.Server, error) {
	ctx, cancel := context.WithTimeout(tr.t.Context(), 2*time.Minute)
	defer cancel()

	s, err := embedded.Start(ctx, cfg)
	if err == nil {
		tr.mu.Lock()
		tr.running[cfg.Name] = s
		tr.mu.Unlock()
	}

	return s, err
}

func (tr *trio) startAll(names ...string) {
	tr.t.Helper()
	var wg sync.WaitGroup

	errs := make([]error, len(names))
	for i, name := range names {
		wg.Go(func() { _, errs[i] = tr.begin(tr.config(name, false)) })
	}

	wg.Wait()

	if err := errors.Join(errs...); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *trio) stop(name string) {
	tr.t.Helper()
	if err := tr.running[name].Close(); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *trio) refused(cfg embedded.Config, parts ...string) {
	tr.t.Helper()
	missing := ""
	for range 5 { // the other members know the reason, and have two seconds to report it
		s, err := tr.begin(cfg)
		if err == nil {
			_ = s.Close()
			tr.t.Fatalf("started; want an error with %q", parts)
		}

		missing = ""
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				missing += fmt.Sprintf("%q does not say %q\n", err, part)
			}
		}

		if missing == "" {
			return
		}
	}

	tr.t.Error(missing)
}

// write puts a key through a member. It retries, because requests fail while the leader is lost or has been paused
// for a fifth of a second.
func (tr *trio) write(name, key, value string) {
	tr.t.Helper()
	eventually(tr.t, "a write", func() bool {
		_, err := tr.running[name].Client().Put(tr.t.Context(), key, value)
		return err == nil
	})
}

// read returns the value of a key on a member. The key must exist.
func read(t *testing.T, c *kv.Client, key string) (value string) {
	t.Helper()
	eventually(t, "a read", func() bool {
		r, err := c.Get(t.Context(), key)
		if err != nil {
			return false
		}

		if len(r.Kvs) != 1 {
			t.Fatal(r)
		}

		value = string(r.Kvs[0].Value)

		return true
	})

	return value
}

// remove removes a member as soon as c can do so.
func remove(t *testing.T, c *kv.Client, name string) {
	t.Helper()
	eventually(t, name+" can be removed", func() bool { // the others have to detect first that it has stopped
		l, err := c.MemberList(t.Context())
		if err != nil {
			return false
		}

		for _, m := range l.Members {
			if m.Name == name {
				_, _ = c.MemberRemove(t.Context(), m.ID)
				return false
			}
		}

		return true
	})
}

func TestPeers_LoseOneAndReplaceIt(t *testing.T) {
	if testing.Short() {
		t.Skip("three members of an etcd: make test-cluster")
	}

	t.Parallel()
	tr := newTrio(t)
	waits := make(chan error, 1)
	go func() { _, err := tr.begin(tr.config("a", false)); waits <- err }()
	eventually(t, "a says whom it waits for", func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return strings.Join(tr.away["a"], " ") == "b c"
	})

	select {
	case err := <-waits:
		t.Fatalf("a came up alone: %v", err)
	default:
	}

	tr.startAll("b", "c")

	if err := <-waits; err != nil {
		t.Fatal(err)
	}

	tr.write("a", "k", "v1")

	if got := read(t, tr.running["c"].Client(), "k"); got != "v1" {
		t.Fatal(got)
	}

	// One member stops and starts again with its data. The others continue meanwhile.
	tr.stop("c")
	tr.write("a", "k", "v2")
	tr.startAll("c")

	if got := read(t, tr.running["c"].Client(), "k"); got != "v2" {
		t.Fatal(got)
	}

	// One member loses its data. It has voted before, so it must not start as if nothing had happened.
	tr.stop("c")

	if err := os.RemoveAll(tr.path("c")); err != nil {
		t.Fatal(err)
	}

	tr.refused(tr.config("c", false), "member c already belongs to this cluster", "member remove c", "member add c --peer-url "+tr.members["c"])
	tr.refused(tr.config("c", true), "member remove c")
	a := tr.running["a"].Client()
	remove(t, a, "c")
	tr.refused(tr.config("c", true), "has no member at "+tr.members["c"], "member add c")
	tr.members["c"] = peerURL(t)
	eventually(t, "c can be added", func() bool { // etcd requires that the others have been connected for five seconds
		_, err := a.MemberAddAsLearner(t.Context(), []string{tr.members["c"]})
		return err == nil || strings.Contains(err.Error(), "already exists") // an earlier attempt was applied, and its answer was lost
	})

	c, err := tr.begin(tr.config("c", true))
	if err != nil {
		t.Fatal(err)
	}

	if got := read(t, c.Client(), "k"); got != "v2" {
		t.Fatal(got)
	}

	var l *clientv3.MemberListResponse
	eventually(t, "a list of the members", func() bool {
		l, err = a.MemberList(t.Context())
		return err == nil
	})

	if len(l.Members) != 3 {
		t.Fatal(l)
	}

	for _, m := range l.Members {
		if m.IsLearner {
			t.Errorf("%s does not vote", m.Name)
		}
	}

	// It has a vote: together with one other member it forms a majority.
	tr.stop("b")
	tr.write("a", "k", "v3")

	if got := read(t, c.Client(), "k"); got != "v3" {
		t.Fatal(got)
	}

	// b starts again with its first configuration, and logs that the cluster ignores it.
	old := tr.config("b", false)
	old.Peers = &embedded.Peers{Members: map[string]string{"a": tr.members["a"], "b": tr.members["b"]}}
	if _, err := tr.begin(old); err != nil {
		t.Fatal(err)
	}

	if n := tr.logs.FilterMessageSnippet("--initial-cluster differs").Len(); n == 0 {
		t.Error("the log does not say that --initial-cluster is ignored")
	}

	for _, l := range tr.logs.FilterMessageSnippet("TCP streaming").All() {
		t.Errorf("each connection is logged: %s", l.Message)
	}
}

func TestPeers_RefuseWhatIsNotTheirs(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.startAll("a", "b", "c")

	// A member that the others do not know.
	stranger := newTrio(t)
	for _, n := range []string{"a", "b"} {
		stranger.members[n] = tr.members[n]
	}

	cfg := stranger.config("c", false)
	stranger.refused(cfg, "another etcd cluster", "--initial-cluster")
	// Data of a member that was removed.
	a := tr.running["a"].Client()
	remove(t, a, "c")
	c := tr.running["c"]
	within(t, time.Minute, "the removed member's end", c.Done())

	if c.Err() == nil || !strings.Contains(c.Err().Error(), "has been removed") {
		t.Errorf("it ended with %v", c.Err())
	}

	tr.stop("c")
	tr.refused(tr.config("c", false), "has been removed", tr.path("c"), "member add c")
	// Data of another member, of a member of several, and of a single member.
	tr.stop("b")
	wrong := tr.config("a", false)
	wrong.Dir = tr.path("b")
	wrong.Peers = &embedded.Peers{Members: map[string]string{"a": tr.members["b"], "c": tr.members["c"]}}
	tr.refused(wrong, "belongs to member b", "this is a")
	alone := tr.config("b", false)
	alone.Peers = nil
	tr.refused(alone, "member b of a cluster of 2", "--initial-cluster")
	single := server(t, embedded.Config{Dir: tr.path("d")})
	_ = single.Close()
	joins := tr.config("c", false)
	joins.Dir = tr.path("d")
	tr.refused(joins, "etcd with a single member", "another directory")
}
