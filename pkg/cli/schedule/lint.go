package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// lintWarning is the JSON form of a finding.
type lintWarning struct {
	Where   string `json:"where"` // the expression, FILE:LINE:COLUMN, or NAMESPACE/NAME
	Task    string `json:"task,omitempty"`
	Code    string `json:"code"`
	Field   string `json:"field"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// lintInput is one schedule to check.
type lintInput struct {
	where, name string
	timing      task.Timing
	locate      func(field string) string // returns the position of a field; nil if the schedule is not from a file
	spread      task.Schedules            // the schedule with H replaced
}

// lintCommand returns "carillon schedule lint".
func lintCommand(f *factory.Factory) *cobra.Command {
	var flags timingFlags
	var p selection.Flags
	var files []string
	var all bool
	crowd := 10
	cmd := &cobra.Command{
		Use:   "lint EXPR... | -f FILE | -l SELECTOR | --all",
		Short: "Find likely mistakes in schedules",
		Long: `Find likely mistakes in the schedules of expressions, files or tasks. A finding can be intended.
The command exits with 8 if it finds something. It reports:

  - schedules without a next tick, and ticks every second
  - steps that do not divide their range evenly (*/7)
  - a day of the month combined with a day of the week
  - ticks that daylight saving time moves, drops or doubles
  - many tasks in the same second, which H would spread`,
		Example: `  carillon schedule lint "*/7 * * * *"
  carillon schedule lint "30 2 * * *" --timezone Europe/Berlin
  carillon schedule lint -f tasks/
  carillon task export -l team=data | carillon schedule lint -f -
  carillon schedule lint --all -o json`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.bindFlags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "check the tasks in this `FILE` or directory, or - for standard input; may be repeated")
	cmd.Flags().StringVarP(&p.Selector, "selector", "l", "", "check the tasks on the server whose labels match this `SELECTOR`")
	cmd.Flags().BoolVar(&all, "all", false, "check all tasks of the namespace, or of all namespaces with -A")
	cmd.Flags().IntVar(&crowd, "crowd", crowd, "report `N` or more tasks in the same second")
	cmd.RunE = func(cmd *cobra.Command, exprs []string) error {
		kinds := 0
		for _, given := range []bool{len(exprs) > 0, len(files) > 0, p.Selector != "", all} {
			if given {
				kinds++
			}
		}

		switch {
		case kinds == 0:
			return failure.Usage("nothing to check: give an expression, -f FILE, -l SELECTOR or --all")
		case kinds > 1:
			return failure.Usage("expressions, -f, -l and --all cannot be used together")
		case crowd < 2:
			return failure.Usage("--crowd %d: must be at least 2", crowd)
		}

		timing, from, err := parseTiming(f, flags, exprs)
		if err != nil {
			return err
		}

		var list []lintInput

		switch {
		case len(exprs) > 0:
			list = []lintInput{{where: strings.Join(exprs, " | "), timing: timing}}
		case len(files) > 0:
			list, err = lintedFiles(cmd.Context(), f, files)
		default:
			list, err = lintedTasks(cmd.Context(), f, p.Selector)
		}

		if err != nil {
			return err
		}

		return showOddities(f, append(lintTimings(list, from), findCrowds(list, from, crowd)...), len(list))
	}

	return cmd
}

// lintedFiles returns the schedules of the tasks in files, including invalid ones. A file that cannot be read
// is an error.
func lintedFiles(ctx context.Context, f *factory.Factory, paths []string) ([]lintInput, error) {
	files, err := apply.TaskFiles(paths)
	if err != nil {
		return nil, err
	}

	var list []lintInput
	for _, file := range files {
		name, b, err := apply.Load(ctx, f, file)
		if err != nil {
			return nil, err
		}

		objects, err := manifest.Read(name, b, f.Namespace())
		if err != nil {
			return nil, err
		}

		for _, o := range objects {
			list = append(list, lintedObject(o))
		}
	}

	return list, nil
}

// lintedObject returns the schedule of a task in a file.
func lintedObject(o manifest.Object) lintInput {
	s := o.Spec
	l := lintInput{name: s.Namespace + "/" + s.Name, timing: s.Timing()}
	l.locate = func(field string) string {
		var placed *manifest.Error
		if errors.As(o.LocateField(field, os.ErrInvalid), &placed) {
			return fmt.Sprintf("%s:%d:%d", placed.File, placed.Line, placed.Column)
		}
		return ""
	}

	l.where = l.locate("schedule")
	l.spread, _ = schedule.Spread(s.Schedule, s.Namespace, s.Name) // lintTimings reports errors

	return l
}

// lintedTasks returns the schedules of the tasks on the server that match a selector.
func lintedTasks(ctx context.Context, f *factory.Factory, selector string) ([]lintInput, error) {
	namespace, query, err := selection.Query(f, nil, selector)
	if err != nil {
		return nil, err
	}

	c, err := f.Connect()
	if err != nil {
		return nil, err
	}

	var list []lintInput
	for t, err := range c.Tasks.All(ctx, client.TaskListOptions{Namespace: namespace, Query: query, Complete: true}) {
		if err != nil {
			return nil, err
		}

		l := lintInput{name: t.Namespace + "/" + t.Name, timing: t.Timing()}
		l.where = l.name
		l.spread, _ = schedule.Spread(t.Schedule, t.Namespace, t.Name)
		list = append(list, l)
	}

	return list, nil
}

// lintTimings returns the findings about each schedule.
func lintTimings(list []lintInput, now time.Time) []lintWarning {
	var odd []lintWarning
	for _, l := range list {
		for _, f := range schedule.Lint(l.timing, now) {
			where := l.where
			if l.locate != nil {
				where = cmp.Or(l.locate(f.Field), where)
			}
			odd = append(odd, lintWarning{where, l.name, f.Code, f.Field, f.Message, f.Hint})
		}
	}

	return odd
}

// findCrowds finds seconds in which at least least tasks tick.
func findCrowds(list []lintInput, now time.Time, least int) []lintWarning {
	parsed := make([]*schedule.Schedule, len(list))
	for i, l := range list {
		t := l.timing
		if l.spread != nil {
			t.Schedule = l.spread
		}
		parsed[i], _ = schedule.Parse(t, now) // an invalid schedule was reported by lintTimings
	}

	var odd []lintWarning
	for _, c := range schedule.Crowds(parsed, now, least) {
		const few = 3
		var names []string
		for _, i := range c.Members[:min(few, len(c.Members))] {
			names = append(names, list[i].name)
		}

		words := strings.Join(names, ", ")
		if more := len(c.Members) - few; more > 0 {
			words += fmt.Sprintf(" and %d more", more)
		}

		odd = append(odd, lintWarning{Where: list[c.Members[0]].where, Code: schedule.LintCrowd, Field: "schedule",
			Message: fmt.Sprintf("%d tasks tick at %s: %s", len(c.Members), c.At.Format("15:04:05 UTC on 2 January"), words),
			Hint:    "to spread them, use H as the minute, or set a jitter"})
	}

	return odd
}

// showOddities prints the findings.
func showOddities(f *factory.Factory, list []lintWarning, schedules int) error {
	if list == nil {
		list = []lintWarning{}
	}

	err := output.EmitList(&f.Printer, list, func(o lintWarning) string { return o.Where }, func(bool) *output.Table {
		g := &output.Table{Headers: []string{"WHERE", "CODE", "FINDING"}}

		for _, o := range list {
			words := o.Message
			if o.Hint != "" {
				words += "; " + o.Hint
			}
			g.AddRow(output.OneLine(o.Where), o.Code, output.OneLine(words))
		}

		return g
	})

	if err != nil {
		return err
	}

	if len(list) == 0 {
		if f.ForPeople() {
			f.Note("no findings in %s", output.Plural(int64(schedules), "schedule"))
		}
		return nil
	}

	return failure.AlreadyReported([]int{failure.ExitFinding})
}
