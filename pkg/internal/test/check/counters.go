package check

import (
	"reflect"
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/test/check/oracle"
	"github.com/carillonhq/carillon/pkg/task"
)

// counterJudge judges what an entry records about the task's own past (task.Own): how many runs its ticks have had,
// how many runs failed in a row, and from which end the next tick counts (G24). The checker compares it with its
// own count (countedPast). The judge also checks that owners do not change the user's fields (G7).
type counterJudge struct{ judge }

// checkRunCounted checks that the commit that turns a tick into a run also counts it in the entry, for a task with
// max_runs (G24). checkEntry compares the count itself.
func (j *counterJudge) checkRunCounted(d *delta, ch *runChange, r *runHistory, key string) {
	t := j.cluster.taskOf(ch.ref)
	if t.entry != nil && t.entry.incarnation == r.incarnation && t.entry.MaxRuns > 0 && d.entries[ch.ref] == nil {
		j.breachTask("G24", ch.ref, r.tick, key, "max_runs is %d, but the commit that created run %s did not count it", t.entry.MaxRuns, ch.id)
	}
}

// checkEntry judges the counts in a new version of an entry. A version that comes with its spec is a user's edit,
// which keeps the counts or resets them. Any other version is the owner's: it counts exactly what the history
// shows, and changes no field of the user (G7, G24).
func (j *counterJudge) checkEntry(d *delta, t *taskHistory, ch *entryChange) {
	if ch.unreadable {
		return
	}

	old, next, inc := t.entry.Entry, ch.entry, t.entry.incarnation
	was, is := ownCounters(old), ownCounters(next)

	// A user's edit.
	if _, edited := d.specs[withoutShard(t.ref)]; edited {
		if !countsAnew(old, next) && is.Failures != was.Failures {
			j.breachTask("G24", t.ref, 0, ch.key, "an edit changes the failures in a row from %d to %d", was.Failures, is.Failures)
		}

		if is.Runs != was.Runs && (is.Runs != 0 || next.MaxRuns != 0) {
			j.breachTask("G24", t.ref, 0, ch.key, "an edit changes the counted runs from %d to %d", was.Runs, is.Runs)
		}

		return
	}

	// The owner's change. It must count exactly the runs that this commit has created.
	j.checkUserFieldsUntouched(t, ch)
	var decidedRuns int64
	if inc.decidedRunsRev == j.cluster.revision {
		decidedRuns = inc.decidedRuns
	}

	if next.MaxRuns > 0 && is.Runs-was.Runs != decidedRuns {
		j.breachTask("G24", t.ref, 0, ch.key, "%d runs are counted after %d, but the commit created %d", is.Runs, was.Runs, decidedRuns)
	}

	if next.MaxRuns > 0 && is.Runs > max(was.Runs, next.MaxRuns) {
		j.breachTask("G24", t.ref, 0, ch.key, "%d runs, but max_runs is %d", is.Runs, next.MaxRuns)
	}

	j.checkFailures(t, ch)
	j.checkAnchor(t, ch)
}

// countsAnew reports whether an edit resets the count of consecutive failures: it ends a pause, or the count was
// not in use.
func countsAnew(old, next task.Entry) bool {
	return ownCounters(next).Failures == 0 && (old.Paused || next.PauseAfter == 0) || old.PauseAfter == 0
}

// checkUserFieldsUntouched checks that an owner changes only its own fields of an entry: from, the counts, the
// anchor of a schedule that counts from the end of a run, and the pause after too many failures (G7).
func (j *counterJudge) checkUserFieldsUntouched(t *taskHistory, ch *entryChange) {
	theirs := func(e task.Entry) task.Entry {
		e.From, e.Own = task.Time{}, nil
		if oracle.CountsFromCompletion(e) {
			e.Anchor = task.Time{}
		}
		return e
	}

	a, b := theirs(t.entry.Entry), theirs(ch.entry)
	if b.PauseAfter > 0 && b.Paused {
		a.Paused = true
	}

	if !reflect.DeepEqual(a, b) {
		j.breachTask("G7", t.ref, 0, ch.key, "a commit changes fields that only users may change: %+v becomes %+v", a, b)
	}
}

// checkFailures checks that consecutive failures are counted as the history has them, and that the task is paused
// when it reaches its limit (G24).
func (j *counterJudge) checkFailures(t *taskHistory, ch *entryChange) {
	old, next, inc := t.entry.Entry, ch.entry, t.entry.incarnation
	was, is := ownCounters(old), ownCounters(next)

	if next.PauseAfter == 0 {
		return
	}

	if is.Counted < was.Counted {
		j.breachTask("G24", t.ref, 0, ch.key, "the end that was counted last goes back from revision %d to %d", was.Counted, is.Counted)
	}

	// The owner counts the ends up to a revision, which it stores with the count.
	least, most, known := j.failuresInARow(inc, was, is.Counted)
	if known && (is.Failures < min(least, next.PauseAfter) || is.Failures > most) { // an owner may stop to count at the limit
		j.breachTask("G24", t.ref, 0, ch.key, "%d failures in a row are counted up to revision %d; the history has %d", is.Failures, is.Counted, most)
	}

	var by *task.Actor
	if p := next.Pause(); p != nil {
		by = p.By
	}

	// The commit that reaches the limit must pause the task. No other commit may.
	switch {
	case is.Counted != was.Counted && is.Failures >= next.PauseAfter && !next.Paused:
		j.breachTask("G24", t.ref, 0, ch.key, "%d runs in a row have failed, but the task is not paused", is.Failures)
	case next.Paused && !old.Paused && is.Failures < next.PauseAfter:
		j.breachTask("G24", t.ref, 0, ch.key, "the task is paused after %d failures in a row, not %d", is.Failures, next.PauseAfter)
	case next.Paused && !old.Paused && !by.Is(task.PausedByFailures):
		j.breachTask("G24", t.ref, 0, ch.key, "the task is paused for its failures, but the record names %q", by)
	}
}

// failuresInARow counts how many runs in a row had failed among the ends up to revision upTo, starting from the
// count in the entry. The result is between least and most: an end that was not counted when a resume reset the
// count may count or not. known is false if the order of the ends is not known, or if some came before the history.
func (j *counterJudge) failuresInARow(inc *incarnation, was task.Own, upTo int64) (least, most int, known bool) {
	count := func(after int64) int {
		n := was.Failures
		for _, e := range inc.ends {
			switch {
			case e.rev <= after || e.rev > upTo:
			case e.isFailure():
				n++
			case e.state == task.Succeeded:
				n = 0
			}
		}

		return n
	}

	a, b := count(was.Counted), count(max(was.Counted, inc.countingSince))

	for i, e := range inc.ends {
		if i > 0 && e.rev == inc.ends[i-1].rev { // two ends in one revision: their order is not known
			return 0, 0, false
		}
	}

	return min(a, b), max(a, b), j.cluster.began == 0 || was.Counted >= j.cluster.began
}

// checkAnchor judges a new anchor of a schedule that counts from the end of a run. The previous tick has an outcome
// (G4), its run has ended, and no run ended after the new anchor (G24).
func (j *counterJudge) checkAnchor(t *taskHistory, ch *entryChange) {
	old, inc := t.entry, t.entry.incarnation
	if !oracle.CountsFromCompletion(ch.entry) || old.Anchor.Equal(ch.entry.Anchor.Time) {
		return
	}

	// The schedule has one tick for each anchor: the next one of the epoch before the anchor changed.
	var tick int64
	if st := inc.epoch; st.ticks != nil {
		if at, ok := st.ticks.NextTick(st.start); ok {
			tick = at
		}
	}

	outcome := inc.outcomes[tick]
	switch {
	case tick != 0 && outcome == nil:
		j.breachTask("G4", t.ref, tick, ch.key, "its tick has no outcome, but the next one is already set")
	case outcome != nil && (outcome.state == task.Skipped || outcome.state == task.Missed):
	case slices.ContainsFunc(t.openRuns(inc), func(r *runHistory) bool { return isTickTrigger(r.trigger) }):
		j.breachTask("G24", t.ref, tick, ch.key, "the next tick counts from the end of a run, but is set before that end")

	// The end was recorded by a node's clock and the anchor by the owner's, so that both errors count. An owner
	// does not use an end that is ahead of its own clock.
	case unixMS(ch.entry.Anchor)+2*j.opts.Skew.Milliseconds() < inc.lastEnd:
		j.breachTask("G24", t.ref, tick, ch.key, "the next tick counts from %s, but the last run ended at %s", formatTime(ch.entry.Anchor.Time), formatTime(timeOfMS(inc.lastEnd)))
	}
}

// checkEnd judges what an owner had to do by the end of the history: pause a task that reached its limit of
// failures (G24), and set the next anchor after a run has ended (G16). DefaultConverge is the time that it has for
// this.
func (j *counterJudge) checkEnd(t *taskHistory) {
	if j.opts.Until.IsZero() {
		return
	}

	e, inc := t.entry, t.entry.incarnation
	by := j.opts.Until.Add(-DefaultConverge).UnixMilli()

	// Only failures that ended early enough before the end of the history must have paused the task.
	if e.PauseAfter > 0 && !e.Paused {
		upTo := int64(0)
		for _, end := range inc.ends {
			if end.at <= by {
				upTo = end.rev
			}
		}

		if least, _, known := j.failuresInARow(inc, ownCounters(e.Entry), upTo); known && least >= e.PauseAfter {
			j.breachTask("G24", t.ref, 0, j.keys.Entry(t.ref), "%d runs in a row had failed, but the task was not paused", least)
		}
	}

	if oracle.CountsFromCompletion(e.Entry) && inc.epoch.ticks != nil && e.End.IsZero() {
		_, more := inc.epoch.ticks.NextTick(inc.epoch.start)
		if !more && inc.lastEnd <= by && unixMS(e.Anchor) <= by && len(t.openRuns(inc)) == 0 && j.cluster.notFrozenSince(t.ref, by) {
			j.breachTask("G16", t.ref, 0, j.keys.Entry(t.ref), "its run has ended, but no next tick was set")
		}
	}
}
