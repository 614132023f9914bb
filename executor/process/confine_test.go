package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// confining returns a runner whose attempts can have a private /tmp, if this host supports that.
func confining(t testing.TB) *Runner {
	t.Helper()
	l := newLauncher(t, spool.Config{})
	l.workdirs = openRooms(t, filepath.Join(outsideTmp(t), "rooms"))
	return l
}

// outsideTmp returns a directory that all users can enter and that is not below a directory that attempts can
// replace, if possible.
func outsideTmp(t testing.TB) string {
	t.Helper()

	if os.Geteuid() != 0 {
		return t.TempDir()
	}

	dir, err := os.MkdirTemp("/var/lib", "carillon-test-")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	return dir
}

func (ru *Runner) confined(t testing.TB, line string, change func(p *task.Process)) Result {
	t.Helper()
	return ru.alone(t, func(a *task.Assigned) {
		a.Action.Process.Shell = line
		change(a.Action.Process)
	})
}

// alone is attempt with a separate run. Parallel tests kill processes that carry the mark of the usual run.
func (ru *Runner) alone(t testing.TB, change func(*task.Assigned)) Result {
	t.Helper()
	return ru.attempt(t, both(func(a *task.Assigned) { a.ID = fmt.Sprint("c", runs.Add(1)) }, change))
}

var runs atomic.Int64

func nothing(*task.Process) {}

func wantWords(t testing.TB, r Result, want string) {
	t.Helper()
	if got := strings.Join(strings.Fields(string(r.Tail)), " "); r.State != task.Succeeded || got != want {
		t.Errorf("got %s %s, %q (%s)\nwant %q", r.State, r.Reason, got, r.Message, want)
	}
}

// Each limit is in force from the first instruction of the process on.
func TestConfine_Limits(t *testing.T) {
	t.Parallel()
	l := confining(t)
	size := func(n task.Size) *task.Size { return &n }
	limits := task.Limits{OpenFiles: 41, FileSize: size(1 << 20), Core: size(0), Stack: 4 << 20, AddressSpace: 3 << 30, CPUTime: task.Duration(7 * time.Second)}
	r := l.confined(t, `while read -r line; do case $line in "Max cpu"*|"Max file size"*|"Max stack"*|"Max core"*|"Max open"*|"Max addr"*) echo "$line";; esac; done </proc/self/limits`,
		func(p *task.Process) { p.Limits = limits })

	wantWords(t, r, "Max cpu time 7 12 seconds Max file size 1048576 1048576 bytes Max stack size 4194304 4194304 bytes "+
		"Max core file size 0 0 bytes Max open files 41 41 files Max address space 3221225472 3221225472 bytes")

	if testing.Short() {
		return
	}

	// The limits take effect: nothing beyond file_size is written, and a process that exceeds cpu_time ends.
	limits = task.Limits{FileSize: size(1024), CPUTime: task.Duration(time.Second)}
	file := filepath.Join(t.TempDir(), "f")

	r = l.confined(t, "head -c 4096 /dev/zero >"+file+"; while :; do :; done", func(p *task.Process) { p.Limits = limits })
	if r.State != task.Failed || r.Signal != "SIGXCPU" {
		t.Errorf("got %+v", r)
	}

	if info, err := os.Stat(file); err != nil || info.Size() != 1024 {
		t.Errorf("the file is %v, %v", info, err)
	}
}

func TestConfine_PrioritiesAndMask(t *testing.T) {
	t.Parallel()
	l := confining(t)
	const see = "nice; ionice -p $$; umask; grep NoNewPrivs /proc/self/status"
	plain := l.confined(t, see, nothing)
	r := l.confined(t, see, func(p *task.Process) {
		p.Nice, p.IONice, p.Umask, p.NoNewPrivs = 17, "best-effort/6", "027", true
	})

	wantWords(t, r, "17 best-effort: prio 6 0027 NoNewPrivs: 1")
	r = l.confined(t, see, func(p *task.Process) { p.Nice, p.IONice = 19, "idle" })
	mask := strings.Fields(string(plain.Tail))
	wantWords(t, r, "19 idle "+strings.Join(mask[len(mask)-3:], " "))

	// The threads that start processes keep none of the settings.
	if again := l.confined(t, see, nothing); string(again.Tail) != string(plain.Tail) || !strings.Contains(string(again.Tail), "NoNewPrivs:\t0") {
		t.Errorf("got %s, before %s", again.Tail, plain.Tail)
	}

	if humble := l.confined(t, "umask", func(p *task.Process) { p.NoNewPrivs = true }); !strings.Contains(string(plain.Tail), string(humble.Tail)) {
		t.Errorf("got %s, before %s", humble.Tail, plain.Tail)
	}
}

// All settings together, in every kind of thread: the process has no descriptor but the three, and no variable but
// those of the task and of Carillon.
func TestConfine_InheritsNothing(t *testing.T) {
	t.Parallel()
	l := confining(t)

	for name, change := range map[string]func(p *task.Process){
		"held": func(p *task.Process) { p.Limits.OpenFiles = 64 },
		"all": func(p *task.Process) {
			p.Limits.OpenFiles, p.Nice, p.Umask, p.NoNewPrivs, p.Scratch, p.PrivateTmp, p.Enforce = 64, 19, "0", true, true, true, task.EnforceReport
		},
	} {
		r := l.confined(t, "cd /proc/self/fd; echo *; exec env", change)
		fds, env, _ := strings.Cut(string(r.Tail), "\n")
		if fds != "0 1 2 3" { // the last one is the shell's descriptor of the directory
			t.Errorf("%s: open are %s", name, fds)
		}

		for v := range strings.Lines(env) {
			if n, _, _ := strings.Cut(v, "="); !strings.HasPrefix(n, "CARILLON_") && !slices.Contains([]string{"HOME", "LOGNAME", "PATH", "SHELL", "TRACEPARENT", "PWD", "OLDPWD", "_", "SHLVL"}, n) {
				t.Errorf("%s: %s", name, v)
			}
		}
	}
}

func TestConfine_Scratch(t *testing.T) {
	t.Parallel()
	l := confining(t)

	for _, change := range []func(p *task.Process){
		func(p *task.Process) { p.Shell = "test $PWD = $CARILLON_SCRATCH && " + p.Shell },
		func(p *task.Process) {
			p.Dir = "/usr"
			p.Shell = "test $PWD = /usr && cd $CARILLON_SCRATCH && " + p.Shell
		},
		func(p *task.Process) { p.Shell += "; cd /; chmod -R 700 $CARILLON_SCRATCH; rm -r $CARILLON_SCRATCH" }, // the task may remove its directory
	} {
		r := l.confined(t, `test -z "$(ls -A)"; stat -c '%a %u' .; mkdir -p a/b; echo >a/b/c; chmod 0 a/b; ln -s / x; pwd -P`, func(p *task.Process) {
			p.Scratch = true
			change(p)
		})

		words := strings.Fields(string(r.Tail))
		if r.State != task.Succeeded || len(words) != 3 || words[0] != "700" || words[1] != fmt.Sprint(os.Geteuid()) {
			t.Fatalf("got %s %s, %q", r.State, r.Message, words)
		}

		if _, err := os.Stat(words[2]); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", words[2], err)
		}
	}

	nothingLeft(t, l)
}

// nothingLeft fails the test if attempts have left directories.
func nothingLeft(t testing.TB, l *Runner) {
	t.Helper()
	l.workdirs.Close() // keeps empty ones until then

	names, err := filepath.Glob(filepath.Join(l.workdirs.Path(), "i1", "*"))
	if err != nil || len(names) > 0 {
		t.Errorf("left are %q, %v", names, err)
	}
}

// If the host cannot enforce a setting, the attempt fails before its first instruction, with a message that names
// the field. Or it runs, and that is recorded, if the task prefers a report.
func TestConfine_WhatCannotBeEnforced(t *testing.T) {
	l := confining(t)
	mark := filepath.Join(t.TempDir(), "ran")
	fields := map[string]func(p *task.Process){
		"limits.open_files": func(p *task.Process) { p.Limits.OpenFiles = task.MaxOpenFiles }, // more than the kernel allows
	}

	if os.Geteuid() == 0 {
		fields["limits.processes"] = func(p *task.Process) { p.Limits.Processes = 10 }
	} else {
		fields["nice"] = func(p *task.Process) { p.Nice = -20 }
		fields["ionice"] = func(p *task.Process) { p.IONice = "realtime" }
		fields["private_tmp"] = func(p *task.Process) { p.PrivateTmp = true }
	}

	for field, change := range fields {
		r := l.confined(t, "echo >"+mark, change)
		if r.State != task.Failed || r.Reason != task.ReasonHost || !strings.Contains(r.Message, "this node cannot enforce "+field+": ") {
			t.Errorf("%s: got %s %s, %q", field, r.State, r.Reason, r.Message)
		}

		if _, err := os.Stat(mark); err == nil || !r.StartedAt.IsZero() {
			t.Fatalf("%s: something of it ran", field)
		}

		r = l.confined(t, "echo ran", func(p *task.Process) {
			change(p)
			p.Enforce = task.EnforceReport
		})

		if r.State != task.Succeeded || string(r.Tail) != "ran\n" || !slices.Equal(r.Unenforced, []string{field}) || !strings.HasPrefix(r.Message, "not enforced: "+field) {
			t.Errorf("%s, told: got %+v", field, r)
		}
	}

	executortest.NoChildren(t)
	// A disk that accepts no files.
	l.workdirs = nil
	if r := l.confined(t, "true", func(p *task.Process) { p.Scratch = true }); r.Reason != task.ReasonHost || !strings.Contains(r.Message, "scratch: ") {
		t.Errorf("got %+v", r)
	}

	if r := l.confined(t, "pwd", func(p *task.Process) { p.Scratch, p.Enforce = true, task.EnforceReport }); r.State != task.Succeeded || !slices.Equal(r.Unenforced, []string{"scratch"}) {
		t.Errorf("got %+v", r)
	}
}

func TestConfine_OneReasonForManyFieldsIsToldOnce(t *testing.T) {
	e := unenforceableError{{"limits.core", "no right"}, {"private_tmp", "no mounts"}, {"limits.stack", "no right"}}
	if want := "this node cannot enforce limits.core, limits.stack: no right; private_tmp: no mounts"; e.Error() != want {
		t.Errorf("got %q", e.Error())
	}
}

// After a step that fails, no instruction of the process runs.
func TestConfine_StepThatFails(t *testing.T) {
	l := confining(t)
	mark := filepath.Join(t.TempDir(), "ran")

	for _, enforce := range []string{task.EnforceRequire, task.EnforceReport} {
		prep, err := l.prepareAttempt(executortest.Assigned("r1", &task.Process{Shell: "echo >" + mark, Enforce: enforce}), executortest.NewToken())
		if err != nil {
			t.Fatal(err)
		}

		prep.bound.steps = append(prep.bound.steps, step{"nice", func(int) error { return unix.EPERM }})
		r := l.runPrepared(prep, NewOrders())
		_, err = os.Stat(mark)
		switch ran := err == nil; {
		case enforce == task.EnforceRequire && (ran || r.Reason != task.ReasonHost || r.Message != "this node cannot enforce nice: operation not permitted"):
			t.Errorf("it ran: %v; %+v", ran, r)
		case enforce == task.EnforceReport && (!ran || r.State != task.Succeeded || !slices.Equal(r.Unenforced, []string{"nice"})):
			t.Errorf("it ran: %v; %+v", ran, r)
		}
	}

	executortest.NoChildren(t)
}

// A seccomp filter, as in containers, may forbid unshare.
func TestConfine_WhereNoThreadCanBeItsOwn(t *testing.T) {
	l := confining(t)
	defer func(was func(int) error) { unshareFunc = was }(unshareFunc)

	unshareFunc = func(int) error { return unix.EPERM }

	change := func(p *task.Process) { p.Umask = "027" }
	if r := l.confined(t, "echo ran", change); r.Reason != task.ReasonHost || !strings.Contains(r.Message, "umask: unshare: operation not permitted") {
		t.Errorf("got %+v", r)
	}

	r := l.confined(t, "echo ran", func(p *task.Process) { change(p); p.Enforce = task.EnforceReport })
	if r.State != task.Succeeded || !slices.Equal(r.Unenforced, []string{"umask"}) {
		t.Errorf("got %+v", r)
	}
}

func TestConfine_JoinsWhatTakesTimeInAThreadOfItsOwn(t *testing.T) {
	l := newLauncher(t, spool.Config{})
	var err error
	if l.groups, err = cgroup.Open(cgroup.Config{Setting: cgroup.Auto, Node: "test", Instance: task.NewUID()}); err != nil {
		t.Fatal(err)
	}

	defer l.groups.Close()

	limits := task.Limits{PIDs: 10}

	group, err := l.takeGroup(&confinement{}, limits)
	if err != nil {
		t.Fatal(err)
	}

	joins := group != nil && group.Joins()

	if group != nil {
		if c := (confinement{}); c.joinGroup(group, cgroupLimits(limits)) != nil || c.slow != joins || (c.threadKind() == slowStart) != joins {
			t.Errorf("joins: %v, in the thread of what is slow: %v", joins, c.slow)
		}
		l.groups.Release(group)
	}
}

func TestConfine_PrivateTmp(t *testing.T) {
	if os.Geteuid() != 0 {
		return // rejected, as tested above
	}

	t.Parallel()
	l := confining(t)
	before := mounts(t, l.workdirs.Path())
	ours := filepath.Join("/tmp", filepath.Base(t.TempDir())+"-of-an-attempt")
	r := l.confined(t, `ls -A /tmp /var/tmp; stat -c '%a %u' /tmp; echo >`+ours+`; echo >/var/tmp/x; ls /tmp | wc -l; pwd; cd $CARILLON_SCRATCH && echo in`,
		func(p *task.Process) { p.PrivateTmp, p.Scratch, p.Dir, p.User = true, true, "/tmp", "nobody" })

	wantWords(t, r, "/tmp: /var/tmp: 1777 0 1 /tmp in")

	if _, err := os.Stat(ours); err == nil {
		t.Error("the host sees what it wrote")
	}

	if now := mounts(t, l.workdirs.Path()); now != before {
		t.Errorf("mounts are left:\n%s\nbefore:\n%s", now, before)
	}

	// The thread has returned to its own namespace, so the next process sees the host's.
	if r := l.confined(t, "cd "+t.TempDir()+" && readlink /proc/self/ns/mnt", nothing); strings.TrimSpace(string(r.Tail)) != mustReadlink(t, "/proc/self/ns/mnt") {
		t.Errorf("got %s %s", r.Tail, r.Message)
	}

	// A program that exists only in the host's /tmp.
	program := script(t, "#!/bin/sh\n")
	r = l.alone(t, both(command(program), func(a *task.Assigned) { a.Action.Process.PrivateTmp = true }))

	if !strings.HasPrefix(program, "/tmp/") {
		program = ""
	}

	if program != "" && (r.Reason != task.ReasonStart || !strings.Contains(r.Message, "with private_tmp, /tmp is empty")) {
		t.Errorf("got %+v", r)
	}

	// The node's directory in /tmp.
	nothingLeft(t, l)
	l.workdirs = openRooms(t, filepath.Join(t.TempDir(), "rooms"))
	r = l.confined(t, "true", func(p *task.Process) { p.PrivateTmp = true })
	if strings.HasPrefix(l.workdirs.Path(), "/tmp/") && (r.Reason != task.ReasonHost || !strings.Contains(r.Message, "set scratch_dir")) {
		t.Errorf("got %+v", r)
	}
}

// mounts returns the mounts of private directories and of working directories. Other tests and programs may mount
// other directories at the same time.
func mounts(t testing.TB, rooms string) (some string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}

	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); slices.Contains(task.PrivateDirs, f[4]) || strings.Contains(line, filepath.Base(filepath.Dir(rooms))) {
			some += line
		}
	}

	return some
}

func mustReadlink(t testing.TB, path string) string {
	t.Helper()
	link, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}

	return link
}

// A thread on which a step fails returns to its former state.
func TestThread_ComesBackFromWhatFails(t *testing.T) {
	t.Parallel()
	onThread(func() bool {
		var th thread
		th.setNoNewPrivs()
		before := mustReadlink(t, "/proc/thread-self/ns/mnt")

		c := confinement{umask: 0o77, private: true}
		if _, ok := errors.AsType[unenforceableError](th.applyConfinement(&c, "/no/such/room")); !ok {
			t.Error("the thread was confined without an error")
		}

		th.restoreState()

		if now := mustReadlink(t, "/proc/thread-self/ns/mnt"); now != before {
			t.Errorf("it is in %s, before in %s", now, before)
		}

		if mask := unix.Umask(0o22); mask == 0o77 {
			t.Errorf("its umask is %o", mask)
		}

		return th.closeThread()
	})
}

// A setuid program gives its rights however the process is confined, except with no_new_privs.
func TestConfine_Setuid(t *testing.T) {
	if os.Geteuid() != 0 {
		return // setuid programs cannot be created here
	}

	t.Parallel()
	l := confining(t)
	program := filepath.Join(outsideTmp(t), "id")
	executortest.Must(t, copyFile(program, "/usr/bin/id"))
	executortest.Must(t, os.Chmod(program, os.ModeSetuid|0o755))

	for want, change := range map[string]func(p *task.Process){
		"0":       func(*task.Process) {},
		"0 ":      func(p *task.Process) { p.Limits.OpenFiles, p.Nice, p.Enforce = 64, 7, task.EnforceReport },
		"0  ":     func(p *task.Process) { p.Command, p.Shell = nil, program+" -u"; p.Nice = 5 },
		"nobody":  func(p *task.Process) { p.NoNewPrivs = true },
		"nobody ": func(p *task.Process) { p.NoNewPrivs, p.Nice = true, 7 },
	} {
		r := l.alone(t, func(a *task.Assigned) {
			a.Action.Process.User, a.Action.Process.Command = "nobody", []string{program, "-u"}
			change(a.Action.Process)
		})

		got := strings.TrimSpace(string(r.Tail))
		if want = strings.TrimSpace(want); (got == "0") != (want == "0") || r.State != task.Succeeded {
			t.Errorf("got %s, %s; want %s", got, r.Message, want)
		}
	}
}

func TestConfine_Groups(t *testing.T) {
	t.Parallel()
	l := confining(t)
	const see = "id -u; id -g; id -G"

	if os.Geteuid() != 0 {
		if r := l.confined(t, see, func(p *task.Process) { p.Groups = []string{} }); r.Reason != task.ReasonStart || !strings.Contains(r.Message, "only a daemon that runs as root") {
			t.Errorf("got %+v", r)
		}
		return
	}

	wantWords(t, l.confined(t, see, func(p *task.Process) { p.User, p.Group, p.Groups = "nobody", "4", []string{"daemon", "2"} }), "65534 4 4 1 2")
	wantWords(t, l.confined(t, see, func(p *task.Process) { p.Group, p.Groups = "daemon", []string{} }), "0 1 1")

	if r := l.confined(t, see, func(p *task.Process) { p.Group = "no-such-group" }); r.Reason != task.ReasonStart || !strings.Contains(r.Message, `group "no-such-group" does not exist`) {
		t.Errorf("got %+v", r)
	}
}

// If a daemon is killed while it holds a process, neither the process nor any of its effects remains.
func TestConfine_DaemonKilledBeforeTheFirstInstruction(t *testing.T) {
	for _, unguarded := range []string{"", "1"} {
		t.Setenv("EXECUTOR_TEST_UNGUARDED", unguarded)
		d := startDaemon(t, ": held; echo >@ran")

		pid := d.pid("held")
		if !proctree.NeverExecuted(pid) {
			t.Error("it has executed")
		}

		d.kill()
		executortest.Eventually(t, "its end", func() bool { return !executortest.Alive(pid) })

		if _, err := os.Stat(filepath.Join(d.dir, "ran")); err == nil {
			t.Error("it has run")
		}
	}
}

// The guardian removes the directories of a killed daemon's attempts.
func TestGuardian_RemovesScratchDirectories(t *testing.T) {
	d := startDaemon(t, "touch $CARILLON_SCRATCH/x; echo $$ >@pid; sleep 300")
	pid := d.pid("pid")

	if left, err := filepath.Glob(filepath.Join(d.dir, "rooms", "i1", "*", "scratch", "x")); len(left) != 1 {
		t.Errorf("it has %q, %v", left, err)
	}

	d.kill() // kill waits for the guardian

	if _, err := os.Stat(filepath.Join(d.dir, "rooms")); executortest.Alive(pid) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

// TestConfine_AsNobody runs tests in a process without root, because the daemon behaves differently there.
func TestConfine_AsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		return // the other users run that test
	}

	t.Parallel()
	dir := outsideTmp(t)

	program := filepath.Join(dir, "executor.test")
	if err := copyFile(program, os.Args[0]); err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(os.Mkdir(filepath.Join(dir, "tmp"), 0o700), os.Chown(filepath.Join(dir, "tmp"), 65534, 65534)); err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(program, "-test.run", "^TestConfine_", "-test.short")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+filepath.Join(dir, "tmp"), "GOTMPDIR="+filepath.Join(dir, "tmp"), "HOME=/")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// copyFile copies a file with another process. A program cannot be executed while a process has it open for
// writing, and a concurrent fork would inherit a descriptor of this process.
func copyFile(to, from string) error { return exec.Command("cp", from, to).Run() }

func TestConfine_ManyArguments(t *testing.T) {
	t.Parallel()
	l := confining(t)
	argv := append([]string{"/bin/sh", "-c", "echo $#", "sh"}, slices.Repeat([]string{"x"}, 100_000)...)
	wantWords(t, l.alone(t, command(argv...)), "100000")
	// With a limit on the stack, the kernel allows a quarter of it for arguments.
	wantWords(t, l.alone(t, both(command(argv...), func(a *task.Assigned) { a.Action.Process.Limits.Stack = 8 << 20 })), "100000")
	argv[4] = strings.Repeat("x", 256<<10)

	for _, files := range []int64{0, 64} {
		r := l.alone(t, both(command(argv...), func(a *task.Assigned) { a.Action.Process.Limits.OpenFiles = files }))
		if r.Reason != task.ReasonStart || r.Message != "arguments and environment together are longer than the kernel allows" {
			t.Errorf("got %+v", r)
		}
	}
}

func TestConfine_DirectoryThatIsGone(t *testing.T) {
	t.Parallel()
	l := confining(t)

	gone := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(gone, 0o755); err != nil {
		t.Fatal(err)
	}

	r := l.alone(t, both(shell("rmdir $PWD; cd .. 2>/dev/null; /bin/true; echo on"), dir(gone)))
	wantWords(t, r, "on")

	r = l.alone(t, both(shell("echo on"), dir(gone)))
	if r.Reason != task.ReasonStart || !strings.Contains(r.Message, "does not exist") {
		t.Errorf("got %+v", r)
	}
}

func BenchmarkProcess_Confined(b *testing.B) {
	for _, c := range []struct {
		name   string
		change func(p *task.Process)
	}{
		{"nothing", func(*task.Process) {}},
		{"no_new_privs", func(p *task.Process) { p.NoNewPrivs = true }},
		{"umask", func(p *task.Process) { p.Umask = "027" }},
		{"limits", func(p *task.Process) { p.Limits = task.Limits{OpenFiles: 64, Core: new(task.Size)} }},
		{"scratch", func(p *task.Process) { p.Scratch = true }},
		{"private_tmp", func(p *task.Process) { p.PrivateTmp, p.Enforce = true, task.EnforceReport }},
		{"pids", func(p *task.Process) { p.Limits.PIDs, p.Enforce = 100, task.EnforceReport }},
		{"memory", func(p *task.Process) { p.Limits.Memory, p.Enforce = 1<<30, task.EnforceReport }},
		{"all", func(p *task.Process) {
			p.NoNewPrivs, p.Umask, p.Limits.OpenFiles, p.Nice, p.Scratch, p.PrivateTmp, p.Enforce = true, "027", 64, 19, true, true, task.EnforceReport
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := confining(b)
			var err error
			if l.groups, err = cgroup.Open(cgroup.Config{Setting: cgroup.Auto, Node: "bench", Instance: task.NewUID()}); err != nil {
				b.Fatal(err)
			}

			defer l.groups.Close()

			own, children := executortest.CPU(b, unix.RUSAGE_SELF), executortest.CPU(b, unix.RUSAGE_CHILDREN)

			for b.Loop() {
				r := l.alone(b, func(a *task.Assigned) {
					a.Action.Process.Command = []string{"/bin/true"}
					c.change(a.Action.Process)
				})

				if r.State != task.Succeeded {
					b.Fatal(r.Message)
				}
			}

			each := func(d time.Duration) float64 { return float64(d) / float64(b.N) / float64(time.Microsecond) }
			b.ReportMetric(each(executortest.CPU(b, unix.RUSAGE_SELF)-own), "own-cpu-µs/op")
			b.ReportMetric(each(executortest.CPU(b, unix.RUSAGE_CHILDREN)-children), "processes-cpu-µs/op")
		})
	}
}
