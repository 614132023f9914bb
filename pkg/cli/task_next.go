package cli

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// coming is a task's tick, for the list over several tasks.
type coming struct {
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	client.Occurrence

	timezone string
}

func (a *app) taskNext() *cobra.Command {
	var p pick
	var count int
	var from string
	cmd := &cobra.Command{
		Use:   "next TASK...",
		Short: "Show the ticks of a task that come next",
		Long: "Show the ticks of a task that come next, in its time zone, with what the clock changes do to them.\n" +
			"Of several tasks, or of all if none is named, the ticks are merged.",
		Example: `  carillon task next nightly-backup --count 10
  carillon task next nightly-backup --from 2027-03-27
  carillon next`,
		ValidArgsFunction: a.completeTasks,
	}
	p.bind(cmd, false)
	cmd.Flags().IntVar(&count, "count", 5, "how many")
	cmd.Flags().StringVar(&from, "from", "", "ticks after this time (default now)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if count < 1 || count > schedule.MaxUpcoming {
			return usage("--count %d: must be between 1 and %d", count, schedule.MaxUpcoming)
		}
		start, err := readFrom(from, time.Local)
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		if len(words) == 1 && !isGlob(words[0]) {
			return a.nextOfOne(cmd, c, words[0], count, start)
		}
		return a.nextOfMany(cmd, c, words, p, count, start)
	}
	return cmd
}

func (a *app) nextOfOne(cmd *cobra.Command, c *client.Client, word string, count int, start time.Time) error {
	r, err := a.ref(word)
	if err != nil {
		return err
	}
	list, err := c.Next(cmd.Context(), r.namespace, r.name, count, start)
	if err != nil {
		return a.missing(cmd.Context(), c, r, err)
	}
	zone := ""
	if a.human() {
		t, err := c.Get(cmd.Context(), r.namespace, r.name)
		if err != nil {
			return err
		}
		zone = t.Timezone
		a.noteNext(r, t, len(list))
		a.noteFrozen(cmd.Context(), c, r.namespace)
	}
	return emitList(a, list, func(o client.Occurrence) string { return stamp(o.Time) },
		func(bool) *grid { return a.occurrenceGrid(list, zone) })
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
		a.note("%s is %s: these come after that", a.show(r), a.pausedWords(t))
	case t.Paused:
		a.note("%s is %s: none of these comes unless it is resumed", a.show(r), a.pausedWords(t))
	case t.NoNext != "":
		a.note("no more ticks: %s", t.NoNext)
	}
	if t.MaxRuns > 0 && t.NoNext == "" {
		a.note("%s", runsLeftWords(t))
	}
	if listed > 0 && afterCompletion(t.Schedule) {
		a.note(whatFollows)
	}
	if listed > 0 && !t.End.IsZero() {
		a.note("it ends %s", a.dated(t.End, t.Timezone))
	}
}

// nextOfMany merges the ticks of several tasks; paused ones have none.
func (a *app) nextOfMany(cmd *cobra.Command, c *client.Client, words []string, p pick, count int, start time.Time) error {
	tasks, err := a.listed(cmd, c, words, p)
	if err != nil {
		return err
	}
	a.noteFrozen(cmd.Context(), c, a.scope())
	// Only the tasks that come first can be among the first count ticks.
	tasks = slices.DeleteFunc(tasks, func(t client.Task) bool { return t.Next.IsZero() })
	slices.SortStableFunc(tasks, orders["next"])
	if start.IsZero() && len(tasks) > count {
		tasks = tasks[:count]
	}
	list := []coming{}
	for _, t := range tasks {
		ticks, err := c.Next(cmd.Context(), t.Namespace, t.Name, count, start)
		if err != nil {
			return err
		}
		for _, o := range ticks {
			list = append(list, coming{t.Namespace, t.Name, o, t.Timezone})
		}
	}
	slices.SortStableFunc(list, func(x, y coming) int { return cmp.Compare(x.Time.UnixMilli(), y.Time.UnixMilli()) })
	list = list[:min(count, len(list))]
	return emitList(a, list, func(o coming) string { return a.named(o.Namespace, o.Task) }, func(bool) *grid {
		g := &grid{heads: []string{"NEXT", "LEFT", "TASK", "NOTE"}, empty: "nothing comes" + a.inScope()}
		for _, o := range list {
			g.add(a.coming(o.Time, o.timezone), a.left(dueAt(o.Occurrence)), a.named(o.Namespace, o.Task), noteWords(o.Note))
		}
		return g
	})
}

// occurrenceGrid shows ticks in a zone, beside it in UTC, and when they fall due
// where jitter makes that later.
func (a *app) occurrenceGrid(list []client.Occurrence, timezone string) *grid {
	jitter := slices.ContainsFunc(list, func(o client.Occurrence) bool { return !o.DueAt.IsZero() })
	g := &grid{heads: []string{"TIME", "UTC", "LEFT", "NOTE"}, empty: "no tick comes"}
	if jitter {
		g.heads = slices.Insert(g.heads, 2, "DUE")
	}
	for _, o := range list {
		local, due := o.Time.In(a.zone(timezone)), dueAt(o)
		row := []string{local.Format("Mon ") + exact(local), o.Time.UTC().Format("2006-01-02 15:04:05"), a.leftOrGone(due), noteWords(o.Note)}
		if jitter {
			row = slices.Insert(row, 2, due.In(a.zone(timezone)).Format("15:04:05.000"))
		}
		g.add(row...)
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
	return oneLine(note)
}

// stamp is a time as JSON has it.
func stamp(t task.Time) string {
	b, _ := t.MarshalText() // never fails
	return string(b)
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
	return time.Time{}, usage("--from %s: write 2027-03-28, 2027-03-28T01:30 or 2027-03-28T01:30:00Z", quote(s))
}
