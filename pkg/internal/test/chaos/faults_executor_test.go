package chaos_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

var executorFaults = []*fault{
	{name: "kill-in-run", group: "executor", quick: true, what: "kill -9 of a daemon between start and end of its tasks: the guardian kills them", hold: lasting(4, 6), inject: killInRun},
	{name: "guardian-killed", group: "executor", what: "kill -9 of a guardian: another one takes over", hold: lasting(1, 3), inject: killGuardian},
	{name: "guardian-and-daemon-killed", group: "executor", what: "kill -9 of a guardian and its daemon", hold: lasting(3, 5), inject: killBoth},
	{name: "ignores-sigterm", group: "executor", what: "a burst of tasks that ignore SIGTERM, cancelled", hold: lasting(2, 3), inject: burst("stubborn", 6, true)},
	{name: "forks-away", group: "executor", what: "a burst of tasks that leave a process in a session of its own", hold: lasting(2, 3), inject: burst("forks", 8, false)},
	{name: "holds-the-pipe", group: "executor", what: "a burst of tasks whose children keep their output open", hold: lasting(3, 5), inject: burst("holds", 8, false)},
	{name: "floods-output", group: "executor", what: "a burst of tasks that write 4 MB each", hold: lasting(2, 4), inject: burst("floods", 8, false)},
	{name: "spool-full", group: "executor", what: "a full disk below the data directory of a node", hold: lasting(4, 7), inject: fillDisk,
		off: func(w *world) string { return w.noSmallDisk }},
	{name: "no-descriptors", group: "executor", what: "a daemon whose limit of open files is what it has open", hold: lasting(3, 6), inject: noDescriptors},
}

// tasksOf returns the processes of the attempts on a node, except for those that may outlive their attempts.
func (w *world) tasksOf(n *node) (all []found) {
	for _, f := range find(w.mark) {
		if f.variable("CARILLON_NODE") == n.name && f.isTask() {
			all = append(all, f)
		}
	}

	return all
}

// age returns how long ago a process started.
func age(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	up, err2 := os.ReadFile("/proc/uptime")
	if err != nil || err2 != nil {
		return 0
	}

	words := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	began, _ := strconv.ParseFloat(words[19], 64) // in units of 1/100 s
	now, _ := strconv.ParseFloat(strings.Fields(string(up))[0], 64)

	return time.Duration((now - began/100) * float64(time.Second))
}

// eachThread calls do for all threads of a process.
func eachThread(pid int, do func(tid int) error) error {
	dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, d := range dirs {
		if tid, e := strconv.Atoi(filepath.Base(d)); e == nil {
			if e = do(tid); e != nil && !errors.Is(e, unix.ESRCH) {
				err = errors.Join(err, e)
			}
		}
	}

	return err
}

// killInRun kills a daemon that runs tasks. None of their processes may outlive it for long (G17), because nobody
// waits for lost_after once the guardian has written that they are dead.
func killInRun(w *world, in *injection) (func() error, error) {
	n, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	if err := w.eventually(w.promised(15*time.Second), func() error {
		if len(w.tasksOf(n)) == 0 {
			return errors.New("no task runs on " + n.name)
		}
		return nil
	}); err != nil {
		return nil, err
	}

	if err := w.stopNode(n, syscall.SIGKILL); err != nil {
		return nil, err
	}

	return func() error {
		if err := w.eventually(w.promised(5*time.Second), func() error { return w.noTasks(n) }); err != nil {
			w.fail("G17", "%s was killed: %v", n.name, err)
		}
		return w.startNode(n)
	}, nil
}

func (w *world) noTasks(n *node) error {
	for _, f := range w.tasksOf(n) {
		return fmt.Errorf("pid %d (%s) of run %s outlives its daemon", f.pid, f.command, f.variable("CARILLON_RUN_ID"))
	}
	return nil
}

func (w *world) guardians(n *node) (all []found) {
	for _, f := range find(w.mark) {
		if f.variable(asDaemon) == n.control && strings.HasSuffix(f.command, " guardian") {
			all = append(all, f)
		}
	}

	return all
}

func killGuardian(w *world, in *injection) (func() error, error) {
	n, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	for _, g := range w.guardians(n) {
		err = errors.Join(err, syscall.Kill(g.pid, syscall.SIGKILL))
	}

	return func() error { return nil }, err
}

func killBoth(w *world, in *injection) (func() error, error) {
	n, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	w.scrape(n)
	n.exits = true
	for _, g := range w.guardians(n) {
		_ = syscall.Kill(g.pid, syscall.SIGKILL)
	}

	return func() error { return w.startNode(n) }, n.process.end(syscall.SIGKILL, 5*time.Second)
}

// burst triggers many runs of a kind of task, and with cancel cancels them at the end.
func burst(name string, many int, cancel bool) func(*world, *injection) (func() error, error) {
	return func(w *world, in *injection) (func() error, error) {
		var runs []client.Triggered
		for range many {
			up := w.up()
			r, err := up[in.rnd.IntN(len(up))].client.Tasks.Trigger(w.ctx, loadSpace, name+"-000", nil)
			if err != nil && !errors.Is(err, task.ErrUnavailable) && !errors.Is(err, task.ErrUnknown) {
				return nil, err
			}

			if err == nil {
				runs = append(runs, r)
			}
		}

		in.note = fmt.Sprintf("%d runs", len(runs))
		return func() error {
			if !cancel {
				return nil
			}

			for _, r := range runs {
				up := w.up()
				_, err := up[in.rnd.IntN(len(up))].client.Runs.Cancel(w.ctx, loadSpace, r.Task, r.ID)
				if err != nil && !errors.Is(err, task.ErrConflict) && !errors.Is(err, task.ErrNotFound) && !errors.Is(err, task.ErrUnavailable) && !errors.Is(err, task.ErrUnknown) {
					return err
				}
			}

			return nil
		}, nil
	}
}

// mountPoint is where the file system of the node with the small disk is mounted.
func (w *world) mountPoint() string { return filepath.Join(w.dir, "n2") }

// smallDisk puts a node's data directory on its own file system, which can become full. This requires root.
func (w *world) smallDisk(n *node) {
	w.noSmallDisk = ""
	err := os.MkdirAll(n.dir, 0o700)
	if err == nil {
		err = unix.Mount("tmpfs", w.mountPoint(), "tmpfs", 0, "size=24m,mode=0700")
	}

	if err != nil {
		w.noSmallDisk = fmt.Sprintf("a small file system cannot be mounted here: %v", err)
		return
	}

	w.small = n
	w.closers = append(w.closers, func() {
		if err := unix.Unmount(n.dir, unix.MNT_DETACH); err != nil {
			w.t.Errorf("unmount %s: %v", n.dir, err)
		}
	})
}

func fillDisk(w *world, in *injection) (func() error, error) {
	n := w.small
	if n.busy || n.exits {
		return nil, errors.New("the node with the small disk is hurt already")
	}

	in.node, in.note, n.busy = n, n.name, true
	path := filepath.Join(n.dir, "filler")

	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}

	defer f.Close()

	for piece := make([]byte, 4096); err == nil; { // until there is no space
		_, err = f.Write(piece)
	}

	if !errors.Is(err, unix.ENOSPC) {
		return nil, err
	}

	return func() error { return os.Remove(path) }, nil
}

func noDescriptors(w *world, in *injection) (func() error, error) {
	n, err := w.pick(in)
	if err != nil {
		return nil, err
	}

	pid := n.process.pid()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, err
	}

	var was unix.Rlimit
	none := unix.Rlimit{Cur: uint64(len(open)), Max: 0}

	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		return nil, err
	}

	none.Max = was.Max

	return func() error { return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil) }, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &none, nil)
}
