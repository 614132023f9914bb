// Package kvtest starts real etcd servers for tests: embedded, alone, with fast elections, reached by gRPC over a unix
// socket. They are for correctness, not for speed, and for tests only. Tests of what is built on keys and revisions get a
// store in memory instead, from Memory.
package kvtest

import (
	"context"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
)

const startTimeout = 2 * time.Minute // of what takes 50 ms, beside much else

// Server is an etcd that a test may stop and start again.
type Server struct {
	t      testing.TB
	dir    string
	server *kv.Server
	client *kv.Client
}

// Start starts an etcd and returns a client of it. Both end with the test.
func Start(t testing.TB) *kv.Client {
	t.Helper()
	return StartServer(t).Client()
}

// StartServer starts an etcd that ends with the test.
func StartServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir()}
	s.start()
	t.Cleanup(s.Stop) // before the clients' clean-ups, to run after them
	s.client = s.Dial()

	return s
}

// Client is a client over gRPC, the same one always, which outlives a Restart.
func (s *Server) Client() *kv.Client { return s.client }

// InProcess is the server's own client. It ends when the server stops.
func (s *Server) InProcess() *kv.Client { return s.server.Client() }

// Endpoint is the server's address, the same after a Restart.
func (s *Server) Endpoint() string { return s.server.Endpoint() }

// Dial returns one more client over gRPC, closed with the test.
func (s *Server) Dial() *kv.Client {
	s.t.Helper()
	c, err := kv.Dial(s.t.Context(), kv.Config{Endpoints: []string{s.Endpoint()}})
	if err != nil {
		s.t.Fatalf("dial the test's etcd: %v", err)
	}

	s.t.Cleanup(func() { _ = c.Close() })

	return c
}

// Stop stops the server and keeps its data. A stopped server may be stopped again.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.server.Close(); err != nil {
		s.t.Errorf("stop the test's etcd: %v", err)
	}
}

// Restart starts the server again, at the same address and with the same data; it stops it first if it runs.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.start()
}

func (s *Server) start() {
	s.t.Helper()
	// Not the test's context: it is cancelled before clean-ups run.
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()

	server, err := kv.StartServer(ctx, kv.ServerConfig{
		Dir: s.dir, Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond, PasswordCost: 4,
	})
	if err != nil {
		s.t.Fatalf("start the test's etcd: %v", err)
	}

	s.server = server
}
