package kv_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/kv"
)

// trio are three members of one etcd, each with a directory of its own.
type trio struct {
	t       *testing.T
	dir     string
	members map[string]string
	running map[string]*kv.Server
	logs    *observer.ObservedLogs
	log     *zap.Logger
	mu      sync.Mutex
	away    map[string][]string // what each was told while it waited
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	tr := &trio{t: t, dir: t.TempDir(), members: map[string]string{}, running: map[string]*kv.Server{}, away: map[string][]string{}}
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

func peerURL(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func (tr *trio) path(name string) string { return filepath.Join(tr.dir, name) }

func (tr *trio) config(name string, join bool) kv.ServerConfig {
	return kv.ServerConfig{
		Dir: tr.path(name), Name: name, Tick: 20 * time.Millisecond, Election: 200 * time.Millisecond,
		Peers: &kv.Peers{Members: tr.members, Join: join}, Logger: tr.log.With(zap.String("of", name)),
		Waiting: func(missing []string) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			if missing != nil {
				tr.away[name] = missing
			}
		},
	}
}

func (tr *trio) begin(cfg kv.ServerConfig) (*kv.Server, error) {
	ctx, cancel := context.WithTimeout(tr.t.Context(), 30*time.Second)
	defer cancel()
	s, err := kv.StartServer(ctx, cfg)
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

func (tr *trio) refused(cfg kv.ServerConfig, parts ...string) {
	tr.t.Helper()
	s, err := tr.begin(cfg)
	if err == nil {
		_ = s.Close()
		tr.t.Fatalf("started; want an error with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			tr.t.Errorf("%q does not say %q", err, part)
		}
	}
}

func get(t *testing.T, c *kv.Client, key string) string {
	t.Helper()
	r, err := c.Get(t.Context(), key)
	if err != nil || len(r.Kvs) != 1 {
		t.Fatalf("%v, %v", r, err)
	}
	return string(r.Kvs[0].Value)
}

// idOf is a member's id, as member id is known to c.
func idOf(t *testing.T, c *kv.Client, name string) uint64 {
	t.Helper()
	l, err := c.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range l.Members {
		if m.Name == name {
			return m.ID
		}
	}
	t.Fatalf("no member %s", name)
	return 0
}

func TestPeers_LoseOneAndReplaceIt(t *testing.T) {
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
	put(t, tr.running["a"].Client(), "k", "v1")
	if got := get(t, tr.running["c"].Client(), "k"); got != "v1" {
		t.Fatal(got)
	}
	// One stops, and the others go on; it comes back with its data.
	tr.stop("c")
	put(t, tr.running["a"].Client(), "k", "v2")
	tr.startAll("c")
	if got := get(t, tr.running["c"].Client(), "k"); got != "v2" {
		t.Fatal(got)
	}
	// One loses its data. As if nothing had happened it must not start: it has voted before.
	tr.stop("c")
	if err := os.RemoveAll(tr.path("c")); err != nil {
		t.Fatal(err)
	}
	tr.refused(tr.config("c", false), "member c runs in this cluster already", "member remove c", "member add c --peer-url "+tr.members["c"])
	tr.refused(tr.config("c", true), "member remove c")
	a := tr.running["a"].Client()
	eventually(t, "c can be removed", func() bool { // its end has to be noticed first
		_, err := a.MemberRemove(t.Context(), idOf(t, a, "c"))
		return err == nil
	})
	tr.refused(tr.config("c", true), "knows no member at "+tr.members["c"], "member add c")
	tr.members["c"] = peerURL(t)
	eventually(t, "c can be added", func() bool { // etcd wants the others to be in touch for five seconds
		_, err := a.MemberAddAsLearner(t.Context(), []string{tr.members["c"]})
		return err == nil
	})
	c, err := tr.begin(tr.config("c", true))
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, c.Client(), "k"); got != "v2" {
		t.Fatal(got)
	}
	l, err := a.MemberList(t.Context())
	if err != nil || len(l.Members) != 3 {
		t.Fatalf("%v, %v", l, err)
	}
	for _, m := range l.Members {
		if m.IsLearner {
			t.Errorf("%s does not vote", m.Name)
		}
	}
	// It counts: with it and one other there is a majority.
	tr.stop("b")
	put(t, tr.running["a"].Client(), "k", "v3")
	if got := get(t, c.Client(), "k"); got != "v3" {
		t.Fatal(got)
	}
	// b comes back with what it was told at first, and is told that this does not count.
	old := tr.config("b", false)
	old.Peers = &kv.Peers{Members: map[string]string{"a": tr.members["a"], "b": tr.members["b"]}}
	if _, err := tr.begin(old); err != nil {
		t.Fatal(err)
	}
	if n := tr.logs.FilterMessageSnippet("--initial-cluster differs").Len(); n == 0 {
		t.Error("nobody says that --initial-cluster is ignored")
	}
	for _, l := range tr.logs.FilterMessageSnippet("TCP streaming").All() {
		t.Errorf("each connection tells of itself: %s", l.Message)
	}
}

func TestPeers_RefuseWhatIsNotTheirs(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.startAll("a", "b", "c")
	// A member of one that the others do not know.
	stranger := newTrio(t)
	for _, n := range []string{"a", "b"} {
		stranger.members[n] = tr.members[n]
	}
	cfg := stranger.config("c", false)
	stranger.refused(cfg, "another cluster of etcd", "--initial-cluster")
	// Data of a member that was removed.
	a := tr.running["a"].Client()
	eventually(t, "c can be removed", func() bool {
		_, err := a.MemberRemove(t.Context(), idOf(t, a, "c"))
		return err == nil
	})
	c := tr.running["c"]
	within(t, 20*time.Second, "the removed member's end", c.Done())
	if c.Err() == nil || !strings.Contains(c.Err().Error(), "has been removed") {
		t.Errorf("it ended with %v", c.Err())
	}
	tr.stop("c")
	tr.refused(tr.config("c", false), "has been removed", tr.path("c"), "member add c")
	// Data of another member, of one that had peers, and of one that had none.
	tr.stop("b")
	wrong := tr.config("a", false)
	wrong.Dir = tr.path("b")
	wrong.Peers = &kv.Peers{Members: map[string]string{"a": tr.members["b"], "c": tr.members["c"]}}
	tr.refused(wrong, "data of member b", "this is a")
	alone := tr.config("b", false)
	alone.Peers = nil
	tr.refused(alone, "member b of a cluster of 2", "--initial-cluster")
	single := server(t, kv.ServerConfig{Dir: tr.path("d")})
	_ = single.Close()
	joins := tr.config("c", false)
	joins.Dir = tr.path("d")
	tr.refused(joins, "etcd of one member", "another directory")
}
