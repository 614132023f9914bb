// Package kvtest starts real etcd servers for tests. They are embedded, have one member and fast elections, and are
// reached by gRPC over a unix socket. They are not fast, and are for tests only. A test that needs only keys,
// revisions and leases uses Memory instead, which is much cheaper.
package kvtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
)

// startTimeout is long because many tests run at once. A start usually takes 50 ms.
const startTimeout = 2 * time.Minute

// Server is an etcd that a test can stop and start again.
type Server struct {
	t      testing.TB
	dir    string
	server *embedded.Server
	client *kv.Client
}

// Start starts an etcd and returns a client of it. Both are closed when the test ends.
func Start(t testing.TB) *kv.Client {
	t.Helper()
	return StartServer(t).Client()
}

// StartServer starts an etcd. It is stopped when the test ends.
func StartServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir()}
	s.startServer()
	t.Cleanup(s.Stop) // registered before the cleanups of the clients, so that it runs after them
	s.client = s.Dial()

	return s
}

// Client returns a client over gRPC. It always returns the same one, which works again after a Restart.
func (s *Server) Client() *kv.Client { return s.client }

// InProcess returns the in-process client of the server. It is closed when the server stops.
func (s *Server) InProcess() *kv.Client { return s.server.Client() }

// Endpoint returns the address of the server. It is the same after a Restart.
func (s *Server) Endpoint() string { return s.server.Endpoint() }

// Dial returns another client over gRPC, which is closed when the test ends.
func (s *Server) Dial() *kv.Client {
	s.t.Helper()
	c, err := kv.Dial(s.t.Context(), kv.Config{Endpoints: []string{s.Endpoint()}})
	if err != nil {
		s.t.Fatalf("dial the test's etcd: %v", err)
	}

	s.t.Cleanup(func() { _ = c.Close() })

	return c
}

// Stop stops the server and keeps its data. It may be called more than once.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.server.Close(); err != nil {
		s.t.Errorf("stop the test's etcd: %v", err)
	}
}

// Restart stops the server if it runs, and starts it again at the same address and with the same data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.startServer()
}

func (s *Server) startServer() {
	s.t.Helper()
	// The context of the test is cancelled before the cleanups run, so it cannot be used here.
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	server, err := embedded.Start(ctx, embedded.Config{
		Dir: s.dir, Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond, PasswordCost: 4,
	})
	if err != nil {
		s.t.Fatalf("start the test's etcd: %v", err)
	}

	s.server = server
}

// Memory returns a client of an empty in-memory store, which passes the same conformance suite as etcd. It costs a
// test next to nothing, while an etcd needs a server and its connections. Both are closed when the test ends.
func Memory(t testing.TB) *kv.Client {
	t.Helper()

	memory := kvmem.New(kvmem.Config{MinTTL: 1}) // the minimum that results from the short elections of Start
	t.Cleanup(memory.Close)

	return ClientOf(t, memory)
}

// ClientOf returns another client of an in-memory store. It is closed when the test ends.
func ClientOf(t testing.TB, memory *kvmem.Store) *kv.Client {
	t.Helper()

	// The context of the test is cancelled before the cleanups run, so it cannot be used here.
	c := kv.Wrap(memory.Client(context.WithoutCancel(t.Context())), 0)
	t.Cleanup(func() { _ = c.Close() })

	return c
}

// Keep stops the server, copies its data, and starts it again. The function that it returns restores the copy. Then
// the server is like one that was restored from an older snapshot without an increase of its revision.
func (s *Server) Keep() (rewind func()) {
	s.t.Helper()
	kept := filepath.Join(s.t.TempDir(), "member")
	member := filepath.Join(s.dir, "member")
	s.Stop()
	s.copyDir(kept, member)
	s.startServer()

	return func() {
		s.t.Helper()
		s.Stop()

		if err := os.RemoveAll(member); err != nil {
			s.t.Fatal(err)
		}

		s.copyDir(member, kept)
		s.startServer()
	}
}

func (s *Server) copyDir(to, from string) {
	s.t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		s.t.Fatalf("copy the test's etcd: %v", err)
	}
}
