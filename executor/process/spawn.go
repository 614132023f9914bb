package process

import (
	"context"
	"errors"
	"math"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/spawn"
)

// spawner creates all processes from one thread that lives as long as its run.
// The kernel sends the parent-death signal when the *thread* that forked ends,
// so that an ordinary goroutine's would come at random. The thread does not wait for
// processes to execute their programs, which their users can make take for ever, and it
// touches no path that a user could make hang: whoever asked for a process waits.
//
// Other threads start what can gain no rights, which the kernel has of a thread for
// good, and what takes some milliseconds: mounts of its own, or to be moved to control
// groups.
type spawner struct {
	requests [kinds]chan *spawnRequest
	orphans  *proctree.Orphans // nil: they are not the daemon's
	null     *os.File
	nullFD   uintptr
	terminal bool // the daemon was started from one
}

// The kinds of threads, which can be combined.
const (
	unprivileged = 1 << iota
	slowStart
	kinds = 1 << iota
)

// spawnRequest is what to start, and what came of it.
type spawnRequest struct {
	program string
	argv    []string
	env     []string
	dir     string
	as      *syscall.Credential
	output  uintptr
	errput  uintptr       // may be output, too
	bound   *confinement  // nil: by nothing
	room    string        // with bound.private: where its directories are
	group   *cgroup.Group // to be started in; nil: none
	may     func() error  // asked directly before the fork; an error forbids it. It does not block
	guarded guardian.Handle
	traced  *proctree.Tree // by orphans; nil: it is not

	reply   chan struct{}
	created *spawn.Process
	pid     int
	pidfd   int // -1 if the kernel has none
	birth   proctree.Birth
	started time.Time
	err     error
}

func newSpawner() (*spawner, error) {
	if err := closeOnExec(); err != nil {
		return nil, err
	}

	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}

	s := &spawner{null: null, nullFD: null.Fd(), terminal: hasTerminal()}
	for kind := range kinds {
		s.requests[kind] = make(chan *spawnRequest)
	}

	return s, nil
}

// hasTerminal reports whether this process has a controlling terminal.
func hasTerminal() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// closeOnExec keeps from processes what this program inherited from whoever
// started it. All that it opens itself is closed on exec anyway.
func closeOnExec() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // before Linux 5.11
		return closeEachOnExec()
	}
	return os.NewSyscallError("close_range", err)
}

func closeEachOnExec() error {
	open, err := os.ReadDir("/proc/self/fd")
	for _, d := range open {
		if fd, err := strconv.Atoi(d.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}

	return err
}

// run serves until ctx ends. By then all that it started must have ended: it is
// killed with the thread otherwise.
func (s *spawner) run(ctx context.Context) {
	defer s.null.Close()

	var all sync.WaitGroup

	for kind, requests := range s.requests {
		all.Go(func() { s.serveThread(ctx, requests, thread{noNewPrivs: kind&unprivileged != 0}) })
	}

	all.Wait()
}

// serveThread serves the requests of one thread, which it takes when the first is there.
func (s *spawner) serveThread(ctx context.Context, requests chan *spawnRequest, t thread) {
	select {
	case <-ctx.Done():
		return
	case first := <-requests:
		onThread(func() (clean bool) {
			t.setNoNewPrivs()
			s.serveRequestsOn(&t, requests, first)

			for {
				select {
				case <-ctx.Done():
					return t.closeThread()
				case r := <-requests:
					s.serveRequestsOn(&t, requests, r)
				}
			}
		})
	}
}

// serveRequestsOn forks until nobody waits. What is told of a process travels to the
// guardian with the announcement of the next, or now.
func (s *spawner) serveRequestsOn(t *thread, requests chan *spawnRequest, r *spawnRequest) {
	for {
		s.forkProcess(t, r)
		guardian := r.guarded
		close(r.reply)

		select {
		case r = <-requests:
		default:
			_ = guardian.Flush() // or the next guardian is told
			return
		}
	}
}

// startOn has a process started and waits for that, unless it is called off first.
func (s *spawner) startOn(r *spawnRequest, off <-chan struct{}) error {
	r.reply = make(chan struct{})
	select {
	case <-off:
		return errCalledOff
	case s.requests[r.bound.threadKind()] <- r:
		<-r.reply
		return r.err
	}
}

func (s *spawner) forkProcess(t *thread, r *spawnRequest) {
	defer t.restore()

	if r.err = t.applyConfinement(r.bound, r.room); r.err != nil {
		return
	}
	if r.err = r.guarded.Flush(); r.err != nil {
		return
	}
	if r.err = r.may(); r.err != nil { // last, since the guardian may have taken its time
		return
	}

	r.started, r.birth.From = time.Now(), proctree.BootTime()
	// Whoever can open the terminal that the daemon was started from can type there, another
	// user's process too: a session of its own has none. Without a terminal a group will do:
	// where the kernel groups what it schedules by sessions (autogroup), one costs 0.1 ms, and
	// nice would count for nothing beside other attempts.
	command := spawn.Command{
		Path: r.program, Args: r.argv, Env: r.env, Dir: r.dir, Files: [3]uintptr{s.nullFD, r.output, r.errput},
		Setsid: s.terminal, User: r.as, Cgroup: -1,
	}
	if r.group != nil {
		command.Cgroup = r.group.FD()
	}

	if r.bound != nil {
		command.MaxProcesses, command.Hold = r.bound.maxProcesses, r.bound.hasSteps()
	}

	s.orphans.Lock()
	defer s.orphans.Unlock()

	if r.created, r.err = spawn.Start(&command); r.err != nil {
		return
	}

	r.pid, r.pidfd = r.created.PID, r.created.PIDFD
	s.orphans.Born(r.pid, r.traced, r.birth)

	r.birth.To = proctree.BootTime()

	if command.Hold {
		if r.err = r.bound.takeSteps(r.pid); r.err != nil {
			s.discardHeld(r)
			return
		}
		r.created.Release()
	}

	r.guarded.Started(r.pid, r.birth)
}

// discardHeld ends a process that is held. orphans is locked.
func (s *spawner) discardHeld(r *spawnRequest) {
	_ = unix.Kill(r.pid, unix.SIGKILL)
	_ = r.created.AwaitExec(time.Time{})
	_, _, _ = reap(r.pid)
	s.orphans.Reaped(r.pid)

	if r.pidfd >= 0 {
		unix.Close(r.pidfd)
	}
}

// errCalledOff means that nothing was started.
var errCalledOff = errors.New("called off before the start")

// awaitExit returns when the process has ended, which it leaves to be reaped:
// until then its number, and its group's, belong to nobody else. It needs a
// thread only on kernels without pidfds.
func awaitExit(pid int, pidfd *os.File) error {
	if pidfd == nil {
		return waitid(unix.P_PID, pid, 0)
	}

	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}

	var werr error
	err = rc.Read(func(fd uintptr) bool {
		werr = waitid(unix.P_PIDFD, int(fd), unix.WNOHANG)
		return !errors.Is(werr, errRunning)
	})

	return errors.Join(err, werr)
}

var errRunning = errors.New("still running")

func waitid(kind, id, options int) error {
	for {
		var info unix.Siginfo
		switch err := unix.Waitid(kind, id, &info, unix.WEXITED|unix.WNOWAIT|options, nil); {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("waitid", err)
		case info.Signo == 0:
			return errRunning
		default:
			return nil
		}
	}
}

// reap removes the zombie and returns its status, and what it and those took that
// it had reaped.
func reap(pid int) (ws syscall.WaitStatus, took syscall.Rusage, err error) {
	for {
		if _, err = syscall.Wait4(pid, &ws, 0, &took); err != syscall.EINTR {
			return ws, took, os.NewSyscallError("wait4", err)
		}
	}
}
