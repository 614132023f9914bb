package process

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// adopted returns the orphans of this program, for a host without control groups.
var adopted = sync.OnceValue(func() *proctree.Orphans {
	if err := proctree.BecomeSubreaper(); err != nil {
		panic(err)
	}
	return proctree.NewOrphans()
})

// treeLauncher returns a runner that finds processes as a daemon on this host does. With control groups the test
// is parallel. Without them it is not, because an orphan may belong to any running attempt.
func treeLauncher(t *testing.T) *Runner {
	t.Helper()
	groups, err := cgroup.Open(cgroup.Config{Setting: cmp.Or(os.Getenv("EXECUTOR_TEST_CGROUP"), cgroup.Auto), Node: "test", Instance: task.NewUID()})
	if err != nil {
		t.Fatal(err)
	}

	if groups.Any() {
		t.Parallel()
	}

	t.Cleanup(func() { // after the spawner has stopped
		if err := groups.Close(); err != nil {
			t.Error(err)
		}
	})

	l := newLauncher(t, spool.Config{})
	if l.groups = groups; !groups.Any() {
		l.orphans = adopted()
		l.spawner.orphans = l.orphans
	}

	return l
}

// daemonize returns a shell line that leaves a process with a new session, no environment and no open files, which
// ignores SIGTERM and writes its number to a file.
func daemonize(file string) string {
	return `setsid env -i /bin/sh -c 'trap "" TERM HUP; echo $$ >` + file + `.new; /bin/mv ` + file + `.new ` + file + `; while :; do /bin/sleep 1; done' >/dev/null 2>&1 & while ! test -s ` + file + `; do sleep 0.01; done; `
}

// Verifies: G20
func TestTree_EndsWithTheAttempt(t *testing.T) {
	l := treeLauncher(t)

	for name, c := range map[string]struct {
		end   string
		kills []Kill
		state task.State
	}{
		"by itself":  {"exit 0", nil, task.Succeeded},
		"in failure": {"exit 3", nil, task.Failed},
		"by timeout": {"echo ready; sleep 300", []Kill{{causeTimeout, 50 * time.Millisecond}}, task.TimedOut}, // when there is a process to kill
	} {
		file := filepath.Join(t.TempDir(), "pid")
		r := l.attempt(t, both(shell(daemonize(file)+"(setsid sh -c 'sleep 300' &) & "+c.end), grace(0)), c.kills...)
		if r.State != c.state {
			t.Errorf("%s: got %+v", name, r)
		}

		if pid := executortest.PIDIn(t, file); executortest.Alive(pid) {
			t.Errorf("%s: what it had daemonized lives", name)
		}
	}

	if l.groups.Quarantined() != 0 {
		t.Error("a control group was set aside")
	}
}

// TestTree_LastWords tests that processes that were left behind receive the signal before SIGKILL.
func TestTree_LastWords(t *testing.T) {
	l := treeLauncher(t)
	file := filepath.Join(t.TempDir(), "said")
	r := l.shell(t, `setsid sh -c 'trap "echo bye >`+file+`; exit 0" TERM; echo >`+file+`.ready; while :; do sleep 0.01; done' & while ! test -e `+file+`.ready; do sleep 0.01; done`)

	b, err := os.ReadFile(file)
	if string(b) != "bye\n" {
		t.Errorf("it said %q: %v; got %+v", b, err, r)
	}
}

func TestTree_ForkBombIsHeldAndEnds(t *testing.T) {
	l := treeLauncher(t)
	limits := task.Limits{PIDs: 25}
	r := l.attempt(t, both(shell("f() { setsid sh -c : & f | f & f; }; f 2>/dev/null; sleep 300"), timeout(700*time.Millisecond), grace(0),
		func(a *task.Assigned) { a.Action.Process.Limits = limits }))

	if len(l.groups.Unsupported(cgroupLimits(limits))) > 0 {
		if r.State != task.Failed || r.Reason != task.ReasonHost || !strings.Contains(r.Message, "limits.pids") {
			t.Errorf("a limit that this host lacks: %+v", r)
		}
		return
	}

	if r.State != task.TimedOut && r.State != task.Failed {
		t.Errorf("got %+v", r)
	}

	if l.groups.Quarantined() != 0 {
		t.Error("something is left of it")
	}
}

func TestTree_OutOfMemory(t *testing.T) {
	l := treeLauncher(t)
	limits := task.Limits{Memory: 24 << 20}

	for _, line := range []string{"exec tail /dev/zero", "tail /dev/zero; exit 3"} {
		r := l.attempt(t, both(shell(line), func(a *task.Assigned) { a.Action.Process.Limits = limits }))

		if len(l.groups.Unsupported(cgroupLimits(limits))) > 0 {
			if r.Reason != task.ReasonHost {
				t.Errorf("a limit that this host lacks: %+v", r)
			}
			continue
		}

		if r.State != task.Failed || r.Reason != task.ReasonOOM || !strings.Contains(r.Message, "limits.memory is 24Mi") {
			t.Errorf("%s: got %+v", line, r)
		}

		if r.Usage.MemoryPeak < 12<<20 || r.Usage.MemoryPeak > 24<<20 {
			t.Errorf("%s: used %+v", line, r.Usage)
		}
	}
}

// With cgroup v1 the shell survives; with v2 it is killed, too.
func TestTree_OutOfMemoryAndWentOn(t *testing.T) {
	l := treeLauncher(t)
	limits := task.Limits{Memory: 24 << 20}
	r := l.attempt(t, both(shell("tail /dev/zero; exit 0"), func(a *task.Assigned) { a.Action.Process.Limits = limits }))

	want := task.ReasonOOM
	if len(l.groups.Unsupported(cgroupLimits(limits))) > 0 {
		want = task.ReasonHost
	}

	if r.State != task.Failed || r.Reason != want || want == task.ReasonOOM && !strings.HasPrefix(r.Message, "out of memory: limits.memory is 24Mi; ") {
		t.Errorf("got %+v", r)
	}
}

func TestResult_MeetsLimits(t *testing.T) {
	t.Parallel()
	memory, pids, cpu := task.Limits{Memory: 1 << 30}, task.Limits{PIDs: 9}, task.Limits{CPUTime: task.Duration(time.Minute)}
	killed, exited := Result{State: task.Failed, Reason: task.ReasonSignal, Signal: "SIGKILL", Message: "killed by SIGKILL"}, Result{}
	exited.setExited(152, nil)

	for name, c := range map[string]struct {
		r       Result
		l       task.Limits
		u       cgroup.Usage
		main    time.Duration
		reason  string
		message string
	}{
		"no limit was met":                {killed, memory, cgroup.Usage{}, 0, task.ReasonSignal, "killed by SIGKILL"},
		"its memory":                      {killed, memory, cgroup.Usage{OOMKills: 1, MemoryFull: true}, 0, task.ReasonOOM, "out of memory: limits.memory is 1Gi; killed by SIGKILL"},
		"its memory, and it exits with 0": {Result{State: task.Succeeded}, memory, cgroup.Usage{OOMKills: 2, MemoryFull: true}, 0, task.ReasonOOM, "out of memory: limits.memory is 1Gi; 2 processes were killed"},
		"the host's memory":               {killed, memory, cgroup.Usage{OOMKills: 1}, 0, task.ReasonOOM, "out of memory: the host or the limit of the agent was exhausted; killed by SIGKILL"},
		"the host's, without limits":      {killed, pids, cgroup.Usage{OOMKills: 1}, 0, task.ReasonOOM, "out of memory: the host or the limit of the agent was exhausted; killed by SIGKILL"},
		"the host's, and it goes on":      {Result{State: task.Succeeded}, pids, cgroup.Usage{OOMKills: 1}, 0, "", ""},
		"pids":                            {killed, pids, cgroup.Usage{Refused: 1}, 0, task.ReasonSignal, "killed by SIGKILL; limits.pids (9) prevented the start of a process"},
		"the agent's pids":                {killed, memory, cgroup.Usage{Refused: 3}, 0, task.ReasonSignal, "killed by SIGKILL; the limit of the agent prevented the start of 3 processes"},
		"processor time":                  {killed, cpu, cgroup.Usage{}, 65 * time.Second, task.ReasonLimits, "a process used more CPU time than limits.cpu_time (1m); killed by SIGKILL"},
		"killed by somebody":              {killed, cpu, cgroup.Usage{CPU: time.Hour}, time.Minute, task.ReasonSignal, "killed by SIGKILL"},
		"a child's processor time":        {exited, cpu, cgroup.Usage{}, 0, task.ReasonLimits, "a process used more CPU time than limits.cpu_time (1m); exited with code 152"},
		"exit 152 without that limit":     {exited, memory, cgroup.Usage{}, 0, task.ReasonExit, "exited with code 152"},
	} {
		c.r.explainLimits(c.l, c.u, c.main)
		if c.r.Reason != c.reason || c.r.Message != c.message || (c.r.State == task.Failed) != (c.reason != "") {
			t.Errorf("%s: %s %s, %q; want %s, %q", name, c.r.State, c.r.Reason, c.r.Message, c.reason, c.message)
		}
	}
}

func TestTree_MemoryIsNotTheDaemons(t *testing.T) {
	l := treeLauncher(t)

	// Memory that stays resident until the end. It is not on Go's heap, because the race detector would add its
	// own memory for that.
	ballast, err := unix.Mmap(-1, 0, 96<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	executortest.Must(t, err)
	defer func() { executortest.Must(t, unix.Munmap(ballast)) }()

	if r := l.attempt(t, command("/bin/true")); r.State != task.Succeeded || r.Usage.MemoryPeak > 16<<20 {
		t.Errorf("a small process is said to have used %+v", r.Usage)
	}

	told := func() int64 { // MiB; only a peak above this is reported
		var own unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
			t.Fatal(err)
		}
		return (own.Maxrss + own.Maxrss>>4) >> 10
	}

	for tries := 1; ; tries++ {
		more := told() + 80
		r := l.shell(t, fmt.Sprintf("dd if=/dev/zero of=/dev/null bs=%dM count=1 2>/dev/null", more))
		if r.Usage.MemoryPeak == 0 && more <= told() && tries < 10 {
			continue // parallel tests have used more memory meanwhile
		}

		if r.State != task.Succeeded || r.Usage.MemoryPeak < more<<20 || r.Usage.MemoryPeak > (more+44)<<20 {
			t.Errorf("a large process of %d MiB is said to have used %+v: %s", more, r.Usage, r.Message)
		}

		break
	}
}

func TestTree_Usage(t *testing.T) {
	l := treeLauncher(t)
	// The time is spent in a process for which no process waits, and which must not be killed before it has spent
	// it.
	r := l.shell(t, "(trap '' TERM; i=0; while test $i -lt 100000; do i=$((i+1)); done) & sleep 0.01; exit 0")
	if r.State != task.Succeeded || l.groups.Any() && r.Usage.CPUMS < 10 {
		t.Errorf("got %+v", r)
	}

	// If the next attempt reused the control group without correction, this time would be added to its own.
	if next := l.attempt(t, command("/bin/true")); next.Usage.CPUMS > 1000 || l.groups.Any() && next.Usage.CPUMS >= r.Usage.CPUMS {
		t.Errorf("the next attempt is said to have used %+v, after %+v", next.Usage, r.Usage)
	}
}

// TestOrphans_EndWithTheirAttempts tests a host without control groups.
func TestOrphans_EndWithTheirAttempts(t *testing.T) {
	t.Setenv("EXECUTOR_TEST_CGROUP", cgroup.Off)
	d := startDaemon(t,
		": >@first; while ! test -e @stop; do sleep 0.02; done", // the orphan might belong to this attempt
		"while ! test -e @first; do sleep 0.01; done; "+strings.ReplaceAll(daemonize("@wiped"), `trap "" TERM HUP`, ":")+"exit 0",
		"setsid sh -c 'echo $$ >@marked; exec sleep 300' & while ! test -s @marked; do sleep 0.01; done")
	wiped, marked := d.pid("wiped"), d.pid("marked")
	executortest.Eventually(t, "what carries the mark of an attempt ends with it", func() bool { return !executortest.Alive(marked) })

	if !executortest.Alive(wiped) {
		t.Error("a process that may be of an attempt that runs was killed")
	}

	if err := os.WriteFile(filepath.Join(d.dir, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "what may be of any attempt ends with the last", func() bool { return !executortest.Alive(wiped) })
	executortest.Eventually(t, "no zombie is left", func() bool {
		return !slices.ContainsFunc(childrenIn(t, d.Process.Pid), func(st proctree.Stat) bool { return st.Dead() })
	})
}

// A process that daemonizes at once may be adopted before the start of its attempt was registered. The test is not
// parallel, because orphans of other tests could be assigned to this attempt.
func TestOrphans_AreTracedFromTheFirstInstructionOn(t *testing.T) {
	l := newLauncher(t, spool.Config{})
	l.orphans = proctree.NewOrphans()
	l.spawner.orphans = l.orphans
	a := executortest.Assigned("r1", &task.Process{Command: []string{"/bin/true"}})
	alone(&a)

	prep, err := l.prepareAttempt(a, executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	traced, main := false, 0
	prep.bound.steps = append(prep.bound.steps, step{"nothing", func(pid int) error { // while orphans is locked
		main, traced = pid, l.orphans.Traces(pid)
		return nil
	}})

	r := l.runPrepared(prep, NewOrders())
	l.orphans.Lock()
	after := l.orphans.Traces(main)
	l.orphans.Unlock()

	if r.State != task.Succeeded || !traced || after {
		t.Errorf("traced: %v, afterwards: %v; %+v", traced, after, r)
	}
}

// childrenIn returns the children of all threads of a process.
func childrenIn(t *testing.T, of int) (children []proctree.Stat) {
	pids, err := proctree.ListPIDs()
	if err != nil {
		t.Fatal(err)
	}

	for _, pid := range pids {
		if st, err := proctree.ReadStat(pid); err == nil && st.Parent == of {
			children = append(children, st)
		}
	}

	return children
}

func TestGuardian_LeavesNoControlGroup(t *testing.T) {
	d := startDaemon(t, daemonize("@wiped")+"sleep 300")
	b, _ := os.ReadFile(filepath.Join(d.dir, "cgroups")) // without control groups there is no such file
	roots := strings.Fields(string(b))
	pid := d.pid("wiped")
	d.kill()
	executortest.Eventually(t, "the instance is cleared", d.cleared)

	if len(roots) > 0 && executortest.Alive(pid) { // without control groups it is not found, because its daemon does not exist any more to adopt it
		t.Error("what had daemonized lives")
	}

	for _, root := range roots {
		if _, err := os.Stat(root); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", root, err)
		}
	}

	killNumber(t, pid)
}

// TestTree_FreezeStopsWhatLeftTheGroupToo observes two processes that count, one of them in a new session.
func TestTree_FreezeStopsWhatLeftTheGroupToo(t *testing.T) {
	l := treeLauncher(t)
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	count := func(to string) string { return "while :; do echo >> " + to + "; sleep 0.005; done" }

	prep, err := l.prepareAttempt(executortest.Assigned("r1", &task.Process{Shell: "setsid /bin/sh -c '" + count(a) + "' & " + count(b)}), executortest.NewToken())
	if err != nil {
		t.Fatal(err)
	}

	out := l.spool.NewOutput(prep.path, prep.output)
	defer out.Close()

	o := NewOrders()

	p, err := l.startProcess(prep, out, o)
	if err != nil {
		t.Fatal(err)
	}

	size := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.Size()
	}

	grows := func(path string) func() bool {
		from := size(path)
		return func() bool { return size(path) > from }
	}

	executortest.Eventually(t, "both count", func() bool { return size(a) > 0 && size(b) > 0 })

	if err := freezePatiently(&p.tree); err != nil {
		t.Fatal(err)
	}

	before := [2]int64{size(a), size(b)}
	time.Sleep(50 * time.Millisecond)

	if after := [2]int64{size(a), size(b)}; after != before {
		t.Errorf("frozen, they counted from %v to %v", before, after)
	}

	if p.tree.Empty() {
		t.Error("a frozen tree is said to be empty")
	}

	if err := p.tree.Thaw(); err != nil {
		t.Fatal(err)
	}

	executortest.Eventually(t, "a goes on", grows(a))
	executortest.Eventually(t, "b goes on", grows(b))

	if err := freezePatiently(&p.tree); err != nil {
		t.Fatal(err)
	}

	o.Kill(Kill{Cause: CauseCancel}) // a frozen attempt can be killed, too
	p.waitForMain(prep, o)

	if l.groups.Quarantined() != 0 {
		t.Error("something is left")
	}
}

// An administrator may have removed the daemon's groups, or the host may allow no more.
func TestTree_WithoutAGroupIfNoneCanBeMade(t *testing.T) {
	l := treeLauncher(t)
	for _, root := range l.groups.Roots() {
		for _, dir := range []string{"plain/1", "plain", "limited", ""} {
			_ = os.Remove(filepath.Join(root, dir))
		}
	}

	if r := l.shell(t, "echo ran"); r.State != task.Succeeded {
		t.Errorf("got %+v", r)
	}

	limited := func(a *task.Assigned) { a.Action.Process.Limits.PIDs = 50 }
	if r := l.attempt(t, both(shell("echo ran"), limited)); r.State != task.Failed {
		t.Errorf("with a limit: %+v", r)
	}
}

// killNumber kills a process that a test has left behind.
func killNumber(t *testing.T, pid int) {
	t.Helper()
	if st, err := proctree.ReadStat(pid); err == nil && !st.Dead() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}
