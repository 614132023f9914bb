package workdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
)

// newTestPool returns a pool that is open until the test ends.
func newTestPool(t testing.TB) *Pool {
	t.Helper()
	r := newUnopenedPool(t)
	r.EmptyLimit = time.Minute // the machine may be busy
	executortest.Must(t, r.Open())
	t.Cleanup(r.Close)

	return r
}

// newUnopenedPool returns a pool in a data directory of the test that is not open yet.
func newUnopenedPool(t testing.TB) *Pool {
	t.Helper()
	data := t.TempDir()

	return NewPool(filepath.Join(data, "rooms"), data, "i1", nil)
}

func takeDir(t *testing.T, r *Pool, as *syscall.Credential) *Dir {
	t.Helper()
	m, err := r.Take(as)
	if err != nil {
		t.Fatal(err)
	}

	return m
}

// A tree may be deeper than the maximum length of a path and the number of descriptors.
func TestEmptyDir_NoDepthIsTooDeep(t *testing.T) {
	t.Parallel()
	top, err := openDir(unix.AT_FDCWD, t.TempDir())
	executortest.Must(t, err)
	defer unix.Close(top)

	at, err := unix.Dup(top)
	executortest.Must(t, err)

	for range 400 {
		executortest.Must(t, unix.Mkdirat(at, "a directory", 0o700))
		next, err := openDir(at, "a directory")
		executortest.Must(t, err)
		executortest.Must(t, unix.Close(at))
		at = next
	}

	executortest.Must(t, unix.Close(at))
	executortest.Must(t, emptyDir(top, nil))
	done := make(chan struct{})
	close(done)
	executortest.Must(t, unix.Mkdirat(top, "x", 0o700))

	if err := emptyDir(top, done); err == nil {
		t.Error("the removal continued after its deadline")
	}

	executortest.Must(t, emptyDir(top, nil))
}

func TestRoom_IsKeptForTheNextOfTheSameUser(t *testing.T) {
	t.Parallel()
	r := newTestPool(t)
	first := takeDir(t, r, nil)
	second := takeDir(t, r, nil)
	if first.path == second.path {
		t.Fatal("two attempts have one room")
	}

	executortest.Must(t, os.WriteFile(filepath.Join(first.path, StatusFile), nil, 0o600))
	executortest.Must(t, first.Release(nil))

	if again := takeDir(t, r, nil); again.path != first.path {
		t.Errorf("%s is not used again, but %s", first.path, again.path)
	}

	executortest.Must(t, os.Chmod(second.path, 0o777))
	executortest.Must(t, second.Release(nil))

	if other := takeDir(t, r, nil); other.path == second.path {
		t.Error("a room that others may write to was used again")
	}

	if os.Geteuid() == 0 {
		nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
		executortest.Must(t, first.Release(nil))
		theirs := takeDir(t, r, nobody)
		var st unix.Stat_t
		executortest.Must(t, unix.Stat(theirs.path, &st))

		if st.Uid != nobody.Uid || st.Mode&0o777 != 0o700 {
			t.Errorf("user %d, mode %o", st.Uid, st.Mode)
		}
	}
}

func TestRooms_KeepOneForEachUser(t *testing.T) {
	t.Parallel()
	r := newTestPool(t)

	var all []*Dir
	for range maxKept {
		all = append(all, takeDir(t, r, nil))
	}

	theirs := takeDir(t, r, nil)
	theirs.owner.gid++ // to the pool, this is another user's
	for _, m := range append(all, theirs) {
		executortest.Must(t, m.Release(nil))
	}

	if len(r.free[theirs.owner]) != 1 || len(r.free[r.own]) != maxKept-1 || r.kept != maxKept {
		t.Errorf("%d are kept: of one user %d, of the other %d", r.kept, len(r.free[r.own]), len(r.free[theirs.owner]))
	}

	if left, err := os.ReadDir(filepath.Dir(theirs.path)); err != nil || len(left) != maxKept {
		t.Errorf("%d directories, %v", len(left), err)
	}
}

// A directory that cannot be emptied is quarantined and logged, and not reused.
func TestRoom_IsSetAside(t *testing.T) {
	t.Parallel()
	r := newTestPool(t)
	m := takeDir(t, r, nil)
	release := obstruct(t, m)

	if err := m.Release(nil); err == nil || !strings.Contains(err.Error(), m.path) {
		t.Fatalf("the error is not returned: %v", err)
	}

	if other := takeDir(t, r, nil); other.path == m.path || r.Quarantined() != 1 {
		t.Errorf("%d rooms are set aside, the next one is %s", r.Quarantined(), other.path)
	}

	r.retryQuarantined(nil)

	if r.Quarantined() != 1 {
		t.Error("the directory is no longer quarantined")
	}

	release()
	r.retryQuarantined(nil)

	if _, err := os.Stat(m.path); r.Quarantined() != 0 || !os.IsNotExist(err) {
		t.Errorf("%d rooms are set aside: %v", r.Quarantined(), err)
	}
}

// obstruct puts an entry into a directory that cannot be removed: a mount of a directory of the same file system,
// whose files must stay. Without root, it creates a directory that cannot be read.
func obstruct(t *testing.T, m *Dir) (release func()) {
	t.Helper()
	executortest.Must(t, os.Mkdir(filepath.Join(m.path, "a"), 0o700))

	if os.Geteuid() != 0 {
		dir := m.dir
		fd, err := unix.Open(m.path, unix.O_PATH|unix.O_CLOEXEC, 0)
		executortest.Must(t, err)
		m.dir = fd

		return func() { m.dir = dir; executortest.Must(t, unix.Close(fd)) }
	}

	mine := filepath.Join(t.TempDir(), "mine")
	executortest.Must(t, os.MkdirAll(filepath.Join(mine, "sub"), 0o700))
	executortest.Must(t, os.WriteFile(filepath.Join(mine, "file"), nil, 0o600))
	at := filepath.Join(m.path, "a", "b")
	executortest.Must(t, os.MkdirAll(at, 0o700))
	executortest.Must(t, unix.Mount(mine, at, "", unix.MS_BIND, ""))

	return func() {
		executortest.Must(t, unix.Unmount(at, unix.MNT_DETACH))

		for _, name := range []string{"file", "sub"} {
			if _, err := os.Stat(filepath.Join(mine, name)); err != nil {
				t.Error(err)
			}
		}
	}
}

// The next start removes the directories of a killed daemon, but not those of a living one.
func TestRemoveRooms_OnlyThoseOfTheDead(t *testing.T) {
	t.Parallel()
	alive := newTestPool(t)
	m := takeDir(t, alive, nil)
	executortest.Must(t, os.WriteFile(filepath.Join(m.path, StatusFile), nil, 0o600))
	dead := filepath.Join(alive.dir, "i0", "7", "scratch")
	executortest.Must(t, os.MkdirAll(dead, 0o700))
	executortest.Must(t, RemoveAbandoned(alive.dir, alive.data, nil))

	if _, err := os.Stat(filepath.Join(alive.dir, "i0")); !os.IsNotExist(err) {
		t.Errorf("the directory of the dead instance still exists: %v", err)
	}

	if _, err := os.Stat(filepath.Join(m.path, StatusFile)); err != nil {
		t.Errorf("the living one's: %v", err)
	}

	executortest.Must(t, m.Release(nil))
	alive.Close()

	if _, err := os.Stat(alive.dir); !os.IsNotExist(err) {
		t.Errorf("after the end: %v", err)
	}

	executortest.Must(t, RemoveAbandoned(alive.dir, alive.data, nil))
}

// The setting may name a directory that contains other files. None of them counts as left by a dead daemon.
func TestRooms_TouchNothingBesideTheirOwn(t *testing.T) {
	t.Parallel()
	set := t.TempDir()
	precious := filepath.Join(set, "backups", "precious")
	executortest.Must(t, os.Mkdir(filepath.Dir(precious), 0o755))
	executortest.Must(t, os.WriteFile(precious, []byte("x"), 0o600))
	executortest.Must(t, os.Chmod(set, 0o755))
	r := NewPool(Root(set, "n1", t.TempDir()), "", "i1", nil)
	executortest.Must(t, r.Open())
	executortest.Must(t, removeAbandoned(r.dir, r.data, r.instance, nil))
	executortest.Must(t, RemoveAbandoned(r.dir, r.data, nil))
	r.Close()

	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}

	if info, err := os.Stat(set); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory itself: %v, %v", info, err)
	}
}

// A user who can write to scratch_dir creates a link to other users' files in place of the node's directory, or
// owns that directory. Neither the node nor its guardian deletes anything through it.
func TestRemoveRooms_DeletesNothingThatAnotherUserPutThere(t *testing.T) {
	t.Parallel()

	attacks := map[string]func(victim, rooms string) string{
		"link to the directory above": func(victim, rooms string) string { return "ln -s '" + victim + "' '" + rooms + "'" },
		"directory with a link in it": func(victim, rooms string) string {
			return "mkdir '" + rooms + "' && ln -s '" + victim + "' '" + rooms + "/i0'"
		},
		"directory that somebody writes": func(_, rooms string) string { return "mkdir -p '" + rooms + "/i0/1' && chmod 0777 '" + rooms + "'" },
	}

	for _, mode := range []os.FileMode{0o777, 0o777 | os.ModeSticky} {
		for name, script := range attacks {
			t.Run(fmt.Sprintf("%s, %v", name, mode), func(t *testing.T) {
				t.Parallel()

				// Only their own user can enter the directories of tests.
				top := outsideTmp(t)
				executortest.Must(t, os.Chmod(top, 0o755))
				set, victim := filepath.Join(top, "scratch"), filepath.Join(top, "home")
				executortest.Must(t, errors.Join(os.Mkdir(set, 0o755), os.Chmod(set, mode), os.MkdirAll(filepath.Join(victim, "ann", "docs"), 0o700)))
				thesis := filepath.Join(victim, "ann", "docs", "thesis")
				executortest.Must(t, os.WriteFile(thesis, []byte("x"), 0o600))

				dir := Root(set, "n1", t.TempDir())

				cmd := exec.Command("sh", "-c", script(victim, dir))
				if os.Geteuid() == 0 {
					cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
				}

				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}

				before := treeOf(t, top)

				if err := RemoveAbandoned(dir, "", nil); err == nil {
					t.Error("the directory was accepted")
				}

				if err := NewPool(dir, "", "i1", nil).Open(); err == nil {
					t.Error("attempts would have their directories there")
				}

				if after := treeOf(t, top); !slices.Equal(before, after) {
					t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
				}
			})
		}
	}
}

// treeOf returns all paths below a directory.
func treeOf(t *testing.T, top string) (paths []string) {
	t.Helper()
	executortest.Must(t, filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))

	return paths
}

// If others can write to a directory above scratch_dir, they can replace the directories below it.
func TestRooms_NotBelowADirectoryThatOthersWriteTo(t *testing.T) {
	t.Parallel()

	above := t.TempDir()
	set := filepath.Join(above, "scratch")
	executortest.Must(t, errors.Join(os.Mkdir(set, 0o755), os.Chmod(above, 0o777)))

	err := NewPool(Root(set, "n1", t.TempDir()), "", "i1", nil).Open()
	if err == nil || !strings.Contains(err.Error(), above+" can be written by users other than") {
		t.Errorf("got %v", err)
	}
}

// While the disk does not respond or is full, there are no working directories. When it responds again, there are,
// without a restart.
func TestRooms_OpenWhenTheirDiskLetsThem(t *testing.T) {
	t.Parallel()
	within := t.TempDir()
	inTheWay := filepath.Join(within, "disk")
	executortest.Must(t, os.WriteFile(inTheWay, []byte(""), 0o600))
	r := NewPool(filepath.Join(inTheWay, "rooms"), inTheWay, "i1", nil)
	r.EmptyLimit, r.again = time.Minute, time.Millisecond
	reach, answers := r.openLock, make(chan struct{})
	r.openLock = func() (*os.File, error) { <-answers; return reach() }
	ctx, end := context.WithCancel(t.Context())
	tried, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		r.Run(ctx, sync.OnceFunc(func() { close(tried) }))
	}()

	t.Cleanup(func() { end(); <-over; r.Close() })
	without := func() {
		t.Helper()
		if m, err := r.Take(nil); err == nil || m != nil {
			t.Errorf("there is a directory for an attempt: %v", err)
		}
	}

	without()
	close(answers)
	<-tried
	without()
	executortest.Must(t, os.Remove(inTheWay))
	var m *Dir
	executortest.Eventually(t, "rooms", func() (opened bool) { m, _ = r.Take(nil); return m != nil })

	path, err := m.MakeScratch(nil)
	if info, serr := os.Stat(path); err != nil || serr != nil || !info.IsDir() {
		t.Errorf("its scratch directory %q: %v, %v", path, err, serr)
	}

	executortest.Must(t, m.Release(nil))
}

// If it was logged that attempts have no directories, it is also logged when they have some again.
func TestRooms_OfADiskThatAnswersLateAreToldOf(t *testing.T) {
	t.Parallel()

	for late, want := range map[time.Duration]int{0: 0, OpenTimeout: 1} {
		dir := filepath.Join(t.TempDir(), "rooms")
		synctest.Test(t, func(t *testing.T) {
			core, logs := observer.New(zap.InfoLevel)
			r := NewPool(dir, filepath.Dir(dir), "i1", zap.New(core))
			reach := r.openLock
			r.openLock = func() (*os.File, error) { time.Sleep(late); return reach() }
			ctx, end := context.WithCancel(t.Context())
			tried, over := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(over)
				r.Run(ctx, func() { close(tried) })
			}()

			<-tried
			synctest.Wait()
			end()
			<-over
			r.Close()

			if n := logs.FilterMessage("attempts have their own directories again").Len(); n != want {
				t.Errorf("after %v it is reported %d times", late, n)
			}
		})
	}
}

// If the disk responds only after the end, nothing is opened, and the end is not delayed.
func TestRooms_AnswerAfterTheEnd(t *testing.T) {
	t.Parallel()
	r := newUnopenedPool(t)
	reach, answers, opened := r.openLock, make(chan struct{}), make(chan *os.File, 1)
	r.openLock = func() (*os.File, error) {
		<-answers
		f, err := reach()
		opened <- f

		return f, err
	}

	ctx, end := context.WithCancel(t.Context())
	end()
	r.Run(ctx, func() { t.Error("it was opened") })
	r.Close()
	close(answers)
	home := <-opened
	executortest.Eventually(t, "it to be closed again", func() bool { _, err := home.Stat(); return errors.Is(err, os.ErrClosed) })
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.lockDir != nil || !errors.Is(r.failed, errClosed) {
		t.Errorf("they are open: %v", r.failed)
	}
}

func BenchmarkRoom(b *testing.B) {
	r := newUnopenedPool(b)
	if err := r.Open(); err != nil {
		b.Fatal(err)
	}

	defer r.Close()

	for _, writes := range []bool{false, true} {
		b.Run(fmt.Sprintf("writes=%v", writes), func(b *testing.B) {
			for b.Loop() {
				m, err := r.Take(nil)
				if err != nil {
					b.Fatal(err)
				}

				if writes {
					_ = os.WriteFile(filepath.Join(m.path, StatusFile), nil, 0o600)
				}

				if err := m.Release(nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A user with another running process can replace the directory before it is handed over.
func TestScratch_HandsOverNoFile(t *testing.T) {
	m := takeDir(t, newTestPool(t), nil)
	defer func() { _ = m.Release(nil) }()

	others := filepath.Join(t.TempDir(), "others")
	executortest.Must(t, os.WriteFile(others, []byte(""), 0o600))
	m.owner = owner{m.own.uid, m.own.gid + 1} // a change that can be observed

	for name, put := range map[string]func(path string) error{
		"link": func(path string) error { return os.Link(others, path) }, "symlink": func(path string) error { return os.Symlink(others, path) },
	} {
		if err := put(filepath.Join(m.path, name)); err != nil {
			t.Fatal(err)
		}

		if err := m.chownEntry(name); err == nil {
			t.Errorf("a %s is handed over", name)
		}
	}

	if info, err := os.Stat(others); err != nil || info.Sys().(*syscall.Stat_t).Gid != m.own.gid {
		t.Errorf("the file is the user's now: %+v, %v", info, err)
	}

	m.owner = m.own
}

// outsideTmp returns a directory that all users can enter, in one to which no other users can write, if possible.
func outsideTmp(t testing.TB) string {
	t.Helper()

	if os.Geteuid() != 0 {
		return t.TempDir()
	}

	dir, err := os.MkdirTemp("/var/lib", "carillon-test-")
	executortest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	executortest.Must(t, os.Chmod(dir, 0o755))

	return dir
}
