package executor

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
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

func newTestRooms(t *testing.T) *rooms { return openRooms(t, filepath.Join(t.TempDir(), "rooms")) }

// newTestRoomsUnopened returns rooms in a data directory of the test that nobody has opened yet.
func newTestRoomsUnopened(t testing.TB) *rooms {
	t.Helper()
	data := t.TempDir()

	return newRooms(filepath.Join(data, "rooms"), data, "i1", nil)
}

// alone gives an attempt a name that no other has: those of a test that runs beside this
// one may kill all that has theirs.
func alone(a *task.Assigned) { a.ID = "r" + task.NewUID() }

func takeRoom(t *testing.T, r *rooms, as account) *room {
	t.Helper()
	m, err := r.take(as)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Whatever a task leaves in its room is gone afterwards, and nothing outside is.
func TestRoom_IsEmptyAgain(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	executortest.Must(t, os.WriteFile(precious, []byte("x"), 0o600))
	for name, leave := range map[string]string{
		"nothing":               "true",
		"talk":                  "echo 1 > talk",
		"hidden files":          "echo 1 > talk; touch .a ...; touch -- -rf",
		"names of any bytes":    `touch "$(printf 'a\nb\377')"`,
		"a link to a directory": "ln -s " + outside + " x; ln -s / root; ln -s . talk",
		"a hard link":           "ln " + precious + " x || true",
		"fifos":                 "mkfifo talk f",
		"many files":            "seq 2000 | xargs touch",
		"a wide tree":           "mkdir -p $(seq -s/x 60 | tr ' ' /)/{a,b} a/b/c && touch a/b/c/d",
		"a deep tree":           `mkdir -p $(printf 'd/%.0s' $(seq 500)) && touch $(printf 'd/%.0s' $(seq 500))f`,
		"deep, with our names":  `mkdir -p .deep-1/x .deep-2/x .deep-3 $(printf 'd/%.0s' $(seq 100))`,
		"forbidden directories": "mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b/c a/b a; chmod 0 .",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t, spool.Config{})
			var at string
			r := l.attempt(t, both(alone, shell(`cd "${CARILLON_TALK%/*}" || exit 9; pwd; test -z "$(ls -A)" || exit 8; `+leave)))
			if r.State != task.Succeeded || r.Message != "" {
				t.Fatalf("%s %s: %s", r.State, r.Message, r.Tail)
			}
			at, _, _ = strings.Cut(string(r.Tail), "\n")
			if left, err := os.ReadDir(at); len(left) > 0 || err != nil && !os.IsNotExist(err) {
				t.Errorf("left: %v %v", left, err)
			}
			if n := l.rooms.setAside(); n > 0 {
				t.Errorf("%d rooms are set aside", n)
			}
		})
	}
	t.Cleanup(func() { // after the parallel ones
		if _, err := os.Stat(precious); err != nil {
			t.Error("a file outside was removed")
		}
	})
}

// A tree may be deeper than any path, and than there are descriptors.
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
		t.Error("it went on when there was no time left")
	}
	executortest.Must(t, emptyDir(top, nil))
}

func TestRoom_IsKeptForTheNextOfTheSameUser(t *testing.T) {
	t.Parallel()
	r := newTestRooms(t)
	first := takeRoom(t, r, ownAccount())
	second := takeRoom(t, r, ownAccount())
	if first.path == second.path {
		t.Fatal("two attempts have one room")
	}
	executortest.Must(t, os.WriteFile(filepath.Join(first.path, roomTalk), nil, 0o600))
	executortest.Must(t, first.leave(nil, nil))
	if again := takeRoom(t, r, ownAccount()); again.path != first.path {
		t.Errorf("%s is not used again, but %s", first.path, again.path)
	}
	executortest.Must(t, os.Chmod(second.path, 0o777))
	executortest.Must(t, second.leave(nil, nil))
	if other := takeRoom(t, r, ownAccount()); other.path == second.path {
		t.Error("a room that others may write to was used again")
	}
	if os.Geteuid() == 0 {
		nobody, err := accountOf("nobody")
		executortest.Must(t, err)
		executortest.Must(t, first.leave(nil, nil))
		theirs := takeRoom(t, r, nobody)
		var st unix.Stat_t
		executortest.Must(t, unix.Stat(theirs.path, &st))
		if st.Uid != nobody.credential.Uid || st.Mode&0o777 != 0o700 {
			t.Errorf("user %d, mode %o", st.Uid, st.Mode)
		}
	}
}

func TestRooms_KeepOneForEachUser(t *testing.T) {
	t.Parallel()
	r := newTestRooms(t)
	var all []*room
	for range roomsFree {
		all = append(all, takeRoom(t, r, ownAccount()))
	}
	theirs := takeRoom(t, r, ownAccount())
	theirs.owner.gid++ // as the pool sees it, another's
	for _, m := range append(all, theirs) {
		executortest.Must(t, m.leave(nil, nil))
	}
	if len(r.free[theirs.owner]) != 1 || len(r.free[r.own]) != roomsFree-1 || r.kept != roomsFree {
		t.Errorf("%d are kept: of one user %d, of the other %d", r.kept, len(r.free[r.own]), len(r.free[theirs.owner]))
	}
	if left, err := os.ReadDir(filepath.Dir(theirs.path)); err != nil || len(left) != roomsFree {
		t.Errorf("%d directories, %v", len(left), err)
	}
}

func TestRoom_IsItsUsersOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		l := newLauncher(t, spool.Config{})
		if r := l.attempt(t, both(alone, shell(`test "$(stat -c %a "${CARILLON_TALK%/*}")" = 700`))); r.State != task.Succeeded {
			t.Error(r.Message)
		}
		return
	}
	l := newLauncher(t, spool.Config{Dir: openTemp(t)})
	as := func(user, line string) Result {
		return l.attempt(t, both(alone, both(shell(line), func(a *task.Assigned) { a.Action.Process.User = user })))
	}
	r := as("nobody", `echo hello > $CARILLON_TALK && echo "${CARILLON_TALK%/*}"`)
	if r.State != task.Succeeded {
		t.Fatalf("%s: %s", r.Message, r.Tail)
	}
	if r := as("daemon", "ls "+strings.TrimSpace(string(r.Tail))); r.State == task.Succeeded {
		t.Errorf("another user sees the room: %s", r.Tail)
	}
}

// openTemp is a directory that all users can get into, unlike t.TempDir's below a private one.
func openTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rooms")
	executortest.Must(t, err)
	executortest.Must(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// What cannot be emptied is set aside and told, and given to nobody.
func TestRoom_IsSetAside(t *testing.T) {
	t.Parallel()
	r := newTestRooms(t)
	m := takeRoom(t, r, ownAccount())
	release := obstruct(t, m)
	if err := m.leave(nil, nil); err == nil || !strings.Contains(err.Error(), m.path) {
		t.Fatalf("it is not told: %v", err)
	}
	if other := takeRoom(t, r, ownAccount()); other.path == m.path || r.setAside() != 1 {
		t.Errorf("%d rooms are set aside, the next one is %s", r.setAside(), other.path)
	}
	r.retry(nil)
	if r.setAside() != 1 {
		t.Error("it is set aside no longer")
	}
	release()
	r.retry(nil)
	if _, err := os.Stat(m.path); r.setAside() != 0 || !os.IsNotExist(err) {
		t.Errorf("%d rooms are set aside: %v", r.setAside(), err)
	}
}

// obstruct puts into a room what cannot be removed: a mount of a directory of the
// same file system, whose files must stay. Without root, the room cannot be read.
func obstruct(t *testing.T, m *room) (release func()) {
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

// The rooms of a daemon that was killed go with the next start, and those of one
// that lives do not.
func TestRemoveRooms_OnlyThoseOfTheDead(t *testing.T) {
	t.Parallel()
	alive := newTestRooms(t)
	m := takeRoom(t, alive, ownAccount())
	executortest.Must(t, os.WriteFile(filepath.Join(m.path, roomTalk), nil, 0o600))
	dead := filepath.Join(alive.dir, "i0", "7", "scratch")
	executortest.Must(t, os.MkdirAll(dead, 0o700))
	executortest.Must(t, RemoveRooms(alive.dir, alive.data, nil))
	if _, err := os.Stat(filepath.Join(alive.dir, "i0")); !os.IsNotExist(err) {
		t.Errorf("what the dead one has left is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(m.path, roomTalk)); err != nil {
		t.Errorf("the living one's: %v", err)
	}
	executortest.Must(t, m.leave(nil, nil))
	alive.close()
	if _, err := os.Stat(alive.dir); !os.IsNotExist(err) {
		t.Errorf("after the end: %v", err)
	}
	executortest.Must(t, RemoveRooms(alive.dir, alive.data, nil))
}

// A node's settings may name a directory that others keep things in: none of these is
// a dead daemon's.
func TestRooms_TouchNothingBesideTheirOwn(t *testing.T) {
	t.Parallel()
	set := t.TempDir()
	precious := filepath.Join(set, "backups", "precious")
	executortest.Must(t, os.Mkdir(filepath.Dir(precious), 0o755))
	writeFile(t, precious, "x", 0o600)
	executortest.Must(t, os.Chmod(set, 0o755))
	r := newRooms(RoomsDir(set, "n1", t.TempDir()), "", "i1", nil)
	executortest.Must(t, r.open())
	executortest.Must(t, removeRooms(r.dir, r.data, r.instance, nil))
	executortest.Must(t, RemoveRooms(r.dir, r.data, nil))
	r.close()
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(set); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory itself: %v, %v", info, err)
	}
}

// A user who may write to scratch_dir puts a link to other people's files where the node keeps its
// rooms, or owns the directory there. Neither the node nor its guardian deletes through it.
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

				// Directories of tests can be entered by their own user alone.
				top := outsideTmp(t)
				executortest.Must(t, os.Chmod(top, 0o755))
				set, victim := filepath.Join(top, "scratch"), filepath.Join(top, "home")
				executortest.Must(t, errors.Join(os.Mkdir(set, 0o755), os.Chmod(set, mode), os.MkdirAll(filepath.Join(victim, "ann", "docs"), 0o700)))
				thesis := filepath.Join(victim, "ann", "docs", "thesis")
				writeFile(t, thesis, "x", 0o600)

				dir := RoomsDir(set, "n1", t.TempDir())
				cmd := exec.Command("sh", "-c", script(victim, dir))
				if os.Geteuid() == 0 {
					cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
				}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				before := treeOf(t, top)

				if err := RemoveRooms(dir, "", nil); err == nil {
					t.Error("the directory was accepted")
				}
				if err := newRooms(dir, "", "i1", nil).open(); err == nil {
					t.Error("attempts would have their directories there")
				}
				if after := treeOf(t, top); !slices.Equal(before, after) {
					t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
				}
			})
		}
	}
}

// treeOf lists all paths below a directory.
func treeOf(t *testing.T, top string) (paths []string) {
	t.Helper()
	executortest.Must(t, filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))

	return paths
}

// A directory above scratch_dir that others may write to lets them put another one in its place.
func TestRooms_NotBelowADirectoryThatOthersWriteTo(t *testing.T) {
	t.Parallel()

	above := t.TempDir()
	set := filepath.Join(above, "scratch")
	executortest.Must(t, errors.Join(os.Mkdir(set, 0o755), os.Chmod(above, 0o777)))

	err := newRooms(RoomsDir(set, "n1", t.TempDir()), "", "i1", nil).open()
	if err == nil || !strings.Contains(err.Error(), above+" can be written by others") {
		t.Errorf("got %v", err)
	}
}

// Where others could put things, attempts have no rooms, and run all the same.
func TestRooms_NotWhereOthersWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	executortest.Must(t, os.Chmod(dir, 0o777))
	r := newRooms(dir, filepath.Dir(dir), "i1", nil)
	if err := r.open(); err == nil || !strings.Contains(err.Error(), "others cannot write to") {
		t.Error(err)
	}
	l := newLauncher(t, spool.Config{})
	l.rooms = r
	if r := l.attempt(t, both(alone, shell(`test -z "$CARILLON_TALK"`))); r.State != task.Succeeded {
		t.Error(r.Message)
	}
}

// While a disk does not answer, or takes nothing, only attempts that need a room of it
// fail; when it does, they have theirs, without a restart.
func TestRooms_OpenWhenTheirDiskLetsThem(t *testing.T) {
	t.Parallel()
	within := t.TempDir()
	inTheWay := filepath.Join(within, "disk")
	writeFile(t, inTheWay, "", 0o600)
	r := newRooms(filepath.Join(inTheWay, "rooms"), inTheWay, "i1", nil)
	r.within, r.again = time.Minute, time.Millisecond
	reach, answers := r.reach, make(chan struct{})
	r.reach = func() (*os.File, error) { <-answers; return reach() }
	ctx, end := context.WithCancel(t.Context())
	tried, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		r.run(ctx, sync.OnceFunc(func() { close(tried) }))
	}()
	t.Cleanup(func() { end(); <-over; r.close() })
	l := newLauncher(t, spool.Config{})
	l.rooms = r
	scratch := func(a *task.Assigned) { a.Action.Process.Scratch = true }
	without := func() {
		t.Helper()
		if r := l.attempt(t, both(alone, shell(`test -z "$CARILLON_TALK"`))); r.State != task.Succeeded {
			t.Errorf("without a room: %+v", r)
		}
		if r := l.attempt(t, both(alone, shell("true"), scratch)); r.Reason != task.ReasonHost || !strings.Contains(r.Message, "scratch: ") {
			t.Errorf("it needs a room: %+v", r)
		}
	}
	without()
	close(answers)
	<-tried
	without()
	executortest.Must(t, os.Remove(inTheWay))
	executortest.Eventually(t, "rooms", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.home != nil })
	if r := l.attempt(t, both(alone, shell(`test -n "$CARILLON_TALK" && test -d "$CARILLON_SCRATCH"`), scratch)); r.State != task.Succeeded {
		t.Errorf("with a room: %+v", r)
	}
}

// Who was told that attempts have no rooms until their disk answers is told when it has.
func TestRooms_OfADiskThatAnswersLateAreToldOf(t *testing.T) {
	t.Parallel()
	for late, want := range map[time.Duration]int{0: 0, roomsFirst: 1} {
		dir := filepath.Join(t.TempDir(), "rooms")
		synctest.Test(t, func(t *testing.T) {
			core, logs := observer.New(zap.InfoLevel)
			r := newRooms(dir, filepath.Dir(dir), "i1", zap.New(core))
			reach := r.reach
			r.reach = func() (*os.File, error) { time.Sleep(late); return reach() }
			ctx, end := context.WithCancel(t.Context())
			tried, over := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(over)
				r.run(ctx, func() { close(tried) })
			}()
			<-tried
			synctest.Wait()
			end()
			<-over
			r.close()
			if n := logs.FilterMessage("attempts have directories of their own now").Len(); n != want {
				t.Errorf("after %v it is told %d times", late, n)
			}
		})
	}
}

// A disk that answers after the end opens nothing, and holds up no end.
func TestRooms_AnswerAfterTheEnd(t *testing.T) {
	t.Parallel()
	r := newTestRoomsUnopened(t)
	reach, answers, opened := r.reach, make(chan struct{}), make(chan *os.File, 1)
	r.reach = func() (*os.File, error) {
		<-answers
		f, err := reach()
		opened <- f
		return f, err
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	r.run(ctx, func() { t.Error("it was opened") })
	r.close()
	close(answers)
	home := <-opened
	executortest.Eventually(t, "it to be closed again", func() bool { _, err := home.Stat(); return errors.Is(err, os.ErrClosed) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.home != nil || !errors.Is(r.failed, errRoomsClosed) {
		t.Errorf("they are open: %v", r.failed)
	}
}

func BenchmarkRoom(b *testing.B) {
	r := newTestRoomsUnopened(b)
	if err := r.open(); err != nil {
		b.Fatal(err)
	}
	defer r.close()
	for _, talks := range []bool{false, true} {
		b.Run(fmt.Sprintf("talks=%v", talks), func(b *testing.B) {
			for b.Loop() {
				m, err := r.take(account{})
				if err != nil {
					b.Fatal(err)
				}
				if talks {
					_ = os.WriteFile(filepath.Join(m.path, roomTalk), nil, 0o600)
				}
				if err := m.leave(nil, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
