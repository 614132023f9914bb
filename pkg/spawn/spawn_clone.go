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

// CanHold reports whether Command.Hold and Command.MaxProcesses work here.
const CanHold = true

// start issues a clone or clone3 system call. In the parent it returns the result. The
// child carries out the calls from first on, and never returns.
func start(nr, a1, a2, a3, a4, a5 uintptr, first *call) (result uintptr)

// call is one system call of the child. The assembly knows this layout.
type call struct {
	nr      uintptr
	args    [6]uintptr
	result  uintptr
	then    uintptr // what a result means
	operand uintptr
}

// What the result of a call means to the child. If it may not go on, it exits.
const (
	mustSucceed = iota // go on unless it is an error
	mayFail            // go on
	mustEqual          // go on if the result is the operand
	whileZero          // repeat while the 32-bit word at the operand is zero, then go on
)

// noResult is the result of a call that has not returned.
const noResult = math.MaxUint32

// The calls whose errors are named.
var stepNames = map[uintptr]string{
	unix.SYS_EXECVE: "execve", unix.SYS_CHDIR: "chdir", unix.SYS_SETUID: "setuid", unix.SYS_SETGID: "setgid", unix.SYS_SETGROUPS: "setgroups",
	unix.SYS_SETSID: "setsid", unix.SYS_SETPGID: "setpgid", unix.SYS_DUP3: "dup3", unix.SYS_PRCTL: "prctl", unix.SYS_PRLIMIT64: "prlimit64",
	unix.SYS_GETPPID: "the parent has ended",
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

// sigaction is the kernel's, all zero for the default disposition.
type sigaction struct{ words [4]uint64 }

type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// memory is all that the child reads and writes. It is on the heap, and reachable until
// the child has executed or ended.
type memory struct {
	calls        []call
	cloneArgs    cloneArgs
	pidfd        int32
	released     uint32
	everySignal  uint64
	noSignal     uint64
	dflt         sigaction
	files        unix.Rlimit
	maxProcesses unix.Rlimit
	groups       []uint32
	path, dir    *byte
	argv, envv   []*byte
}

// Process is a process that has been created. It may not have executed its program yet.
type Process struct {
	PID   int
	PIDFD int // -1 if the kernel has none

	status *os.File // at its end when the child has executed or ended
	memory *memory
}

// Start creates a process and returns without waiting for it. The caller must not let its
// thread end before the process has ended, and must wait for the process.
//
// What the thread has, the process begins with: umask, mount namespace, no_new_privs.
func Start(c *Command) (*Process, error) {
	for _, fd := range c.Files {
		if fd < 3 {
			return nil, fmt.Errorf("descriptor %d of this process is to be a descriptor of another: %w", fd, syscall.EBADF)
		}
	}

	m := &memory{pidfd: -1, everySignal: math.MaxUint64}
	if err := m.copyCommand(c); err != nil {
		return nil, err
	}

	// The write end is closed by execve, and by exit. Nothing is written to it.
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

// copyCommand makes what the calls point to.
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

func (m *memory) addCall(then uintptr, operand uintptr, nr uintptr, args ...uintptr) {
	x := call{nr: nr, result: noResult, then: then, operand: operand}
	copy(x.args[:], args)
	m.calls = append(m.calls, x)
}

// prepareCalls lists what the child does.
func (m *memory) prepareCalls(c *Command, status int) {
	m.calls = make([]call, 0, callsAtMost)

	// The child has copies of all descriptors. It gives up all that are not its own before
	// anything that a user could make hang.
	for to, from := range c.Files {
		m.addCall(mustSucceed, 0, unix.SYS_DUP3, from, uintptr(to), 0)
	}

	if status > 3 {
		m.addCall(mayFail, 0, unix.SYS_CLOSE_RANGE, 3, uintptr(status-1), 0) // else execve closes them
	}

	m.addCall(mayFail, 0, unix.SYS_CLOSE_RANGE, uintptr(status+1), closeRangeAll, 0)

	// From here on the child ends with the parent.
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
		ended() // a change of user has undone it

		// The user may signal the child from here on, and it shares the daemon's memory. Kernels before
		// 5.16 end every process that shares the memory of one that dumps core. Memory that must not be
		// dumped prevents that, whatever fs.suid_dumpable says. The program gets memory of its own.
		m.addCall(mayFail, 0, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0)
	}

	if c.MaxProcesses != nil {
		m.addCall(mustSucceed, 0, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, uintptr(unsafe.Pointer(&m.maxProcesses)))
	}

	// The directory is the first thing that may take for ever.
	if m.dir != nil {
		m.addCall(mustSucceed, 0, unix.SYS_CHDIR, uintptr(unsafe.Pointer(m.dir)))
	}

	// execve makes handled signals default, but leaves ignored ones ignored, and so does
	// CLONE_CLEAR_SIGHAND. Asking which are ignored takes as long as making them default.
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		if sig != uintptr(unix.SIGKILL) && sig != uintptr(unix.SIGSTOP) {
			m.addCall(mayFail, 0, unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&m.dflt)), 0, sigsetSize)
		}
	}

	// A signal that was sent before takes effect now, with its default disposition.
	m.addCall(mustSucceed, 0, unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&m.noSignal)), 0, sigsetSize)
	m.addCall(mustSucceed, 0, unix.SYS_EXECVE, uintptr(unsafe.Pointer(m.path)), uintptr(unsafe.Pointer(&m.argv[0])), uintptr(unsafe.Pointer(&m.envv[0])))
}

// cloneChild issues the clone. All signals are blocked meanwhile: the child inherits that, so
// that no handler of the parent's runs in it.
func (m *memory) cloneChild(c *Command) (pid int, errno syscall.Errno) {
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

func setMask(to, before *uint64) {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(before)), sigsetSize, 0, 0)
	if errno != 0 {
		panic("spawn: rt_sigprocmask: " + errno.Error()) // it has no error with such arguments
	}
}

// Release lets a process go on that is held.
func (p *Process) Release() {
	m := p.memory
	atomic.StoreUint32(&m.released, 1)
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&m.released)), futexWake, 1, 0, 0, 0)
}

// AwaitExec returns nil when the process has executed its program, or was killed before:
// whoever waits for it can tell by NeverExecuted. An *Error says why the process could not
// execute; it has ended then. os.ErrDeadlineExceeded means that nothing of this has
// happened by the deadline, if that is not zero; AwaitExec may be called again. It is called
// by one goroutine at a time, until it has returned something else.
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

// firstFailure is the first step that failed.
func (m *memory) firstFailure() error {
	for i := range m.calls {
		x := &m.calls[i]
		result := atomic.LoadUintptr(&x.result)
		switch {
		case result == noResult:
			return nil // it has executed, or was killed here
		case x.then == mustSucceed && result > math.MaxUint64-maxErrno:
			return &Error{stepNames[x.nr], syscall.Errno(-result)}
		case x.then == mustEqual && result != x.operand:
			return &Error{stepNames[x.nr], syscall.ESRCH}
		}
	}

	return nil
}
