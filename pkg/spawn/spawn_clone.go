//go:build linux && (amd64 || arm64)

package spawn

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/spawn/nofile"
)

// CanHold reports whether Command.Hold and Command.MaxProcesses are supported on this architecture.
const CanHold = true

// start makes a clone or clone3 system call. In the parent it returns the result. The
// child executes the list of calls that begins with first, and never returns. It is implemented in assembly.
func start(nr, a1, a2, a3, a4, a5 uintptr, first *call) (result uintptr)

// call is one system call of the child. The assembly depends on this layout.
type call struct {
	nr      uintptr    // number of the system call
	args    [6]uintptr // its arguments
	result  uintptr    // set by the child; noResult until then
	then    uintptr    // how the child continues; see mustSucceed
	operand uintptr    // used by mustEqual and whileZero
}

// How the child continues after a call. If the condition is not met, it exits.
const (
	mustSucceed = iota // continue unless the result is an error
	mayFail            // continue in any case
	mustEqual          // continue if the result equals the operand
	whileZero          // repeat the call while the 32-bit word at the address operand is zero, then continue
)

// noResult is the value of call.result before the call has returned.
const noResult = math.MaxUint32

// stepNames contains the names of system calls for Error.
var stepNames = map[uintptr]string{
	unix.SYS_EXECVE: "execve", unix.SYS_CHDIR: "chdir", unix.SYS_SETUID: "setuid", unix.SYS_SETGID: "setgid", unix.SYS_SETGROUPS: "setgroups",
	unix.SYS_SETSID: "setsid", unix.SYS_SETPGID: "setpgid", unix.SYS_DUP3: "dup3", unix.SYS_PRCTL: "prctl", unix.SYS_PRLIMIT64: "prlimit64",
	unix.SYS_GETPPID: "the parent process ended",
}

const (
	intoCgroup    = 0x200000000 // CLONE_INTO_CGROUP
	lastSignal    = 64
	sigsetSize    = 8
	futexWait     = 0 | 128 // FUTEX_WAIT_PRIVATE
	futexWake     = 1 | 128 // FUTEX_WAKE_PRIVATE
	maxErrno      = 4095
	callsAtMost   = 28 + lastSignal
	closeRangeAll = math.MaxUint32
)

// sigaction has the size of the kernel's struct. All zero means the default disposition.
type sigaction struct{ words [4]uint64 }

// cloneArgs is the kernel's struct clone_args.
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// memory contains everything that the child reads and writes. It is on the heap and must stay reachable until
// the child has executed its program or ended.
type memory struct {
	calls        []call      // what the child does; never reallocated once it has started
	cloneArgs    cloneArgs   // the argument of clone3
	pidfd        int32       // set by the kernel; -1: none
	released     uint32      // a futex, which Release sets to 1
	everySignal  uint64      // a signal mask with all signals
	noSignal     uint64      // an empty signal mask
	dflt         sigaction   // the default disposition
	files        unix.Rlimit // RLIMIT_NOFILE of the child
	maxProcesses unix.Rlimit // RLIMIT_NPROC of the child
	groups       []uint32    // supplementary groups
	path, dir    *byte       // NUL-terminated; dir may be nil
	argv, envv   []*byte     // nil-terminated
}

// Process is a process that has been created. It may not have executed its program yet.
type Process struct {
	PID   int
	PIDFD int // -1 if the kernel has no pidfds; the caller closes it

	status *os.File // read end of a pipe, which ends when the child has executed its program or ended
	memory *memory  // nil when the child does not use it any more
}

// Start creates a process and returns without waiting for it. The caller's thread must not
// end before the process, because the process would be killed. The caller must also wait for the process.
//
// The process inherits attributes of the thread: umask, mount namespace, no_new_privs.
func Start(c *Command) (*Process, error) {
	for _, fd := range c.Files {
		if fd < 3 {
			return nil, fmt.Errorf("pass descriptor %d to the new process: %w", fd, syscall.EBADF)
		}
	}

	m := &memory{pidfd: -1, everySignal: math.MaxUint64}
	if err := m.copyCommand(c); err != nil {
		return nil, err
	}

	// Nothing is written to this pipe. The write end of the child is closed by execve and by exit, which AwaitExec
	// finds as the end of the pipe.
	var status [2]int
	if err := unix.Pipe2(status[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}

	m.prepareCalls(c, status[1])
	pid, errno := m.cloneChild(c)
	unix.Close(status[1])

	if errno != 0 {
		unix.Close(status[0])
		return nil, errno
	}

	return &Process{PID: pid, PIDFD: int(m.pidfd), status: os.NewFile(uintptr(status[0]), "status"), memory: m}, nil
}

// copyCommand converts the command to the memory to which the calls point.
func (m *memory) copyCommand(c *Command) (err error) {
	if m.path, err = syscall.BytePtrFromString(c.Path); err != nil {
		return err
	}
	if m.argv, err = syscall.SlicePtrFromStrings(c.Args); err != nil {
		return err
	}
	if m.envv, err = syscall.SlicePtrFromStrings(c.Env); err != nil {
		return err
	}

	if c.Dir != "" {
		if m.dir, err = syscall.BytePtrFromString(c.Dir); err != nil {
			return err
		}
	}

	if c.User != nil {
		m.groups = append(m.groups, c.User.Groups...)
	}

	if c.MaxProcesses != nil {
		m.maxProcesses = *c.MaxProcesses
	}

	m.files = unix.Rlimit{Cur: nofile.Soft, Max: nofile.Hard}

	return nil
}

// addCall appends a call to the list.
func (m *memory) addCall(then uintptr, operand uintptr, nr uintptr, args ...uintptr) {
	x := call{nr: nr, result: noResult, then: then, operand: operand}
	copy(x.args[:], args)
	m.calls = append(m.calls, x)
}

// prepareCalls builds the list of calls. The order matters: the child gives up the parent's descriptors before
// it changes its user, and enters the directory, which may hang, as late as possible.
func (m *memory) prepareCalls(c *Command, status int) {
	m.calls = make([]call, 0, callsAtMost)

	// The child has copies of all descriptors of the parent. It closes those that are not its own before
	// any call that a user could make hang.
	for to, from := range c.Files {
		m.addCall(mustSucceed, 0, unix.SYS_DUP3, from, uintptr(to), 0)
	}

	if status > 3 {
		m.addCall(mayFail, 0, unix.SYS_CLOSE_RANGE, 3, uintptr(status-1), 0) // without close_range, execve closes them
	}

	m.addCall(mayFail, 0, unix.SYS_CLOSE_RANGE, uintptr(status+1), closeRangeAll, 0)

	// From here on, the child is killed when the parent ends. If the parent process ended before that, getppid returns
	// another process, and the child exits.
	ended := func() {
		m.addCall(mustSucceed, 0, unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
		m.addCall(mustEqual, uintptr(os.Getpid()), unix.SYS_GETPPID)
	}

	ended()

	if c.Setsid {
		m.addCall(mustSucceed, 0, unix.SYS_SETSID)
	} else {
		m.addCall(mustSucceed, 0, unix.SYS_SETPGID)
	}

	// The Go runtime has raised the limit for itself. syscall.ForkExec does this, too.
	if nofile.Soft < nofile.Hard {
		m.addCall(mayFail, 0, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&m.files)))
	}

	if c.Hold {
		word := uintptr(unsafe.Pointer(&m.released))
		m.addCall(whileZero, word, unix.SYS_FUTEX, word, futexWait, 0)
	}

	if c.User != nil {
		var groups uintptr
		if len(m.groups) > 0 {
			groups = uintptr(unsafe.Pointer(&m.groups[0]))
		}

		if !c.User.NoSetGroups {
			m.addCall(mustSucceed, 0, unix.SYS_SETGROUPS, uintptr(len(m.groups)), groups)
		}

		m.addCall(mustSucceed, 0, unix.SYS_SETGID, uintptr(c.User.Gid))
		m.addCall(mustSucceed, 0, unix.SYS_SETUID, uintptr(c.User.Uid))
		ended() // the change of the user has cleared the parent-death signal

		// The user may signal the child from here on, and it shares the daemon's memory. Kernels before
		// 5.16 end every process that shares the memory of one that dumps core. Memory that must not be
		// dumped prevents that, whatever fs.suid_dumpable says. The program gets memory of its own.
		m.addCall(mayFail, 0, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0)
	}

	if c.MaxProcesses != nil {
		m.addCall(mustSucceed, 0, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, uintptr(unsafe.Pointer(&m.maxProcesses)))
	}

	// Entering the directory is the first call that may hang.
	if m.dir != nil {
		m.addCall(mustSucceed, 0, unix.SYS_CHDIR, uintptr(unsafe.Pointer(m.dir)))
	}

	// execve resets handled signals to their default, but leaves ignored ones ignored, as
	// CLONE_CLEAR_SIGHAND does. To read which are ignored would take as long as to reset all.
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		if sig != uintptr(unix.SIGKILL) && sig != uintptr(unix.SIGSTOP) {
			m.addCall(mayFail, 0, unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&m.dflt)), 0, sigsetSize)
		}
	}

	// A signal that was sent before takes effect now, with its default disposition.
	m.addCall(mustSucceed, 0, unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&m.noSignal)), 0, sigsetSize)
	m.addCall(mustSucceed, 0, unix.SYS_EXECVE, uintptr(unsafe.Pointer(m.path)), uintptr(unsafe.Pointer(&m.argv[0])), uintptr(unsafe.Pointer(&m.envv[0])))
}

// cloneChild creates the process. All signals are blocked meanwhile, and the child inherits that mask, so
// no signal handler of the parent runs in the child.
func (m *memory) cloneChild(c *Command) (pid int, errno syscall.Errno) {
	// The goroutine must not change its thread while the signal mask is changed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	const flags = unix.CLONE_VM | unix.CLONE_PIDFD
	pidfd := uintptr(unsafe.Pointer(&m.pidfd))

	var before uint64
	setMask(&m.everySignal, &before)

	var result uintptr
	if c.Cgroup >= 0 {
		m.cloneArgs = cloneArgs{flags: flags | intoCgroup, pidFD: uint64(pidfd), exitSignal: uint64(unix.SIGCHLD), cgroup: uint64(c.Cgroup)}
		result = start(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&m.cloneArgs)), unsafe.Sizeof(m.cloneArgs), 0, 0, 0, &m.calls[0])
	} else {
		result = start(unix.SYS_CLONE, flags|uintptr(unix.SIGCHLD), 0, pidfd, 0, 0, &m.calls[0])
	}

	setMask(&before, nil)

	if result > math.MaxUint64-maxErrno {
		return 0, syscall.Errno(-result)
	}

	return int(result), 0
}

// setMask sets the signal mask of the thread. If before is not nil, it receives the former mask.
func setMask(to, before *uint64) {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(before)), sigsetSize, 0, 0)
	if errno != 0 {
		panic("spawn: rt_sigprocmask: " + errno.Error()) // cannot fail with valid arguments
	}
}

// Release lets a held process continue. It must be called before AwaitExec has returned anything but
// os.ErrDeadlineExceeded.
func (p *Process) Release() {
	m := p.memory
	atomic.StoreUint32(&m.released, 1)
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&m.released)), futexWake, 1, 0, 0, 0)
}

// AwaitExec waits until the process has executed its program or has ended. It returns nil if the program was executed, or
// if the process was killed before that; the kernel's flag PF_FORKNOEXEC distinguishes the two. An *Error names the
// step that failed, and the process has ended. os.ErrDeadlineExceeded means that the
// deadline has passed (a zero deadline means none), and AwaitExec may be called again. Only
// one goroutine may call it at a time, and not after it has returned anything else.
func (p *Process) AwaitExec(deadline time.Time) error {
	if err := p.status.SetReadDeadline(deadline); err != nil {
		return err
	}

	var b [1]byte
	if _, err := p.status.Read(b[:]); !errors.Is(err, io.EOF) {
		return err
	}

	p.status.Close()

	err := p.memory.firstFailure()
	p.memory = nil // the environment may have secrets in it

	return err
}

// firstFailure returns the error of the first step that failed, or nil.
func (m *memory) firstFailure() error {
	for i := range m.calls {
		x := &m.calls[i]
		result := atomic.LoadUintptr(&x.result)
		switch {
		case result == noResult:
			return nil // this call has executed the program, or the process was killed here
		case x.then == mustSucceed && result > math.MaxUint64-maxErrno:
			return &Error{stepNames[x.nr], syscall.Errno(-result)}
		case x.then == mustEqual && result != x.operand:
			return &Error{stepNames[x.nr], syscall.ESRCH}
		}
	}

	return nil
}
