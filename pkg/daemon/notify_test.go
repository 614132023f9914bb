package daemon_test

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// serviceManager is systemd's end of the socket to which a daemon sends its reports.
type serviceManager struct {
	t    *testing.T
	path string

	mu   sync.Mutex
	told []string
}

func newServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	s := &serviceManager{t: t, path: filepath.Join(t.TempDir(), "notify")}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.told = append(s.told, strings.Split(string(b[:n]), "\n")...)
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *serviceManager) heard(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.told, func(l string) bool { return strings.HasPrefix(l, line) })
}

func (s *serviceManager) waitsFor(line string) {
	s.t.Helper()
	eventually(s.t, func() error {
		if s.heard(line) {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("%q was not sent, but %q", line, s.told)
	})
}

// Verifies: G52
func TestNotify_ReadyIsANodeThatFires(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits
	c := &cluster{t: t, dir: t.TempDir(), nodes: map[string]*process{}}
	t.Cleanup(c.stopAll)
	p := c.node("n1")
	args := []string{"agent", "--name", "n1", "--data-dir", p.dir, "--listen", fmt.Sprintf("127.0.0.1:%d", p.port), "--shards", "8", "--drain-timeout", "5s"}

	waiting := newServiceManager(t)
	p.env = []string{"NOTIFY_SOCKET=" + waiting.path}
	p.launch(append(args, "--etcd-endpoints", fmt.Sprintf("http://127.0.0.1:%d", freePort(t))))
	waiting.waitsFor("STATUS=Waiting: etcd does not answer")
	p.signal(syscall.SIGTERM)
	if waiting.heard("READY") {
		t.Error("a node without etcd said that it is ready")
	}

	manager := newServiceManager(t)
	p.env = []string{"NOTIFY_SOCKET=" + manager.path, "WATCHDOG_USEC=8000000"}
	p.launch(append(args, "--embedded"))
	manager.waitsFor("READY=1")
	manager.waitsFor("STATUS=Ready: 8 shards, 0 running")
	manager.waitsFor("WATCHDOG=1")
	p.signal(syscall.SIGTERM)
	manager.waitsFor("STOPPING=1")
	manager.waitsFor("EXTEND_TIMEOUT_USEC=35000000")
}
