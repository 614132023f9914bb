package cgroup

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// real opens the groups of this host. If the host has none, it checks what should hold there and skips the rest of
// the test.
func real(t *testing.T, record string) *Groups {
	t.Helper()
	g, err := Open(Config{Setting: Auto, Node: "test", Instance: strings.ToLower(filepath.Base(t.TempDir())) + strings.ToLower(t.Name()), Record: record})
	if err != nil {
		t.Fatal(err)
	}

	roots := g.Roots()
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}

		for _, root := range roots {
			if _, err := os.Stat(root); err == nil {
				t.Errorf("%s is left", root)
			}
		}
	})

	return g
}

// none checks what should hold on a host without control groups.
func none(t *testing.T, g *Groups) bool {
	t.Helper()

	if g.Any() {
		return false
	}

	if x, err := g.Acquire(Limits{}); err == nil || x != nil || g.LimitsError() == nil {
		t.Errorf("took %v of no groups; why: %v", x, g.LimitsError())
	}

	return true
}

// startIn starts a shell line in a group. The line begins when its process has joined all parts of the group.
func startIn(t *testing.T, x *Group, line string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read go; "+line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if fd := x.FD(); fd >= 0 {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
	}

	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}

	if err == nil {
		err = x.Join(cmd.Process.Pid)
	}

	if err == nil {
		_, err = io.WriteString(in, "go\n")
	}

	if err != nil {
		t.Fatal(err)
	}

	return cmd
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()

	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// freeze freezes a group and retries, because the host may be busy.
func freeze(t *testing.T, x *Group) {
	t.Helper()
	var err error
	defer func() {
		if err != nil {
			t.Log(err)
		}
	}()

	eventually(t, "all stand still", func() bool { err = x.Freeze(); return err == nil })
}

// daemonizes is a shell line that leaves a process with a new session and no environment.
const daemonizes = `setsid env -i /bin/sh -c 'trap "" TERM; while :; do /bin/sleep 1; done' >/dev/null 2>&1 & `

func TestGroup_HoldsWhatDaemonizes(t *testing.T) {
	t.Parallel()
	g := real(t, "")
	if none(t, g) {
		return
	}

	x, err := g.Acquire(Limits{})
	if err != nil {
		t.Fatal(err)
	}

	if !x.Empty() {
		t.Error("a new group is not empty")
	}

	const works = "i=0; while test $i -lt 20000; do i=$((i+1)); done; "
	if err := startIn(t, x, works+daemonizes).Wait(); err != nil {
		t.Fatal(err)
	}

	if x.Empty() || len(x.PIDs()) == 0 {
		t.Fatal("what daemonized is not in the group")
	}

	freeze(t, x)
	eventually(t, "empty", func() bool { Kill(x.dir); return x.Empty() }) // although it is frozen

	took := x.Usage().CPU
	if !x.freezer && took == 0 {
		t.Error("it took no time")
	}

	g.Release(x)
	again, err := g.Acquire(Limits{})
	if err != nil {
		t.Fatal(err)
	}

	defer g.Release(again)

	if again != x {
		t.Error("an empty group is not used again")
	}

	if u := again.Usage(); !x.freezer && u.CPU >= took { // an exiting process uses some more time after it has left the group
		t.Errorf("%s that another took are counted, of %s", u.CPU, took)
	}

	if err := startIn(t, again, "exit 0").Wait(); err != nil { // the group is no longer frozen
		t.Error(err)
	}

	eventually(t, "empty", again.Empty)
}

// TestGroups_SetAsideWhatIsNotEmpty tests that such a group is killed and finally removed, and is not reused
// before that.
func TestGroups_SetAsideWhatIsNotEmpty(t *testing.T) {
	t.Parallel()
	g := real(t, "")
	if none(t, g) {
		return
	}

	x, err := g.Acquire(Limits{})
	if err != nil {
		t.Fatal(err)
	}

	cmd := startIn(t, x, "sleep 300")
	g.Release(x)

	if g.Quarantined() != 1 {
		t.Errorf("%d are set aside", g.Quarantined())
	}

	other, err := g.Acquire(Limits{})
	if err != nil {
		t.Fatal(err)
	}

	if other == x {
		t.Fatal("a group with a process in it was handed on")
	}

	_ = cmd.Wait()
	eventually(t, "empty", x.Empty)
	g.Release(other)

	if _, err := os.Stat(x.dir); err == nil || g.Quarantined() != 0 {
		t.Errorf("%d are set aside after their end: %v", g.Quarantined(), err)
	}
}

// TestGroups_Remember tests that the next daemon removes the groups of one whose guardian could not.
func TestGroups_Remember(t *testing.T) {
	t.Parallel()
	record := filepath.Join(t.TempDir(), "cgroups")

	g := real(t, record)
	if none(t, g) {
		return
	}

	x, err := g.Acquire(Limits{PIDs: 100})
	if err != nil {
		t.Fatal(err)
	}

	cmd := startIn(t, x, daemonizes+"sleep 300")
	later, err := Open(Config{Setting: Off, Node: "test", Instance: "later", Record: record})
	if err != nil {
		t.Fatal(err)
	}

	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()

	if err := later.ClearFormer(); err != nil {
		t.Fatal(err)
	}

	<-gone

	for _, root := range g.Roots() {
		if _, err := os.Stat(root); err == nil {
			t.Errorf("%s is left", root)
		}
	}

	if b, err := os.ReadFile(record); err != nil || len(b) > 0 {
		t.Errorf("the record says %q: %v", b, err)
	}
}

func TestRemove_OnlyWhatIsOurs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := Remove([]string{dir}, time.Second); err == nil {
		t.Error("a foreign directory is removed")
	}

	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}

	if err := Remove([]string{filepath.Join(dir, "carillon-n1-i1")}, time.Second); err != nil {
		t.Errorf("what is gone already: %v", err)
	}
}

// The permission to create groups is not enough to start processes in them. That requires permissions on the
// groups above, too.
func TestOpen_WhereNothingMayBeStarted(t *testing.T) {
	g := real(t, "")
	if none(t, g) || g.freezer || os.Geteuid() != 0 {
		return
	}

	const nobody = 65534
	name := "carillon-test-" + filepath.Base(filepath.Dir(t.TempDir()))

	h, err := findHost("/proc/self", "/"+name)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.Mkdir(h.v2, 0o755); err != nil {
		t.Fatal(err)
	}

	defer os.Remove(h.v2)

	if err := os.Chown(h.v2, nobody, nobody); err != nil {
		t.Fatal(err)
	}

	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends, because it has the rights of nobody
		_, _ = unix.SetfsgidRetGid(nobody)
		_, _ = unix.SetfsuidRetUid(nobody)
		g, err := Open(Config{Setting: "/" + name, Node: "n", Instance: "i"})
		_ = g.Close()
		done <- err
	}()

	if err := <-done; err == nil || !strings.Contains(err.Error(), "start a process in a control group: permission denied") {
		t.Errorf("got %v", err)
	}
}

func TestGroup_MemoryLimit(t *testing.T) {
	t.Parallel()
	g := real(t, "")
	l := Limits{Memory: 16 << 20}
	if len(g.Unsupported(l)) > 0 {
		return // the tests of each limit check what a host without it does
	}

	x, err := g.Acquire(l)
	if err != nil {
		t.Fatal(err)
	}

	err = startIn(t, x, "exec tail /dev/zero").Wait()
	if exit, ok := err.(*exec.ExitError); !ok || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("ended as %v", err)
	}

	u := x.Usage()
	if u.OOMKills == 0 || u.MemoryPeak < 8<<20 || u.MemoryPeak > 16<<20 {
		t.Errorf("used %+v", u)
	}

	eventually(t, "empty", x.Empty)
	dirs := append([]string{x.dir}, x.joined...)
	g.Release(x)

	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}

func TestGroup_PIDsLimit(t *testing.T) {
	t.Parallel()
	g := real(t, "")
	l := Limits{PIDs: 12}
	if len(g.Unsupported(l)) > 0 {
		return
	}

	x, err := g.Acquire(l)
	if err != nil {
		t.Fatal(err)
	}

	cmd := startIn(t, x, "f() { f | f & f; }; f 2>/dev/null")
	eventually(t, "refused", func() bool { return x.Usage().Refused > 0 })

	for range 20 {
		if n := len(x.PIDs()); n > 12 {
			t.Errorf("%d processes", n)
		}
	}

	eventually(t, "killed", func() bool { _ = x.Kill(); return x.Empty() })
	_ = cmd.Wait()
	g.Release(x)
}

func TestGroup_CPULimit(t *testing.T) {
	t.Parallel()
	g := real(t, "")
	l := Limits{CPU: 0.1}
	if len(g.Unsupported(l)) > 0 {
		return
	}

	x, err := g.Acquire(l)
	if err != nil {
		t.Fatal(err)
	}

	cmd := startIn(t, x, "while :; do :; done")
	eventually(t, "held back", func() bool {
		var n int64
		for _, dir := range append([]string{x.dir}, x.joined...) {
			text, _ := readFile(dir, "cpu.stat")
			n += lineNumber(text, "nr_throttled")
		}

		return n > 2
	})

	eventually(t, "killed", func() bool { _ = x.Kill(); return x.Empty() })
	_ = cmd.Wait()
	g.Release(x)
}

// TestGroup_KilledIsNotUsedAgain tests that a group is not reused after cgroup.kill, because some kernels kill
// later processes in it.
func TestGroup_KilledIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	g := real(t, "")
	if none(t, g) {
		return
	}

	x, err := g.Acquire(Limits{})
	if err != nil {
		t.Fatal(err)
	}

	cmd := startIn(t, x, daemonizes+"sleep 300")
	freeze(t, x)

	if err := x.Kill(); err != nil {
		t.Fatal(err)
	}

	_ = cmd.Wait()
	eventually(t, "empty", func() bool { _ = x.Kill(); return x.Empty() })
	g.Release(x)

	again, err := g.Acquire(Limits{})
	if err != nil {
		t.Fatal(err)
	}

	defer g.Release(again)

	for range 3 {
		if err := startIn(t, again, "exit 0").Wait(); err != nil {
			t.Error(err)
		}
	}

	eventually(t, "empty", again.Empty)
}

func TestFiles_AreNotMade(t *testing.T) {
	t.Parallel()
	if err := writeFile(t.TempDir(), "memory.max", "1"); !os.IsNotExist(err) {
		t.Errorf("wrote what the kernel does not have: %v", err)
	}
}

// Another root process may remove an empty group or put a process into it.
func TestGroups_HandOnOnlyWhatIsThereAndEmpty(t *testing.T) {
	g := real(t, "")
	if none(t, g) {
		return
	}

	take := func() *Group {
		t.Helper()
		x, err := g.Acquire(Limits{})
		if err != nil {
			t.Fatal(err)
		}

		return x
	}

	gone := take()
	g.Release(gone)

	if err := os.Remove(gone.Dir()); err != nil {
		t.Fatal(err)
	}

	x := take()
	if x == gone || g.Quarantined() != 0 {
		t.Fatalf("a group that is gone is handed on, or kept: %d aside", g.Quarantined())
	}

	g.Release(x)
	cmd := startIn(t, x, "exec sleep 60")
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()

	eventually(t, "a process is there", func() bool { return !x.Empty() })

	if y := take(); y == x {
		t.Error("a group with a process is handed on")
	} else {
		g.Release(y)
	}
}
