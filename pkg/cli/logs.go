package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) runLogs() *cobra.Command {
	var follow bool
	var attempt, tail int
	cmd := &cobra.Command{
		Use:   "logs RUN",
		Short: "Print what a run wrote",
		Long: "Print what a run wrote. With -f it goes on until the run has ended, its retries included.\n\n" +
			runNames,
		Example: `  carillon logs nightly-backup
  carillon logs nightly-backup -f
  carillon logs nightly-backup@02:30 --tail 20
  carillon logs 20261120T220500.000Z-k3f9 --attempt 1`,
		Args:              args(1, 1, "the run"),
		ValidArgsFunction: a.completeRuns,
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run has ended")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "of this attempt (default: the latest)")
	cmd.Flags().IntVar(&tail, "tail", 0, "only the last so many lines (0: all)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		switch {
		case attempt < 0:
			return usage("--attempt %d: must not be negative", attempt)
		case tail < 0:
			return usage("--tail %d: must not be negative", tail)
		case follow && attempt > 0:
			return usage("--follow and --attempt exclude each other")
		case follow && tail > 0:
			return usage("--follow and --tail exclude each other")
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		r, err := a.findRun(cmd.Context(), c, words[0])
		if err != nil {
			return err
		}
		if follow {
			f := following{app: a, c: c, run: r}
			return f.loop(cmd.Context())
		}
		return a.printLogs(cmd.Context(), c, r, client.LogOptions{Attempt: attempt, Tail: tail})
	}
	return only(cmd, asTable, asJSON) // JSON is only for errors: output is what it is
}

// printLogs prints a run's output as it is. Where its file is gone, the end of
// it that is kept with the run has to do.
func (a *app) printLogs(ctx context.Context, c *client.Client, r task.Run, o client.LogOptions) error {
	body, err := c.LogsWith(ctx, r.Namespace, r.Task, r.ID, o)
	var e *client.Error
	gone := errors.As(err, &e) && (e.Code == client.CodeNoLogs || e.Code == client.CodeNodeAway)
	if gone && r.OutputTail != "" && (o.Attempt == 0 || o.Attempt == r.Attempt) {
		a.note("the full output cannot be had (%s); this is its end, kept with the run", e.Message)
		return a.print(r.OutputTail)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	n, err := io.Copy(a.Out, body)
	if err != nil {
		return fmt.Errorf("read the output of %s: %w", r.ID, err)
	}
	if n == 0 {
		a.note("it has written nothing")
	}
	return nil
}

// Following polls: often while output comes, less so when it does not.
const (
	followFirst = 200 * time.Millisecond
	followMost  = 2 * time.Second
)

// following prints a run's output as it grows, attempt after attempt.
type following struct {
	*app
	c       *client.Client
	run     task.Run
	attempt int   // whose output is being printed
	seen    int64 // bytes of it
	trouble time.Time
}

func (f *following) loop(ctx context.Context) error {
	wait := followFirst
	for {
		// The state first, the output after it: what a run wrote before it ended
		// is then not missed.
		final := f.run.State.Final()
		n, err := f.more(ctx)
		if err == nil && final {
			f.note("%s %s", f.plainResult(), f.endWords(f.run))
			return nil
		}
		if err == nil {
			err = f.look(ctx)
		}
		if err == nil && f.run.State.Final() {
			f.trouble = time.Time{}
			continue // for what it wrote at last
		}
		if err := f.bear(ctx, err); err != nil {
			return err
		}
		wait = min(wait*3/2, followMost)
		if n > 0 {
			wait = followFirst
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func (f *following) plainResult() string {
	plain := *f.app
	plain.color = "never"
	return plain.result(f.run)
}

// look reads the run's state; if another attempt has begun, its output is next.
func (f *following) look(ctx context.Context) error {
	r, err := f.c.Run(ctx, f.run.Namespace, f.run.Task, f.run.ID)
	if err != nil {
		return err
	}
	f.run = r
	return nil
}

// more prints what has been written since, of the attempt at hand and, if that
// has ended, of those after it.
func (f *following) more(ctx context.Context) (int64, error) {
	latest := max(f.run.Attempt, 1)
	if f.attempt == 0 {
		f.attempt = latest
	}
	var sum int64
	for at := f.attempt; at <= latest; at++ {
		if at != f.attempt {
			f.attempt, f.seen = at, 0
		}
		n, err := f.read(ctx)
		sum += n
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

func (f *following) read(ctx context.Context) (int64, error) {
	r := f.run
	body, err := f.c.LogsWith(ctx, r.Namespace, r.Task, r.ID, client.LogOptions{Attempt: f.attempt, From: f.seen})
	if e := (*client.Error)(nil); errors.As(err, &e) && e.Code == client.CodeNoLogs {
		if r.State.Final() && f.seen == 0 && f.attempt == r.Attempt && r.OutputTail != "" {
			f.seen = int64(len(r.OutputTail))
			return f.seen, f.print(r.OutputTail)
		}
		return 0, nil // it has not started, or wrote nothing
	}
	if err != nil {
		return 0, err
	}
	defer body.Close()
	n, err := io.Copy(f.Out, body)
	f.seen += n
	if err != nil {
		return n, fmt.Errorf("read the output of %s: %w", r.ID, err)
	}
	return n, nil
}

// bear puts up with a server that is away for a while.
func (f *following) bear(ctx context.Context, err error) error {
	switch {
	case err == nil:
		f.trouble = time.Time{}
		return nil
	case ctx.Err() != nil:
		return err
	case !errors.Is(err, task.ErrUnavailable) && !strings.Contains(err.Error(), "unexpected EOF"):
		return err
	case f.trouble.IsZero():
		f.trouble = f.now()
		f.note("waiting for the server: %s", err)
	case f.now().Sub(f.trouble) > pollPatience:
		return err
	}
	return nil
}
