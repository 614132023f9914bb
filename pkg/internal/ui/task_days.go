package ui

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	shownDays = 30

	// daysEvery is how often the days of a page that somebody watches are counted again: it reads the whole history.
	daysEvery = 5 * time.Second
)

// taskDays shows how the runs of a task ended on each of the last days, from the history and the ledger.
type taskDays struct {
	Days    []dayCount // the latest last
	counted time.Time
}

// dayCount is how the runs of a day ended.
type dayCount struct {
	Start     time.Time // midnight, in the zone of the page
	Succeeded int64
	Failed    int64 // failed, timed out, lost or cancelled
	Unrun     int64 // skipped or missed
	About     bool  // a span of the ledger has counted ticks of several days together
	end       time.Time
}

// loadTaskDays counts the runs of each of the last days. It returns what the page has shown before, if that is recent, and
// nil if the viewer may not read runs.
func loadTaskDays(ctx context.Context, r *Request, t client.Task) (*taskDays, error) {
	if before, ok := r.previous.(taskPage); ok && before.Days != nil && r.Now.Sub(before.Days.counted) < daysEvery {
		return before.Days, nil
	}

	d := newTaskDays(r.Now, r.Zone(t.Timezone))
	since := d.Days[0].Start

	read, err := r.API.Tasks.Ledger(ctx, t.Namespace, t.Name, client.LedgerOptions{Since: since})
	switch {
	case isForbidden(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	runs, err := r.API.Runs.ListByTask(ctx, t.Namespace, t.Name, client.RunListOptions{Since: since})
	if err != nil {
		return nil, err
	}

	d.counted = r.Now
	for _, l := range read.Lines {
		d.addLine(l)
	}
	for _, run := range runs {
		d.addRun(run)
	}

	return d, nil
}

// newTaskDays returns the last days in a zone, without runs.
func newTaskDays(now time.Time, zone *time.Location) *taskDays {
	year, month, today := now.In(zone).Date()
	midnight := func(day int) time.Time { return time.Date(year, month, day, 0, 0, 0, 0, zone) }

	d := &taskDays{}
	for day := today - shownDays + 1; day <= today; day++ {
		d.Days = append(d.Days, dayCount{Start: midnight(day), end: midnight(day + 1)})
	}

	return d
}

// addRun counts a record of the history, which may be about a range of ticks.
func (d *taskDays) addRun(r task.Run) {
	if !r.State.Final() {
		return
	}

	last := r.ScheduledTime.Time
	if r.Count > 1 {
		last = r.Last.Time
	}
	d.spread(r.State, r.ScheduledTime.Time, last, max(r.Count, 1))
}

// addLine counts a line of the ledger.
func (d *taskDays) addLine(l task.LedgerLine) {
	switch l.Kind {
	case task.LedgerSucceeded:
		d.spread(task.Succeeded, l.First.Time, l.Last.Time, l.Count)
	case task.LedgerException, task.LedgerRequested:
		d.spread(l.State, l.First.Time, l.Last.Time, l.Count)
	case task.LedgerHour, task.LedgerRequestedMore:
		for cause, n := range l.Causes {
			d.spread(stateOfCause(cause), l.First.Time, l.First.Time, n)
		}
	}
}

// spread counts runs between two times. If these are on several days, it counts as if the ticks had equal distances, because
// a span does not name them.
func (d *taskDays) spread(state task.State, first, last time.Time, count int64) {
	length := last.Sub(first).Milliseconds()

	for i := range d.Days {
		day := &d.Days[i]
		from, to := int64(0), count
		if length > 0 {
			from, to = ticksBefore(day.Start.Sub(first).Milliseconds(), length, count), ticksBefore(day.end.Sub(first).Milliseconds(), length, count)
		} else if first.Before(day.Start) || !first.Before(day.end) {
			continue
		}

		if n := to - from; n > 0 {
			day.add(state, n)
			day.About = day.About || n < count
		}
	}
}

// ticksBefore returns how many of count ticks come before a time, if they are spread evenly over a length, and one is at each
// end. Both are in milliseconds after the first tick.
func ticksBefore(at, length, count int64) int64 {
	switch {
	case at <= 0:
		return 0
	case at > length:
		return count
	case count < 2:
		return count
	}

	return (at*(count-1) + length - 1) / length
}

// add counts runs that ended in a state.
func (c *dayCount) add(state task.State, n int64) {
	switch state {
	case task.Succeeded:
		c.Succeeded += n
	case task.Skipped, task.Missed:
		c.Unrun += n
	default:
		c.Failed += n
	}
}

// Date returns the day as a question of "why" names it.
func (c dayCount) Date() string { return c.Start.Format(time.DateOnly) }

// Name returns the day for people.
func (c dayCount) Name() string { return c.Start.Format("Mon 2 Jan") }

// Zone returns the zone in which the day begins.
func (c dayCount) Zone() string { return c.Start.Format("MST") }

// Recorded returns the number of ticks and runs of the day. If it is 0, there were none, or they are no longer on record.
func (c dayCount) Recorded() int64 { return c.Ran() + c.Unrun }

// Ran returns the number of runs that ended.
func (c dayCount) Ran() int64 { return c.Succeeded + c.Failed }

// Text describes the day in words.
func (c dayCount) Text() string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{{c.Succeeded, "succeeded"}, {c.Failed, "did not succeed"}, {c.Unrun, "did not run"}} {
		if p.n > 0 {
			parts = append(parts, wording.Grouped(int(p.n))+" "+p.what)
		}
	}

	switch {
	case len(parts) == 0:
		return "nothing on record"
	case c.About:
		return "about " + strings.Join(parts, ", ")
	}

	return strings.Join(parts, ", ")
}

// Summary says how many of the runs of all days succeeded.
func (d *taskDays) Summary() string {
	var succeeded, ran int64
	for _, day := range d.Days {
		succeeded, ran = succeeded+day.Succeeded, ran+day.Ran()
	}
	if ran == 0 {
		return "nothing on record"
	}

	return fmt.Sprintf("%s of %s succeeded", wording.Percent(float64(succeeded)/float64(ran)), countedRuns(ran))
}

// countedRuns returns a number of runs in words.
func countedRuns(n int64) string {
	if n == 1 {
		return "1 run"
	}
	return wording.Grouped(int(n)) + " runs"
}

// First and Last are the days at the ends of the drawing.
func (d *taskDays) First() dayCount { return d.Days[0] }

// Last is the current day.
func (d *taskDays) Last() dayCount { return d.Days[len(d.Days)-1] }

// Backward returns the days, the latest first.
func (d *taskDays) Backward() []dayCount {
	days := slices.Clone(d.Days)
	slices.Reverse(days)

	return days
}

// SVG draws a column for each day, filled from below: runs that did not succeed, ticks that did not run, and successes. The
// drawing is stretched to its place, so it contains no text but titles.
func (d *taskDays) SVG() template.HTML {
	const width, height, gap, least = 10, 40, 2, 8

	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="days" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="How the runs of the last %d days ended; the table below has the numbers">`, len(d.Days)*width, height, len(d.Days))

	for i, day := range d.Days {
		x := i * width
		column := func(class string, y, h float64) {
			fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%.1f" width="%d" height="%.1f"/>`, class, x, y, width-gap, h)
		}
		fmt.Fprintf(&b, `<g><title>%s</title>`, template.HTMLEscapeString(day.Start.Format("Mon 2 Jan")+": "+day.Text()))

		all := day.Recorded()
		if all == 0 {
			column("none", height-2, 2)
		} else {
			// Few failures among many runs must remain visible.
			share := func(n int64) float64 {
				if n == 0 {
					return 0
				}
				return min(max(height*float64(n)/float64(all), least), height)
			}
			bad := share(day.Failed)
			unrun := min(share(day.Unrun), height-bad)
			if day.Succeeded > 0 {
				column("good", 0, height)
			}
			if unrun > 0 {
				column("unrun", height-bad-unrun, unrun)
			}
			if bad > 0 {
				column("bad", height-bad, bad)
			}
			// Stripes distinguish failures without colors.
			for y := height - bad + 2; bad > 0 && y < height; y += 4 {
				column("stripe", y, 1.3)
			}
		}
		b.WriteString("</g>")
	}
	b.WriteString("</svg>")

	return template.HTML(b.String()) //nolint:gosec // all texts are escaped
}

// ledgerList is the part of the list of runs that comes from the ledger of the task: the outcomes of ticks whose records are
// no longer kept.
type ledgerList struct {
	Rows      []ledgerRow
	Older     string        // the end of the lines that follow on the next page; "" if there are none
	Complete  task.Time     // each tick since then is in the history or in the ledger; zero if that is not known
	Remembers task.Duration // for how long the ledger remembers ticks
	Limited   bool          // because etcd is filling up
	Broken    int           // records of the ledger that cannot be read
}

// ledgerRow is a line of a ledger as the page shows it.
type ledgerRow struct {
	task.LedgerLine
	Look  string // whose looks it has
	Words string
	Note  string
}

// Single reports whether the line is about one tick, so that "why" can explain it.
func (r ledgerRow) Single() bool { return r.Kind == task.LedgerException && r.Count == 1 }

// Requested reports whether the line is about runs that somebody requested.
func (r ledgerRow) Requested() bool {
	return r.Kind == task.LedgerRequested || r.Kind == task.LedgerRequestedMore
}

// Hour reports whether the line is about an hour.
func (r ledgerRow) Hour() bool { return r.Kind == task.LedgerHour }

// NamesAll reports whether a line about an hour names all of its ticks.
func (r ledgerRow) NamesAll() bool { return int64(len(r.Named)) == r.Count }

// Spans reports whether the line is about successful ticks.
func (r ledgerRow) Spans() bool { return r.Kind == task.LedgerSucceeded }

// ledgerPage is what the parameter for the page of a list begins with when the page begins in the ledger.
const ledgerPage = "ledger-"

// loadLedgerList reads the lines of a page that begins before until; zero means the newest.
func loadLedgerList(ctx context.Context, r *Request, ns, name string, states []task.State, until time.Time) (*ledgerList, error) {
	read, err := r.API.Tasks.Ledger(ctx, ns, name, client.LedgerOptions{States: states})
	if err != nil {
		return nil, err
	}

	p := &ledgerList{Complete: read.CompleteSince, Remembers: read.Remembers, Limited: read.Limit != nil, Broken: read.Broken}
	lines := read.Lines // the latest end first, so that a span of successes comes before the ticks within it that failed
	if !until.IsZero() {
		lines = slices.DeleteFunc(lines, func(l task.LedgerLine) bool { return !l.Last.Before(until) })
	}

	// Lines with the same end stay on one page, because the next page begins before that end.
	n := min(len(lines), runsPerPage)
	for n < len(lines) && lines[n].Last.Equal(lines[n-1].Last.Time) {
		n++
	}
	if n < len(lines) {
		p.Older = ledgerPage + lines[n-1].Last.UTC().Format(time.RFC3339Nano)
	}

	for _, l := range lines[:n] {
		p.Rows = append(p.Rows, ledgerRowOf(l))
	}

	return p, nil
}

// ledgerRowOf returns a line as the page shows it. What counts together has its causes below.
func ledgerRowOf(l task.LedgerLine) ledgerRow {
	row := ledgerRow{LedgerLine: l, Look: cmp.Or(string(wording.LedgerState(l)), "unreadable"), Words: wording.LedgerText(l)}

	if l.Kind == task.LedgerHour || l.Kind == task.LedgerRequestedMore {
		row.Words, row.Note, _ = strings.Cut(row.Words, ": ")
	}

	return row
}

// stateOfCause returns the state in a cause: "failed: exit 1" or "timed_out".
func stateOfCause(cause string) task.State {
	state, _, _ := strings.Cut(cause, ":")
	return task.State(state)
}
