package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// child is this program, started again with a hidden subcommand of bench, because the process that is measured must
// not be the one that measures. It reads its request as the first JSON value from standard input, which stays open
// as long as the child may live. It writes its reports as JSON to standard output.
type child struct {
	cmd     *exec.Cmd
	stdin   io.Closer     // the child's standard input; closing it ends the child
	reports *json.Decoder // the child's reports
}

// childPatience is how long a child may take to end after its standard input was closed.
const childPatience = time.Minute

// startChild starts a child. The caller must call stopChild, which ends it.
func startChild(name string, request any, errs io.Writer) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	text, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	c := &child{cmd: exec.Command(exe, "bench", name)}
	c.cmd.Stderr = errs
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C on the terminal must reach only this process

	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), in.Close())
	}

	c.stdin, c.reports = in, json.NewDecoder(out)

	if _, err := in.Write(append(text, '\n')); err != nil {
		return nil, errors.Join(fmt.Errorf("send the request to %s: %w", name, err), c.stopChild())
	}

	return c, nil
}

// readReport reads the child's next report. When ctx ends, it closes the input of the child, which ends it. io.EOF means that no more
// reports follow.
func (c *child) readReport(ctx context.Context, v any) error {
	defer context.AfterFunc(ctx, func() { _ = c.stdin.Close() })()

	err := c.reports.Decode(v)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return err
}

// stopChild ends the child and waits for it. The error is the child's.
func (c *child) stopChild() error {
	_ = c.stdin.Close()
	kill := time.AfterFunc(childPatience, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()

	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%s %s: %w", c.cmd.Args[1], c.cmd.Args[2], err)
	}

	return nil
}

// errLetGo is why a child's context ends when its parent closes its standard input.
var errLetGo = errors.New("let go")

// readRequest reads a child's request. It returns a context that ends when the parent closes the child's standard
// input, or dies.
func readRequest(ctx context.Context, in io.Reader, request any) (context.Context, error) {
	if err := json.NewDecoder(in).Decode(request); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in) // blocks until the input is closed
		cancel(errLetGo)
	}()

	return ctx, nil
}
