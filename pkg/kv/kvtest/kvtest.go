// Package kvtest starts real etcd servers for tests. They have one member and fast elections, and are reached by gRPC
// over a unix socket. They are not fast, and are for tests only. A test that needs only keys, revisions and leases uses
// Memory instead, which is much cheaper.
//
// Each server is a process of its own, so that tests do not contain etcd. Tests of the in-process client use package
// embeddedtest.
package kvtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
)

// Member is a running etcd.
type Member interface {
	Endpoint() string
	Close() error
}

// Server is an etcd that a test can stop and start again.
type Server struct {
	t      testing.TB
	dir    string
	start  func(dir string) (Member, error)
	member Member
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
	return StartWithQuota(t, 0)
}

// StartWithQuota starts an etcd whose data have at most this size in bytes. 0 means 8 GiB.
func StartWithQuota(t testing.TB, quota int64) *Server {
	t.Helper()
	return StartMember(t, func(dir string) (Member, error) { return Launch(dir, quota) })
}

// StartMember calls start with an empty directory, and again with the same one at each Restart. The member is closed
// when the test ends.
func StartMember(t testing.TB, start func(dir string) (Member, error)) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), start: start}
	s.startMember()
	t.Cleanup(s.Stop) // registered before the cleanups of the clients, so that it runs after them
	s.client = s.Dial()

	return s
}

// Client returns a client over gRPC. It always returns the same one, which works again after a Restart.
func (s *Server) Client() *kv.Client { return s.client }

// InProcess returns the in-process client of a server of package embeddedtest. It is closed when the server stops.
func (s *Server) InProcess() *kv.Client {
	s.t.Helper()
	member, ok := s.member.(interface{ Client() *kv.Client })
	if !ok {
		s.t.Fatal("the etcd is another process: use package embeddedtest")
	}

	return member.Client()
}

// Endpoint returns the address of the server. It is the same after a Restart.
func (s *Server) Endpoint() string { return s.member.Endpoint() }

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
	if err := s.member.Close(); err != nil {
		s.t.Errorf("stop the test's etcd: %v", err)
	}
}

// Restart stops the server if it runs, and starts it again at the same address and with the same data.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.startMember()
}

func (s *Server) startMember() {
	s.t.Helper()

	member, err := s.start(s.dir)
	if err != nil {
		s.t.Fatalf("start the test's etcd: %v", err)
	}

	s.member = member
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
	s.startMember()

	return func() {
		s.t.Helper()
		s.Stop()

		if err := os.RemoveAll(member); err != nil {
			s.t.Fatal(err)
		}

		s.copyDir(member, kept)
		s.startMember()
	}
}

func (s *Server) copyDir(to, from string) {
	s.t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		s.t.Fatalf("copy the test's etcd: %v", err)
	}
}
