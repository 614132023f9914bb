package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/task"
)

// Program is a program of the node, which the daemon runs for an attempt that has ended. Its path is absolute.
type Program struct {
	Path  string
	Args  []string // without the name of the program
	Stdin []byte
	// For is the process of the attempt, as whose user the program runs; nil: as the user of the daemon.
	For *task.Process
}

const (
	// programText is how many bytes of what a program writes are part of an error.
	programText = 500
	// programPipes is how long descendants of a program that has ended may hold its output open.
	programPipes = 5 * time.Second
)

// RunProgram runs a program until it ends. If ctx ends before, it kills the program and its process group. The program
// has the variables of the user, and nothing else of the attempt's environment.
func (ru *Runner) RunProgram(ctx context.Context, p Program) error {
	as := ru.without.own
	if p.For != nil {
		var err error
		if as, err = ru.account(p.For); err != nil {
			return err
		}
	}

	said := &firstBytes{max: programText}
	cmd := exec.CommandContext(ctx, p.Path, p.Args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SHELL=" + cronShell, "HOME=" + as.home, "LOGNAME=" + as.name, "USER=" + as.name}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = "/", bytes.NewReader(p.Stdin), said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as.credential}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = programPipes

	// Under the lock, Orphans cannot reap the program before Born has registered it.
	ru.orphans.Lock()
	err := cmd.Start()
	if err == nil {
		ru.orphans.Born(cmd.Process.Pid, nil, proctree.Birth{})
	}
	ru.orphans.Unlock()

	if err == nil {
		err = cmd.Wait()
		ru.orphans.Lock()
		ru.orphans.Reaped(cmd.Process.Pid)
		ru.orphans.Unlock()
	}

	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: killed: %w", p.Path, context.Cause(ctx))
	case len(said.kept) > 0:
		return fmt.Errorf("%s: %w: %s", p.Path, err, strings.ToValidUTF8(strings.TrimSpace(string(said.kept)), "\uFFFD"))
	}

	return fmt.Errorf("%s: %w", p.Path, err)
}

// firstBytes keeps the first bytes that are written to it.
type firstBytes struct {
	kept []byte
	max  int
}

var _ io.Writer = (*firstBytes)(nil)

func (f *firstBytes) Write(b []byte) (int, error) {
	f.kept = append(f.kept, b[:min(len(b), f.max-len(f.kept))]...)
	return len(b), nil
}

// Account returns the name and the home directory of the user as whom a process runs.
func (ru *Runner) Account(p *task.Process) (name, home string, err error) {
	as, err := ru.account(p)
	return as.name, as.home, err
}
