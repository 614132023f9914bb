package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
)

func server(t *testing.T, cfg embedded.Config) *embedded.Server {
	t.Helper()
	cfg.Tick, cfg.Election = 10*time.Millisecond, 100*time.Millisecond

	s, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = s.Close() })

	return s
}

func TestServer_KeepsItsData(t *testing.T) {
	dir := t.TempDir()
	s := server(t, embedded.Config{Dir: dir})
	rev := put(t, s.Client(), "k", "v")

	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}

	within(t, time.Minute, "done", s.Done())

	if s.Err() != nil {
		t.Error(s.Err())
	}

	s = server(t, embedded.Config{Dir: dir, Name: "renamed"})
	resp, err := s.Client().Get(t.Context(), "k")
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].ModRevision != rev {
		t.Errorf("%v, %v", resp, err)
	}
}

// ofSlowness matches the messages that etcd rightly logs on a machine that is paused for a second.
var ofSlowness = regexp.MustCompile("slow|took too long|timed out|overloaded|lagging")

func TestServer_IsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	core, logs := observer.New(zap.WarnLevel)
	s := server(t, embedded.Config{Dir: dir, Logger: zap.New(core)})
	put(t, dial(t, s.Endpoint()), "k", "v")

	socket := strings.TrimPrefix(s.Endpoint(), "unix://")
	for path, want := range map[string]os.FileMode{dir: 0o700, socket: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}

	if filepath.Dir(socket) != dir {
		t.Errorf("the socket is %s", socket)
	}

	open, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		t.Skip(err)
	}

	for line := range strings.Lines(string(open)) {
		if strings.Contains(line, "@") && strings.Contains(line, "peers") {
			t.Errorf("an abstract socket is open: %s", line)
		}
	}

	for _, l := range logs.All() {
		if ofSlowness.MatchString(l.Message) {
			t.Logf("%s %v", l.Message, l.ContextMap())
			continue
		}
		t.Errorf("a fresh server warns: %s %v", l.Message, l.ContextMap())
	}
}

func TestServer_RefusesSharedDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "letter.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	s, err := embedded.Start(t.Context(), embedded.Config{Dir: dir})
	if err == nil {
		_ = s.Close()
		t.Fatal("started in a directory that others may enter")
	}

	for _, part := range []string{dir, "0755", "chmod 700"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}

func TestServer_RefusesLockedDirectory(t *testing.T) {
	dir := t.TempDir()
	first := server(t, embedded.Config{Dir: dir})
	began := time.Now()

	s, err := embedded.Start(t.Context(), embedded.Config{Dir: dir})
	if err == nil {
		_ = s.Close()
		t.Fatal("two servers share a directory")
	}

	if !strings.Contains(err.Error(), "another process") || time.Since(began) > 20*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}

	put(t, dial(t, first.Endpoint()), "k", "v") // its socket still exists
}

func TestServer_ShortSocketForLongDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	s := server(t, embedded.Config{Dir: dir})
	socket := strings.TrimPrefix(s.Endpoint(), "unix://")
	put(t, dial(t, s.Endpoint()), "k", "v")

	if info, err := os.Stat(filepath.Dir(socket)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	if _, err := os.Stat(filepath.Dir(socket)); !os.IsNotExist(err) {
		t.Errorf("the socket's directory is left behind: %v", err)
	}

	// A directory of that name that belongs to another user is not used.
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}

	defer os.Remove(filepath.Dir(socket))

	if s, err := embedded.Start(t.Context(), embedded.Config{Dir: dir}); err == nil {
		_ = s.Close()
		t.Error("started with a socket where others may enter")
	}
}

func TestServer_Listens(t *testing.T) {
	s := server(t, embedded.Config{Dir: t.TempDir(), ListenClient: []string{"http://127.0.0.1:0"}})
	if !strings.HasPrefix(s.Endpoint(), "http://127.0.0.1:") {
		t.Error(s.Endpoint())
	}

	put(t, dial(t, s.Endpoint()), "k", "v")
	put(t, dial(t, strings.TrimPrefix(s.Endpoint(), "http://")), "k", "v") // as etcdctl, a client also takes host:port

	for _, bad := range []string{"https://127.0.0.1:0", "127.0.0.1:0", "unix://relative", "unix:///" + strings.Repeat("x", 200), "http://nowhere.invalid:0"} {
		if s, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), ListenClient: []string{bad}}); err == nil {
			_ = s.Close()
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestServer_StopsWhileOthersWatch(t *testing.T) {
	s := embeddedtest.StartServer(t)
	for _, c := range []*kv.Client{s.Client(), s.InProcess()} {
		events := c.Watch(t.Context(), "k", clientv3.WithCreatedNotify())
		within(t, time.Minute, "the watch", (<-chan clientv3.WatchResponse)(events))
	}

	began := time.Now()
	s.Stop()

	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("stopping took %s", took)
	}

	s.Restart()
}

func TestServer_InProcessClientDoesItAll(t *testing.T) {
	c := embeddedtest.StartServer(t).InProcess()
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(t.Context()))

	events := c.Watch(ctx, "k", clientv3.WithCreatedNotify())
	if r := within(t, time.Minute, "the watch", (<-chan clientv3.WatchResponse)(events)); !r.Created {
		t.Errorf("%+v", r)
	}

	if err := c.RequestProgress(ctx); err != nil {
		t.Fatal(err)
	}

	if r := within(t, time.Minute, "progress", (<-chan clientv3.WatchResponse)(events)); !r.IsProgressNotify() {
		t.Errorf("%+v", r)
	}

	cancel()

	if r := within(t, time.Minute, "the end of the watch", (<-chan clientv3.WatchResponse)(events)); r.Err() != nil {
		t.Error(r.Err())
	}

	s, err := concurrency.NewSession(c.Client, concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}

	e := concurrency.NewElection(s, "leader")
	if err := e.Campaign(t.Context(), "me"); err != nil {
		t.Fatal(err)
	}

	if err := e.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestServer_StartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if s, err := embedded.Start(ctx, embedded.Config{Dir: t.TempDir()}); err == nil {
		_ = s.Close()
		t.Error("started under an ended context")
	}
}

func TestServer_CompactsWhatIsOld(t *testing.T) {
	s := server(t, embedded.Config{Dir: t.TempDir(), CompactionRetention: 10, CompactionInterval: 5 * time.Millisecond})
	first, last := put(t, s.Client(), "k", "first"), int64(0)
	for range 20 {
		last = put(t, s.Client(), "k", "v")
	}

	eventually(t, "a compaction", func() bool {
		_, err := s.Client().Get(t.Context(), "k", clientv3.WithRev(first))
		return errors.Is(err, rpctypes.ErrCompacted)
	})

	if _, err := s.Client().Get(t.Context(), "k", clientv3.WithRev(last-10)); err != nil {
		t.Errorf("ten revisions back: %v", err)
	}

	if resp, err := s.Client().Get(t.Context(), "k"); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestServer_KeepsWhatIsYoung(t *testing.T) {
	s := server(t, embedded.Config{Dir: t.TempDir(), CompactionRetention: 1, CompactionInterval: 5 * time.Millisecond, CompactionAge: 200 * time.Millisecond})
	began := time.Now()
	first := put(t, s.Client(), "k", "first")
	put(t, s.Client(), "k", "v")
	put(t, s.Client(), "k", "v")
	eventually(t, "a compaction", func() bool {
		_, err := s.Client().Get(t.Context(), "k", clientv3.WithRev(first))
		return errors.Is(err, rpctypes.ErrCompacted)
	})

	if age := time.Since(began); age < 200*time.Millisecond {
		t.Errorf("compacted at the age of %s", age)
	}
}

// A server discards applied requests that no follower needs. With etcd's defaults this heap grows by 300 MB.
func TestServer_KeepsFewRequestsInMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of requests: make test-cluster")
	}

	s := server(t, embedded.Config{Dir: t.TempDir()})
	before, value := heap(), strings.Repeat("v", 100<<10)
	var writers sync.WaitGroup

	for i := range 8 {
		writers.Go(func() {
			for range 375 {
				if _, err := s.Client().Put(t.Context(), fmt.Sprint(i), value); err != nil {
					t.Error(err)
				}
			}
		})
	}

	writers.Wait()
	// Its snapshots and commits may still be in progress.
	grown := (heap() - before) >> 20
	for deadline := time.Now().Add(20 * time.Second); grown > 150 && time.Now().Before(deadline); grown = (heap() - before) >> 20 {
		time.Sleep(100 * time.Millisecond)
	}

	if grown > 150 {
		t.Errorf("the heap has grown by %d MB", grown)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)

	return int64(m.HeapAlloc)
}
