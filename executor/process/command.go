package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/spawn"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command is a program that the administrator of the node has configured. It is no attempt: it has no record, and needs neither etcd
// nor a guardian. Like an attempt of a task that names no user, it runs as the default user, in that user's home, with cron's
// environment instead of the daemon's, and nothing of its process group is left when it has ended.
type Command struct {
	Program     string // an absolute path
	DefaultUser string // "" is the daemon's own user
	Timeout     time.Duration

	busy atomic.Bool // a run has not ended, although Run may have returned
}

// commandOutput is how many bytes of the end of a command's output are kept.
const commandOutput = 1024

// Run runs the program with additional environment variables until it ends, until its time is up, or until ctx ends, and returns the
// end of its output. The error says why the program was not executed, or how it failed. orphans are those of the executor, which must
// not reap the program; nil: none.
func (c *Command) Run(ctx context.Context, env []string, orphans *proctree.Orphans) (output []byte, err error) {
	if !c.busy.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("%w since its previous run", errStuck)
	}

	r, w, err := os.Pipe()
	if err != nil {
		c.busy.Store(false)
		return nil, err
	}
	defer r.Close()

	tail := make(chan []byte, 1)
	go func() { tail <- readTail(r) }()

	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()

	// The kernel kills a process whose creating thread ends, so the thread waits for the process. A file system that does not
	// respond can delay it without limit, but nothing else.
	ended := make(chan error, 1)
	drained := make(chan struct{})
	go onThread(func() (clean bool) {
		defer c.busy.Store(false)
		ended <- c.runProcess(ctx, env, w, drained, orphans)
		return true
	})

	// The output ends when all processes that write to it have ended.
	inTime := true
	select {
	case output = <-tail:
		close(drained)
	case <-ctx.Done():
		inTime = false
	}

	select {
	case err = <-ended:
	case <-time.After(c.Timeout + proctree.KillLimit):
		err = errStuck
	}

	if !inTime {
		_ = r.SetReadDeadline(time.Now().Add(drainLimit)) // a process that has left the group may still hold the pipe
		output = <-tail
	}

	return output, err
}

// runProcess starts the program with w as its output, which it closes, waits for it, and kills what is left of its group. Processes
// that the program leaves behind may write until drained is closed or ctx ends.
func (c *Command) runProcess(ctx context.Context, env []string, w *os.File, drained <-chan struct{}, orphans *proctree.Orphans) error {
	defer w.Close()

	without, err := newDefaultAccount(c.DefaultUser)
	if err != nil {
		return fmt.Errorf("default user: %w", err)
	}

	as, err := (&Runner{without: without, adminGroup: task.AdminGroup}).account(&task.Process{})
	if err != nil {
		return err
	}

	dir, err := workDir("", as)
	if err != nil {
		return err
	}

	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()

	// Under the lock, orphans cannot reap the process before Born has registered it.
	orphans.Lock()
	p, err := spawn.Start(&spawn.Command{
		Path: c.Program, Args: []string{c.Program}, Dir: dir,
		Env:    append([]string{"HOME=" + as.home, "LOGNAME=" + as.name, "PATH=" + cronPath, "SHELL=" + cronShell}, env...),
		Files:  [3]uintptr{null.Fd(), w.Fd(), w.Fd()},
		Setsid: true, User: as.credential, Cgroup: -1,
	})
	if err == nil {
		orphans.Born(p.PID, nil, proctree.Birth{})
	}
	orphans.Unlock()
	w.Close()

	if err != nil {
		return startFailure(err, c.Program, dir)
	}

	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = awaitExit(p.PID, nil)
	}()

	select {
	case <-exited:
		select {
		case <-drained:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}

	// Until the process is reaped, its number, which is also that of its group, is not used again. It has no group before it has
	// executed.
	_ = unix.Kill(-p.PID, unix.SIGKILL)
	_ = unix.Kill(p.PID, unix.SIGKILL)
	<-exited
	failed := p.AwaitExec(time.Time{})

	orphans.Lock()
	status, _, err := reapProcess(p.PID)
	orphans.Reaped(p.PID)
	orphans.Unlock()
	if p.PIDFD >= 0 {
		unix.Close(p.PIDFD)
	}

	switch {
	case failed != nil:
		return startFailure(failed, c.Program, dir)
	case err != nil:
		return err
	case status.Signaled() && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("killed after %s", task.Duration(c.Timeout))
	case status.Signaled():
		return fmt.Errorf("killed by signal %d (%s)", status.Signal(), status.Signal())
	case status.ExitStatus() != 0:
		return fmt.Errorf("exit %d", status.ExitStatus())
	}

	return nil
}

// readTail reads to the end and returns the last commandOutput bytes.
func readTail(r *os.File) []byte {
	var tail []byte
	b := make([]byte, 4096)
	for {
		n, err := r.Read(b)
		tail = append(tail, b[:n]...)
		tail = bytes.Clone(tail[max(0, len(tail)-commandOutput):])
		if err != nil {
			return tail
		}
	}
}
