package task

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// nextFlags contains the flags of next.
type nextFlags struct {
	selection.Flags
	query       string
	failing     bool
	count       int
	from, until string
	span        time.Duration
}

const (
	usualCount = 5
	spanCount  = 1000 // with --for or --until
)

// NextCommand returns "carillon next", which is also "carillon task next".
func NextCommand(f *factory.Factory) *cobra.Command {
	var u nextFlags
	cmd := &cobra.Command{
		Use:   "next TASK... | QUERY",
		Short: "Show the next ticks of tasks",
		Long: "Show the next ticks of one task, of several tasks, or of all tasks if you name none.\n\n" +
			"For one task, times are in its time zone, and notes mark ticks that daylight saving time moves, drops or\n" +
			"doubles. The ticks of several tasks are merged, and times are in your time zone. Times that you pass\n" +
			"without an offset are in the same zone.\n\n" +
			"You can also name the tasks by a query, such as label:team=data; see carillon help queries.\n\n" +
			"With --for or --until, the command shows up to 1000 ticks in that period; --count changes the limit.\n" +
			"-o wide adds the time zone of each task and the values chosen for H.",
		Example: `  carillon task next nightly-backup --count 10
  carillon task next nightly-backup --from 2027-03-27 --until 2027-03-30
  carillon next
  carillon next -A --for 2h -o wide
  carillon next -l team=data --until 18:00`,
		ValidArgsFunction: complete.Query(f),
	}
	u.Flags.Bind(cmd, false)
	bindTerms(cmd)
	flags := cmd.Flags()
	flags.IntVar(&u.count, "count", usualCount, "show at most `N` ticks")
	flags.StringVar(&u.from, "from", "", "show ticks after this `TIME`, such as tomorrow or 18:00 (default now; see help times)")
	flags.StringVar(&u.until, "until", "", "show no ticks after this `TIME`, such as 18:00, 2h or 2026-12-24")
	factory.DurationVar(flags, &u.span, "for", 0, "show ticks within this `DURATION` from now, or from --from")
	flags.BoolVar(&u.failing, "failing", false, "show only tasks that are failing")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if u.span < 0 || u.span == 0 && flags.Changed("for") {
			return failure.Usage("--for %s: must be more than 0", task.Duration(u.span))
		}
		if u.span > 0 && u.until != "" {
			return failure.Usage("--for and --until cannot be used together")
		}

		if (u.span > 0 || u.until != "") && !flags.Changed("count") {
			u.count = spanCount
		}

		if u.count < 1 || u.count > schedule.MaxUpcoming {
			return failure.Usage("--count %d: must be between 1 and %d", u.count, schedule.MaxUpcoming)
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}
		if words, u.query = splitQuery(cmd, words); namesOne(words) && u.Selector == "" && !u.failing {
			return nextOfOne(f, cmd, c, words[0], u)
		}

		return nextOfMany(f, cmd, c, words, u)
	}

	return cmd
}

// nextBounds returns the requested period. A zero from means now; a zero until means no end.
func nextBounds(f *factory.Factory, u nextFlags) (from, until time.Time, err error) {
	zone := f.Zone(output.ReaderZone)
	if from, err = f.ParseTime("from", u.from, zone, schedule.Nearest); err != nil {
		return from, until, err
	}

	start := from
	if start.IsZero() {
		start = f.Now()
	}

	switch {
	case u.span > 0:
		until = start.Add(u.span)
	case u.until != "":
		if until, err = schedule.ReadInstant(u.until, schedule.TimeBase{Now: start, Zone: zone, Direction: schedule.Future}); err != nil {
			return from, until, factory.WrongTime("until", err)
		}
		if !until.After(start) {
			return from, until, failure.Usage("--until %s: is not after %s", task.Quote(u.until), f.ExactTime(task.At(start.Truncate(time.Second)), output.ReaderZone))
		}
	}

	return from, until, nil
}

// nextOfOne prints the ticks of one task.
func nextOfOne(f *factory.Factory, cmd *cobra.Command, c *client.Client, word string, u nextFlags) error {
	r, err := selection.ParseRef(f, word)
	if err != nil {
		return err
	}

	ctx := cmd.Context()
	var t client.Task
	if f.ForPeople() || u.from != "" || u.until != "" { // times may be in the task's zone
		if t, err = c.Tasks.Get(ctx, r.Namespace, r.Name); err != nil {
			return selection.ExplainMissing(ctx, f, c, r, err)
		}
		if err := aboutTask(f, t, u.from, u.until); err != nil {
			return err
		}
	}

	from, until, err := nextBounds(f, u)
	if err != nil {
		return err
	}

	const most = 1000 // the maximum number of ticks that the server returns at once
	list := []client.Occurrence{}
	more := true
	for start := from; more && len(list) < u.count; {
		some, err := c.Ticks.ListByTask(ctx, r.Namespace, r.Name, min(u.count-len(list), most), start)
		if err != nil {
			return selection.ExplainMissing(ctx, f, c, r, err)
		}

		more = len(some) == most
		for _, o := range some {
			if more = more && (until.IsZero() || !o.Time.After(until)); !until.IsZero() && o.Time.After(until) {
				break
			}
			list, start = append(list, o), o.Time.Time
		}
	}

	if f.ForPeople() {
		noteNext(f, r, t, len(list))
		view.NoteFrozen(ctx, f, c, r.Namespace)
	}

	noteCut(f, len(list), u)

	return output.EmitList(&f.Printer, list, func(o client.Occurrence) string { return view.Timestamp(o.Time) },
		func(bool) *output.Table { return view.TickTable(f, list, t.Timezone) })
}

// noteCut prints a note if there may be more ticks in the period than are shown.
func noteCut(f *factory.Factory, listed int, u nextFlags) {
	if listed >= u.count && (u.span > 0 || u.until != "") {
		f.Note("showing the first %s; for more, use --count, at most %d", output.Plural(int64(listed), "tick"), schedule.MaxUpcoming)
	}
}

// noteNext prints notes that the ticks alone do not express.
func noteNext(f *factory.Factory, r selection.Ref, t client.Task, listed int) {
	switch {
	case t.Paused && !t.PausedUntil.IsZero():
		f.Note("%s is %s; these ticks come after the pause", selection.Show(f, r), view.PausedText(f, t))
	case t.Paused:
		f.Note("%s is %s; it has no ticks until you resume it", selection.Show(f, r), view.PausedText(f, t))
	case t.Schedule.AtBoot():
		f.Note("%s runs at the next boot of a matching node", selection.Show(f, r))
	case t.NoNext != "":
		f.Note("no more ticks: %s", t.NoNext)
	case len(t.After) > 0 && !t.Schedule.HasTicks():
		f.Note("%s has no ticks; it runs after %s", selection.Show(f, r), t.After.Describe())
	case len(t.After) > 0:
		f.Note("%s also runs after %s", selection.Show(f, r), t.After.Describe())
	}

	if t.MaxRuns > 0 && t.NoNext == "" {
		f.Note("%s", wording.RunsLeftText(t))
	}

	if listed > 0 && view.IsAfterCompletion(t.Schedule) {
		f.Note(view.WhatFollows)
	}

	if listed > 0 && !t.End.IsZero() {
		f.Note("the schedule ends %s", f.DateTime(t.End, t.Timezone))
	}
}

// nextOfMany prints the merged ticks of several tasks. Paused tasks have none.
func nextOfMany(f *factory.Factory, cmd *cobra.Command, c *client.Client, words []string, u nextFlags) error {
	ctx := cmd.Context()

	o := client.ComingOptions{Limit: u.count}
	var err error
	if o.Namespace, o.Query, err = selection.Query(f, words, u.Selector, flagTerm(u.failing, "state", client.TaskFailing), u.query); err != nil {
		return err
	}
	if o.From, o.Until, err = nextBounds(f, u); err != nil {
		return err
	}
	if err := areThere(ctx, f, c, words); err != nil {
		return err
	}

	var info client.ListInfo
	o.Info = info.Include
	list := []client.Coming{}
	for tick, err := range c.Ticks.All(ctx, o) {
		if err != nil {
			return err
		}
		list = append(list, tick)
	}

	view.NoteFrozen(ctx, f, c, f.Scope())
	noteCut(f, len(list), u)
	view.NoteOwners(f, info, len(list))
	jitter := slices.ContainsFunc(list, func(o client.Coming) bool { return !o.DueAt.IsZero() })

	return output.EmitList(&f.Printer, list, func(o client.Coming) string { return selection.Name(f, o.Namespace, o.Task) }, func(wide bool) *output.Table {
		g := &output.Table{Headers: []string{"NEXT", "LEFT", "TASK", "NOTE"}}
		if len(list) == 0 {
			g.Empty = selection.Nothing(ctx, f, c, "no upcoming ticks", o.Namespace, o.Query)
		}
		if jitter {
			g.Headers = slices.Insert(g.Headers, 1, "DUE")
		}

		if wide {
			g.Headers = append(g.Headers, "SCHEDULE", "ZONE")
		}

		for _, o := range list {
			row := []string{f.FutureTime(o.Time, o.Timezone), f.TimeLeftOrPast(view.DueAt(o.Occurrence)), selection.Name(f, o.Namespace, o.Task), wording.TickNote(o.Occurrence)}
			if jitter {
				row = slices.Insert(row, 1, f.ClockMillis(view.DueAt(o.Occurrence), o.Timezone))
			}

			if wide {
				row = append(row, output.OneLine(strings.Join(o.Schedule, ", ")), cmp.Or(output.OneLine(o.Timezone), "UTC"))
			}

			g.AddRow(row...)
		}

		return g
	})
}

// areThere returns an error if a named task does not exist.
func areThere(ctx context.Context, f *factory.Factory, c *client.Client, words []string) error {
	words = slices.DeleteFunc(slices.Clone(words), selection.IsGlob)
	if len(words) == 0 {
		return nil
	}

	o := client.TaskListOptions{Brief: true}
	var err error
	if o.Namespace, o.Query, err = selection.Query(f, words, ""); err != nil {
		return err
	}

	list, err := c.Tasks.List(ctx, o)
	if err != nil {
		return err
	}

	return unmatchedWordError(ctx, f, c, listFlags{words: words}, list)
}
