// Package load implements "carillon load": how many runs fall due in the coming hours, as a map of minutes.
package load

import (
	"fmt"
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

// options are the flags of the command.
type options struct {
	span     time.Duration
	selector string
	peaks    int
	minute   string
	terms    []string
}

// Command returns "carillon load".
func Command(f *factory.Factory) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "load [QUERY]",
		Short: "Show how many runs fall due in the coming hours",
		Long: "Show how many runs fall due in each minute of the coming hours, the busiest minutes, their busiest seconds, what makes\n" +
			"them, and what would lower them. A darker or higher sign is a busier minute; the scale is logarithmic.\n\n" +
			"The load is that of all namespaces that you may read, or with -n of only one. A query selects tasks (see help\n" +
			"queries). Tasks with jitter are spread over the time in which they may fall due. Not included are manual runs,\n" +
			"retries, and tasks that count from the end of a run. Limits such as max_runs and overlap policies are not considered.\n\n" +
			"-o wide prints numbers instead of signs, and -o json the number of runs in each minute.",
		Example: `  carillon load
  carillon load --for 3h
  carillon load --minute 03:00
  carillon load label:team=data
  carillon load -n billing -o wide
  carillon load -o json | jq '.peaks[0]'`,
		ValidArgsFunction: complete.Query(f),
	}
	flags := cmd.Flags()
	factory.DurationVar(flags, &o.span, "for", 24*time.Hour, "look ahead for this `DURATION`, at most 24h")
	flags.StringVarP(&o.selector, "selector", "l", "", "only tasks whose labels match this `SELECTOR` (see help selectors)")
	flags.IntVar(&o.peaks, "peaks", 5, "show the `N` busiest minutes, at most 20")
	flags.StringVar(&o.minute, "minute", "", "also show what makes the minute at this `TIME`, such as 03:00")
	flags.StringArrayVar(&o.terms, "term", nil, "a `TERM` of the query") // holds terms that look like flags
	_ = flags.MarkHidden("term")                                         // the flag exists
	cmd.RunE = func(cmd *cobra.Command, words []string) error { return run(cmd, f, o, words) }

	return factory.LimitFormats(cmd, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML)
}

// run implements the command.
func run(cmd *cobra.Command, f *factory.Factory, o options, words []string) error {
	switch {
	case o.span < time.Minute || o.span > 24*time.Hour || o.span%time.Minute != 0:
		return failure.Usage("--for %s: use a number of minutes between 1m and 24h", task.Duration(o.span))
	case o.peaks < 0 || o.peaks > 20:
		return failure.Usage("--peaks %d: use a number from 0 to 20", o.peaks)
	}
	_, query, err := selection.Query(f, nil, o.selector, slices.Concat(words, o.terms)...)
	if err != nil {
		return err
	}

	c, err := f.Connect()
	if err != nil {
		return err
	}

	ask := client.LoadOptions{Query: query, Span: o.span, Peaks: o.peaks}
	if f.NamespaceFlag != "" && !f.AllNamespaces {
		ask.Namespace = f.NamespaceFlag
	}

	if o.minute != "" {
		begin := f.Now().Truncate(time.Minute).Add(-time.Millisecond) // the current minute is the next one
		at, err := schedule.ReadInstant(o.minute, schedule.TimeBase{Now: begin, Zone: f.Zone(output.ReaderZone), Direction: schedule.Future})
		if err != nil {
			return factory.WrongTime("minute", err)
		}
		ask.Minute = at.Truncate(time.Minute)
	}

	l, err := c.Load.Get(cmd.Context(), ask)
	if err != nil {
		return err
	}
	if o.peaks == 0 {
		l.Peaks, l.Advice = l.Peaks[:0], l.Advice[:0] // the server has its own default
	}

	if f.Format == output.FormatWide {
		err = output.EmitList(&f.Printer, hoursOf(l, f.Zone(output.ReaderZone)), nil, func(bool) *output.Table { return hourTable(f, hoursOf(l, f.Zone(output.ReaderZone))) })
	} else {
		err = output.EmitOne(&f.Printer, l, "", func(d *output.Details) { show(f, d, l) })
	}

	if err == nil {
		view.NoteOwners(f, l.ListInfo, 0)
	}
	if err == nil && query != "" && l.Tasks == 0 && f.ForPeople() {
		f.Note("%s", selection.Nothing(cmd.Context(), f, c, "no predictable ticks", ask.Namespace, query))
	}

	return err
}

// show prints a load for people.
func show(f *factory.Factory, d *output.Details, l client.TaskLoad) {
	total := 0.0
	for _, runs := range l.Runs {
		total += runs
	}

	span := task.Duration(time.Duration(len(l.Runs)) * l.Step.Std())
	if total == 0 {
		d.Parts = append(d.Parts, fmt.Sprintf("No runs fall due in the next %s.\n", span))
	} else {
		width, _ := f.Terminal(f.Out)
		d.Parts = append(d.Parts, fmt.Sprintf("%s in %s fall due in the next %s.\n\n", wording.RunCount(total, "run"), wording.RunCount(float64(l.Tasks), "task"), span), heatMap(f, l, width))
	}

	if m := l.Minute; m != nil {
		body := f.RenderIndented(peakTable(f, []client.LoadPeak{*m}))
		if len(m.Makers) == 0 {
			body = "  no runs at " + f.FutureTime(m.At, output.ReaderZone) + "\n"
		}
		d.Section("Chosen minute", body)
	}
	d.Section("Busiest minutes", f.RenderIndented(peakTable(f, l.Peaks)))

	advice := ""
	for _, a := range l.Advice {
		advice += "  " + output.OneLine(a.Text) + " (" + f.FutureTime(a.At, output.ReaderZone) + ")\n"
	}
	d.Section("Advice", advice)

	d.Section("Not exact", notExact(l))
}

// notExact says what the load spreads or leaves out; "" if nothing.
func notExact(l client.TaskLoad) string {
	text := ""
	for _, line := range wording.InexactLoad(l) {
		text += "  " + line + "\n"
	}

	return text
}

// peakTable returns the table of the busiest minutes, with a row for each schedule.
func peakTable(f *factory.Factory, peaks []client.LoadPeak) *output.Table {
	g := &output.Table{Headers: []string{"MINUTE", "RUNS", "SECONDS", "TASKS", "SCHEDULE", "SUCH AS"}}

	for _, p := range peaks {
		at, runs, seconds := f.FutureTime(p.At, output.ReaderZone), wording.RunNumber(p.Runs), wording.HotSeconds(p)

		for _, m := range p.Makers {
			names := output.OneLine(strings.Join(m.Names, ", "))
			if m.Tasks > len(m.Names) {
				names += f.Plain(", …")
			}

			g.AddRow(at, runs, seconds, wording.RunCount(float64(m.Tasks), "task"), wording.LoadMakerText(m), names)
			at, runs, seconds = "", "", ""
		}

		if p.OtherMakers > 0 {
			g.AddRow("", "", "", "", "and "+wording.RunCount(float64(p.OtherMakers), "other schedule"))
		}
	}

	return g
}
