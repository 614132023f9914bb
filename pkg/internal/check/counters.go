package check

import (
	"reflect"
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// counterJudge judges what an entry says of the task's own past (task.Own): how many runs its
// ticks have had, how many failed in a row, and from which end the next tick counts (G24). It also
// judges that owners leave alone what is the user's (G7).
type counterJudge struct{ judge }

// checkRunCounted checks that the commit that makes a run of a tick counts it (G24).
func (j *counterJudge) checkRunCounted(d *delta, ch *runChange, r *runHistory, key string) {
	t := j.cluster.taskOf(ch.ref)
	if t.entry != nil && t.entry.incarnation == r.incarnation && t.entry.MaxRuns > 0 && d.entries[ch.ref] == nil {
		j.breachTask("G24", ch.ref, r.tick, key, "max_runs is %d, and run %s was not counted in the commit that made it", t.entry.MaxRuns, ch.id)
	}
}

// checkEntry judges what a new version of an entry says of what has happened: an
// edit leaves it alone, an owner counts what the history shows, and changes
// nothing that is the user's (G7, G24).
func (j *counterJudge) checkEntry(d *delta, t *taskHistory, ch *entryChange) {
	if ch.unreadable {
		return
	}

	old, next, inc := t.entry.Entry, ch.entry, t.entry.incarnation
	was, is := ownCounters(old), ownCounters(next)

	if _, edited := d.specs[withoutShard(t.ref)]; edited {
		if !countsAnew(old, next) && is.Failures != was.Failures {
			j.breachTask("G24", t.ref, 0, ch.key, "an edit turns %d failures in a row into %d", was.Failures, is.Failures)
		}

		if is.Runs != was.Runs && (is.Runs != 0 || next.MaxRuns != 0) {
			j.breachTask("G24", t.ref, 0, ch.key, "an edit turns %d runs that are counted into %d", was.Runs, is.Runs)
		}

		return
	}

	j.checkUserFieldsUntouched(t, ch)
	var decidedRuns int64
	if inc.decidedRunsRev == j.cluster.revision {
		decidedRuns = inc.decidedRuns
	}

	if next.MaxRuns > 0 && is.Runs-was.Runs != decidedRuns {
		j.breachTask("G24", t.ref, 0, ch.key, "%d runs are counted, %d were: the commit made %d", is.Runs, was.Runs, decidedRuns)
	}

	if next.MaxRuns > 0 && is.Runs > max(was.Runs, next.MaxRuns) {
		j.breachTask("G24", t.ref, 0, ch.key, "%d runs, and max_runs is %d", is.Runs, next.MaxRuns)
	}

	j.checkFailures(t, ch)
	j.checkAnchor(t, ch)
}

// countsAnew reports whether an edit makes the count of failures in a row begin anew: a pause
// is over, or nothing was counted.
func countsAnew(old, next task.Entry) bool {
	return ownCounters(next).Failures == 0 && (old.Paused || next.PauseAfter == 0) || old.PauseAfter == 0
}

// checkUserFieldsUntouched checks that an owner leaves to users what is theirs.
func (j *counterJudge) checkUserFieldsUntouched(t *taskHistory, ch *entryChange) {
	theirs := func(e task.Entry) task.Entry {
		e.From, e.Own = task.Time{}, nil
		if _, after := completionPeriod(e); after {
			e.Anchor = task.Time{}
		}
		return e
	}

	a, b := theirs(t.entry.Entry), theirs(ch.entry)
	if b.PauseAfter > 0 && b.Paused {
		a.Paused = true
	}

	if !reflect.DeepEqual(a, b) {
		j.breachTask("G7", t.ref, 0, ch.key, "a commit changes what only the task's user may: %+v becomes %+v", a, b)
	}
}

// checkFailures checks that failures in a row are counted as the history has
// them, and that the task is paused when they are as many as it says.
func (j *counterJudge) checkFailures(t *taskHistory, ch *entryChange) {
	old, next, inc := t.entry.Entry, ch.entry, t.entry.incarnation
	was, is := ownCounters(old), ownCounters(next)

	if next.PauseAfter == 0 {
		return
	}

	if is.Counted < was.Counted {
		j.breachTask("G24", t.ref, 0, ch.key, "the end that was counted last goes back from revision %d to %d", was.Counted, is.Counted)
	}

	least, most, known := j.failuresInARow(inc, was, is.Counted)
	if known && (is.Failures < min(least, next.PauseAfter) || is.Failures > most) { // more than enough need not be counted
		j.breachTask("G24", t.ref, 0, ch.key, "%d failures in a row are counted up to revision %d; the history has %d", is.Failures, is.Counted, most)
	}

	by := ""
	if p := next.Pause(); p != nil {
		by = p.By
	}

	switch {
	case is.Counted != was.Counted && is.Failures >= next.PauseAfter && !next.Paused:
		j.breachTask("G24", t.ref, 0, ch.key, "%d runs in a row have failed, and the task goes on", is.Failures)
	case next.Paused && !old.Paused && is.Failures < next.PauseAfter:
		j.breachTask("G24", t.ref, 0, ch.key, "the task is paused after %d failures in a row, not %d", is.Failures, next.PauseAfter)
	case next.Paused && !old.Paused && by != task.PausedByFailures:
		j.breachTask("G24", t.ref, 0, ch.key, "the task is paused for its failures, and the pause is said to be by %q", by)
	}
}

// failuresInARow are how many runs in a row had failed when the ends up to a revision
// were counted: between least and most, since an end that a resume found not
// counted yet may count or not.
func (j *counterJudge) failuresInARow(inc *incarnation, was task.Own, upTo int64) (least, most int, known bool) {
	count := func(after int64) int {
		n := was.Failures
		for _, e := range inc.ends {
			switch {
			case e.rev <= after || e.rev > upTo:
			case isFailure(e.state):
				n++
			case e.state == task.Succeeded:
				n = 0
			}
		}

		return n
	}

	a, b := count(was.Counted), count(max(was.Counted, inc.countingSince))

	for i, e := range inc.ends {
		if i > 0 && e.rev == inc.ends[i-1].rev { // two ends in one revision, in an order that nobody knows
			return 0, 0, false
		}
	}

	return min(a, b), max(a, b), j.cluster.began == 0 || was.Counted >= j.cluster.began
}

// checkAnchor judges a new anchor of a schedule that counts from the end of a
// run: the tick before has its outcome, its run is over, and none ended later.
func (j *counterJudge) checkAnchor(t *taskHistory, ch *entryChange) {
	old, inc := t.entry, t.entry.incarnation
	if _, is := completionPeriod(ch.entry); !is || old.Anchor.Equal(ch.entry.Anchor.Time) {
		return
	}

	var tick int64
	if st := inc.epoch; st.ticks != nil {
		if at, ok := st.ticks.next(st.start); ok {
			tick = at
		}
	}

	outcome := inc.outcomes[tick]
	switch {
	case tick != 0 && outcome == nil:
		j.breachTask("G4", t.ref, tick, ch.key, "its tick has no outcome, and the next one is set already")
	case outcome != nil && (outcome.state == task.Skipped || outcome.state == task.Missed):
	case slices.ContainsFunc(t.openRuns(inc), func(r *runHistory) bool { return isTickTrigger(r.trigger) }):
		j.breachTask("G24", t.ref, tick, ch.key, "the next tick counts from the end of a run, and is set before that")

	case unixMS(ch.entry.Anchor)+2*j.opts.Skew.Milliseconds() < inc.lastEnd: // the owner takes no end that its own clock has ahead
		j.breachTask("G24", t.ref, tick, ch.key, "the next tick counts from %s, and the last run ended at %s", formatTime(ch.entry.Anchor.Time), formatTime(timeOfMS(inc.lastEnd)))
	}
}

// checkEnd judges what an owner should have seen to by the end of the history.
func (j *counterJudge) checkEnd(t *taskHistory) {
	if j.opts.Until.IsZero() {
		return
	}

	e, inc := t.entry, t.entry.incarnation
	by := j.opts.Until.Add(-DefaultConverge).UnixMilli()

	if e.PauseAfter > 0 && !e.Paused {
		upTo := int64(0)
		for _, end := range inc.ends {
			if end.at <= by {
				upTo = end.rev
			}
		}

		if least, _, known := j.failuresInARow(inc, ownCounters(e.Entry), upTo); known && least >= e.PauseAfter {
			j.breachTask("G24", t.ref, 0, j.keys.Entry(t.ref), "%d runs in a row had failed, and the task was not paused", least)
		}
	}

	if _, after := completionPeriod(e.Entry); after && inc.epoch.ticks != nil && e.End.IsZero() {
		_, more := inc.epoch.ticks.next(inc.epoch.start)
		if !more && inc.lastEnd <= by && unixMS(e.Anchor) <= by && len(t.openRuns(inc)) == 0 && j.cluster.notFrozenSince(t.ref, by) {
			j.breachTask("G16", t.ref, 0, j.keys.Entry(t.ref), "its run has ended, and no next tick was set")
		}
	}
}
