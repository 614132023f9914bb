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
