package why

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// finding is what the records show about one tick, or about an instant that is not a tick.
type finding struct {
	verdict task.Verdict
	reason  string
	tick    time.Time // zero: the instant is not a tick
	due     time.Time // with jitter, later than tick
	version *version  // nil: not on record, or there was none
	run     *task.Run
	line    *task.LedgerLine // the outcome is in the ledger; run then has what the line says about it
	pause   *task.Pause
	freeze  *task.Freeze
	cut     *version // the change that caused the tick never to be decided
	unknown []string // what is not on record any more
	detail  string   // additional text for the sentence
}

// sameOutcome reports whether two consecutive ticks can share one line.
func (f finding) sameOutcome(b finding) bool {
	return f.verdict == b.verdict && f.reason == b.reason
}

// judgeTick determines the outcome of a tick, or predicts it. The order of the steps is that of the diagram in
// the package comment: a record, or the ledger, takes precedence over everything that is derived from the schedule.
func (f *Facts) judgeTick(all []version, tick time.Time) finding {
	g := finding{tick: tick, due: tick, version: inForce(all, tick)}
	if g.version != nil {
		g.due = g.version.dueTime(tick)
	}

	if r := f.findOutcome(tick); r != nil {
		f.applyRecord(&g, r)
		return g
	}

	// The record exists but cannot be read. Nothing that follows can replace it.
	if f.Task != nil && slices.Contains(f.Broken, task.RunID(tick, f.Task.UID)) {
		g.verdict, g.unknown = task.VerdictUnreadable, []string{"the outcome: its record cannot be read"}
		return g
	}

	if f.applyNamedTick(&g) {
		return g
	}

	if g.version == nil {
		f.applyNoVersion(&g, all)
		return g
	}

	// Ticks within a pause do not exist, and neither do ticks after the maximum number of runs.
	if p := f.pauseAt(all, tick); p != nil {
		g.verdict, g.pause = task.VerdictPaused, p
		return g
	}

	if f.maxRunsReached(tick) {
		g.verdict = task.VerdictEnded
		return g
	}

	if g.due.After(f.Now) {
		f.explainFutureTick(&g, all)
		return g
	}

	// The following steps need records of the task that cannot be read.
	if len(f.BrokenTask) > 0 {
		g.verdict, g.detail = task.VerdictUnreadable, strings.Join(f.BrokenTask, " and ")
		return g
	}

	if !f.isDecided(tick, g.due) {
		g.verdict = task.VerdictUndecided
		return g
	}

	// The tick is decided, and its outcome is not on record.
	f.explainMissingOutcome(&g, all)

	return g
}

// ofState maps the state of a run to the verdict on its tick.
var ofState = map[task.State]task.Verdict{
	task.Queued: task.VerdictWaiting, task.Dispatched: task.VerdictRunning, task.Running: task.VerdictRunning, task.Paused: task.VerdictRunning,
	task.Succeeded: task.VerdictSucceeded, task.Failed: task.VerdictFailed, task.TimedOut: task.VerdictTimedOut,
	task.Cancelled: task.VerdictCancelled, task.Lost: task.VerdictLost, task.Skipped: task.VerdictSkipped, task.Missed: task.VerdictMissed,
}

// applyRecord sets the outcome of a tick that has a record, and looks for a freeze that explains it.
func (f *Facts) applyRecord(g *finding, r *task.Run) {
	g.run, g.reason = r, r.Reason
	if !r.DueAt.IsZero() && r.Count <= 1 {
		g.due = r.DueAt.Time
	}

	g.verdict = ofState[r.State]
	if g.verdict == "" {
		g.verdict = task.VerdictUnreadable
	}

	if r.State == task.Skipped && r.Reason == task.ReasonFrozen {
		at := g.due
		if r.Count <= 1 && !r.EndedAt.IsZero() {
			at = r.EndedAt.Time // decided while the freeze was in force; a late tick was due earlier
		}

		if g.freeze = f.Freezes.At(f.Namespace, at); g.freeze == nil {
			g.unknown = append(g.unknown, "the freeze at that time: only the latest freezes are kept")
		}

		return
	}

	switch {
	case r.State == task.Queued, r.State == task.Dispatched && r.StartedAt.IsZero():
		g.freeze = f.Freezes.Of(f.Namespace) // nothing starts while the freeze is in force
	case !r.DispatchedAt.IsZero():
		g.freeze = f.Freezes.HeldUp(f.Namespace, r.CreatedAt.Time, r.StartedAt.Time)
	}
}

// applyNoVersion sets the verdict for a time for which no version is on record.
func (f *Facts) applyNoVersion(g *finding, all []version) {
	switch {
	case f.Task == nil && len(f.BrokenTask) > 0:
		g.verdict, g.detail = task.VerdictUnreadable, strings.Join(f.BrokenTask, " and ")
	case f.Task == nil, !f.Task.CreatedAt.Before(g.tick):
		g.verdict = task.VerdictNoTask
	default:
		g.verdict = task.VerdictForgotten
		g.unknown = append(g.unknown, "the version of the task at that time: only the latest versions are kept")
	}

	if f.Task != nil && !f.Task.CreatedAt.Before(g.tick) {
		g.unknown = append(g.unknown, "whether another task had this name before: that record is deleted when the name is reused")
	}
}

// pauseAt returns the pause that prevents a tick, or nil if none is on record. It uses the
// entry's record of pauses first, and the paused versions of the task otherwise.
func (f *Facts) pauseAt(all []version, tick time.Time) *task.Pause {
	if f.Entry != nil && f.Entry.Own != nil {
		for _, p := range slices.Backward(f.Entry.Own.Pauses) {
			if tick.After(p.Since.Time) && !p.Over(tick) {
				return &p
			}
		}
	}

	v := inForce(all, tick)
	if v == nil || !v.Paused {
		return nil
	}

	first, last := slices.IndexFunc(all, func(u version) bool { return u.Generation == v.Generation }), 0
	for last = first; last+1 < len(all) && all[last+1].Paused; last++ {
	}

	for ; first > 0 && all[first-1].Paused; first-- { // a change of other fields does not begin a new pause
	}

	p := &task.Pause{Since: all[first].UpdatedAt, By: all[first].UpdatedBy, Reason: v.PauseReason, Until: v.PausedUntil,
		Ended: task.At(all[last].until), EndedBy: all[last].by}
	if p.Over(tick) {
		return nil
	}

	return p
}

// maxRunsReached reports whether the task had used all its runs before a tick.
func (f *Facts) maxRunsReached(tick time.Time) bool {
	e := f.Entry
	return e != nil && e.MaxRuns > 0 && e.Own != nil && e.Own.Runs >= e.MaxRuns && tick.After(e.From.Time)
}
