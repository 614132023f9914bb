package logs

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// silenceBeforeLookup is how long an attempt may print nothing before its run's record is read. The attempt
	// may have ended although its node can no longer report that.
	silenceBeforeLookup = 10 * time.Second
	// atTheEnd is an offset beyond any output. A stream from there only waits for the end of the attempt.
	atTheEnd = 1 << 40
)

var (
	errAgain    = errors.New("look again")                                        // the output is unavailable, but the server works: try again
	errNotThere = errors.New("the attempt is over, and its node does not say so") // the record states that the attempt has ended, but its node does not
)

// followAttempt follows an attempt to its end. After an error it can be called again, and continues at the byte
// that it has reached.
func (t *RunFollower) followAttempt(ctx context.Context, n int) error {
	if t.Out != nil {
		t.Out.attempt = n
	}

	o := client.LogOptions{Attempt: n, From: t.seen, Times: t.Out != nil && t.Out.wantsTimes()}

	switch {
	case t.Out == nil:
		o.From = atTheEnd
	case t.seen == 0:
		o.Tail = t.lines
	}

	over := t.attemptIsOver(n)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	body, err := t.C.Logs.Follow(ctx, t.Run.Namespace, t.Run.Task, t.Run.ID, o)
	if e := (*client.Error)(nil); errors.As(err, &e) {
		gone := e.Code == client.CodeNoLogs || e.Code == client.CodeNodeAway // any other error is a problem of the server
		switch {
		case gone && over:
			t.writeKeptOutput(n, e)
			return nil
		case gone && e.Code == client.CodeNodeAway:
			if !t.nodeAwayNoted {
				t.M.Tell("waiting: %s", e.Message)
			}
			t.nodeAwayNoted = true
			return errAgain
		case gone:
			return errAgain // the attempt was handed back, and starts on another node
		}
	}

	if err != nil {
		return err
	}

	defer body.Close()

	t.nodeAwayNoted, t.unreachableNoted, t.unreachableSince = false, false, time.Time{}
	if t.seen = max(t.seen, body.From); t.Out == nil {
		t.seen = 0
	}

	var reading atomic.Int64
	run := t.Run
	go func() {
		if isStuck(ctx, t.C, run, n, &reading) {
			cancel(errNotThere)
		}
	}()

	err = t.copyOutput(body, &reading)

	if errors.Is(context.Cause(ctx), errNotThere) {
		t.M.Tell("cannot read the rest of the output of %s: its node does not respond", t.partName())
		return nil
	}

	return err
}

// isStuck waits until the run's record states that the attempt has ended although its stream is still silent.
// It returns false if ctx ends first.
func isStuck(ctx context.Context, c *client.Client, run task.Run, n int, reading *atomic.Int64) bool {
	tick := time.NewTicker(silenceBeforeLookup)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}

		since := reading.Load()
		if since == 0 || time.Since(time.Unix(0, since)) < silenceBeforeLookup {
			continue
		}
		if r, err := c.Runs.Get(ctx, run.Namespace, run.Task, run.ID); err == nil && (r.State.Final() || r.Attempt > n) && reading.Load() == since {
			return true
		}
	}
}

// copyOutput writes the output of a stream. reading contains since when it waits for more output (Unix
// nanoseconds), or 0 if it does not wait.
func (t *RunFollower) copyOutput(body *client.LogStream, reading *atomic.Int64) error {
	for {
		reading.Store(time.Now().UnixNano())
		p, err := body.Next()
		reading.Store(0)

		if len(p.Text) > 0 && t.Out != nil {
			t.seen = p.From + int64(len(p.Text))
			if err := t.Out.addPiece(p); err != nil {
				return err
			}
		}

		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// writeKeptOutput writes the end of the output that the record of the run contains, because the output itself
// is gone.
func (t *RunFollower) writeKeptOutput(n int, why *client.Error) {
	switch {
	case t.Out == nil:
	case isUnkeptResponse(t.Run, why):
		t.M.tellUnkept()
	case n == t.Run.Attempt && t.seen == 0 && t.Run.OutputTail != "":
		t.M.tellKept(t.Run, why)
		_, _ = t.Out.Write([]byte(t.Run.OutputTail)) // the next write returns the error
	case why.Code == client.CodeNodeAway || t.Run.State.Final() && n == t.Run.Attempt && t.Run.OutputBytes > 0:
		t.M.Tell("output of %s, attempt %d: %s", t.partName(), n, why.Message)
	}
}

// isUnkeptResponse reports whether the output of a run is gone because it is the response to a part that succeeded. Its own
// record has the end of the response for a while, but the record of its run, which remains, does not.
func isUnkeptResponse(r task.Run, why *client.Error) bool {
	request := r.ExitCode == nil // a process that succeeded has an exit code
	return why.Code == client.CodeNoLogs && task.IsPart(r.ID) && r.State == task.Succeeded && request
}
