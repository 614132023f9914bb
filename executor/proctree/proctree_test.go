package proctree

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
)

func TestKillLeftovers(t *testing.T) {
	token, other := executortest.NewToken(), executortest.NewToken()
	mine := exec.Command("sh", "-c", "setsid sleep 300 & exec sleep 300")
	mine.Env = append(os.Environ(), EnvRunID+"=r1", EnvToken+"="+fmt.Sprint(token), EnvTask+"=job", EnvNamespace+"=default")
	others := exec.Command("sleep", "300")
	others.Env = append(os.Environ(), EnvRunID+"=r1", EnvToken+"="+fmt.Sprint(other))
	for _, c := range []*exec.Cmd{mine, others} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}

	defer func() { _ = others.Process.Kill(); _ = others.Wait(); _ = mine.Wait() }()

	h := KillSet{}
	h.AddMark(Mark{RunID: "r1", Token: token})
	// In the middle of an execve, a process has no mark. Wait until both have executed their programs.
	asleep := func(pid int) bool {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return string(name) == "sleep\n"
	}

	executortest.Eventually(t, "both have begun", func() bool {
		both := marked(t, &h)
		return len(both) == 2 && asleep(both[0]) && asleep(both[1]) && len(marked(t, &h)) == 2
	})

	if n, err := KillMarked(t.Context(), []Mark{{RunID: "r1", Token: token, Namespace: "other"}}); n != 0 || err != nil {
		t.Errorf("killed %d of another namespace, %v", n, err)
	}

	n, err := KillMarked(t.Context(), []Mark{{RunID: "r1", Token: token, Namespace: "default", Task: "job"}, {RunID: "r9", Token: 1}})
	if n != 2 || err != nil {
		t.Errorf("killed %d, %v; want 2", n, err)
	}

	if left := marked(t, &h); len(left) != 0 {
		t.Errorf("left: %v", left)
	}

	if !executortest.Alive(others.Process.Pid) {
		t.Error("killed an attempt with another token")
	}
}

func marked(t *testing.T, h *KillSet) (found []int) {
	t.Helper()
	pids, err := ListPIDs()
	if err != nil {
		t.Fatal(err)
	}

	for _, pid := range pids {
		if executortest.Alive(pid) && h.hasMark(pid) {
			found = append(found, pid)
		}
	}

	return found
}

func TestBirth_TellsReusedNumbers(t *testing.T) {
	b := Birth{From: 1234567 * time.Microsecond, To: 1239567 * time.Microsecond}

	for start, want := range map[time.Duration]bool{
		1230 * time.Millisecond: true, 1220 * time.Millisecond: true, 1200 * time.Millisecond: false,
		1240 * time.Millisecond: true, 1260 * time.Millisecond: false,
	} {
		if got := b.matchesStart(start); got != want {
			t.Errorf("a start at %s fits: %v", start, got)
		}
	}
}

// Verifies: G42
func TestProc_NeverExecuted(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	executortest.Must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()

	if NeverExecuted(cmd.Process.Pid) {
		t.Error("it has executed sleep")
	}
}

func TestParseStat_NamesMayContainAnything(t *testing.T) {
	line := "42 (a) R (b c) S 1 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1000 1 0 0\n"
	st, err := parseStat(42, []byte(line))
	if err != nil || st.Group != 40 || st.State != 'S' || st.Start != 123450*time.Millisecond {
		t.Errorf("got %+v, %v", st, err)
	}

	if _, err := parseStat(42, []byte("42 (x) R 1")); err == nil {
		t.Error("a short line is read")
	}
}

// Between the listing of the daemon's children and the check of each child, one may end and leave a child of its
// own that is not in the list. Not parallel, as above.
func TestOrphans_WhatADyingOneLeavesBehindIsFound(t *testing.T) {
	adopted()
	p := exec.Command("sh", "-c", "sleep 300 & echo $!; wait")

	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := p.Start(); err != nil {
		t.Fatal(err)
	}

	dying, left := p.Process.Pid, 0
	if _, err := fmt.Fscan(out, &left); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { killNumber(t, dying); killNumber(t, left) })
	o, ending := NewOrphans(), &Tree{}
	o.trees[ending] = Birth{}
	listed := false
	o.children = func(self int) []int {
		if !listed {
			listed = true
			killNumber(t, dying)
			executortest.Eventually(t, "it is dead", func() bool { st, err := ReadStat(dying); return err != nil || st.Dead() })

			return []int{dying}
		}

		return slices.DeleteFunc(childrenOf(self), func(pid int) bool { return pid != left })
	}

	if got := o.orphansOf(ending); !slices.Equal(got, []int{left}) {
		t.Errorf("found %v, not %d, which %d has left behind", got, left, dying)
	}

	killNumber(t, left)
	executortest.Eventually(t, "it has ended, too", func() bool { return len(o.orphansOf(ending)) == 0 })
}

// Two attempts end at the same time, and each finds that an orphan may belong to the other. The last one that is forgotten has to end it.
// Not parallel, as above.
func TestOrphans_OfAttemptsThatEndTogether(t *testing.T) {
	adopted()
	p := exec.Command("sleep", "300")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}

	orphan := p.Process.Pid
	t.Cleanup(func() { killNumber(t, orphan) })
	o, a, b := NewOrphans(), &Tree{Mark: Mark{Token: 1}}, &Tree{Mark: Mark{Token: 2}}
	o.trees[a], o.trees[b] = Birth{}, Birth{}
	o.children = func(int) []int { return []int{orphan} }

	if got := append(o.orphansOf(a), o.orphansOf(b)...); len(got) > 0 {
		t.Errorf("found %v, which may belong to an attempt that runs", got)
	}
	if !o.ForgetEnded(a) {
		t.Error("the first one was not forgotten")
	}
	if o.ForgetEnded(b) || !slices.Equal(o.orphansOf(b), []int{orphan}) {
		t.Error("the last one was forgotten before its orphan has ended")
	}

	killNumber(t, orphan)
	executortest.Eventually(t, "it is forgotten when its orphan has ended", func() bool { return o.ForgetEnded(b) })
}

// A process whose first thread has ended looks like a zombie but continues.
func TestOrphans_WithoutTheirFirstThreadAreFound(t *testing.T) {
	adopted()
	p := exec.Command(os.Args[0])
	p.Env = append(os.Environ(), "PROCTREE_TEST_ROLE=headless")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}

	pid := p.Process.Pid
	t.Cleanup(func() { killNumber(t, pid) })
	executortest.Eventually(t, "its first thread ends", func() bool { st, err := ReadStat(pid); return err == nil && st.Dead() })
	o := NewOrphans()
	o.children = func(int) []int { return []int{pid} }
	ending := &Tree{PID: pid, reaped: true, Orphans: o}
	o.trees[ending] = Birth{}
	if ending.Empty() {
		t.Error("the process is considered dead")
	}

	ending.Kill()
	executortest.Eventually(t, "it is killed", ending.Empty)
}

// killNumber kills a process that a test has left behind.
func killNumber(t *testing.T, pid int) {
	if st, err := ReadStat(pid); err == nil {
		signalSame(st, 9)
	}
}

// adopted makes this program adopt orphans.
func adopted() {
	if err := BecomeSubreaper(); err != nil {
		panic(err)
	}
}

// TestMain also runs the test binary as another process.
func TestMain(m *testing.M) {
	if os.Getenv("PROCTREE_TEST_ROLE") == "headless" {
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // the process continues without its first thread until it is killed
	}
	leaktest.Main(m)
}

func init() {
	if os.Getenv("PROCTREE_TEST_ROLE") == "headless" {
		runtime.LockOSThread() // the first thread
	}
}
