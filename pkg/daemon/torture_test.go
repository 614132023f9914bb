package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// worst is a program with bad behavior, and its documented end.
type worst struct {
	name   string
	shell  string
	edit   func(*task.Spec)
	state  task.State
	reason string
	says   func(task.Run) error // checks more of the record; nil: nothing more
}

// timed sets a timeout and a grace period.
func timed(after, grace time.Duration) func(*task.Spec) {
	return func(s *task.Spec) { s.Timeout, s.KillGrace = task.Duration(after), task.Duration(grace) }
}

func both(edits ...func(*task.Spec)) func(*task.Spec) {
	return func(s *task.Spec) {
		for _, e := range edits {
			e(s)
		}
	}
}

func exits(code int) func(task.Run) error {
	return func(r task.Run) error {
		if r.ExitCode == nil || *r.ExitCode != code {
			return fmt.Errorf("exit code %v, want %d", r.ExitCode, code)
		}
		return nil
	}
}

func prints(bytes int64) func(task.Run) error {
	return func(r task.Run) error {
		if r.OutputBytes != bytes {
			return fmt.Errorf("printed %d bytes, want %d", r.OutputBytes, bytes)
		}
		return nil
	}
}

// theWorst returns programs with bad behavior. setuid is a setuid program of root that prints its effective user.
func theWorst(setuid string) []worst {
	nobody := func(s *task.Spec) { s.Action.Process.User, s.Action.Process.Dir = "nobody", "/" }
	return []worst{
		{"ignores SIGTERM", `trap '' TERM INT HUP QUIT; while :; do sleep 1; done`, timed(300*time.Millisecond, 200*time.Millisecond), task.TimedOut, task.ReasonTimeout, nil},
		{"stops itself", `kill -STOP $$; sleep 300`, timed(300*time.Millisecond, 200*time.Millisecond), task.TimedOut, task.ReasonTimeout, nil},
		{"forks away twice, without its environment", `(setsid env -i sh -c '(setsid sleep 300 &) ; exec sleep 300' </dev/null >/dev/null 2>&1 &); exit 0`, nil, task.Succeeded, "", exits(0)},
		{"leaves zombies", `for i in 1 2 3 4 5; do sleep 0.01 & done; exec sleep 0.2`, nil, task.Succeeded, "", nil},
		{"holds its output open", `setsid sleep 300 & echo gone; exit 0`, nil, task.Succeeded, "", prints(5)},
		{"kills itself", `kill -KILL $$`, nil, task.Failed, task.ReasonSignal, nil},
		{"floods its output, without a newline", `exec head -c 50000000 /dev/zero`, nil, task.Succeeded, "", func(r task.Run) error {
			if !r.Truncated {
				return errors.New("all of it is kept")
			}
			return prints(50_000_000)(r)
		}},
		{"prints what is no text", `head -c 65536 /dev/urandom; printf '\033]0;title\007\000\377'`, nil, task.Succeeded, "", prints(65536 + 12)},
		{"closes its output", `exec >&- 2>&- <&-; sleep 0.1; exit 3`, nil, task.Failed, task.ReasonExit, exits(3)},
		{"deletes its directory", `rm -rf "$CARILLON_SCRATCH"; sleep 0.1; cd / && exit 4`, func(s *task.Spec) { s.Action.Process.Scratch = true }, task.Failed, task.ReasonExit, exits(4)},
		{"fills its directory", `mkdir -p $(seq -f d%g/d/d 300) && touch $(seq -f d%g/d/f 300) && chmod 0 $(seq -f d%g/d 300)`, func(s *task.Spec) { s.Action.Process.Scratch = true }, task.Succeeded, "", nil},
		{"has a /tmp of its own", `ls -A /tmp | wc -l; echo x >/tmp/carillon-torture; kill -KILL $$`, func(s *task.Spec) { s.Action.Process.PrivateTmp = true }, task.Failed, task.ReasonSignal, prints(2)},
		{"forks without end", `f() { f | f & f; }; f; sleep 300`, func(s *task.Spec) { s.Action.Process.Limits.PIDs = 60 }, task.Failed, task.ReasonExit, func(r task.Run) error {
			if !strings.Contains(r.Message, "limits.pids") { // the shell gives up
				return errors.New("its record does not name limits.pids")
			}
			return nil
		}},
		{"takes all memory", `exec tail /dev/zero`, func(s *task.Spec) { s.Action.Process.Limits.Memory = 64 << 20 }, task.Failed, task.ReasonOOM, nil},
		{"is setuid, and may be", setuid, nobody, task.Succeeded, "", prints(2)},
		{"is setuid, and may not be", setuid, both(nobody, func(s *task.Spec) { s.Action.Process.NoNewPrivs = true }), task.Succeeded, "", prints(6)},
		{"opens what it can", `exec 9</dev/null; i=10; while [ $i -lt 300 ]; do eval "exec $i</dev/null" || exit 5; i=$((i+1)); done`, func(s *task.Spec) {
			s.Action.Process.Shell, s.Action.Process.Command = "", []string{"bash", "-c", s.Action.Process.Shell}
			s.Action.Process.Limits.OpenFiles = 64
		}, task.Failed, task.ReasonExit, nil},
		{"has a hundred thousand arguments", `exec true $(seq 100000)`, nil, task.Succeeded, "", exits(0)},
	}
}

// TestTorture_EveryProgramEndsAsDocumentedAndLeavesNothing also tests that another task misses no tick meanwhile.
//
// Verifies: G20
func TestTorture_EveryProgramEndsAsDocumentedAndLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	if os.Geteuid() != 0 {
		t.Skip("other users, control groups and mounts are root's")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--slots", "30")
	p := c.start("torturer") // unique among the nodes of all tests
	neighbour := task.Defaults()
	neighbour.Name, neighbour.Schedule, neighbour.History.Keep = "neighbour", task.Schedules{"* * * * * *"}, 500
	// A slow machine may not complete a run within its second, or may decide two ticks at once.
	neighbour.Overlap, neighbour.Missed.Policy = task.OverlapAllow, task.MissedAll
	neighbour.Action.Process = &task.Process{Command: []string{"true"}}
	c.create("torturer", neighbour)
	setuid := setuidID(t)
	c.ticked(t, c.client("torturer"), neighbour.Name)
	before := p.has(t)
	alone := c.lateness(t, time.Time{})
	began := time.Now()
	tooMany := spec("too-many", "")
	tooMany.Action.Process = &task.Process{Command: slices.Repeat([]string{"true"}, 100_000)}
	var refused *client.Error
	if _, err := c.client("torturer").Tasks.Create(t.Context(), "default", tooMany); !errors.As(err, &refused) || refused.Field != "action.process.command" {
		t.Errorf("100,000 arguments in a task: %v", err)
	}

	// All programs run at the same time.
	programs := theWorst(setuid)
	var runs []task.Run
	for i, w := range programs {
		s := spec("worst-"+strconv.Itoa(i), w.shell)
		if w.edit != nil {
			w.edit(&s)
		}
		if s.KillGrace == task.Defaults().KillGrace {
			s.KillGrace = task.Duration(300 * time.Millisecond)
		}
		c.create("torturer", s)
		runs = append(runs, c.trigger("torturer", s.Name))
	}
	for i, w := range programs {
		t.Run(w.name, func(t *testing.T) {
			end := c.until("torturer", runs[i].Task, runs[i].ID, task.Succeeded, task.Failed, task.TimedOut, task.Cancelled, task.Lost)
			if end.State != w.state || end.Reason != w.reason {
				t.Errorf("it %s (%s: %s), want %s (%s)", end.State, end.Reason, end.Message, w.state, w.reason)
			}
			if w.says != nil {
				if err := w.says(end); err != nil {
					t.Errorf("%v; its record: %+v", err, end)
				}
			}
			eventually(t, func() error { return left(end.ID) })
		})
	}
	p.leftNothing(t, before)
	t.Logf("lateness of a neighbour, alone: %v; beside the worst: %v", alone, c.lateness(t, began))
	if _, err := os.Stat("/tmp/carillon-torture"); err == nil {
		t.Error("what a task wrote to its own /tmp is in the host's")
	}
	p.signal(syscall.SIGTERM)
	p.isGone(t)
	if r := c.judge(check.Options{}).Summary; len(r.Missed)+len(r.Skipped) > 0 {
		t.Errorf("the neighbour missed ticks: %v, or they were skipped: %v", r.Missed, r.Skipped)
	}
}

// TestTorture_NothingIsLeftWhenTheDaemonIsKilledInTheMiddle tests that no process, zombie, control group, mount or
// directory is left.
//
// Verifies: G20
func TestTorture_NothingIsLeftWhenTheDaemonIsKilledInTheMiddle(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	if os.Geteuid() != 0 {
		t.Skip("other users, control groups and mounts are root's")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--slots", "30", "--lease-ttl", "3s")
	p := c.start("tortured")
	marks, err := os.MkdirTemp("/run", "carillon-marks-") // t.TempDir is below /tmp, which some attempts replace
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(marks) })
	for i, w := range []worst{
		{shell: `trap '' TERM INT HUP QUIT; : >%s; while :; do sleep 1; done`},
		{shell: `(setsid env -i sh -c '(setsid sleep 300 &) ; exec sleep 300' &); : >%s; sleep 300`},
		{shell: `: >%s; cat /dev/zero`},
		{shell: `echo x >/tmp/x; mkdir -p a/b/c; : >%s; sleep 300`, edit: func(s *task.Spec) { s.Action.Process.PrivateTmp, s.Action.Process.Scratch = true, true }},
		{shell: `: >%s; f() { f | f & f; }; f; sleep 300`, edit: func(s *task.Spec) { s.Action.Process.Limits.PIDs = 60 }},
		{shell: `: >%s; kill -STOP $$; sleep 300`, edit: func(s *task.Spec) { s.Action.Process.Limits.Memory = 64 << 20 }},
	} {
		mark := filepath.Join(marks, strconv.Itoa(i))
		s := spec("worst-"+strconv.Itoa(i), fmt.Sprintf(w.shell, mark))
		if w.edit != nil {
			w.edit(&s)
		}
		c.create("tortured", s)
		c.trigger("tortured", s.Name)
		eventually(t, func() error { _, err := os.Stat(mark); return err })
	}
	p.signal(syscall.SIGKILL)
	p.isGone(t)
	c.judge(check.Options{})
}

// setuidID returns a shell line that runs a setuid copy of id that belongs to root.
func setuidID(t *testing.T) string {
	t.Helper()
	id, err := exec.LookPath("id")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(id)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "carillon-setuid-") // only root can enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "id")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, b, 0o755), os.Chmod(path, 0o755|fs.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	return path + " -u"
}

// has counts the resources of a daemon. kept counts descriptors of control groups and directories that it keeps
// for later attempts. Nothing else may grow.
type has struct{ descriptors, kept, goroutines, mounts int }

func (p *process) has(t *testing.T) has {
	t.Helper()
	h, err := p.holds()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)`)

func (p *process) holds() (h has, err error) {
	dir := "/proc/" + strconv.Itoa(p.cmd.Process.Pid)
	descriptors, err1 := os.ReadDir(dir + "/fd")
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	own, err3 := os.ReadFile(dir + "/mountinfo")
	res, err4 := http.Get(p.metricsURL())
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return h, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	m := goroutines.FindSubmatch(body)
	if err != nil || res.StatusCode != http.StatusOK || m == nil {
		return h, fmt.Errorf("metrics: %s, %w", res.Status, err)
	}

	for _, d := range descriptors {
		path, _ := os.Readlink(dir + "/fd/" + d.Name()) // it may be closed by now
		if strings.Contains(path, "/carillon-"+p.name+"-") || strings.Contains(path, "/carillon/"+p.name+"/") {
			h.kept++
		} else {
			h.descriptors++
		}
	}
	for line := range bytes.Lines(append(mounts, own...)) {
		if bytes.Contains(line, []byte(p.name)) { // other programs on this host mount, too
			h.mounts++
		}
	}
	h.goroutines, err = strconv.Atoi(string(m[1]))
	return h, err
}

// slack is how many more descriptors and goroutines a daemon may have than before, for calls in progress.
const slack = 24

// maxKept is the maximum number of descriptors that a daemon with 30 slots keeps for later attempts: three of the
// control group and one of the directory for each slot, and one of the pool's directory.
const maxKept = 30*4 + 1

// leftNothing waits until nothing of ended attempts is left.
func (p *process) leftNothing(t *testing.T, before has) {
	t.Helper()
	eventually(t, func() error {
		if err := errors.Join(p.zombies(), errors.Join(p.grouped(false)...)); err != nil {
			return err
		}
		now, err := p.holds()
		if err != nil {
			return err
		}
		if now.descriptors > before.descriptors+slack || now.kept > maxKept || now.goroutines > before.goroutines+slack || now.mounts != before.mounts {
			return fmt.Errorf("it had %+v, and has %+v", before, now)
		}
		return nil
	})
}

// left returns an error if processes carry a run's id. Processes with a cleared environment are found by groupsOf.
func left(run string) error {
	return eachProcess(func(pid, dir string) error {
		if env, err := os.ReadFile(dir + "/environ"); err == nil && bytes.Contains(env, []byte("CARILLON_RUN_ID="+run+"\x00")) {
			return fmt.Errorf("process %s is left: %s", pid, commandOf(dir))
		}
		return nil
	})
}

// zombies returns an error if the daemon has children that were not reaped.
func (p *process) zombies() error {
	parent := "PPid:\t" + strconv.Itoa(p.cmd.Process.Pid) + "\n"
	return eachProcess(func(pid, dir string) error {
		if status, err := os.ReadFile(dir + "/status"); err == nil && bytes.Contains(status, []byte(parent)) && bytes.Contains(status, []byte("State:\tZ")) {
			return fmt.Errorf("process %s is a zombie", pid)
		}
		return nil
	})
}

func eachProcess(look func(pid, dir string) error) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		err = errors.Join(err, look(filepath.Base(dir), dir))
	}
	return err
}

func commandOf(dir string) string {
	b, _ := os.ReadFile(dir + "/cmdline")
	return strings.ReplaceAll(string(b), "\x00", " ")
}

// grouped returns an error for each of the daemon's control groups: for all of them, or only those with processes.
// A process with a new session and a cleared environment is found there.
func (p *process) grouped(all bool) (left []error) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, "carillon") && strings.Contains(path, p.name) {
			if procs, _ := os.ReadFile(path + "/cgroup.procs"); all || len(procs) > 0 {
				left = append(left, fmt.Errorf("control group %s is left, with processes %q", path, procs))
			}
		}
		return nil
	})
	return left
}

// isGone waits until nothing of an ended daemon is left: no control group with its node's name, no directory and
// no process of its attempts.
func (p *process) isGone(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		left := p.grouped(true)
		if rooms, _ := filepath.Glob("/var/cache/carillon/" + p.name + "/*/*"); len(rooms) > 0 {
			left = append(left, fmt.Errorf("directories are left: %v", rooms))
		}
		left = append(left, eachProcess(func(pid, dir string) error {
			if env, err := os.ReadFile(dir + "/environ"); err == nil && bytes.Contains(env, []byte("CARILLON_NODE="+p.name+"\x00")) {
				return fmt.Errorf("process %s is left: %s", pid, commandOf(dir))
			}
			return nil
		}))
		return errors.Join(left...)
	})
}

// lateness returns the largest and the median lateness of the other task, for ticks after an instant.
func (c *cluster) lateness(t *testing.T, after time.Time) string {
	t.Helper()
	var ms []int64
	runs, err := c.client("torturer").Runs.ListByTask(t.Context(), "default", "neighbour", client.RunListOptions{Limit: 500})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if r.LatenessMS != nil && r.ScheduledTime.After(after) {
			ms = append(ms, *r.LatenessMS)
		}
	}
	if len(ms) == 0 {
		return "no ticks"
	}
	slices.Sort(ms)
	return fmt.Sprintf("p50 %d ms, max %d ms of %d", ms[len(ms)/2], ms[len(ms)-1], len(ms))
}

// ticked waits until the run of the current second is decided.
func (c *cluster) ticked(t *testing.T, cl *client.Client, name string) {
	t.Helper()
	eventually(t, func() error {
		runs, err := cl.Runs.ListByTask(t.Context(), "default", name, client.RunListOptions{})
		if err == nil && (len(runs) == 0 || !runs[0].ScheduledTime.Equal(time.Now().Truncate(time.Second))) {
			err = fmt.Errorf("%s has not run in this second", name)
		}
		return err
	})
}
