package logs

import (
	"context"
	"errors"
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
	// pollTimeout is how long the server may be unreachable. The run continues without it, so following must
	// not end at once.
	pollTimeout = 30 * time.Second
	// startTimeout is how long a run may wait for its start before a message reports that.
	startTimeout = 2 * time.Second
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
func (f *RunFollower) Follow(ctx context.Context) (task.Run, error) {
	if f.Out != nil {
		defer f.Out.endOutput()
	}

	f.since = f.M.Now()
	wait := pollFirst

	if f.Run.UID == "" && f.Run.State.Final() { // the run comes from an event, which contains only some of its fields
		if err := f.readRun(ctx); err != nil && !errors.Is(err, task.ErrUnavailable) {
			return f.Run, err
		}
	}

	for {
		// The record must be read before the output. Then everything that the run printed before it ended is
		// read.
		final := f.Run.State.Final()
		if final && f.only && f.Run.Fan == nil && !slices.Contains(f.startedAttempts(), f.First) {
			return f.Run, failure.NotFound("run %s has no attempt %d", f.Run.ID, f.First)
		}

		progress, err := f.followOutputs(ctx)
		if err == nil && (final || f.only && f.attemptIsOver(f.First)) {
			return f.Run, nil
		}

		if looked := f.readRun(ctx); looked != nil {
			err = looked
		}

		if err := f.tolerateOutage(ctx, err); err != nil {
			return f.Run, err
		}
		if err == nil && f.Run.State.Final() {
			continue
		}

		f.noteWaiting()

		if progress {
			wait = pollFirst
		}

		if err := f.waitOrEnd(ctx, wait); err != nil {
			return f.Run, err
		}

		most := pollMost
		if f.poke != nil {
			most = pokedMost
		}

		wait = min(wait*3/2, most)
	}
}

// waitOrEnd waits for d, or for a signal. It returns the error of ctx.
func (f *RunFollower) waitOrEnd(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	case <-f.poke:
	}

	return nil
}

// readRun reads the run's record.
func (f *RunFollower) readRun(ctx context.Context) error {
	r, err := f.C.Runs.Get(ctx, f.Run.Namespace, f.Run.Task, f.Run.ID)
	if err == nil {
		f.Run = r
	}
	return err
}

// noteWaiting prints that the run has not started yet, once for each reason.
func (f *RunFollower) noteWaiting() {
	begun := f.Run.Node != "" || f.Run.Fan != nil && f.Run.State != task.Queued
	if begun || f.Run.Reason == f.waitNoted || f.M.Now().Sub(f.since) < startTimeout {
		return
	}

	f.waitNoted = f.Run.Reason

	text := view.PlainRunResult(f.M.Factory, f.Run)
	if f.Run.WaitsForTarget() && f.Run.Unsent.Message != "" {
		text += ": " + output.OneLine(f.Run.Unsent.Message)
	}
	f.M.Tell("waiting: %s is %s", f.runName(), text)
}

// runName returns the name of the run's task for messages.
func (f *RunFollower) runName() string {
	return selection.Name(f.M.Factory, f.Run.Namespace, f.Run.Task)
}

// partName is like runName, with the number of the part if the run is one.
func (f *RunFollower) partName() string {
	if _, index, ok := task.ParentOf(f.Run.ID); ok {
		return f.runName() + partLabel(f.Run, index)
	}
	return f.runName()
}

// startedAttempts returns the attempts that were assigned to a node, in order.
func (f *RunFollower) startedAttempts() (list []int) {
	for _, a := range f.Run.Attempts {
		if a.Node != "" {
			list = append(list, a.Attempt)
		}
	}

	if f.Run.Node != "" {
		list = append(list, max(f.Run.Attempt, 1))
	}

	return list
}

// attemptIsOver reports whether an attempt has ended, according to the run's record.
func (f *RunFollower) attemptIsOver(n int) bool { return f.Run.State.Final() || f.Run.Attempt > n }

// followOutputs follows all attempts that exist. progress is true if one of them was followed to its end.
func (f *RunFollower) followOutputs(ctx context.Context) (progress bool, err error) {
	if err := f.followBegunParts(ctx); err != nil {
		return false, err
	}

	list := f.startedAttempts()
	if f.First == 0 && len(list) > 0 {
		f.First = slices.Max(list)
	}

	for _, n := range list {
		if n < f.First || f.only && n != f.First {
			continue
		}

		if n > f.First {
			f.First, f.seen, f.lines = n, 0, 0
		}

		if err := f.followAttempt(ctx, n); err != nil {
			return progress, err
		}

		progress = true

		if !f.only {
			f.First, f.seen, f.lines = n+1, 0, 0
		}
	}

	return progress, nil
}

// tolerateOutage returns an error unless the server may become reachable again in time.
func (f *RunFollower) tolerateOutage(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed := f.M.writeError(); failed != nil {
		return failed
	}

	switch {
	case err == nil, errors.Is(err, errAgain):
		f.unreachableSince = time.Time{}
		return nil
	case !errors.Is(err, task.ErrUnavailable):
		return err
	case f.unreachableSince.IsZero():
		f.unreachableSince = f.M.Now()
	case f.keepTrying: // the reader of the events reports the outage once for all runs
	case f.M.Now().Sub(f.unreachableSince) > pollTimeout:
		return err
	case !f.unreachableNoted:
		f.unreachableNoted = true // a single error is normal: a stream was cut off and is opened again
		f.M.Tell("waiting for the server: %s", err)
	}

	return nil
}

// printEnd prints how the run ended, how long it took, and where it ran.
func (f *RunFollower) printEnd() {
	plain := *f.M.Factory
	plain.Color = "never"
	f.M.Tell("%s %s", view.RunResult(&plain, f.Run), view.EndText(&plain, f.Run))
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
func (f *RunFollower) followAttempt(ctx context.Context, n int) error {
	if f.Out != nil {
		f.Out.attempt = n
	}

	o := client.LogOptions{Attempt: n, From: f.seen, Times: f.Out != nil && f.Out.wantsTimes()}

	switch {
	case f.Out == nil:
		o.From = atTheEnd
	case f.seen == 0:
		o.Tail = f.lines
	}

	over := f.attemptIsOver(n)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	body, err := f.C.Logs.Follow(ctx, f.Run.Namespace, f.Run.Task, f.Run.ID, o)
	if e := (*client.Error)(nil); errors.As(err, &e) {
		gone := e.Code == client.CodeNoLogs || e.Code == client.CodeNodeAway // any other error is a problem of the server
		switch {
		case gone && over:
			f.writeKeptOutput(n, e)
			return nil
		case gone && e.Code == client.CodeNodeAway:
			if !f.nodeAwayNoted {
				f.M.Tell("waiting: %s", e.Message)
			}
			f.nodeAwayNoted = true
			return errAgain
		case gone:
			return errAgain // the attempt was handed back, and starts on another node
		}
	}

	if err != nil {
		return err
	}

	defer body.Close()

	f.nodeAwayNoted, f.unreachableNoted, f.unreachableSince = false, false, time.Time{}
	if f.seen = max(f.seen, body.From); f.Out == nil {
		f.seen = 0
	}

	var reading atomic.Int64
	run := f.Run
	go func() {
		if isStuck(ctx, f.C, run, n, &reading) {
			cancel(errNotThere)
		}
	}()

	err = f.copyOutput(body, &reading)

	if errors.Is(context.Cause(ctx), errNotThere) {
		f.M.Tell("cannot read the rest of the output of %s: its node does not respond", f.partName())
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
func (f *RunFollower) copyOutput(body *client.LogStream, reading *atomic.Int64) error {
	for {
		reading.Store(time.Now().UnixNano())
		p, err := body.Next()
		reading.Store(0)

		if len(p.Text) > 0 && f.Out != nil {
			f.seen = p.From + int64(len(p.Text))
			if err := f.Out.addPiece(p); err != nil {
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
func (f *RunFollower) writeKeptOutput(n int, why *client.Error) {
	switch {
	case f.Out == nil:
	case isUnkeptResponse(f.Run, why):
		f.M.tellUnkept()
	case n == f.Run.Attempt && f.seen == 0 && f.Run.OutputTail != "":
		f.M.tellKept(f.Run, why)
		_, _ = f.Out.Write([]byte(f.Run.OutputTail)) // the next write returns the error
	case why.Code == client.CodeNodeAway || f.Run.State.Final() && n == f.Run.Attempt && f.Run.OutputBytes > 0:
		f.M.Tell("output of %s, attempt %d: %s", f.partName(), n, why.Message)
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
func (f *RunFollower) followBegunParts(ctx context.Context) error {
	if f.Part == nil || f.Run.Fan == nil {
		return nil
	}

	parts, _, err := replaceByParts(ctx, f.M.Factory, f.C, []task.Run{f.Run})
	for _, p := range parts {
		if !f.known[p.ID] {
			if f.known == nil {
				f.known = map[string]bool{}
			}

			f.known[p.ID] = true
			f.M.numberLines()
			f.Part(p)
		}
	}

	return err
}
