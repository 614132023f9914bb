package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/carillonhq/carillon/pkg/task"
)

// noSuchProgram is the smallest exit code with which a shell reports that it could not run a program.
const noSuchProgram = 126

// WithPager calls print with stdout or, if that is a terminal and PAGER is set, with the input of that program.
// It returns when both have ended. It is not an error if the user quits the pager early.
func (p *Printer) WithPager(print func(out io.Writer) error) error {
	program := strings.TrimSpace(p.Env("PAGER"))
	if _, tty := p.Terminal(p.Out); !tty || program == "" || program == "cat" {
		return print(p.Out)
	}

	cmd := exec.Command("/bin/sh", "-c", program)
	cmd.Stdout, cmd.Stderr, cmd.Env = p.Out, p.Err, os.Environ()
	if p.Env("LESS") == "" {
		cmd.Env = append(cmd.Env, "LESS=FRX") // as git does: allow colors, and quit if the text fits on one screen
	}

	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}

	if err != nil {
		return fmt.Errorf("start the pager %s: %w", task.Quote(program), err)
	}

	failed := print(in)
	_ = in.Close() // the pager may have ended already

	err = cmd.Wait()
	switch left := errors.Is(failed, syscall.EPIPE); {
	case err != nil && (failed == nil || left && cmd.ProcessState.ExitCode() >= noSuchProgram):
		return fmt.Errorf("the pager %s: %w", task.Quote(program), err)
	case left:
		return nil
	}

	return failed
}
