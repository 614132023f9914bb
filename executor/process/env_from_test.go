package process

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/executor/executortest"
)

func TestReadAs_SeesWhatItsUserSees(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }

	if os.Geteuid() != 0 { // there is only one user
		executortest.WriteFile(t, path("own"), "A=1", 0o600)

		if b, err := readAs(path("own"), ownAccount()); err != nil || string(b) != "A=1" {
			t.Error(string(b), err)
		}

		executortest.WriteFile(t, path("none"), "A=1", 0)

		if _, err := readAs(path("none"), ownAccount()); !errors.Is(err, syscall.EACCES) {
			t.Error(err)
		}

		return
	}

	nobody, err := accountOf("nobody")
	if err != nil {
		t.Fatal(err)
	}

	root := account{name: "root"}
	uid, gid := int(nobody.credential.Uid), int(nobody.credential.Gid)
	dir = openTemp(t)
	file := func(name string, mode os.FileMode, uid, gid int) {
		executortest.WriteFile(t, path(name), "A=1", mode)
		if err := os.Chown(path(name), uid, gid); err != nil {
			t.Fatal(err)
		}
	}

	file("roots", 0o600, 0, 0)
	file("theirs", 0o600, uid, gid)
	file("others", 0o644, 1, 1)
	file("group", 0o640, 0, gid)
	file("open", 0o666, 0, 0)

	if err := errors.Join(os.Symlink(path("roots"), path("link")), os.Mkdir(path("closed"), 0o700)); err != nil {
		t.Fatal(err)
	}

	file("closed/theirs", 0o600, uid, gid)

	for _, c := range []struct {
		name string
		as   account
		want string // "": the file is read
	}{
		{"roots", root, ""}, {"roots", nobody, "permission denied"}, {"link", nobody, "permission denied"}, {"theirs", nobody, ""}, {"group", nobody, ""},
		{"theirs", root, "belongs to user " + strconv.Itoa(uid)}, {"others", nobody, "belongs to user 1"}, {"open", nobody, "can be written by other users"}, {"open", root, "can be written by other users"},
		{"closed/theirs", nobody, "permission denied"},
	} {
		b, err := readAs(path(c.name), c.as)
		if c.want == "" && (err != nil || string(b) != "A=1") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s as %s: %q, %v; want %q", c.name, c.as.name, b, err, c.want)
		}
	}

	if f, err := os.Open(path("roots")); err != nil {
		t.Error("the daemon has lost its rights:", err)
	} else {
		f.Close()
	}

	if u, err := user.Current(); err != nil || u.Uid != "0" {
		t.Error(u, err)
	}
}

// /proc/self shows the state of the program's first thread, which never ends. So that thread must not take on a
// user's credentials.
func TestOpenAs_LeavesTheFirstThreadAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		return // it must have no effect
	}

	path := filepath.Join(t.TempDir(), "file")
	executortest.WriteFile(t, path, "", 0o600)
	var all sync.WaitGroup

	for range 200 {
		all.Go(func() {
			if f, err := openAs(path, &syscall.Credential{Uid: 65534, Gid: 65534}); err == nil {
				f.Close()
				t.Error("it is open")
			}
		})
	}

	all.Wait()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil || !strings.Contains(string(b), "\nUid:\t0\t0\t0\t0\n") {
		t.Errorf("%v: %s", err, b)
	}
}
