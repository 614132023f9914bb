package kvtest

import (
	"os"
	"path/filepath"
)

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
