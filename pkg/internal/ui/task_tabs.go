package ui

import (
	"context"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskStats is the tab with statistics and charts.
type taskStats struct {
	Facts   []setting
	Since   task.Time  // of the oldest tick that was counted; zero if there is none
	Kept    task.Time  // of the oldest record, if earlier ticks were counted in the ledger
	Limited int        // how many records are kept, if older ones have been removed and there is no ledger of them
	Lost    int64      // records that could not be read when they were deleted
	Charts  []barChart // of duration and lateness
	Runs    []task.Run // those of the charts, the newest first
}

func loadTaskStats(ctx context.Context, r *Request, t client.Task) (*taskStats, error) {
	stats, err := r.API.Tasks.Stats(ctx, t.Namespace, t.Name, time.Time{})
	if err != nil {
		return nil, err
	}
	runs, err := r.API.Runs.ListByTask(ctx, t.Namespace, t.Name, client.RunListOptions{Limit: chartRuns})
	if err != nil {
		return nil, err
	}

	p := &taskStats{Facts: statFacts(stats), Since: stats.KeptSince}
	switch {
	case stats.Ledger != nil:
		p.Since, p.Kept, p.Lost = stats.Ledger.Since, stats.KeptSince, stats.Ledger.Unreadable
	case stats.Kept >= stats.History.Keep:
		p.Limited = stats.History.Keep
	}

	for _, run := range runs {
		if run.State.Final() && !run.StartedAt.IsZero() {
			p.Runs = append(p.Runs, run)
		}
	}

	p.Charts = []barChart{
		chartOf("Duration", p.Runs, func(run task.Run) time.Duration { return wording.RunDuration(run, r.Now) }),
		chartOf("Lateness", p.Runs, latenessOf),
	}

	return p, nil
}

// latenessOf returns how late a run started; negative if that is not known.
func latenessOf(r task.Run) time.Duration {
	if r.LatenessMS == nil {
		return -1
	}
	return time.Duration(*r.LatenessMS) * time.Millisecond
}

// statFacts are the statistics in the words of "carillon task stats".
func statFacts(s client.TaskStats) []setting {
	var list settings
	list.add("Runs", wording.OutcomesText(s))
	switch {
	case s.SuccessRate != nil:
		list.add("Success", wording.Percent(*s.SuccessRate))
	case s.History.Record == task.RecordFailures:
		list.add("Success", "not known: successful runs are not kept (history.record: failures)")
	}

	// The ledger has no percentiles, and does not count retries.
	measured := ""
	if s.Ledger != nil {
		measured = fmt.Sprintf(" (of the %s in the history)", wording.Plural(int64(s.Runs-s.Ledger.Runs), "run"))
	}
	measure := func(name, text string) {
		if text != "" {
			list.add(name, text+measured)
		}
	}

	measure("Duration", wording.QuantilesText(s.Duration, true))
	measure("Lateness", wording.QuantilesText(s.Lateness, false))
	if text := wording.SuccessfulText(s); text != "" {
		list.add("Overall", fmt.Sprintf("%s (of %s successful runs)", text, wording.Grouped(int(s.Successful.Count))))
	}
	if s.Retries > 0 {
		measure("Retries", fmt.Sprintf("%d, in %s", s.Retries, wording.Plural(int64(s.RetriedRuns), "run")))
	}
	list.add("Skipped", wording.ReasonsText(s.Skipped))
	list.add("Missed", wording.ReasonsText(s.Missed))

	var failures []string
	for _, f := range s.Failures {
		failures = append(failures, fmt.Sprintf("%s: %d", wording.FailureText(f), f.Runs))
	}
	list.add("Failures", strings.Join(failures, ", "))

	return list
}

// taskVersions is the tab with the versions of a task.
type taskVersions struct {
	List []client.TaskVersion
	// To is the version that is compared with the current one; nil if none is.
	To *versionDiff
}

// versionDiff is what a rollback to an earlier version would change.
type versionDiff struct {
	Generation int64
	Revision   int64 // of the current version
	Fields     []fieldDiff
	Warnings   []string
	Problem    string // why a rollback is not possible
}

func loadTaskVersions(ctx context.Context, r *Request, t client.Task) (*taskVersions, error) {
	list, err := r.API.Tasks.ListVersions(ctx, t.Namespace, t.Name)
	if err != nil {
		return nil, err
	}

	for i := range list {
		list[i].Change = plainState(list[i].Change)
	}
	p := &taskVersions{List: list}
	to := r.Query.Get("to")
	if to == "" {
		return p, nil
	}

	generation, err := strconv.ParseInt(to, 10, 64)
	i := slices.IndexFunc(list, func(v client.TaskVersion) bool { return v.Generation == generation })
	if err != nil || i < 0 {
		return p, task.Invalid(task.CodeBadValue, "to", "%s: this version is not available; versions %d to %d are", task.Quote(to), list[len(list)-1].Generation, list[0].Generation)
	}

	p.To = &versionDiff{Generation: generation, Revision: t.Revision, Fields: diffOf(t.Spec, list[i].Spec)}
	would, err := r.API.Tasks.Rollback(ctx, t.Namespace, t.Name, client.RollbackRequest{To: generation, DryRun: true}, t.Revision)
	if err != nil {
		p.To.Problem = problemOf(err).Message
	}
	p.To.Warnings = would.Warnings

	return p, nil
}

// taskDefinition is the tab with the task as YAML, and where it is stored.
type taskDefinition struct {
	YAML    string
	Facts   []setting
	Keys    []client.Key
	Command string // prints the records
}

func loadTaskDefinition(ctx context.Context, r *Request, t client.Task) (*taskDefinition, error) {
	text, err := yamlOf(t.Spec)
	if err != nil {
		return nil, err
	}
	keys, err := r.API.Tasks.ListKeys(ctx, t.Namespace, t.Name)
	if err != nil && !isForbidden(err) {
		return nil, err
	}

	var facts settings
	facts.add("Uid", t.UID)
	facts.add("Generation", strconv.FormatInt(t.Generation, 10))
	facts.add("Revision", strconv.FormatInt(t.Revision, 10))

	return &taskDefinition{YAML: text, Facts: facts, Keys: keys.Items, Command: keys.Command}, nil
}

// yamlOf returns a task as YAML, with the fields that differ from their defaults.
func yamlOf(s task.Spec) (string, error) {
	least, err := manifest.MinimalSpec(s, false)
	if err != nil {
		return "", err
	}
	b, err := manifest.WriteYAML(least)

	return string(b), err
}

// setting is a fact about a task, with its name.
type setting struct {
	Name, Value string
	Code        bool // the value is text for a computer
}

// Long reports whether the setting needs the whole width of the page, such as a script.
func (s setting) Long() bool {
	return s.Code && (len(s.Value) > 60 || strings.Contains(s.Value, "\n"))
}

// settings collects facts. Those without a value are left out.
type settings []setting

func (s *settings) add(name, value string) {
	if value != "" {
		*s = append(*s, setting{Name: name, Value: value})
	}
}

func (s *settings) addCode(name, value string) {
	if value != "" {
		*s = append(*s, setting{Name: name, Value: value, Code: true})
	}
}

// settingsOf returns the settings of a task in the words of "carillon task get".
func settingsOf(t client.Task) []setting {
	var list settings
	list.addCode("Schedule", strings.Join(t.Schedule, "\n"))
	list.add("Time zone", t.Timezone)
	for _, f := range wording.TaskFields(t) {
		list = append(list, setting(f))
	}

	return list
}

// fieldDiff is a field that differs between two versions of a task, with the lines of both values.
type fieldDiff struct {
	Field    string
	From, To []string
}

// diffOf returns the fields that differ between two versions.
func diffOf(from, to task.Spec) []fieldDiff {
	return fieldDiffs(task.Compare(from, to))
}

// fieldDiffs returns changes of fields as the page shows them.
func fieldDiffs(changes []task.FieldChange) []fieldDiff {
	var list []fieldDiff
	for _, c := range changes {
		list = append(list, fieldDiff{Field: c.Field, From: wording.ValueLines(c.From), To: wording.ValueLines(c.To)})
	}
	return list
}

// barChart is a chart of durations: one bar for each run, the newest last. The numbers are in a table beside it.
type barChart struct {
	Name        string
	Top         time.Duration // the value of the highest bar
	First, Last task.Time
	Bars        []chartBar
}

// chartBar is a bar of a chart.
type chartBar struct {
	Percent float64
	Bad     bool // drawn with stripes
	Title   string
}

// chartOf returns a chart of runs, which begin with the newest. Runs with a negative value are left out.
func chartOf(name string, runs []task.Run, value func(task.Run) time.Duration) barChart {
	c := barChart{Name: name}
	for _, r := range runs {
		c.Top = max(c.Top, value(r))
	}

	for _, r := range slices.Backward(runs) {
		v := value(r)
		if v < 0 {
			continue
		}

		bar := chartBar{Bad: r.State != task.Succeeded, Title: fmt.Sprintf("%s: %s, %s", r.ScheduledTime.UTC().Format("2006-01-02 15:04:05 UTC"), task.Duration(v).Approximate(), wording.RunResult(r, time.Time{}))}
		if c.Top > 0 {
			bar.Percent = 100 * float64(v) / float64(c.Top)
		}
		if c.First.IsZero() {
			c.First = r.ScheduledTime
		}
		c.Last = r.ScheduledTime
		c.Bars = append(c.Bars, bar)
	}

	return c
}

// SVG draws the bars. The drawing is stretched to its place, so it contains no text but titles.
func (c barChart) SVG() template.HTML {
	const width, height, gap = 10, 100, 2

	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bars" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s of the last %d runs; the table below has the numbers">`, max(len(c.Bars), 20)*width, height, template.HTMLEscapeString(c.Name), len(c.Bars))
	for _, y := range []int{0, height / 2, height} {
		fmt.Fprintf(&b, `<line class="grid" x1="0" x2="100%%" y1="%d" y2="%d"/>`, y, y)
	}

	for i, bar := range c.Bars {
		x, h := i*width+gap/2, max(bar.Percent*height/100, 1.5)
		class := "bar"
		if bar.Bad {
			class = "bar bad"
		}

		fmt.Fprintf(&b, `<g><title>%s</title><rect class="hit" x="%d" y="0" width="%d" height="%d"/><rect class="%s" x="%d" y="%.1f" width="%d" height="%.1f"/>`, template.HTMLEscapeString(bar.Title), i*width, width, height, class, x, height-h, width-gap, h)
		// Stripes distinguish bars of runs that did not succeed without colors.
		for y := height - h + 2; bar.Bad && y < height; y += 5 {
			fmt.Fprintf(&b, `<rect class="stripe" x="%d" y="%.1f" width="%d" height="1.5"/>`, x, y, width-gap)
		}
		b.WriteString("</g>")
	}
	b.WriteString("</svg>")

	return template.HTML(b.String()) //nolint:gosec // all texts are escaped
}
