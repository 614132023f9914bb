package why

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// A finding is what is known of one tick, or of an instant that is none.
type finding struct {
	verdict task.Verdict
	reason  string
	tick    time.Time // zero: the instant is no tick
	due     time.Time
	version *version // nil: not on record, or none
	run     *task.Run
	pause   *task.Pause
	freeze  *task.Freeze
	cut     *version // the change that overtook the tick
	unknown []string
	detail  string // what else is to be said of it
}

// sameOutcome reports whether two ticks in a row can be told of in one line.
func (a finding) sameOutcome(b finding) bool {
	return a.verdict == b.verdict && a.reason == b.reason
}

// judgeTick is what became of a tick, or will.
func (f *Facts) judgeTick(all []version, tick time.Time) finding {
	g := finding{tick: tick, due: tick, version: inForce(all, tick)}
	if g.version != nil {
		g.due = g.version.dueTime(tick)
	}

	if r := f.findOutcome(tick); r != nil {
		f.applyRecord(&g, r)
		return g
	}

	if f.Task != nil && slices.Contains(f.Broken, task.RunID(tick, f.Task.UID)) {
		g.verdict, g.unknown = task.VerdictUnreadable, []string{"the outcome: its record cannot be read"}
		return g
	}

	if g.version == nil {
		f.applyNoVersion(&g, all)
		return g
	}

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

	if len(f.BrokenTask) > 0 {
		g.verdict, g.detail = task.VerdictUnreadable, strings.Join(f.BrokenTask, " and ")
		return g
	}

	if !f.isDecided(tick, g.due) {
		g.verdict = task.VerdictUndecided
		return g
	}

	f.explainMissingOutcome(&g, all)

	return g
}

var ofState = map[task.State]task.Verdict{
	task.Queued: task.VerdictWaiting, task.Dispatched: task.VerdictRunning, task.Running: task.VerdictRunning, task.Paused: task.VerdictRunning,
	task.Succeeded: task.VerdictSucceeded, task.Failed: task.VerdictFailed, task.TimedOut: task.VerdictTimedOut,
	task.Cancelled: task.VerdictCancelled, task.Lost: task.VerdictLost, task.Skipped: task.VerdictSkipped, task.Missed: task.VerdictMissed,
}

// applyRecord is a tick with an outcome on record.
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
			at = r.EndedAt.Time // decided while it held; a late one fell due before
		}

		if g.freeze = f.Freezes.At(f.Namespace, at); g.freeze == nil {
			g.unknown = append(g.unknown, "the freeze at that time: only the latest freezes are kept")
		}

		return
	}

	switch {
	case r.State == task.Queued, r.State == task.Dispatched && r.StartedAt.IsZero():
		g.freeze = f.Freezes.Of(f.Namespace) // nothing of it starts while that holds
	case !r.DispatchedAt.IsZero():
		g.freeze = f.Freezes.HeldUp(f.Namespace, r.CreatedAt.Time, r.StartedAt.Time)
	}
}

// applyNoVersion is a time of which no version is on record.
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

// pauseAt is the pause in which a tick does not exist; nil if there was none, as
// far as is on record.
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

	for ; first > 0 && all[first-1].Paused; first-- { // a change of something else does not begin a pause
	}

	p := &task.Pause{Since: all[first].UpdatedAt, By: all[first].UpdatedBy, Reason: v.PauseReason, Until: v.PausedUntil,
		Ended: task.At(all[last].until), EndedBy: all[last].by}
	if p.Over(tick) {
		return nil
	}

	return p
}

// maxRunsReached reports whether max_runs was reached before a tick.
func (f *Facts) maxRunsReached(tick time.Time) bool {
	e := f.Entry
	return e != nil && e.MaxRuns > 0 && e.Own != nil && e.Own.Runs >= e.MaxRuns && tick.After(e.From.Time)
}
