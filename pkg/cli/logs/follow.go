package logs

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Following a run: its output comes by itself, and ends when the attempt has. The
// run's record is read before and after; soon at first, then once a second.
const (
	pollFirst = 100 * time.Millisecond
	pollMost  = time.Second
	// pokedMost is the longest wait of a tail that hears from elsewhere when to look.
	pokedMost = 10 * time.Second
	// pollPatience is how long a server may be away. That it does not answer is no
	// reason to give up on a run that goes on without it.
	pollPatience = 30 * time.Second
	// startPatience is how long a run may wait for its start before that is said.
	startPatience = 2 * time.Second
)

// RunFollower follows one run, attempt after attempt, to its end.
type RunFollower struct {
	M        *Merger
	C        *client.Client
	Run      task.Run
	Out      *RunOutput      // nil: it is only waited for
	lines    int             // of what was there before; 0: all
	First    int             // the attempt to begin with; 0: the latest
	only     bool            // no other attempt than first
	poke     <-chan struct{} // tells when to look again; nil: nobody does
	Part     func(task.Run)  // follows a part of the run; nil: nobody does, or by other means
	known    map[string]bool // parts that are followed
	seen     int64           // bytes of the attempt first
	since    time.Time       // when it was waited for
	told     bool            // that it waits
	away     bool            // its node is; that was told
	bother   time.Time       // since when the server is away
	bothered bool            // that was told
	stubborn bool            // it may be away for ever
}

// Follow returns the run as it ended. An error of the server that lasts ends it, and
// one of ctx or of the output.
func (t *RunFollower) Follow(ctx context.Context) (task.Run, error) {
	if t.Out != nil {
		defer t.Out.endOutput()
	}

	t.since = t.M.Now()
	wait := pollFirst

	if t.Run.UID == "" && t.Run.State.Final() { // an event told of it, and not all
		if err := t.readRun(ctx); err != nil && !errors.Is(err, task.ErrUnavailable) {
			return t.Run, err
		}
	}

	for {
		// The state first, the output after it: what a run wrote before it ended is
		// then not missed.
		final := t.Run.State.Final()
		if final && t.only && t.Run.Fan == nil && !slices.Contains(t.startedAttempts(), t.First) {
			return t.Run, failure.NotFound("run %s has no attempt %d on record", t.Run.ID, t.First)
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

func (t *RunFollower) readRun(ctx context.Context) error {
	r, err := t.C.Runs.Get(ctx, t.Run.Namespace, t.Run.Task, t.Run.ID)
	if err == nil {
		t.Run = r
	}
	return err
}

// noteWaiting says that the run does not start, once.
func (t *RunFollower) noteWaiting() {
	begun := t.Run.Node != "" || t.Run.Fan != nil && t.Run.State != task.Queued
	if t.told || begun || t.M.Now().Sub(t.since) < startPatience {
		return
	}

	t.told = true
	t.M.Tell("waiting: %s is %s", t.runName(), view.PlainRunResult(t.M.Factory, t.Run))
}

func (t *RunFollower) runName() string {
	return selection.Name(t.M.Factory, t.Run.Namespace, t.Run.Task)
}

// startedAttempts are the attempts that a node was given, in order.
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

// attemptIsOver reports whether an attempt is over, by the run's record.
func (t *RunFollower) attemptIsOver(n int) bool { return t.Run.State.Final() || t.Run.Attempt > n }

// followOutputs follows the attempts that there are. Progress: of one the end was reached.
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

// tolerateOutage puts up with a server that is away for a while.
func (t *RunFollower) tolerateOutage(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if failed := t.M.writeError(); failed != nil {
		return failed
	}

	switch {
	case err == nil, errors.Is(err, errAgain):
		t.bother = time.Time{}
		return nil
	case !errors.Is(err, task.ErrUnavailable):
		return err
	case t.bother.IsZero():
		t.bother = t.M.Now()
	case t.stubborn: // who hears of events is told once, by whoever reads them
	case t.M.Now().Sub(t.bother) > pollPatience:
		return err
	case !t.bothered:
		t.bothered = true // once is no trouble: a stream was cut, and is begun again
		t.M.Tell("waiting for the server: %s", err)
	}

	return nil
}

// printEnd says how the run ended, how long it took, and where.
func (t *RunFollower) printEnd() {
	plain := *t.M.Factory
	plain.Color = "never"
	t.M.Tell("%s %s", view.RunResult(&plain, t.Run), view.EndText(&plain, t.Run))
}
