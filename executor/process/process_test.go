package process

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/executor/status"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/task"
)

func newLauncher(t testing.TB, cfg spool.Config) *Runner {
	t.Helper()
	s, err := newSpawner()
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.serveRequests(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	cfg.Dir = cmp.Or(cfg.Dir, t.TempDir())

	return &Runner{spawner: s, spool: spool.New(cfg), workdirs: openRooms(t, filepath.Join(cfg.Dir, "rooms")), statuses: status.NewMonitor(nil), stuck: newStuckStarts(nil), without: defaultAccount{own: ownAccount()}, node: "n1", log: zap.NewNop()}
}

func openRooms(t testing.TB, dir string) *workdir.Pool {
	t.Helper()
	r := workdir.NewPool(dir, filepath.Dir(dir), "i1", nil)
	r.EmptyLimit = time.Minute // the machine may be busy
	if err := r.Open(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(r.Close)

	return r
}

// attempt runs an ordinary attempt with a change.
func (ru *Runner) attempt(t testing.TB, change func(*task.Assigned), kills ...Kill) Result {
	t.Helper()
	a := executortest.Assigned("r1", &task.Process{})
	change(&a)

	prep, err := ru.prepareAttempt(a, executortest.NewToken())
	if err != nil {
		return notStarted(err)
	}

	o := NewOrders()
	ready := strings.Contains(a.Action.Process.Shell, "echo ready")
	if ready {
		_ = os.Remove(prep.path) // the output of an earlier attempt
	}

	prep.onStarted = func(time.Time) {
		if ready {
			go giveWhenReady(t, prep.path, o, kills)
			return
		}

		for _, k := range kills {
			o.Kill(k)
		}
	}

	return ru.runPrepared(prep, o)
}

// giveWhenReady waits until the process has printed something, and then sends the kills.
func giveWhenReady(t testing.TB, path string, o *Orders, kills []Kill) {
	for end := time.Now().Add(executortest.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if info, err := os.Stat(path); err == nil && info.Size() > 0 {
			for _, k := range kills {
				o.Kill(k)
			}
			return
		}
	}

	t.Error("the process does not say that it is ready")
}

func (ru *Runner) shell(t testing.TB, line string, kills ...Kill) Result {
	t.Helper()
	return ru.attempt(t, func(a *task.Assigned) { a.Action.Process.Shell = line }, kills...)
}

func TestProcess_Outcome(t *testing.T) {
	l := newLauncher(t, spool.Config{})

	for name, c := range map[string]struct {
		change  func(*task.Assigned)
		kills   []Kill
		state   task.State
		reason  string
		code    int // -1: none
		signal  string
		message string // a part of the message
	}{
		"success": {change: shell("exit 0"), state: task.Succeeded},
		"code":    {change: shell("exit 3"), state: task.Failed, reason: task.ReasonExit, code: 3, message: "code 3"},
		"signal": {change: shell("kill -SEGV $$"), state: task.Failed, reason: task.ReasonSignal, code: -1,
			signal: "SIGSEGV", message: "SIGSEGV"},
		"argv as it is":  {change: command("/bin/sh", "-c", `test "$1" = '* $HOME' && test "$2" = ''`, "x", "* $HOME", ""), state: task.Succeeded},
		"stdin is empty": {change: shell("read x; test $? != 0"), state: task.Succeeded},
		"timeout": {change: both(shell("sleep 60"), timeout(50*time.Millisecond)), state: task.TimedOut, reason: task.ReasonTimeout,
			code: -1, signal: "SIGTERM", message: "longer than 50ms"},
		"timeout, and SIGTERM ignored": {
			change: shell("trap '' TERM; echo ready; sleep 60 & wait; sleep 60"), kills: []Kill{{causeTimeout, 50 * time.Millisecond}}, // when it is ready
			state: task.TimedOut, reason: task.ReasonTimeout, code: -1, signal: "SIGKILL"},
		"timeout, and a clean end": {change: shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"), kills: []Kill{{causeTimeout, time.Minute}},
			state: task.TimedOut, reason: task.ReasonTimeout},
		"stopped by a signal, then timed out": {change: both(shell("kill -STOP $$"), timeout(50*time.Millisecond)),
			state: task.TimedOut, reason: task.ReasonTimeout, code: -1, signal: "SIGTERM"},
		"cancel": {change: shell("sleep 60"), kills: []Kill{{CauseCancel, time.Minute}}, state: task.Cancelled,
			reason: task.ReasonCancelled, code: -1, signal: "SIGTERM"},
		"cancel, then shutdown with less patience": {change: shell("trap '' TERM; echo ready; while :; do sleep 0.02; done"),
			kills: []Kill{{CauseCancel, time.Hour}, {CauseShutdown, 0}}, state: task.Cancelled,
			reason: task.ReasonCancelled, code: -1, signal: "SIGKILL"},
		"shutdown": {change: shell("sleep 60"), kills: []Kill{{CauseShutdown, time.Minute}}, state: task.Failed,
			reason: task.ReasonShutdown, code: -1, signal: "SIGTERM"},
		"no program": {change: command("no-such-program"), state: task.Failed, reason: task.ReasonStart, code: -1,
			message: `"no-such-program" is not in PATH (/usr/bin:/bin)`},
		"no file":        {change: command("/no/such/file"), state: task.Failed, reason: task.ReasonStart, code: -1, message: "does not exist"},
		"not executable": {change: command("/etc/passwd"), state: task.Failed, reason: task.ReasonStart, code: -1, message: "permission denied"},
		"no interpreter": {change: command(script(t, "#!/no/such/interpreter\n")), state: task.Failed, reason: task.ReasonStart, code: -1,
			message: "interpreter"},
		"no format": {change: command(script(t, "echo hello\n")), state: task.Failed, reason: task.ReasonStart, code: -1, message: "#!"},
		"no directory": {change: both(shell("exit 0"), dir("/no/such/dir")), state: task.Failed, reason: task.ReasonStart, code: -1,
			message: `working directory "/no/such/dir" does not exist`},
		"directory is a file": {change: both(shell("exit 0"), dir("/etc/passwd")), state: task.Failed, reason: task.ReasonStart, code: -1,
			message: "is not a directory"},
		"no user": {change: both(shell("exit 0"), as("nobody-at-all")), state: task.Failed, reason: task.ReasonStart, code: -1,
			message: `user "nobody-at-all" does not exist`},
		"a record with a bad name": {change: both(shell("exit 0"), func(a *task.Assigned) { a.Task = "../../etc" }), state: task.Failed,
			reason: task.ReasonStart, code: -1, message: "../../etc"},
		"a program of the task's own PATH": {change: both(command(filepath.Base(program)), func(a *task.Assigned) {
			a.Action.Process.Env = map[string]string{"PATH": filepath.Dir(program)}
		}), state: task.Succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			before := time.Now()
			r := l.attempt(t, c.change, c.kills...)
			if r.State != c.state || r.Reason != c.reason || r.Signal != c.signal || !strings.Contains(r.Message, c.message) {
				t.Errorf("got %s, %q, %q, %q; want %s, %q, %q, %q", r.State, r.Reason, r.Signal, r.Message, c.state, c.reason, c.signal, c.message)
			}

			switch {
			case c.code >= 0 && (r.ExitCode == nil || *r.ExitCode != c.code):
				t.Errorf("got exit code %v, want %d", r.ExitCode, c.code)
			case c.code < 0 && r.ExitCode != nil:
				t.Errorf("got exit code %d, want none", *r.ExitCode)
			}

			if started := c.reason != task.ReasonStart; started == r.StartedAt.IsZero() || r.EndedAt.Before(before) {
				t.Errorf("started %v, ended %v", r.StartedAt, r.EndedAt)
			}
		})
	}

	executortest.NoChildren(t)
}

const program = "/bin/true"

func shell(line string) func(*task.Assigned) {
	return func(a *task.Assigned) { a.Action.Process.Shell = line }
}
func command(argv ...string) func(*task.Assigned) {
	return func(a *task.Assigned) { a.Action.Process.Command = argv }
}
func timeout(d time.Duration) func(*task.Assigned) {
	return func(a *task.Assigned) { a.Timeout = task.Duration(d) }
}
func grace(d time.Duration) func(*task.Assigned) {
	return func(a *task.Assigned) { a.KillGrace = task.Duration(d) }
}
func dir(d string) func(*task.Assigned) {
	return func(a *task.Assigned) { a.Action.Process.Dir = d }
}
func as(user string) func(*task.Assigned) {
	return func(a *task.Assigned) { a.Action.Process.User = user }
}
func both(all ...func(*task.Assigned)) func(*task.Assigned) {
	return func(a *task.Assigned) {
		for _, f := range all {
			f(a)
		}
	}
}

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}

	return path
}

func TestProcess_BackgroundProcessesOfTheGroupEndWithIt(t *testing.T) {
	l := newLauncher(t, spool.Config{})
	file := filepath.Join(t.TempDir(), "pid")
	for name, line := range map[string]string{
		"obedient": "sleep 300 & echo $! >" + file,
		"stubborn": "(trap '' TERM; echo >&2 ready; sleep 300; sleep 300) 2>" + file + ".err & echo $! >" + file + "; while ! test -s " + file + ".err; do sleep 0.01; done",
	} {
		r := l.attempt(t, both(shell(line), grace(100*time.Millisecond)))
		if r.State != task.Succeeded {
			t.Errorf("%s: %+v", name, r)
		}

		if pid := executortest.PIDIn(t, file); executortest.Alive(pid) {
			t.Errorf("%s: process %d is left", name, pid)
		}
	}
}

func TestProcess_PipelinesHaveTheirLastWord(t *testing.T) {
	l := newLauncher(t, spool.Config{})
	l.lingering = time.Minute // a busy machine needs more than the usual 0.2 s
	if r := l.shell(t, "(sleep 0.05; echo last) & exit 0"); string(r.Tail) != "last\n" {
		t.Errorf("got %q", r.Tail)
	}
}

func TestProcess_WhatLeftTheGroup(t *testing.T) {
	l := treeLauncher(t)
	file := filepath.Join(t.TempDir(), "pid")
	// A process holds the output open and continues.
	line := "setsid sh -c 'echo $$ >" + file + "; exec sleep 300' & while ! test -s " + file + "; do sleep 0.01; done; echo said"

	began := time.Now()

	r := l.shell(t, line)
	if r.State != task.Succeeded || string(r.Tail) != "said\n" {
		t.Errorf("got %+v, %q", r, r.Tail)
	}

	if took := time.Since(began); took > 4*time.Minute { // the process holds the pipe for five minutes
		t.Errorf("the end took %s: it waited for the pipe", took)
	}

	pid := executortest.PIDIn(t, file)
	if executortest.Alive(pid) {
		t.Error("a process that left the group outlived an attempt that ended by itself")
	}

	os.Remove(file)
	r = l.shell(t, line+"; echo ready; sleep 300", Kill{causeTimeout, time.Minute}) // not before the process that outlives it exists
	if r.State != task.TimedOut {
		t.Errorf("got %+v", r)
	}

	if pid := executortest.PIDIn(t, file); executortest.Alive(pid) {
		t.Errorf("process %d, which left the group, outlived the timeout", pid)
	}
}

func TestBuildEnvironment_NamesThePeriodAndTheCauses(t *testing.T) {
	of := func(change func(a *task.Assigned)) []string {
		a := task.Assigned{Run: task.Run{ID: "20261120T220500.000Z-abcd", Trigger: task.TriggerManual, ScheduledTime: task.At(time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC))}}
		change(&a)

		return slices.DeleteFunc(buildEnvironment(a, 1, "n1", account{}), func(v string) bool {
			return !strings.HasPrefix(v, "CARILLON_TRIGGER") && !strings.HasPrefix(v, "CARILLON_PERIOD") && !strings.HasPrefix(v, "CARILLON_CAUSE")
		})
	}

	triggered := func(a *task.Assigned) {
		a.Trigger, a.Period = task.TriggerAfter, task.At(time.Date(2026, 11, 19, 0, 0, 0, 0, time.UTC))
		a.Causes = []task.Cause{{Task: "etl", Run: "r1", State: task.Failed, Results: map[string]string{"rows": "7"}}}
	}

	for name, tt := range map[string]struct {
		change func(a *task.Assigned)
		want   []string
	}{
		"manual": {func(*task.Assigned) {}, []string{"CARILLON_TRIGGER=manual"}},
		"tick":   {func(a *task.Assigned) { a.Trigger = task.TriggerSchedule }, []string{"CARILLON_TRIGGER=schedule", "CARILLON_PERIOD=2026-11-20T22:05:00.000Z"}},
		"part of a tick": {func(a *task.Assigned) { a.ID, a.Trigger = task.PartID(a.ID, 2), task.TriggerPart },
			[]string{"CARILLON_TRIGGER=schedule", "CARILLON_PERIOD=2026-11-20T22:05:00.000Z"}},
		"triggered": {triggered, []string{
			"CARILLON_TRIGGER=after", "CARILLON_PERIOD=2026-11-19T00:00:00.000Z", "CARILLON_CAUSE_TASK=etl", "CARILLON_CAUSE_RUN=r1", "CARILLON_CAUSE_STATE=failed",
			`CARILLON_CAUSES=[{"task":"etl","run":"r1","state":"failed","results":{"rows":"7"}}]`,
		}},
		"two causes": {func(a *task.Assigned) {
			triggered(a)
			a.Period, a.Causes = task.Time{}, append(a.Causes, task.Cause{Task: "import", Run: "r2", State: task.Succeeded})
		}, []string{
			"CARILLON_TRIGGER=after",
			`CARILLON_CAUSES=[{"task":"etl","run":"r1","state":"failed","results":{"rows":"7"}},{"task":"import","run":"r2","state":"succeeded"}]`,
		}},
	} {
		if got := of(tt.change); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestProcess_Environment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_DAEMON", "x")
	l := newLauncher(t, spool.Config{})
	r := l.attempt(t, func(a *task.Assigned) {
		a.Attempt = 2
		a.Action.Process.Command = []string{"env"}
		a.Action.Process.Env = map[string]string{"A": "task", "B": "task", "EMPTY": ""}
		a.Env = map[string]string{"B": "run"}
	})

	got := strings.Split(strings.TrimSpace(string(r.Tail)), "\n")
	me := ownAccount()
	var parent string
	got = slices.DeleteFunc(got, func(v string) bool {
		rest, ok := strings.CutPrefix(v, "TRACEPARENT=")
		if ok {
			parent += rest
		}
		return ok
	})

	slices.Sort(got)
	want := []string{
		"A=task", "B=run", "CARILLON_ATTEMPT=2", "CARILLON_FENCING_TOKEN=" + fmt.Sprint(executortest.LastToken()), "CARILLON_NAMESPACE=default", "CARILLON_NODE=n1",
		"CARILLON_PERIOD=2026-11-20T22:05:00.000Z", "CARILLON_RUN_ID=r1", "CARILLON_SCHEDULED_TIME=2026-11-20T22:05:00.000Z",
		"CARILLON_STATUS_FILE=" + filepath.Join(l.workdirs.Path(), "i1", "1", "status"), "CARILLON_TASK=job", "CARILLON_TRIGGER=schedule", "EMPTY=", "HOME=" + me.home,
		"LOGNAME=" + me.name, "PATH=/usr/bin:/bin", "SHELL=/bin/sh",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}

	if len(parent) != 55 || parent[:3] != "00-" || parent[52:] != "-01" || parent[:35] != NewTraceparent("default", "job", "r1")[:35] {
		t.Errorf("traceparent %q", parent)
	}

	if a, b := NewTraceparent("x", "y", "z"), NewTraceparent("x", "y", "z"); a == b {
		t.Errorf("two attempts have the same span: %s", a)
	}
}

func TestProcess_Directory(t *testing.T) {
	l := newLauncher(t, spool.Config{})

	for want, change := range map[string]func(*task.Assigned){
		ownAccount().home: func(*task.Assigned) {},
		"/usr":            dir("/usr"),
	} {
		if r := l.attempt(t, both(shell("pwd -P"), change)); strings.TrimSpace(string(r.Tail)) != want {
			t.Errorf("got %q, want %q", r.Tail, want)
		}
	}

	l.without.own.home = "/no/such/home"
	if r := l.shell(t, "pwd -P"); string(r.Tail) != "/\n" {
		t.Errorf("without a home: got %q (%s)", r.Tail, r.Message)
	}
}

func TestProcess_User(t *testing.T) {
	nobody, err := user.Lookup("nobody")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and a user nobody")
	}

	l := newLauncher(t, spool.Config{})
	r := l.attempt(t, both(shell("id -u; id -g; id -G; echo $LOGNAME $HOME; kill -0 $PPID 2>&1 || echo cannot"), as("nobody")))

	ids, err := nobody.GroupIds()
	if err != nil {
		t.Fatal(err)
	}

	want := fmt.Sprintf("%s\n%s\n%s\nnobody %s\n", nobody.Uid, nobody.Gid, strings.Join(ids, " "), nobody.HomeDir)
	if got := string(r.Tail); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "cannot\n") {
		t.Errorf("got %q (%s), want %q", got, r.Message, want)
	}
}

func TestProcess_NoDescriptorsLeft(t *testing.T) {
	l := newLauncher(t, spool.Config{})

	for range 5 {
		l.shell(t, "echo x; sleep 0.001 &")
		l.attempt(t, command("/no/such"))
		l.attempt(t, both(shell("sleep 5"), timeout(time.Millisecond)))
	}

	before := openFiles(t)

	for range 15 {
		l.shell(t, "echo x; sleep 0.001 &")
		l.attempt(t, command("/no/such"))
		l.attempt(t, both(shell("sleep 5"), timeout(time.Millisecond)))
	}

	if after := openFiles(t); after > before {
		t.Errorf("%d open files before, %d after", before, after)
	}

	executortest.NoChildren(t)
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}

	return len(fds)
}

func TestProcess_WithoutFileDescriptors(t *testing.T) {
	l := newLauncher(t, spool.Config{})
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}

	none := old
	none.Cur = uint64(highestFile(t)) // no descriptor above this one is available
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}

	var held []*os.File // use up the free descriptors below it
	for {
		f, err := os.Open("/dev/null")
		if err != nil {
			break
		}
		held = append(held, f)
	}

	r := l.shell(t, "exit 0")

	for _, f := range held {
		f.Close()
	}

	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}

	if r.State != task.Failed || r.Reason != task.ReasonStart || !strings.Contains(r.Message, "descriptors") {
		t.Errorf("got %+v", r)
	}
}

func highestFile(t *testing.T) int {
	t.Helper()
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}

	defer f.Close()

	return int(f.Fd()) + 1
}

func TestProcess_InheritsNoDescriptors(t *testing.T) {
	for name, f := range map[string]func() error{"at once": closeOnExec, "one by one": closeEachOnExec} {
		t.Run(name, func(t *testing.T) {
			l := newLauncher(t, spool.Config{})
			fd, err := unix.Dup(1) // as if inherited from a parent: not close-on-exec
			if err != nil {
				t.Fatal(err)
			}

			defer unix.Close(fd)

			if err := f(); err != nil {
				t.Fatal(err)
			}

			if r := l.shell(t, fmt.Sprintf("test ! -e /proc/self/fd/%d", fd)); r.State != task.Succeeded {
				t.Errorf("descriptor %d reaches a task: %+v", fd, r)
			}
		})
	}

	fd, err := unix.Dup(1)
	if err != nil {
		t.Fatal(err)
	}

	defer unix.Close(fd)

	l := newLauncher(t, spool.Config{}) // marks it as close-on-exec
	if r := l.shell(t, fmt.Sprintf("test ! -e /proc/self/fd/%d", fd)); r.State != task.Succeeded {
		t.Errorf("descriptor %d reaches a task: %+v", fd, r)
	}
}
