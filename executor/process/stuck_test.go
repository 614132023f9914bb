package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/pkg/task"
)

const nobody = 65534

// playLeaseholder changes its user to nobody, takes a write lease on the file in its environment, and holds it
// until its standard input ends.
func playLeaseholder() error {
	signal.Ignore(unix.SIGIO)

	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
		return err
	}

	f, err := os.OpenFile(os.Getenv("EXECUTOR_TEST_FILE"), os.O_RDWR, 0)
	if err != nil {
		return err
	}

	defer f.Close() // ends the lease; without this, the garbage collector could close f earlier

	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return os.NewSyscallError("F_SETLEASE", err)
	}

	runtime.GC()
	fmt.Println("leased")
	_, err = io.Copy(io.Discard, os.Stdin)

	return err
}

// lease starts a process of nobody that holds a write lease on a program of nobody. The program writes the file
// ran.
func lease(t *testing.T) (program, ran string) {
	t.Helper()

	if os.Geteuid() != 0 {
		t.Skip("needs root, to run attempts as another user")
	}

	dir := outsideTmp(t)
	executortest.Must(t, os.Chown(dir, nobody, nobody))
	program, ran = filepath.Join(dir, "program"), filepath.Join(dir, "ran")
	executortest.WriteProgram(t, program, "#!/bin/sh\necho >"+ran)
	executortest.Must(t, os.Chown(program, nobody, nobody))

	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), "EXECUTOR_TEST_ROLE=leaseholder", "EXECUTOR_TEST_FILE="+program)
	holder.Stderr = os.Stderr
	in, err := holder.StdinPipe()
	executortest.Must(t, err)
	out, err := holder.StdoutPipe()
	executortest.Must(t, err)
	executortest.Must(t, holder.Start())
	t.Cleanup(func() {
		in.Close()
		_ = holder.Wait()
	})

	if line, err := bufio.NewReader(out).ReadString('\n'); line != "leased\n" {
		t.Skipf("no lease can be had on this file system: %q, %v", line, err)
	}

	return program, ran
}

// hanging is an attempt whose start hangs.
type hanging struct {
	t      *testing.T
	l      *Runner
	orders *Orders
	result chan Result
}

// hang starts an attempt, and returns when it counts as stuck, or has ended after that.
func hang(t *testing.T, l *Runner, change func(*preparedAttempt)) *hanging {
	t.Helper()
	h := &hanging{t, l, NewOrders(), make(chan Result, 1)}
	prep, err := l.prepareAttempt(executortest.Assigned(fmt.Sprint("h", runs.Add(1)), &task.Process{User: "nobody", Shell: "exit 0", Env: map[string]string{}}), executortest.NewToken())
	executortest.Must(t, err)
	change(&prep)
	before := l.stuck.count.Load()
	go func() { h.result <- l.runPrepared(prep, h.orders) }()
	executortest.Eventually(t, "it counts as stuck", func() bool {
		select {
		case r := <-h.result:
			h.result <- r
			return true
		default:
		}

		return l.stuck.count.Load() > before
	})

	return h
}

// others starts attempts in each kind of thread. All must end while h hangs.
func (h *hanging) others() {
	h.t.Helper()
	var all sync.WaitGroup

	for i := range 20 {
		all.Go(func() {
			r := h.l.alone(h.t, both(shell("exit 0"), func(a *task.Assigned) {
				p := a.Action.Process
				p.NoNewPrivs, p.PrivateTmp, p.Enforce = i%2 == 1, i%4 >= 2, task.EnforceReport
				if p.Limits.OpenFiles = 64; i%3 == 0 {
					p.Limits.OpenFiles = 0
				}
			}))

			if r.State != task.Succeeded {
				h.t.Errorf("another attempt: %+v", r)
			}
		})
	}

	all.Wait()

	select {
	case r := <-h.result:
		h.t.Errorf("it ended before it was to: %+v", r)
		h.result <- r
	default:
	}
}

// ended returns the result when nothing of the attempt is left.
func (h *hanging) ended() Result {
	h.t.Helper()
	var r Result
	select {
	case r = <-h.result:
	case <-time.After(executortest.Patience):
		h.t.Fatal("it does not end")
	}

	if !r.StartedAt.IsZero() {
		h.t.Errorf("the result says that the process has started: %+v", r)
	}

	return r
}

// checkHanging checks starts that hang: they delay no other starts, and end at their timeout, when they are called
// off, and at the limit for starts.
func checkHanging(t *testing.T, change func(*preparedAttempt)) {
	l := confining(t)
	l.stuck.slow, l.stuck.limit = 10*time.Millisecond, time.Hour

	h := hang(t, l, change)
	h.others()
	h.orders.Kill(Kill{CauseCancel, time.Hour})

	if r := h.ended(); !r.NotStarted || !strings.Contains(r.Message, errCalledOff.Error()) {
		t.Errorf("called off: %+v", r)
	}

	h = hang(t, l, func(prep *preparedAttempt) {
		change(prep)
		prep.timeout = 200 * time.Millisecond
	})

	if r := h.ended(); r.State != task.TimedOut || r.Reason != task.ReasonTimeout || r.NotStarted {
		t.Errorf("at its timeout: %+v", r)
	}

	l.stuck.limit = 200 * time.Millisecond
	given := value(l.stuck.total)

	h = hang(t, l, change)
	if r := h.ended(); r.State != task.Failed || r.Reason != task.ReasonStuck || r.NotStarted {
		t.Errorf("at the limit: %+v", r)
	}

	if n := value(l.stuck.total) - given; n != 1 {
		t.Errorf("given up: %v", n)
	}
}

// Verifies: G42
func TestStuck_LeaseOnTheProgram(t *testing.T) {
	program, ran := lease(t)

	for name, change := range map[string]func(p *task.Process){
		"plain": func(*task.Process) {},
		"held":  func(p *task.Process) { p.Limits.OpenFiles = 64 },
	} {
		t.Run(name, func(t *testing.T) {
			checkHanging(t, func(prep *preparedAttempt) {
				prep.process.Command, prep.process.Shell = []string{program}, ""
				change(prep.process)
			})
			noChildrenBut(t, 1)
		})
	}

	if _, err := os.Stat(ran); err == nil {
		t.Error("the program has run")
	}
}

// noChildrenBut fails the test if this process has more than n children, including zombies.
func noChildrenBut(t *testing.T, n int) {
	t.Helper()
	if children := childrenOfAll(t); len(children) != n {
		t.Errorf("children are left: %v", children)
	}
}

// childrenOfAll lists the children of all threads of this process.
func childrenOfAll(t *testing.T) (children []string) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/children")
	executortest.Must(t, err)

	for _, file := range threads {
		b, _ := os.ReadFile(file)
		children = append(children, strings.Fields(string(b))...)
	}

	return children
}

// deafFUSE mounts a file system of nobody on dir, whose server does not answer. Other users are refused, unless
// letOthersIn is set; then they hang, too.
func deafFUSE(dir string, letOthersIn bool) (answer func(), err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open /dev/fuse", err)
	}

	options := "fd=" + strconv.Itoa(fd) + ",rootmode=40000,user_id=65534,group_id=65534"
	if letOthersIn {
		options += ",allow_other"
	}

	if err := unix.Mount("deaf", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("mount", err)
	}

	return sync.OnceFunc(func() {
		unix.Close(fd) // callers that wait for an answer get an error
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	}), nil
}

// inMountNamespace runs a test in a process with its own mount namespace. It reports whether this process is the
// one in the namespace.
func inMountNamespace(t *testing.T) bool {
	t.Helper()
	const inside = "EXECUTOR_TEST_MOUNTS"
	if os.Getenv(inside) != "" {
		return true
	}

	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}

	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("there is no /dev/fuse")
	}

	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}

	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	return false
}

func mountDeafFUSE(t *testing.T, letOthersIn bool) (dir string) {
	t.Helper()
	dir = filepath.Join(outsideTmp(t), "mnt")
	executortest.Must(t, os.Mkdir(dir, 0o755))
	executortest.Must(t, os.Chown(dir, nobody, nobody))

	answer, err := deafFUSE(dir, letOthersIn)
	if err != nil {
		t.Skip(err)
	}

	t.Cleanup(answer)

	return dir
}

// Verifies: G42
func TestStuck_ProgramOnAFileSystemThatDoesNotAnswer(t *testing.T) {
	if !inMountNamespace(t) {
		return
	}

	dir := mountDeafFUSE(t, false)
	checkHanging(t, func(prep *preparedAttempt) { prep.process.Command, prep.process.Shell = []string{dir + "/program"}, "" })
	executortest.NoChildren(t)
}

// The daemon itself checks the working directory, in a thread that cannot be killed.
//
// Verifies: G42
func TestStuck_DirectoryOnAFileSystemThatDoesNotAnswer(t *testing.T) {
	if !inMountNamespace(t) {
		return
	}

	dir := filepath.Join(outsideTmp(t), "mnt")
	executortest.Must(t, os.Mkdir(dir, 0o755))

	answer, err := deafFUSE(dir, true)
	if err != nil {
		t.Skip(err)
	}

	defer answer()

	l := confining(t)
	l.stuck.slow, l.stuck.limit = 10*time.Millisecond, 200*time.Millisecond

	h := hang(t, l, func(prep *preparedAttempt) { prep.process.Dir = dir })
	if r := h.ended(); r.Reason != task.ReasonStuck {
		t.Errorf("got %+v", r)
	}

	if n := l.stuck.count.Load(); n != 1 {
		t.Errorf("%d starts are stuck, want the thread that hangs", n)
	}

	answer()
	executortest.Eventually(t, "it does not count any more", func() bool { return l.stuck.count.Load() == 0 })

	checkMounted := func(prep *preparedAttempt) {
		prep.process.Dir = filepath.Join(outsideTmp(t), "later")
		executortest.Must(t, os.Mkdir(prep.process.Dir, 0o755))
		prep.mayStart = sync.OnceValue(func() error { // the daemon has checked it, and the process has not
			answer, err := deafFUSE(prep.process.Dir, false)
			if err == nil {
				t.Cleanup(answer)
			}
			return err
		})
	}

	checkHanging(t, checkMounted)
	executortest.NoChildren(t)
}

// Verifies: G42
func TestStuck_EnvFileOnAFileSystemThatDoesNotAnswer(t *testing.T) {
	if !inMountNamespace(t) {
		return
	}

	dir := mountDeafFUSE(t, true)
	l := confining(t)
	l.stuck.slow, l.stuck.limit = 10*time.Millisecond, 200*time.Millisecond
	a := executortest.Assigned("r1", &task.Process{User: "nobody", Shell: "exit 0", EnvFrom: []task.EnvFrom{{File: dir + "/env"}}})
	may := func() error { return nil }
	if _, err := l.withEnvFrom(a, &mask.Masker{}, may, NewOrders()); !errors.Is(err, errStuck) || notStarted(err).Reason != task.ReasonStuck {
		t.Errorf("got %v", err)
	}

	l.stuck.limit = time.Hour
	o := NewOrders()
	o.Kill(Kill{CauseCancel, 0})

	if _, err := l.withEnvFrom(a, &mask.Masker{}, may, o); !errors.Is(err, errCalledOff) {
		t.Errorf("called off: %v", err)
	}

	if r := l.shell(t, "exit 0"); r.State != task.Succeeded {
		t.Errorf("another attempt: %+v", r)
	}
}

// A process that does not end even with SIGKILL, as with a disk that does not respond, is left behind. It counts
// as stuck until it has ended, and executes nothing.
//
// Verifies: G42
func TestStuck_ProcessThatCannotBeKilled(t *testing.T) {
	freezer, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "carillon-test-")
	if err != nil {
		t.Skip("needs the freezer of cgroup v1, in which a process cannot be killed: ", err)
	}

	t.Cleanup(func() {
		executortest.Eventually(t, "the control group is removed", func() bool { return os.Remove(freezer) == nil })
	})

	executortest.Must(t, os.WriteFile(freezer+"/freezer.state", []byte("FROZEN"), 0))
	thaw := func() { _ = os.WriteFile(freezer+"/freezer.state", []byte("THAWED"), 0) }
	defer thaw()

	l := confining(t)
	l.stuck.slow, l.stuck.limit, l.stuck.killed = 10*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	ran := filepath.Join(t.TempDir(), "ran")
	h := hang(t, l, func(prep *preparedAttempt) {
		prep.process.User, prep.process.Shell = "", "echo >"+ran
		prep.bound.steps = append(prep.bound.steps, step{"frozen", func(pid int) error {
			return os.WriteFile(freezer+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0)
		}})
	})

	if r := h.ended(); r.Reason != task.ReasonStuck {
		t.Errorf("got %+v", r)
	}

	if n := l.stuck.count.Load(); n != 1 {
		t.Errorf("%d starts are stuck, want 1", n)
	}

	if r := l.shell(t, "exit 0"); r.State != task.Succeeded {
		t.Errorf("another attempt: %+v", r)
	}

	thaw()
	executortest.Eventually(t, "it does not count any more", func() bool { return l.stuck.count.Load() == 0 })
	executortest.Eventually(t, "it is reaped", func() bool { return len(childrenOfAll(t)) == 0 })

	if _, err := os.Stat(ran); err == nil {
		t.Error("it has run")
	}
}
