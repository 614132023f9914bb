package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// Another user may have taken the port while the daemon was down. Tasks fire nevertheless, the other program's
// address is not announced, and the node takes the port back when it is free.
//
// Verifies: G39
func TestListen_ATakenPortDoesNotKeepANodeFromFiring(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8", "--lease-ttl", "3s")
	c.start("n1")
	second := c.node("n2")
	thief, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", second.port))
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()

	c.launchOnly("n2")
	c.untilNode("n1", "n2", func(n task.Node) bool {
		return n.Shards > 0 && n.Address == "" && strings.Contains(n.APIError, "address already in use")
	})
	eventually(t, func() error {
		status, err := c.client("n1").Cluster.Status(t.Context())
		if err == nil && !strings.Contains(strings.Join(status.Warnings, "\n"), "node n2 fires, but the API does not listen") {
			err = fmt.Errorf("the warnings are %q", status.Warnings)
		}
		return err
	})

	if err := thief.Close(); err != nil {
		t.Fatal(err)
	}
	second.waitReady()
	c.untilNode("n1", "n2", func(n task.Node) bool { return n.Address == second.url() && n.APIError == "" })
	if n := strings.Count(second.logs.String(), "cannot listen; retrying"); n == 0 || n > 3 {
		t.Errorf("the failure is logged %d times", n)
	}
}

// socketClient returns a client that connects to a unix socket as a user of this host.
func socketClient(path string, uid int) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		type result struct {
			conn net.Conn
			err  error
		}
		done := make(chan result)
		go func() {
			// The credentials are those of the thread that connects. The thread is not unlocked, so it ends with
			// this goroutine.
			runtime.LockOSThread()
			if uid != os.Geteuid() {
				id := uintptr(uid)
				_, _, groups := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0)
				_, _, gid := syscall.RawSyscall(syscall.SYS_SETRESGID, id, id, id)
				_, _, user := syscall.RawSyscall(syscall.SYS_SETRESUID, id, id, id)
				if errno := max(groups, gid, user); errno != 0 {
					done <- result{err: errno}
					return
				}
			}
			var d net.Dialer
			conn, err := d.DialContext(ctx, "unix", path)
			done <- result{conn, err}
		}()
		r := <-done
		return r.conn, r.err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

// Verifies: G39
func TestListen_TheSocketKnowsItsUsers(t *testing.T) {
	t.Parallel()                           // mostly waits
	dir, err := os.MkdirTemp("", "socket") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "api.sock")
	c := newCluster(t, "--shards", "8", "--lease-ttl", "3s")
	c.start("n1", "--socket", path)

	status := func(uid int, token string) (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://carillon/v1/version", nil)
		if err != nil {
			return 0, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := socketClient(path, uid).Do(req)
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		return res.StatusCode, nil
	}

	if got, err := status(os.Geteuid(), ""); got != http.StatusOK {
		t.Errorf("the daemon's user without a token: %d, %v", got, err)
	}
	if got, err := status(os.Geteuid(), "carillon_x"); got != http.StatusUnauthorized {
		t.Errorf("the daemon's user with a wrong token: %d, %v", got, err)
	}

	if os.Geteuid() != 0 {
		t.Skip("only root can connect as somebody else")
	}
	if _, err := status(65534, ""); !errors.Is(err, syscall.EACCES) {
		t.Errorf("somebody who is not in the group could open the socket: %v", err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // lets users connect as if they were in the group
		t.Fatal(err)
	}
	if got, err := status(65534, ""); got != http.StatusUnauthorized {
		t.Errorf("another user without a token: %d, %v", got, err)
	}
	token, err := os.ReadFile(filepath.Join(c.nodes["n1"].dir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := status(65534, strings.TrimSpace(string(token))); got != http.StatusOK {
		t.Errorf("another user with the token: %d, %v", got, err)
	}
}
