package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// activated makes a process start as systemd starts a service with sockets: they are its descriptors from 3 on,
// and LISTEN_PID is its process number.
func (p *process) activated(sockets ...*os.File) {
	p.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	p.exe = p.dir + ".activated"
	script := fmt.Sprintf("#!/bin/sh\nLISTEN_PID=$$ exec '%s' \"$@\"\n", exe)
	if err := os.WriteFile(p.exe, []byte(script), 0o700); err != nil {
		p.t.Fatal(err)
	}
	p.env = []string{fmt.Sprintf("LISTEN_FDS=%d", len(sockets)), "LISTEN_FDNAMES=" + strings.Repeat("carillon.socket:", len(sockets)-1) + "carillon.socket"}
	p.pass = sockets
}

func socketFile(t *testing.T, network, address string) *os.File {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return f
}

// The service manager keeps the socket and the port of a node open while the daemon is down. The next daemon
// answers connections of that time.
//
// Verifies: G40
func TestInherited_SocketsOutliveTheDaemon(t *testing.T) {
	t.Parallel()                           // mostly waits
	dir, err := os.MkdirTemp("", "socket") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "api.sock")
	c := newCluster(t, "--shards", "8", "--lease-ttl", "3s")
	p := c.node("n1")
	p.activated(socketFile(t, "unix", path), socketFile(t, "tcp", fmt.Sprintf("127.0.0.1:%d", p.port)))

	c.start("n1") // without --socket, the path of the inherited socket counts
	version := func(ctx context.Context, conn net.Conn, base string) error {
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }, DisableKeepAlives: true}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/healthz", nil)
		if err != nil {
			return err
		}
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err == nil && strings.TrimSpace(string(b)) != "ok" {
			err = fmt.Errorf("%s: %s", res.Status, b)
		}
		return err
	}
	addresses := map[string]string{"unix": path, "tcp": fmt.Sprintf("127.0.0.1:%d", p.port)}
	for network, address := range addresses {
		conn, err := net.Dial(network, address)
		if err == nil {
			err = version(t.Context(), conn, "http://carillon")
		}
		if err != nil {
			t.Errorf("%s: %v", network, err)
		}
	}

	p.signal(syscall.SIGKILL)
	waiting := map[string]net.Conn{}
	for network, address := range addresses {
		if waiting[network], err = net.Dial(network, address); err != nil {
			t.Fatalf("%s: the socket is not held while the daemon is down: %v", network, err)
		}
	}
	c.start("n1")
	for network, conn := range waiting {
		if err := version(t.Context(), conn, "http://carillon"); err != nil {
			t.Errorf("%s: a connection from before the start: %v", network, err)
		}
	}

	p.signal(syscall.SIGTERM)
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a daemon that stopped has removed the service manager's socket: %v", err)
	}
}

// Verifies: G40
func TestInherited_SocketsAreForTheDaemonOnly(t *testing.T) {
	t.Parallel()                           // mostly waits
	dir, err := os.MkdirTemp("", "socket") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := newCluster(t, "--shards", "8", "--lease-ttl", "3s")
	p := c.node("n1")
	sockets := []*os.File{socketFile(t, "unix", filepath.Join(dir, "api.sock")), socketFile(t, "tcp", fmt.Sprintf("127.0.0.1:%d", p.port))}
	p.activated(sockets...)
	c.start("n1")

	seen := filepath.Join(dir, "seen")
	c.create("n1", spec("look", fmt.Sprintf("{ env; ls -l /proc/self/fd; } > %s; exec sleep 300", seen)))
	run := c.trigger("n1", "look")
	c.until("n1", "look", run.ID, task.Running)
	var ofTask string
	eventually(t, func() error {
		b, err := os.ReadFile(seen)
		if ofTask = string(b); err == nil && !strings.Contains(ofTask, " 2 -> ") {
			err = fmt.Errorf("%s has %q", seen, b)
		}
		return err
	})
	guardian := pidIn(t, filepath.Join(p.dir, "guardian.lock"))
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", guardian))
	if err != nil {
		t.Fatal(err)
	}

	for who, has := range map[string]string{"the task": ofTask, "the guardian": string(environment) + openFiles(t, guardian)} {
		if strings.Contains(has, "LISTEN_") {
			t.Errorf("%s has a variable of the service manager: %q", who, has)
		}
		for _, f := range sockets {
			if name := socketName(t, f); strings.Contains(has, name) {
				t.Errorf("%s has inherited %s: %q", who, name, has)
			}
		}
	}
	daemon := openFiles(t, p.cmd.Process.Pid)
	for _, f := range sockets {
		if name := socketName(t, f); !strings.Contains(daemon, name) {
			t.Errorf("the daemon itself does not have %s: %q", name, daemon)
		}
	}
}

// openFiles returns the names of the open files of a process.
func openFiles(t *testing.T, pid int) string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil { // otherwise it was closed meanwhile
			names = append(names, name)
		}
	}
	return strings.Join(names, "\n")
}

// socketName returns the name of a socket in /proc.
func socketName(t *testing.T, f *os.File) string {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("socket:[%d]", info.Sys().(*syscall.Stat_t).Ino)
}
