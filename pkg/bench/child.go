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

// child is this program, started anew with a hidden subcommand of bench: what is
// weighed must not share a process with what weighs it. Its orders are the first
// JSON value on its standard input, which stays open as long as its parent wants
// it to live; what it has to say is JSON on its standard output.
type child struct {
	cmd   *exec.Cmd
	leash io.Closer
	says  *json.Decoder
}

// childPatience is how long a child may take to end once it is let go.
const childPatience = time.Minute

// startChild starts one. It lives until stop; that must be called.
func startChild(name string, orders any, errs io.Writer) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	text, err := json.Marshal(orders)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	c := &child{cmd: exec.Command(exe, "bench", name)}
	c.cmd.Stderr = errs
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is its parent's affair

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

	c.leash, c.says = in, json.NewDecoder(out)

	if _, err := in.Write(append(text, '\n')); err != nil {
		return nil, errors.Join(fmt.Errorf("give %s its orders: %w", name, err), c.stopChild())
	}

	return c, nil
}

// readReport reads the next of what the child says; when ctx ends, the child is let go.
// io.EOF: it has said all.
func (c *child) readReport(ctx context.Context, v any) error {
	defer context.AfterFunc(ctx, func() { _ = c.leash.Close() })()

	err := c.says.Decode(v)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return err
}

// stopChild lets the child go and waits for its end; the error is the child's.
func (c *child) stopChild() error {
	_ = c.leash.Close()
	kill := time.AfterFunc(childPatience, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()

	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%s %s: %w", c.cmd.Args[1], c.cmd.Args[2], err)
	}

	return nil
}

// errLetGo is why a child's context ends when nobody wants it any more.
var errLetGo = errors.New("let go")

// readOrders reads a child's orders and returns a context that ends when its parent
// lets it go, or dies.
func readOrders(ctx context.Context, in io.Reader, orders any) (context.Context, error) {
	if err := json.NewDecoder(in).Decode(orders); err != nil {
		return nil, fmt.Errorf("read the orders: %w", err)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in) // until it is closed
		cancel(errLetGo)
	}()

	return ctx, nil
}
