package unixsocket

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// socketDir returns a directory for a socket, with a short path and to which no other user can write.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "socket")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	return dir
}

// Verifies: G39
func TestListen_ReplacesOneThatIsStale(t *testing.T) {
	path := filepath.Join(socketDir(t), "run", "api.sock")
	first, err := Listen(path, Administrators{noGroup: true})
	if err != nil {
		t.Fatal(err)
	}

	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket is %v, %v; want mode 0660", info.Mode(), err)
	}

	if l, err := Listen(path, Administrators{noGroup: true}); err == nil || !strings.Contains(err.Error(), "listens there") {
		t.Fatalf("a socket that is in use was replaced: %v, %v", l, err)
	}

	// The daemon is killed. Its socket remains, and no process listens on it.
	killed := first.(*listener)
	killed.SetUnlinkOnClose(false)

	if err := killed.Close(); err != nil {
		t.Fatal(err)
	}

	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}

	second, err := Listen(path, Administrators{noGroup: true})
	if err != nil {
		t.Fatalf("a stale socket was not replaced: %v", err)
	}

	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("a daemon that stopped left its socket: %v", err)
	}
}

// Another process may hold the socket without the lock, as systemd does.
//
// Verifies: G39
func TestListen_LeavesOneAloneThatSomebodyElseHolds(t *testing.T) {
	path := filepath.Join(socketDir(t), "api.sock")
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}

	defer other.Close()

	if _, err := Listen(path, Administrators{noGroup: true}); err == nil || !strings.Contains(err.Error(), "somebody listens there") {
		t.Errorf("replaced a socket that is in use: %v", err)
	}
}

// Verifies: G39
func TestListen_RefusesADirectoryThatOthersCanWriteTo(t *testing.T) {
	for what, mode := range map[string]os.FileMode{"all": 0o777, "all, with the sticky bit": 0o777 | os.ModeSticky, "a group": 0o775} {
		dir := socketDir(t)
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}

		if _, err := Listen(filepath.Join(dir, "api.sock"), Administrators{noGroup: true}); err == nil || !strings.Contains(err.Error(), "can be written") {
			t.Errorf("writable by %s: %v", what, err)
		}
	}

	if os.Geteuid() != 0 {
		t.Skip("only root can make a directory of another user")
	}

	dir := socketDir(t)
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}

	if _, err := Listen(filepath.Join(dir, "api.sock"), Administrators{noGroup: true}); err == nil {
		t.Error("listens in a directory of another user")
	}
}

// Verifies: G39
func TestListen_DoesNotRemoveAFile(t *testing.T) {
	path := filepath.Join(socketDir(t), "api.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := Listen(path, Administrators{noGroup: true}); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("listens in place of a file: %v", err)
	}

	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

func TestValidatePath_AcceptsCleanAbsolutePaths(t *testing.T) {
	for path, ok := range map[string]bool{
		"": true, "/run/carillon/api.sock": true, "api.sock": false, "/run/../api.sock": false, "/" + strings.Repeat("a", 107): false, "/" + strings.Repeat("a", 106): true,
	} {
		if err := ValidatePath(path); (err == nil) != ok {
			t.Errorf("socket %.40q: %v", path, err)
		}
	}

	var address syscall.RawSockaddrUnix
	if MaxPath != len(address.Path)-1 {
		t.Errorf("the kernel takes paths of %d bytes", len(address.Path)-1)
	}
}
