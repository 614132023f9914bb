package spawn

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command describes a process to start.
type Command struct {
	Path string   // path of the program; a relative path is relative to Dir
	Args []string // begins with the program's name
	Env  []string
	Dir  string // working directory; "": the parent's

	Files  [3]uintptr          // the parent's descriptors that become 0, 1 and 2; each must be above 2
	Setsid bool                // start a new session; otherwise a new process group
	User   *syscall.Credential // user and groups; nil: the parent's
	Cgroup int                 // descriptor of the control group (v2) to start in; -1: the parent's

	// MaxProcesses, if not nil, is RLIMIT_NPROC. It is set after the change of the
	// user. If it were set before, the kernel would refuse the execve for a user with more processes.
	MaxProcesses *unix.Rlimit

	// Hold makes the process wait for Release before it changes its user. Until then no other user can
	// affect it, and the parent can change its attributes by its process id.
	Hold bool
}

// Error is the error of a step of the child. Unwrap returns the errno.
type Error struct {
	Step  string // such as "execve" or "chdir"
	Errno syscall.Errno
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Step, e.Errno) }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }
