package spawn

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command is what to start.
type Command struct {
	Path string   // of the program; a relative one starts at Dir
	Args []string // with the program's name
	Env  []string
	Dir  string // "": the parent's

	Files  [3]uintptr // descriptors 0, 1 and 2 of the program; all above 2
	Setsid bool       // a session of its own, else a process group of its own
	User   *syscall.Credential
	Cgroup int // descriptor of the control group (v2) to start in; -1: the parent's

	// MaxProcesses, if not nil, is RLIMIT_NPROC. It is set when the process has become the
	// user: before that, the kernel would refuse to execute for a user who has more.
	MaxProcesses *unix.Rlimit

	// Hold has the process wait for Release before it becomes the user. Until then only
	// the parent decides about it, and can do to it what takes its process id.
	Hold bool
}

// Error says which step of the child failed. Unwrap returns the errno.
type Error struct {
	Step  string // such as "execve" or "chdir"
	Errno syscall.Errno
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Step, e.Errno) }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }
