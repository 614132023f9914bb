package check

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// ownWork is what the history tells of a task that its entry tells, too (task.Own).
type ownWork struct {
	counting int64     // the revision since which ends count as failures in a row
	ends     []endMark // of runs, the latest last
	lastEnd  int64     // of a run, in ms
	born     int64     // the revision of the latest births of runs of ticks
	births   int64     // in that revision
}

// endMark is the final end of a run.
type endMark struct {
	rev, at int64
	state   task.State
}

func failure(s task.State) bool { return s == task.Failed || s == task.TimedOut || s == task.Lost }

// ended counts the end of a run.
func (l *lineage) ended(rev int64, e *task.Run) {
	if e.State == task.Skipped || e.State == task.Missed {
		return
	}
	l.ends = append(l.ends, endMark{rev, ms(e.EndedAt), e.State})
	l.lastEnd = max(l.lastEnd, ms(e.EndedAt))
}

// born counts the birth of a run of a tick (G24).
func (c *checker) judgeCounted(d *delta, ch *runChange, r *run, key string) {
	t := c.task(ch.ref)
	if r.line.born != c.revision {
		r.line.born, r.line.births = c.revision, 0
	}
	r.line.births++
	if t.entry != nil && t.entry.line == r.line && t.entry.MaxRuns > 0 && d.entries[ch.ref] == nil {
		c.breachOf("G24", ch.ref, r.tick, key, "max_runs is %d, and run %s was not counted in the commit that made it", t.entry.MaxRuns, ch.id)
	}
}

// judgeOwn judges what a new version of an entry says of what has happened: an
// edit leaves it alone, an owner counts what the history shows, and changes
// nothing that is the user's (G7, G24).
func (c *checker) judgeOwn(d *delta, t *tasked, ch *entryChange) {
	if ch.bad {
		return
	}
	old, next, line := t.entry.Entry, ch.entry, t.entry.line
	was, is := own(old), own(next)
	if _, edited := d.specs[nameOf(t.ref)]; edited {
		switch {
		case is.Failures == 0 && (old.Paused || next.PauseAfter == 0) || old.PauseAfter == 0:
			line.counting = c.revision // a pause is over, or nothing was counted: all begins anew
		case is.Failures != was.Failures:
			c.breachOf("G24", t.ref, 0, ch.key, "an edit turns %d failures in a row into %d", was.Failures, is.Failures)
		}
		if is.Runs != was.Runs && (is.Runs != 0 || next.MaxRuns != 0) {
			c.breachOf("G24", t.ref, 0, ch.key, "an edit turns %d runs that are counted into %d", was.Runs, is.Runs)
		}
		return
	}
	c.judgeHands(t, ch)
	var births int64
	if line.born == c.revision {
		births = line.births
	}
	if next.MaxRuns > 0 && is.Runs-was.Runs != births {
		c.breachOf("G24", t.ref, 0, ch.key, "%d runs are counted, %d were: the commit made %d", is.Runs, was.Runs, births)
	}
	if next.MaxRuns > 0 && is.Runs > max(was.Runs, next.MaxRuns) {
		c.breachOf("G24", t.ref, 0, ch.key, "%d runs, and max_runs is %d", is.Runs, next.MaxRuns)
	}
	c.judgeFailures(t, ch)
	c.judgeAnchor(t, ch)
}

// judgeHands checks that an owner leaves to users what is theirs.
func (c *checker) judgeHands(t *tasked, ch *entryChange) {
	theirs := func(e task.Entry) task.Entry {
		e.From, e.Own = task.Time{}, nil
		if _, after := afterCompletion(e); after {
			e.Anchor = task.Time{}
		}
		return e
	}
	a, b := theirs(t.entry.Entry), theirs(ch.entry)
	if b.PauseAfter > 0 && b.Paused {
		a.Paused = true
	}
	if !reflect.DeepEqual(a, b) {
		c.breachOf("G7", t.ref, 0, ch.key, "a commit changes what only the task's user may: %+v becomes %+v", a, b)
	}
}

// judgeFailures checks that failures in a row are counted as the history has
// them, and that the task is paused when they are as many as it says.
func (c *checker) judgeFailures(t *tasked, ch *entryChange) {
	old, next, line := t.entry.Entry, ch.entry, t.entry.line
	was, is := own(old), own(next)
	if next.PauseAfter == 0 {
		return
	}
	if is.Counted < was.Counted {
		c.breachOf("G24", t.ref, 0, ch.key, "the end that was counted last goes back from revision %d to %d", was.Counted, is.Counted)
	}
	least, most, known := c.failures(line, was, is.Counted)
	if known && (is.Failures < min(least, next.PauseAfter) || is.Failures > most) { // more than enough need not be counted
		c.breachOf("G24", t.ref, 0, ch.key, "%d failures in a row are counted up to revision %d; the history has %d", is.Failures, is.Counted, most)
	}
	by := ""
	if p := next.Pause(); p != nil {
		by = p.By
	}
	switch {
	case is.Counted != was.Counted && is.Failures >= next.PauseAfter && !next.Paused:
		c.breachOf("G24", t.ref, 0, ch.key, "%d runs in a row have failed, and the task goes on", is.Failures)
	case next.Paused && !old.Paused && is.Failures < next.PauseAfter:
		c.breachOf("G24", t.ref, 0, ch.key, "the task is paused after %d failures in a row, not %d", is.Failures, next.PauseAfter)
	case next.Paused && !old.Paused && by != task.PausedByFailures:
		c.breachOf("G24", t.ref, 0, ch.key, "the task is paused for its failures, and the pause is said to be by %q", by)
	}
}

// failures are how many runs in a row had failed when the ends up to a revision
// were counted: between least and most, since an end that a resume found not
// counted yet may count or not.
func (c *checker) failures(line *lineage, was task.Own, upTo int64) (least, most int, known bool) {
	count := func(after int64) int {
		n := was.Failures
		for _, e := range line.ends {
			switch {
			case e.rev <= after || e.rev > upTo:
			case failure(e.state):
				n++
			case e.state == task.Succeeded:
				n = 0
			}
		}
		return n
	}
	a, b := count(was.Counted), count(max(was.Counted, line.counting))
	for i, e := range line.ends {
		if i > 0 && e.rev == line.ends[i-1].rev { // two ends in one revision, in an order that nobody knows
			return 0, 0, false
		}
	}
	return min(a, b), max(a, b), c.began == 0 || was.Counted >= c.began
}

// afterCompletion is the period of a schedule that counts from the end of a run.
func afterCompletion(e task.Entry) (time.Duration, bool) {
	if len(e.Schedule) != 1 {
		return 0, false
	}
	words := strings.Fields(e.Schedule[0])
	if len(words) != 4 || words[0] != "@every" || words[2] != "after" || words[3] != "completion" {
		return 0, false
	}
	d, err := time.ParseDuration(words[1])
	return d, err == nil && d >= time.Millisecond
}

// judgeAnchor judges a new anchor of a schedule that counts from the end of a
// run: the tick before has its outcome, its run is over, and none ended later.
func (c *checker) judgeAnchor(t *tasked, ch *entryChange) {
	old, line := t.entry, t.entry.line
	if _, is := afterCompletion(ch.entry); !is || old.Anchor.Equal(ch.entry.Anchor.Time) {
		return
	}
	var tick int64
	if st := line.stretch; st.ticks != nil {
		if at, ok := st.ticks.next(st.start); ok {
			tick = at
		}
	}
	outcome := line.outcomes[tick]
	switch {
	case tick != 0 && outcome == nil:
		c.breachOf("G4", t.ref, tick, ch.key, "its tick has no outcome, and the next one is set already")
	case outcome != nil && (outcome.state == task.Skipped || outcome.state == task.Missed):
	case slices.ContainsFunc(t.open(line), func(r *run) bool { return scheduled(r.trigger) }):
		c.breachOf("G24", t.ref, tick, ch.key, "the next tick counts from the end of a run, and is set before that")
	case ms(ch.entry.Anchor)+2*c.opts.Skew.Milliseconds() < line.lastEnd: // the owner takes no end that its own clock has ahead
		c.breachOf("G24", t.ref, tick, ch.key, "the next tick counts from %s, and the last run ended at %s", stamp(ch.entry.Anchor.Time), stamp(instant(line.lastEnd)))
	}
}

// open are the runs of a task that wait or are active.
func (t *tasked) open(line *lineage) (all []*run) {
	for _, r := range t.runs {
		if r.line == line && !r.ended && !r.purged {
			all = append(all, r)
		}
	}
	return all
}

// endOwn judges what an owner should have seen to by the end of the history.
func (c *checker) endOwn(t *tasked) {
	if c.opts.Until.IsZero() {
		return
	}
	e, line := t.entry, t.entry.line
	by := c.opts.Until.Add(-DefaultConverge).UnixMilli()
	if e.PauseAfter > 0 && !e.Paused {
		upTo := int64(0)
		for _, end := range line.ends {
			if end.at <= by {
				upTo = end.rev
			}
		}
		if least, _, known := c.failures(line, own(e.Entry), upTo); known && least >= e.PauseAfter {
			c.breachOf("G24", t.ref, 0, c.keys.Entry(t.ref), "%d runs in a row had failed, and the task was not paused", least)
		}
	}
	if _, after := afterCompletion(e.Entry); after && line.stretch.ticks != nil && e.End.IsZero() {
		_, more := line.stretch.ticks.next(line.stretch.start)
		if !more && line.lastEnd <= by && ms(e.Anchor) <= by && len(t.open(line)) == 0 && c.namespaceThawed(t.ref, by) {
			c.breachOf("G16", t.ref, 0, c.keys.Entry(t.ref), "its run has ended, and no next tick was set")
		}
	}
}
