package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// daemon is a process that runs attempts under a guardian.
type daemon struct {
	*exec.Cmd
	t   *testing.T
	dir string
}

// startDaemon starts a daemon that runs shell lines, and waits until all have begun. In a line, @name stands for a
// file in the daemon's directory.
func startDaemon(t *testing.T, lines ...string) *daemon {
	t.Helper()
	return startDaemonAt(t, nil, lines...)
}

// startDaemonAt starts a daemon in a new session, with terminal as its controlling terminal, or without one if it
// is nil.
func startDaemonAt(t *testing.T, terminal *os.File, lines ...string) *daemon {
	t.Helper()
	dir := t.TempDir()

	lines = slices.Clone(lines)
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], "@", dir+"/")
	}

	b, err := json.Marshal(lines)
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(os.Args[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: terminal != nil} // the terminal is descriptor 0
	if terminal != nil {
		cmd.Stdin = terminal
	}

	cmd.Env = append(os.Environ(), "EXECUTOR_TEST_ROLE=daemon", "EXECUTOR_TEST_DIR="+dir, "EXECUTOR_TEST_LINES="+string(b))
	cmd.Stderr = os.Stderr

	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	d := &daemon{Cmd: cmd, t: t, dir: dir}
	t.Cleanup(d.groupless)
	t.Cleanup(d.kill)
	says := bufio.NewScanner(out)

	for range lines {
		if !says.Scan() {
			t.Fatal("the daemon has not started all attempts")
		}
	}

	return d
}

func (d *daemon) kill() {
	_ = d.Process.Signal(syscall.SIGKILL)
	_ = d.Wait()
	if err := guardian.WaitForExit(context.Background(), d.dir); err != nil {
		d.t.Error(err)
	}
}

// groupless checks that the daemon's control groups are removed. With a guardian, it has removed them; without
// one, groupless does what the next daemon would do.
func (d *daemon) groupless() {
	b, _ := os.ReadFile(filepath.Join(d.dir, "cgroups")) // without control groups there is no such file
	roots := strings.Fields(string(b))
	for _, root := range roots {
		if _, err := os.Stat(root); err == nil && os.Getenv("EXECUTOR_TEST_UNGUARDED") == "" {
			d.t.Errorf("%s is left", root)
		}
	}

	if err := cgroup.Remove(roots, executortest.Patience); err != nil {
		d.t.Error(err)
	}
}

// silence stops the renewals of the daemon's session, and returns when the guardian has received its Silence.
func (d *daemon) silence(borne time.Duration) {
	d.t.Helper()
	executortest.WriteFile(d.t, filepath.Join(d.dir, "silence"), borne.String(), 0o600)
	executortest.Eventually(d.t, "the guardian is told", func() bool { _, err := os.Stat(filepath.Join(d.dir, "silent")); return err == nil })
}

func (d *daemon) pid(name string) int { return executortest.PIDIn(d.t, filepath.Join(d.dir, name)) }

func (d *daemon) cleared() bool {
	b, err := os.ReadFile(filepath.Join(d.dir, "cleared.i1"))
	return err == nil && string(b) == `{"endpoints":["x"]}`
}

var family = []string{
	"echo $$ >@plain; exec sleep 300",
	"sleep 300 & echo $! >@child; wait",
	"setsid sh -c 'echo $$ >@left; exec sleep 300' & wait",
	"setsid sh -c 'trap \"\" TERM HUP; setsid sh -c \"echo \\$\\$ >@twice; sleep 300; sleep 300\" & wait' & exec env -i sleep 300",
	"env -i sh -c 'sleep 300 & echo $! >@wiped; wait'",
}

var familyPids = []string{"plain", "child", "left", "twice", "wiped"}

// Verifies: G17
func TestGuardian_KillsWhatADeadDaemonLeft(t *testing.T) {
	d := startDaemon(t, family...)
	var pids []int
	for _, name := range familyPids {
		pids = append(pids, d.pid(name))
	}

	d.kill()
	executortest.Eventually(t, "the instance is cleared", d.cleared)

	for i, pid := range pids {
		if executortest.Alive(pid) {
			t.Errorf("%s (%d) is alive although the instance is said to be cleared", familyPids[i], pid)
		}
	}

	if err := guardian.WaitForExit(t.Context(), d.dir); err != nil {
		t.Error(err)
	}
}

func TestGuardian_ThatWasNotToldAllSaysNothing(t *testing.T) {
	dir := t.TempDir()
	cfg := guardiantest.Config(dir)
	cmd := exec.Command(cfg.Command[0])
	cmd.Env = cfg.Env
	cmd.Stdin = strings.NewReader(`{"instance":"i1","dir":"` + dir + `"}` + "\n" + `{"ward":{"id":1,"RunID":"r1","Token":1}}` + "\n")
	if err := cmd.Run(); err == nil {
		t.Error("it ended as if all were well")
	}

	if _, err := os.Stat(filepath.Join(dir, "cleared.i1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cleared: %v", err)
	}
}

func TestProcess_DiesWithTheDaemonEvenUnguarded(t *testing.T) {
	t.Setenv("EXECUTOR_TEST_UNGUARDED", "1")
	d := startDaemon(t, "echo $$ >@plain; exec sleep 300")
	pid := d.pid("plain")
	d.kill()
	executortest.Eventually(t, "the process is dead", func() bool { return !executortest.Alive(pid) })
}

func TestGuardian_DeadOneIsReplacedAndProtects(t *testing.T) {
	d := startDaemon(t, family...)
	var pids []int
	for _, name := range familyPids {
		pids = append(pids, d.pid(name))
	}

	first := d.pid("guardian.lock")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	if err := guardian.WaitForExit(ctx, d.dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a guardian lives, and waiting for its end says %v", err)
	}

	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "another guardian", func() bool { second := d.pid("guardian.lock"); return second != first && executortest.Alive(second) })

	for i, pid := range pids {
		if !executortest.Alive(pid) {
			t.Errorf("%s (%d) died with the guardian", familyPids[i], pid)
		}
	}

	d.kill()
	executortest.Eventually(t, "the instance is cleared", d.cleared)

	for i, pid := range pids {
		if executortest.Alive(pid) {
			t.Errorf("%s (%d) is alive", familyPids[i], pid)
		}
	}
}

// Verifies: G17
func TestGuardian_KillsTheAttemptsOfAFrozenDaemon(t *testing.T) {
	d := startDaemon(t, "echo $$ >@old; setsid sh -c 'echo $$ >@left; sleep 300' & sleep 300; exit", "echo $$ >@other; sleep 300")
	old, left, other := d.pid("old"), d.pid("left"), d.pid("other")
	d.silence(time.Second)

	if err := d.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "the attempts are dead", func() bool {
		return !executortest.Alive(old) && !executortest.Alive(left) && !executortest.Alive(other)
	})

	if d.cleared() {
		t.Error("a frozen daemon's instance is said to be cleared")
	}
}

func TestGuardian_LeavesWithAByeAndSaysNothing(t *testing.T) {
	dir := t.TempDir()
	g := guardian.NewClient(guardiantest.Config(dir))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()

	if !g.WaitReady(nil) {
		t.Fatal("there is no guardian")
	}

	g.Announce(guardian.Attempt{Mark: proctree.Mark{RunID: "r", Token: 1}}).Ended()
	pid := executortest.PIDIn(t, filepath.Join(dir, "guardian.lock"))
	if st, err := proctree.ReadStat(pid); err != nil || st.Group != pid {
		t.Errorf("the guardian is in group %d, %v; want its own", st.Group, err)
	}

	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}

	if err := guardian.WaitForExit(after(t, 50*time.Millisecond), dir); err == nil {
		t.Error("the guardian obeyed a signal")
	}

	cancel()

	if err := <-done; err != nil {
		t.Error(err)
	}

	if err := guardian.WaitForExit(t.Context(), dir); err != nil {
		t.Error(err)
	}

	if _, err := os.Stat(filepath.Join(dir, "cleared.i1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cleared: %v", err)
	}

	executortest.NoChildren(t)
}

func after(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)

	return ctx
}

func TestGuardian_NothingStartsWithoutOne(t *testing.T) {
	cfg := guardiantest.Config(t.TempDir())
	cfg.Command = []string{"/bin/false"}
	g := guardian.NewClient(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	defer func() { cancel(); <-done }()

	l := newLauncher(t, spool.Config{})
	l.guardian = g
	o := NewOrders()
	time.AfterFunc(200*time.Millisecond, func() { o.Kill(Kill{CauseCancel, 0}) })

	prep, err := l.prepareAttempt(executortest.Assigned("r1", &task.Process{Shell: "exit 0"}), executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	if r := l.runPrepared(prep, o); !r.NotStarted {
		t.Errorf("got %+v", r)
	}
}
