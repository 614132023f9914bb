package process

import (
	"cmp"
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

// spawner creates all processes from a few threads that live as long as its run.
// The kernel sends the parent-death signal when the *thread* that forked ends, not the
// process. If ordinary goroutines forked, the Go runtime could end their thread at any time,
// and the kernel would kill the attempts. The threads do not wait until processes
// execute their programs, because users can delay that forever, and they
// touch no path that a user could make hang. The attempt's own goroutine waits instead.
//
// There is one thread for each combination of two properties. Processes with
// no_new_privs need their own thread, because a thread cannot give up that attribute.
// Starts that take milliseconds (a private mount namespace, moves to v1 control
// groups) have their own thread, so that they do not delay the others.
type spawner struct {
	requests [kindCount]chan *spawnRequest // by kind of thread
	orphans  *proctree.Orphans             // nil: orphans do not become children of the daemon
	null     *os.File                      // /dev/null, the standard input of processes without another one
	nullFD   uintptr
	terminal bool // the daemon has a controlling terminal
}

// Kinds of threads. They are bits, which can be combined; kinds is the number of combinations.
const (
	stateNoNewPrivs = 1 << iota // the thread has no_new_privs
	slowStart                   // its starts may take milliseconds
	kindCount       = 1 << iota
)

// spawnRequest describes a process to start. The thread that serves it sets the fields below reply, then closes reply.
type spawnRequest struct {
	program string
	argv    []string
	env     []string
	dir     string              // the working directory
	as      *syscall.Credential // nil: the daemon's own
	stdin   uintptr             // descriptor of its stdin; 0: /dev/null
	output  uintptr             // descriptor of its stdout
	errput  uintptr             // descriptor of its stderr; may equal output
	bound   *confinement        // nil: not confined
	workdir string              // the attempt's workdir; with bound.private, its private directories are in it
	group   *cgroup.Group       // the control group to start it in; nil: none
	may     func() error        // called directly before the fork; an error forbids it. It does not block
	guarded guardian.Handle     // the attempt at the guardian
	traced  *proctree.Tree      // the tree to which orphans assign its descendants; nil: none

	reply   chan struct{}
	created *spawn.Process // valid if err is nil
	pid     int
	pidfd   int            // -1 if the kernel has no pidfds; the receiver closes it
	birth   proctree.Birth // the process was created in this interval of CLOCK_BOOTTIME
	started time.Time      // directly before the fork
	err     error
}

// newSpawner prepares a spawner. Descriptors that this program inherited from its own parent become close-on-exec.
func newSpawner() (*spawner, error) {
	if err := closeOnExec(); err != nil {
		return nil, err
	}

	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}

	s := &spawner{null: null, nullFD: null.Fd(), terminal: hasTerminal()}
	for kind := range kindCount {
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

// closeOnExec marks all descriptors above 2 as close-on-exec, so that no attempt inherits what this program
// inherited from its parent. Descriptors that Go opens have the flag anyway.
func closeOnExec() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // before Linux 5.11
		return closeEachOnExec()
	}
	return os.NewSyscallError("close_range", err)
}

// closeEachOnExec is closeOnExec for older kernels.
func closeEachOnExec() error {
	open, err := os.ReadDir("/proc/self/fd")
	for _, d := range open {
		if fd, err := strconv.Atoi(d.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}

	return err
}

// serveRequests serves requests until ctx ends. All started processes must have ended by then,
// because the kernel kills those that remain when their thread ends.
func (s *spawner) serveRequests(ctx context.Context) {
	defer s.null.Close()

	var all sync.WaitGroup

	for kind, requests := range s.requests {
		all.Go(func() { s.serveThread(ctx, requests, thread{noNewPrivs: kind&stateNoNewPrivs != 0}) })
	}

	all.Wait()
}

// serveThread serves the requests of one kind. It takes a thread when the first request arrives, because most
// nodes need only one kind.
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

// serveRequestsOn forks for r and for further requests until none is waiting. The message to the guardian with
// the process number of one attempt is sent together with the announcement of the next, or at the end. This saves a
// write for each attempt of a burst. Until then the guardian finds the process by its environment.
func (s *spawner) serveRequestsOn(t *thread, requests chan *spawnRequest, r *spawnRequest) {
	for {
		s.forkProcess(t, r)
		guardian := r.guarded // r belongs to its requester once reply is closed
		close(r.reply)

		select {
		case r = <-requests:
		default:
			_ = guardian.Flush() // if this fails, the next guardian receives everything
			return
		}
	}
}

// startOn passes r to a thread and waits until it has forked, or has failed to. If off is closed before a thread
// takes r, it returns errCalledOff and nothing was started.
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

// forkProcess creates the process of r and sets r.err. If it is an error, no process is left.
func (s *spawner) forkProcess(t *thread, r *spawnRequest) {
	defer t.restoreState()

	// The order of these checks matters. Flush makes the guardian know the attempt before its process exists
	// (G17). may comes last, because the guardian may have taken its time: it checks that the session, the start
	// deadline and the policy still allow the start.
	if r.err = t.applyConfinement(r.bound, r.workdir); r.err != nil {
		return
	}
	if r.err = r.guarded.Flush(); r.err != nil {
		return
	}
	if r.err = r.may(); r.err != nil {
		return
	}

	r.started, r.birth.From = time.Now(), proctree.BootTime()
	// If the daemon has a controlling terminal, a process in its session could open the terminal and inject
	// input, even as another user. A new session has no terminal. Without a terminal a new process group is
	// enough. With autogroup, the kernel schedules each session as a unit: a session costs 0.1 ms, and nice would have
	// no effect between attempts.
	command := spawn.Command{
		Path: r.program, Args: r.argv, Env: r.env, Dir: r.dir, Files: [3]uintptr{cmp.Or(r.stdin, s.nullFD), r.output, r.errput},
		Setsid: s.terminal, User: r.as, Cgroup: -1,
	}
	if r.group != nil {
		command.Cgroup = r.group.FD()
	}

	if r.bound != nil {
		command.MaxProcesses, command.Hold = r.bound.maxProcesses, r.bound.hasSteps()
	}

	// The lock keeps orphans from reaping the process before Born has registered it.
	s.orphans.Lock()
	defer s.orphans.Unlock()

	if r.created, r.err = spawn.Start(&command); r.err != nil {
		return
	}

	r.pid, r.pidfd = r.created.PID, r.created.PIDFD
	s.orphans.Born(r.pid, r.traced, r.birth)

	r.birth.To = proctree.BootTime()

	if command.Hold {
		// The process waits, still as the daemon's user and before its program, until Release.
		if r.err = r.bound.takeSteps(r.pid); r.err != nil {
			s.discardHeld(r)
			return
		}
		r.created.Release()
	}

	r.guarded.Started(r.pid, r.birth)
}

// discardHeld kills and reaps a process that is held. The caller holds the lock of orphans.
func (s *spawner) discardHeld(r *spawnRequest) {
	_ = unix.Kill(r.pid, unix.SIGKILL)
	_ = r.created.AwaitExec(time.Time{})
	_, _, _ = reapProcess(r.pid)
	s.orphans.Reaped(r.pid)

	if r.pidfd >= 0 {
		unix.Close(r.pidfd)
	}
}

// errCalledOff means that the attempt received a kill before it started. Nothing was started.
var errCalledOff = errors.New("cancelled before the start")

// awaitExit returns when the process has ended. It leaves the zombie to be reaped by the caller:
// until then the process number, which is also that of the group, cannot be given to another process. It
// occupies a thread only on kernels without pidfds; otherwise the runtime's poller waits.
func awaitExit(pid int, pidfd *os.File) error {
	if pidfd == nil {
		return waitWithoutReaping(unix.P_PID, pid, 0)
	}

	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}

	var werr error
	err = rc.Read(func(fd uintptr) bool {
		werr = waitWithoutReaping(unix.P_PIDFD, int(fd), unix.WNOHANG)
		return !errors.Is(werr, errRunning)
	})

	return errors.Join(err, werr)
}

// errRunning is what waitid returns with WNOHANG while the process runs.
var errRunning = errors.New("still running")

// waitWithoutReaping waits for the end of a process without reaping it (WNOWAIT).
func waitWithoutReaping(kind, id, options int) error {
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

// reapProcess reaps a zombie. It returns its status and the resource usage of the process and of
// the descendants that it had reaped itself.
func reapProcess(pid int) (ws syscall.WaitStatus, took syscall.Rusage, err error) {
	for {
		if _, err = syscall.Wait4(pid, &ws, 0, &took); err != syscall.EINTR {
			return ws, took, os.NewSyscallError("wait4", err)
		}
	}
}
