package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// upcoming is what the flags of next ask for.
type upcoming struct {
	pick
	failing     bool
	count       int
	from, until string
	span        time.Duration
}

const (
	usualCount = 5
	spanCount  = 1000 // of a span, unless that is said
)

func (a *app) taskNext() *cobra.Command {
	var u upcoming
	cmd := &cobra.Command{
		Use:   "next TASK...",
		Short: "Show the ticks of tasks that come next",
		Long: "Show the ticks that come next: of one task in its time zone, with what the clock changes do to them; of several,\n" +
			"or of all if none is named, merged. --for and --until make it a span of time, of which 1000 ticks are shown\n" +
			"unless --count says otherwise. Times without an offset are of the task's zone, and of yours where there are\n" +
			"several tasks. What H stands for, and the zone of each: -o wide.",
		Example: `  carillon task next nightly-backup --count 10
  carillon task next nightly-backup --from 2027-03-27 --until 2027-03-30
  carillon next
  carillon next -A --for 2h -o wide
  carillon next -l team=data --until 18:00`,
		ValidArgsFunction: a.completeTasks,
	}
	u.pick.bind(cmd, false)
	f := cmd.Flags()
	f.IntVar(&u.count, "count", usualCount, "at most so many")
	f.StringVar(&u.from, "from", "", "ticks after this `TIME` (default now)")
	f.StringVar(&u.until, "until", "", "no ticks after this `TIME`, which may be a time of day that comes")
	f.DurationVar(&u.span, "for", 0, "no ticks more than this `DURATION` after now, or after --from")
	f.BoolVar(&u.failing, "failing", false, "only of tasks that are failing")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if u.span < 0 || u.span == 0 && f.Changed("for") {
			return failure.Usage("--for %s: must be more than 0", u.span)
		}
		if u.span > 0 && u.until != "" {
			return failure.Usage("--for and --until exclude each other")
		}
		if (u.span > 0 || u.until != "") && !f.Changed("count") {
			u.count = spanCount
		}
		if u.count < 1 || u.count > schedule.MaxUpcoming {
			return failure.Usage("--count %d: must be between 1 and %d", u.count, schedule.MaxUpcoming)
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		if len(words) == 1 && !isGlob(words[0]) && u.selector == "" && !u.failing {
			return a.nextOfOne(cmd, c, words[0], u)
		}
		return a.nextOfMany(cmd, c, words, u)
	}
	return cmd
}

// bounds are the span that is asked for; zero: from now, without an end. Local
// times are of the zone.
func (a *app) bounds(u upcoming, zone *time.Location) (from, until time.Time, err error) {
	if from, err = readFrom(u.from, zone); err != nil {
		return from, until, err
	}
	start := from
	if start.IsZero() {
		start = a.Now()
	}
	switch {
	case u.span > 0:
		until = start.Add(u.span)
	case u.until != "":
		if until, err = readUntil(u.until, start, zone); err != nil {
			return from, until, err
		}
		if !until.After(start) {
			return from, until, failure.Usage("--until %s: is not after %s", task.Quote(u.until), output.ExactTime(start.In(zone).Truncate(time.Second)))
		}
	}
	return from, until, nil
}

func (a *app) nextOfOne(cmd *cobra.Command, c *client.Client, word string, u upcoming) error {
	r, err := a.ref(word)
	if err != nil {
		return err
	}
	ctx, zone := cmd.Context(), time.UTC
	var t client.Task
	if a.ForPeople() || u.from != "" || u.until != "" { // they may be of the task's zone
		if t, err = c.Get(ctx, r.namespace, r.name); err != nil {
			return a.missing(ctx, c, r, err)
		}
		if zone, err = schedule.Location(t.Timezone); err != nil {
			return err
		}
	}
	from, until, err := a.bounds(u, zone)
	if err != nil {
		return err
	}
	const most = 1000 // that the server tells at once
	list := []client.Occurrence{}
	more := true
	for start := from; more && len(list) < u.count; {
		some, err := c.Next(ctx, r.namespace, r.name, min(u.count-len(list), most), start)
		if err != nil {
			return a.missing(ctx, c, r, err)
		}
		more = len(some) == most
		for _, o := range some {
			if more = more && (until.IsZero() || !o.Time.After(until)); !until.IsZero() && o.Time.After(until) {
				break
			}
			list, start = append(list, o), o.Time.Time
		}
	}
	if a.ForPeople() {
		a.noteNext(r, t, len(list))
		a.noteFrozen(ctx, c, r.namespace)
	}
	a.noteCut(len(list), u)
	return output.EmitList(&a.Printer, list, func(o client.Occurrence) string { return stamp(o.Time) },
		func(bool) *output.Table { return a.occurrenceGrid(list, t.Timezone) })
}

// noteCut says that there may be more in the span than is shown.
func (a *app) noteCut(listed int, u upcoming) {
	if listed >= u.count && (u.span > 0 || u.until != "") {
		a.Note("these are the first %d; --count, at most %d, shows more", listed, schedule.MaxUpcoming)
	}
}

// afterCompletion reports whether ticks follow from the ends of runs, so that only
// one is known.
func afterCompletion(exprs task.Schedules) bool {
	return len(exprs) == 1 && strings.HasSuffix(exprs[0], " after completion")
}

const whatFollows = "the tick after that follows from when its run ends"

// noteNext says what ticks alone do not.
func (a *app) noteNext(r ref, t client.Task, listed int) {
	switch {
	case t.Paused && !t.PausedUntil.IsZero():
		a.Note("%s is %s: these come after that", a.show(r), a.pausedWords(t))
	case t.Paused:
		a.Note("%s is %s: none of these comes unless it is resumed", a.show(r), a.pausedWords(t))
	case t.NoNext != "":
		a.Note("no more ticks: %s", t.NoNext)
	}
	if t.MaxRuns > 0 && t.NoNext == "" {
		a.Note("%s", runsLeftWords(t))
	}
	if listed > 0 && afterCompletion(t.Schedule) {
		a.Note(whatFollows)
	}
	if listed > 0 && !t.End.IsZero() {
		a.Note("it ends %s", a.DateTime(t.End, t.Timezone))
	}
}

// nextOfMany merges the ticks of several tasks; paused ones have none.
func (a *app) nextOfMany(cmd *cobra.Command, c *client.Client, words []string, u upcoming) error {
	ctx := cmd.Context()
	if _, err := task.ParseSelector(u.selector); err != nil {
		return task.Under("selector", err)
	}
	o := client.ComingOptions{Selector: u.selector, Failing: u.failing, Limit: u.count}
	var err error
	if o.From, o.Until, err = a.bounds(u, a.Zone(output.ReaderZone)); err != nil {
		return err
	}
	if o.Namespace, o.Names, err = a.patterns(words); err != nil {
		return err
	}
	if err := a.areThere(ctx, c, words); err != nil {
		return err
	}
	list := []client.Coming{}
	for tick, err := range c.Coming(ctx, o) {
		if err != nil {
			return err
		}
		list = append(list, tick)
	}
	a.noteFrozen(ctx, c, a.scope())
	a.noteCut(len(list), u)
	jitter := slices.ContainsFunc(list, func(o client.Coming) bool { return !o.DueAt.IsZero() })
	return output.EmitList(&a.Printer, list, func(o client.Coming) string { return a.named(o.Namespace, o.Task) }, func(wide bool) *output.Table {
		g := &output.Table{Headers: []string{"NEXT", "LEFT", "TASK", "NOTE"}, Empty: "nothing comes" + a.inScope()}
		if jitter {
			g.Headers = slices.Insert(g.Headers, 1, "DUE")
		}
		if wide {
			g.Headers = append(g.Headers, "SCHEDULE", "ZONE")
		}
		for _, o := range list {
			row := []string{a.FutureTime(o.Time, o.Timezone), a.TimeLeftOrPast(dueAt(o.Occurrence)), a.named(o.Namespace, o.Task), noteWords(o.Note)}
			if jitter {
				row = slices.Insert(row, 1, dueAt(o.Occurrence).In(a.Zone(o.Timezone)).Format("15:04:05.000"))
			}
			if wide {
				row = append(row, output.OneLine(strings.Join(o.Schedule, ", ")), cmp.Or(output.OneLine(o.Timezone), "UTC"))
			}
			g.AddRow(row...)
		}
		return g
	})
}

// areThere is an error if a task that is named is not there.
func (a *app) areThere(ctx context.Context, c *client.Client, words []string) error {
	words = slices.DeleteFunc(slices.Clone(words), isGlob)
	if len(words) == 0 {
		return nil
	}
	o := client.ListOptions{Brief: true}
	var err error
	if o.Namespace, o.Names, err = a.patterns(words); err != nil {
		return err
	}
	list, err := c.List(ctx, o)
	if err != nil {
		return err
	}
	return a.unmatched(ctx, c, listing{words: words}, list)
}

// occurrenceGrid shows ticks in a zone, beside it in UTC, and when they fall due
// where jitter makes that later.
func (a *app) occurrenceGrid(list []client.Occurrence, timezone string) *output.Table {
	jitter := slices.ContainsFunc(list, func(o client.Occurrence) bool { return !o.DueAt.IsZero() })
	g := &output.Table{Headers: []string{"TIME", "UTC", "LEFT", "NOTE"}, Empty: "no tick comes"}
	if jitter {
		g.Headers = slices.Insert(g.Headers, 2, "DUE")
	}
	for _, o := range list {
		local, due := o.Time.In(a.Zone(timezone)), dueAt(o)
		row := []string{local.Format("Mon ") + output.ExactTime(local), o.Time.UTC().Format("2006-01-02 15:04:05"), a.TimeLeftOrPast(due), noteWords(o.Note)}
		if jitter {
			row = slices.Insert(row, 2, due.In(a.Zone(timezone)).Format("15:04:05.000"))
		}
		g.AddRow(row...)
	}
	return g
}

// dueAt is when a tick falls due.
func dueAt(o client.Occurrence) task.Time {
	if o.DueAt.IsZero() {
		return o.Time
	}
	return o.DueAt
}

func noteWords(note string) string {
	switch note {
	case schedule.NoteGap:
		return "after a gap: the clocks go forward"
	case schedule.NoteFold:
		return "in a fold: the clocks go back"
	}
	return output.OneLine(note)
}

// stamp is a time as JSON has it.
func stamp(t task.Time) string {
	b, _ := t.MarshalText() // never fails
	return string(b)
}

// readUntil reads the end of a span: as readFrom, or a time of day that comes next
// after start.
func readUntil(s string, start time.Time, zone *time.Location) (time.Time, error) {
	for _, layout := range []string{"15:04", "15:04:05"} {
		t, err := time.Parse(layout, s)
		if err != nil {
			continue
		}
		day := start.In(zone)
		at := time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), t.Second(), 0, zone)
		if !at.After(start) {
			at = time.Date(day.Year(), day.Month(), day.Day()+1, t.Hour(), t.Minute(), t.Second(), 0, zone)
		}
		return at, nil
	}
	at, err := readFrom(s, zone)
	if err != nil {
		return at, failure.Usage("--until %s: write 18:00, 2027-03-28, 2027-03-28T01:30 or 2027-03-28T01:30:00Z", task.Quote(s))
	}
	return at, nil
}

// readFrom reads a time from which to count: RFC 3339, or a date with or without
// a time of day in a zone. Nothing is the zero time.
func readFrom(s string, zone *time.Location) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02 15:04:05"} {
		if t, err := time.ParseInLocation(layout, s, zone); err == nil {
			return t, nil
		}
	}
	return time.Time{}, failure.Usage("--from %s: write 2027-03-28, 2027-03-28T01:30 or 2027-03-28T01:30:00Z", task.Quote(s))
}
