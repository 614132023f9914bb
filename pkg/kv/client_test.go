package kv_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// deaf returns an address that accepts connections and sends nothing.
func deaf(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}

	done := make(chan struct{})
	go func() {
		defer close(done)

		var conns []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, c)
		}

		for _, c := range conns {
			_ = c.Close()
		}
	}()

	t.Cleanup(func() { _ = l.Close(); <-done })

	return "unix://" + l.Addr().String()
}

func TestClient_EveryCallEnds(t *testing.T) {
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{deaf(t)}, CallTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}

	defer c.Close()

	ctx := t.Context()
	for name, call := range map[string]func() error{
		"put":       func() error { _, err := c.Put(ctx, "k", "v"); return err },
		"get":       func() error { _, err := c.Get(ctx, "k"); return err },
		"delete":    func() error { _, err := c.Delete(ctx, "k"); return err },
		"compact":   func() error { _, err := c.Compact(ctx, 1); return err },
		"do":        func() error { _, err := c.Do(ctx, clientv3.OpGet("k")); return err },
		"txn":       func() error { _, err := c.Txn(ctx).Then(clientv3.OpGet("k")).Commit(); return err },
		"stream":    func() error { return drain(c.GetStream(ctx, "k")) },
		"grant":     func() error { _, err := c.Grant(ctx, 1); return err },
		"revoke":    func() error { _, err := c.Revoke(ctx, 1); return err },
		"ttl":       func() error { _, err := c.TimeToLive(ctx, 1); return err },
		"leases":    func() error { _, err := c.Leases(ctx); return err },
		"keepalive": func() error { _, err := c.KeepAliveOnce(ctx, 1); return err },
	} {
		took := time.Duration(0)
		for range 3 { // a machine may be paused for seconds once, but not three times
			got, began := make(chan error, 1), time.Now()
			go func() { got <- call() }()

			if err := within(t, time.Minute, name, got); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want a deadline", name, err)
			}

			if took = time.Since(began); took < 4*time.Second {
				break
			}
		}

		if took >= 4*time.Second {
			t.Errorf("%s ended after %s, as if it had the deadline that clients have by default", name, took)
		}
	}
}

func drain(ch clientv3.GetStreamChan, err error) error {
	if err != nil {
		return err
	}

	for r := range ch {
		if err := r.Err(); err != nil {
			return err
		}
	}

	return context.DeadlineExceeded // the call ended without an error that anybody waited for
}

func TestClient_CallersSoonerDeadlineHolds(t *testing.T) {
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{deaf(t)}, CallTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}

	defer c.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()

	got := make(chan error, 1)
	go func() { _, err := c.Txn(ctx).Then(clientv3.OpPut("k", "v")).Commit(); got <- err }()

	if err := within(t, time.Minute, "txn", got); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// flaky is a KV whose first calls fail.
type flaky struct {
	clientv3.KV
	fails, gets, puts int
}

func (f *flaky) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if f.gets++; f.gets <= f.fails {
		return nil, rpctypes.ErrLeaderChanged
	}
	return &clientv3.GetResponse{}, nil
}

func (f *flaky) Put(context.Context, string, string, ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	f.puts++
	return nil, rpctypes.ErrLeaderChanged
}

func TestClient_RepeatsReadsAndNeverWrites(t *testing.T) {
	f := &flaky{fails: 2}
	raw := clientv3.NewCtxClient(t.Context())
	raw.KV = f

	c := kv.Wrap(raw, 0)
	if _, err := c.Get(t.Context(), "k"); err != nil || f.gets != 3 {
		t.Errorf("get: %v after %d calls", err, f.gets)
	}

	if _, err := c.Put(t.Context(), "k", "v"); !errors.Is(err, rpctypes.ErrLeaderChanged) || f.puts != 1 {
		t.Errorf("put: %v after %d calls", err, f.puts)
	}
}

func TestClient_ReadsThroughARestart(t *testing.T) {
	s := kvtest.StartServer(t)
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{s.Endpoint()}, CallTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}

	defer c.Close()

	put(t, c, "k", "v")
	s.Stop()
	got := make(chan error, 1)
	go func() { _, err := c.Get(t.Context(), "k"); got <- err }()
	s.Restart()

	if err := within(t, time.Minute, "get", got); err != nil {
		t.Fatal(err)
	}
}

func TestDial_RefusesNonsense(t *testing.T) {
	for name, cfg := range map[string]kv.Config{
		"no endpoints": {},
		"no password":  {Endpoints: []string{"unix:///nowhere"}, Username: "u"},
		"no username":  {Endpoints: []string{"unix:///nowhere"}, Password: "p"},
	} {
		if c, err := kv.Dial(t.Context(), cfg); err == nil {
			t.Errorf("%s: accepted", name)
			_ = c.Close()
		}
	}
}

func TestDial_LogsIn(t *testing.T) {
	s := kvtest.StartServer(t)
	admin := s.Client()
	for _, step := range []func() error{
		func() error { _, err := admin.UserAdd(t.Context(), "root", "secret"); return err },
		func() error { _, err := admin.RoleAdd(t.Context(), "root"); return err },
		func() error { _, err := admin.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := admin.AuthEnable(t.Context()); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}

	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{s.Endpoint()}, Username: "root", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}

	defer c.Close()

	commit := func() error {
		_, err := kv.Direct(c).Commit(t.Context(), kv.Txn{Then: []clientv3.Op{clientv3.OpPut("k", "v")}})
		return err
	}

	if err := commit(); err != nil {
		t.Fatal(err)
	}

	s.Restart() // the server loses its tokens
	eventually(t, "a commit with a new token", func() bool {
		err := commit()
		if err != nil && !kv.Unknown(err) {
			t.Fatalf("a stale token came through: %v", err)
		}
		return err == nil
	})

	if _, err := admin.Put(t.Context(), "k", "v"); err == nil || kv.Unknown(err) {
		t.Errorf("without a log-in: %v, want a definite error", err)
	}

	wrong, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{s.Endpoint()}, Username: "root", Password: "wrong", CallTimeout: 1500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}

	defer wrong.Close()

	err = refusal(func() error { _, err := wrong.Get(t.Context(), "k"); return err })
	if !errors.Is(err, kv.ErrLogin) || kv.Unknown(err) {
		t.Errorf("a wrong password: %v", err)
	}
}

// old is an etcd of another version.
type old struct {
	pb.UnimplementedMaintenanceServer
	version string
}

func (o old) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Version: o.version}, nil
}

func serveVersion(t *testing.T, version string) string {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}

	g := grpc.NewServer()
	pb.RegisterMaintenanceServer(g, old{version: version})
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })

	return "unix://" + l.Addr().String()
}

func TestCheckVersion_AsksEveryEndpoint(t *testing.T) {
	good, bad, away := serveVersion(t, "3.7.3"), serveVersion(t, "3.6.13"), "unix:///nowhere"
	check := func(within time.Duration, endpoints ...string) error {
		c, err := kv.Dial(t.Context(), kv.Config{Endpoints: endpoints})
		if err != nil {
			t.Fatal(err)
		}

		defer c.Close()

		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()

		return kv.CheckVersion(ctx, c)
	}

	err := check(time.Minute, good, bad)
	if err == nil {
		t.Fatal("an old member was accepted")
	}

	for _, part := range []string{bad, "3.6.13", "3.6.14", "3.7.1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}

	if err := check(3*time.Second, good, away); err != nil {
		t.Errorf("one of two is away: %v", err)
	}

	if err := check(500*time.Millisecond, away); err == nil {
		t.Error("a missing answer was accepted")
	}
}

func TestCheckVersion_AcceptsTheEmbedded(t *testing.T) {
	s := embeddedtest.StartServer(t)
	for _, c := range []*kv.Client{s.Client(), s.InProcess()} {
		if err := kv.CheckVersion(t.Context(), c); err != nil {
			t.Error(err)
		}
	}
}

// refusing is an etcd that answers everything with an error after which clients usually retry.
type refusing struct {
	pb.UnimplementedKVServer
	code codes.Code
	txns atomic.Int32
}

func (r *refusing) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	r.txns.Add(1)
	return nil, status.Error(r.code, "there is no connection available")
}

func TestClient_SendsAWriteOnce(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}

		r, g := &refusing{code: code}, grpc.NewServer()
		pb.RegisterKVServer(g, r)
		done := make(chan struct{})
		go func() { defer close(done); _ = g.Serve(l) }()
		c := dial(t, "unix://"+l.Addr().String())

		_, err = kv.Direct(c).Commit(t.Context(), kv.Txn{Then: []clientv3.Op{clientv3.OpPut("k", "v")}})
		if !kv.Unknown(err) || r.txns.Load() != 1 {
			t.Errorf("%s: %v after %d requests", code, err, r.txns.Load())
		}

		g.Stop()
		<-done
	}
}

// With gRPC's default backoff, the seventh attempt would come after 26 s.
func TestDial_TriesAgainSoonHoweverLongEtcdIsAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	var attempts atomic.Int64
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}

			attempts.Add(1)
			_ = c.Close()
		}
	})

	t.Cleanup(func() { _ = l.Close(); accepting.Wait() })
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	for attempts.Load() < 7 && ctx.Err() == nil {
		short, done := context.WithTimeout(ctx, 100*time.Millisecond)
		_, _ = c.Get(short, "a") // without a call, the client does not connect
		done()
	}

	if n := attempts.Load(); n < 7 {
		t.Errorf("%d attempts in 20 s", n)
	}
}
