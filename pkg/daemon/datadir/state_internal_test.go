package datadir

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/authority"
)

// asAnotherUser runs a shell script as a user without rights.
func asAnotherUser(t *testing.T, script string) {
	t.Helper()

	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}

	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// openDir creates a directory with exactly this mode that every user can reach.
func openDir(t *testing.T, mode os.FileMode) string {
	t.Helper()

	top, err := os.MkdirTemp("", "data")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.RemoveAll(top) })

	dir := filepath.Join(top, "data")
	if err := errors.Join(os.Chmod(top, 0o755), os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
		t.Fatal(err)
	}

	return dir
}

// A token that another user has put into the data directory before the first start would become the admin's.
func TestOpenState_RefusesADirectoryInWhichOthersPutFiles(t *testing.T) {
	t.Parallel()

	secret, _ := authority.NewSecret()
	dir := openDir(t, 0o777)
	asAnotherUser(t, "echo "+secret+" > "+dir+"/token")

	for range 2 { // the second try is rejected, too
		if s, err := Open(dir); err == nil || !strings.Contains(err.Error(), "can be written by other users") {
			if err == nil {
				s.Close()
			}
			t.Fatalf("the directory is used: %v", err)
		}
	}
}

func TestOpenState_MakesAnEmptyDirectoryPrivate(t *testing.T) {
	t.Parallel()

	for _, mode := range []os.FileMode{0o777, 0o775, 0o755, 0o700} {
		dir := openDir(t, mode)

		s, err := Open(dir)
		if err != nil {
			t.Errorf("mode %04o: %v", mode, err)
			continue
		}

		s.Close()

		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("mode %04o became %v, %v", mode, info.Mode(), err)
		}
	}
}

func TestOpenState_RefusesADirectoryOfAnotherUser(t *testing.T) {
	t.Parallel()

	dir := openDir(t, 0o700)

	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to another user")
	}

	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}

	if s, err := Open(dir); err == nil || !strings.Contains(err.Error(), "does not belong to the user that uses it") {
		if err == nil {
			s.Close()
		}
		t.Errorf("got %v", err)
	}
}

// A link in place of the temporary file must not redirect the write.
func TestWriteSynced_FollowsNoLink(t *testing.T) {
	t.Parallel()

	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), os.Symlink(victim, filepath.Join(dir, "token.new"))); err != nil {
		t.Fatal(err)
	}

	if err := WriteSynced(filepath.Join(dir, "token"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	if b, err := os.ReadFile(victim); string(b) != "precious" {
		t.Errorf("the file that the link names has %q, %v", b, err)
	}

	if info, err := os.Lstat(filepath.Join(dir, "token")); err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
		t.Errorf("the token is %v, %v", info, err)
	}
}

// The lock of a directory proves nothing about a process that holds the lock of a copy.
func TestBegin_NoticesACopyOfTheDirectory(t *testing.T) {
	// Not in parallel: a process that another test starts holds all locks until it executes its program.
	original, moved := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "moved")
	begin := func(dir, instance string, joins bool) (former Record, proven bool) {
		t.Helper()
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()

		former, proven, err = s.Begin(instance)
		if err == nil && joins {
			err = s.TrustLock()
		}
		if err != nil {
			t.Fatal(err)
		}

		return former, proven
	}

	if _, proven := begin(original, "i1", false); !proven {
		t.Error("the first start waits for a former process")
	}
	if former, proven := begin(original, "i2", true); !proven || len(former.Instances) != 1 {
		t.Errorf("a restart: %t, %+v", proven, former)
	}

	clone := filepath.Join(t.TempDir(), "clone")
	if out, err := exec.Command("cp", "-a", original, clone).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if former, proven := begin(clone, "c1", false); proven || len(former.Instances) != 2 {
		t.Errorf("a copy: %t, %+v", proven, former)
	}
	// Its process has ended without a join, because the original runs. The next one must not take the original for dead.
	if former, proven := begin(clone, "c2", true); proven || len(former.Instances) != 3 {
		t.Errorf("the second start of the copy: %t, %+v", proven, former)
	}
	if _, proven := begin(clone, "c3", false); !proven {
		t.Error("the copy has joined, and does not trust its own lock")
	}
	if _, proven := begin(original, "i3", false); !proven {
		t.Error("a copy disturbs the original")
	}

	// A directory that was moved within its file system is still the same.
	if err := os.Rename(original, moved); err != nil {
		t.Fatal(err)
	}
	if _, proven := begin(moved, "i4", true); !proven {
		t.Error("a directory that was renamed counts as a copy")
	}

	// Another boot of the machine.
	file := filepath.Join(moved, "state.json")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), `"lock":"`)
	boot, _, _ := strings.Cut(after, "/")
	if err := os.WriteFile(file, []byte(strings.Replace(string(b), boot, "another-boot", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, proven := begin(moved, "i5", false); proven {
		t.Error("the lock of a former boot counts as proof")
	}
}
