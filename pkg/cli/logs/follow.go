package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The output of a followed run arrives over a stream, which ends with the attempt. The run's record is polled
// between streams, at intervals that grow from pollFirst to pollMost.
const (
	pollFirst = 100 * time.Millisecond
	pollMost  = time.Second
	// pokedMost is the longest interval for a follower that events also wake.
	pokedMost = 10 * time.Second
	// pollPatience is how long the server may be unreachable. The run continues without it, so following must
	// not end at once.
	pollPatience = 30 * time.Second
	// startPatience is how long a run may wait for its start before a message reports that.
	startPatience = 2 * time.Second
)

// RunFollower follows one run, attempt by attempt, to its end.
type RunFollower struct {
	M                *Merger
	C                *client.Client
	Run              task.Run
	Out              *RunOutput      // nil: the run is only waited for
	lines            int             // how many existing lines to print; 0: all
	First            int             // the first attempt to follow; 0: the latest
	only             bool            // follow no attempt other than First
	poke             <-chan struct{} // signals that the record may have changed; nil: no signals
	Part             func(task.Run)  // follows a part of the run; nil: parts are not followed here
	known            map[string]bool // the parts that are followed already
	seen             int64           // the number of bytes of attempt First that were read
	since            time.Time       // since when the run is waited for
	waitNoted        string          // the reason for waiting that a message has reported
	nodeAwayNoted    bool            // the node is not reachable, and a message has reported that
	unreachableSince time.Time       // since when the server is not reachable; zero: it is
	unreachableNoted bool            // a message has reported that
	keepTrying       bool            // the server may be unreachable without a limit
}

// Follow returns the run as it ended. It ends early with an error of the server that persists, of ctx, or of
// the output.
func (t *RunFollower) Follow(ctx context.Context) (task.Run, error) {
	if t.Out != nil {
		defer t.Out.endOutput()
	}

	t.since = t.M.Now()
	wait := pollFirst

	if t.Run.UID == "" && t.Run.State.Final() { // the run comes from an event, which contains only some of its fields
		if err := t.readRun(ctx); err != nil && !errors.Is(err, task.ErrUnavailable) {
			return t.Run, err
		}
	}

	for {
		// The record must be read before the output. Then everything that the run printed before it ended is
		// read.
		final := t.Run.State.Final()
		if final && t.only && t.Run.Fan == nil && !slices.Contains(t.startedAttempts(), t.First) {
			return t.Run, failure.NotFound("run %s has no attempt %d", t.Run.ID, t.First)
		}

		progress, err := t.followOutputs(ctx)
		if err == nil && (final || t.only && t.attemptIsOver(t.First)) {
			return t.Run, nil
		}

		if looked := t.readRun(ctx); looked != nil {
			err = looked
		}

		if err := t.tolerateOutage(ctx, err); err != nil {
			return t.Run, err
		}
		if err == nil && t.Run.State.Final() {
			continue
		}

		t.noteWaiting()

		if progress {
			wait = pollFirst
		}

		if err := t.waitOrEnd(ctx, wait); err != nil {
			return t.Run, err
		}

		most := pollMost
		if t.poke != nil {
			most = pokedMost
		}

		wait = min(wait*3/2, most)
	}
}

// waitOrEnd waits for d, or for a signal. It returns the error of ctx.
func (t *RunFollower) waitOrEnd(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	case <-t.poke:
	}

	return nil
}

// readRun reads the run's record.
func (t *RunFollower) readRun(ctx context.Context) error {
	r, err := t.C.Runs.Get(ctx, t.Run.Namespace, t.Run.Task, t.Run.ID)
	if err == nil {
		t.Run = r
	}
	return err
}

// noteWaiting prints that the run has not started yet, once for each reason.
func (t *RunFollower) noteWaiting() {
	begun := t.Run.Node != "" || t.Run.Fan != nil && t.Run.State != task.Queued
	if begun || t.Run.Reason == t.waitNoted || t.M.Now().Sub(t.since) < startPatience {
		return
	}

	t.waitNoted = t.Run.Reason

	text := view.PlainRunResult(t.M.Factory, t.Run)
	if t.Run.WaitsForTarget() && t.Run.Unsent.Message != "" {
		text += ": " + output.OneLine(t.Run.Unsent.Message)
	}
	t.M.Tell("waiting: %s is %s", t.runName(), text)
}

// runName returns the name of the run's task for messages.
func (t *RunFollower) runName() string {
	return selection.Name(t.M.Factory, t.Run.Namespace, t.Run.Task)
}

// partName is like runName, with the number of the part if the run is one.
func (t *RunFollower) partName() string {
	if _, index, is := task.ParentOf(t.Run.ID); is {
		return fmt.Sprintf("%s[%d]", t.runName(), index)
	}
	return t.runName()
}

// startedAttempts returns the attempts that were assigned to a node, in order.
func (t *RunFollower) startedAttempts() (list []int) {
	for _, a := range t.Run.Attempts {
		if a.Node != "" {
			list = append(list, a.Attempt)
		}
	}

	if t.Run.Node != "" {
		list = append(list, max(t.Run.Attempt, 1))
	}

	return list
}

// attemptIsOver reports whether an attempt has ended, according to the run's record.
func (t *RunFollower) attemptIsOver(n int) bool { return t.Run.State.Final() || t.Run.Attempt > n }

// followOutputs follows all attempts that exist. progress is true if one of them was followed to its end.
func (t *RunFollower) followOutputs(ctx context.Context) (progress bool, err error) {
	if err := t.followBegunParts(ctx); err != nil {
		return false, err
	}

	list := t.startedAttempts()
	if t.First == 0 && len(list) > 0 {
		t.First = slices.Max(list)
	}

	for _, n := range list {
		if n < t.First || t.only && n != t.First {
			continue
		}

		if n > t.First {
			t.First, t.seen, t.lines = n, 0, 0
		}

		if err := t.followAttempt(ctx, n); err != nil {
			return progress, err
		}

		progress = true

		if !t.only {
			t.First, t.seen, t.lines = n+1, 0, 0
		}
	}

	return progress, nil
}

// tolerateOutage returns an error unless the server may become reachable again in time.
func (t *RunFollower) tolerateOutage(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed := t.M.writeError(); failed != nil {
		return failed
	}

	switch {
	case err == nil, errors.Is(err, errAgain):
		t.unreachableSince = time.Time{}
		return nil
	case !errors.Is(err, task.ErrUnavailable):
		return err
	case t.unreachableSince.IsZero():
		t.unreachableSince = t.M.Now()
	case t.keepTrying: // the reader of the events reports the outage once for all runs
	case t.M.Now().Sub(t.unreachableSince) > pollPatience:
		return err
	case !t.unreachableNoted:
		t.unreachableNoted = true // a single error is normal: a stream was cut off and is opened again
		t.M.Tell("waiting for the server: %s", err)
	}

	return nil
}

// printEnd prints how the run ended, how long it took, and where it ran.
func (t *RunFollower) printEnd() {
	plain := *t.M.Factory
	plain.Color = "never"
	t.M.Tell("%s %s", view.RunResult(&plain, t.Run), view.EndText(&plain, t.Run))
}

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

// WithPartStates returns a run with the states of its parts. Lists omit them.
func WithPartStates(ctx context.Context, c *client.Client, r task.Run) (task.Run, error) {
	if r.Fan == nil || r.Fan.Parts != nil {
		return r, nil
	}
	return c.Runs.Get(ctx, r.Namespace, r.Task, r.ID)
}

// replaceByParts replaces each run that has parts by those parts, because only parts print output. any is true
// if there was such a run.
func replaceByParts(ctx context.Context, f *factory.Factory, c *client.Client, runs []task.Run) (list []task.Run, any bool, err error) {
	for _, r := range runs {
		if r.Fan == nil {
			list = append(list, r)
			continue
		}

		any = true
		full, err := WithPartStates(ctx, c, r)
		if err != nil {
			return nil, any, err
		}

		for _, p := range full.Fan.Parts {
			if p.Node != "" && p.Attempt > 0 {
				list = append(list, full.OfPart(p))
			}
		}
	}

	return list, any, nil
}

// followBegunParts starts followers for the parts of the run that have begun, each once.
func (t *RunFollower) followBegunParts(ctx context.Context) error {
	if t.Part == nil || t.Run.Fan == nil {
		return nil
	}

	parts, _, err := replaceByParts(ctx, t.M.Factory, t.C, []task.Run{t.Run})
	for _, p := range parts {
		if !t.known[p.ID] {
			if t.known == nil {
				t.known = map[string]bool{}
			}

			t.known[p.ID] = true
			t.M.numberLines()
			t.Part(p)
		}
	}

	return err
}
