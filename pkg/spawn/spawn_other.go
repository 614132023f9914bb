//go:build linux && !(amd64 || arm64)

package spawn

import (
	"errors"
	"syscall"
	"time"
)

// CanHold reports whether Command.Hold and Command.MaxProcesses are supported on this architecture.
const CanHold = false

// Process is a process that has executed its program.
type Process struct {
	PID   int
	PIDFD int // -1 if the kernel has none
}

// Start starts a process and returns when it has executed its program. On this architecture it uses
// syscall.ForkExec, which blocks.
func Start(c *Command) (*Process, error) {
	if c.Hold || c.MaxProcesses != nil {
		return nil, errors.ErrUnsupported
	}

	p := &Process{PIDFD: -1}
	attr := &syscall.SysProcAttr{Setsid: c.Setsid, Setpgid: !c.Setsid, Pdeathsig: syscall.SIGKILL, Credential: c.User, PidFD: &p.PIDFD}
	if c.Cgroup >= 0 {
		attr.UseCgroupFD, attr.CgroupFD = true, c.Cgroup
	}

	pid, err := syscall.ForkExec(c.Path, c.Args, &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: c.Files[:], Sys: attr})
	if err != nil {
		return nil, err
	}

	p.PID = pid

	return p, nil
}

// Release does nothing: no process is held.
func (p *Process) Release() {}

// AwaitExec returns nil, because the process has executed its program.
func (p *Process) AwaitExec(time.Time) error { return nil }
