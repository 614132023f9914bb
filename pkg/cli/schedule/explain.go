package schedule

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// explanation is the JSON form of an explained schedule.
type explanation struct {
	Text        string              `json:"text"`
	Expressions []expressionText    `json:"expressions"`
	Notes       []string            `json:"notes"` // likely mistakes and other remarks
	Next        []client.Occurrence `json:"next"`
}

// expressionText is the explanation of one expression.
type expressionText struct {
	Expression string `json:"expression"`
	Text       string `json:"text"`
}

// explainCommand returns "carillon schedule explain".
func explainCommand(f *factory.Factory) *cobra.Command {
	var flags timingFlags
	var count int
	cmd := &cobra.Command{
		Use:   "explain EXPR...",
		Short: "Explain a schedule in English",
		Long: "Explain a schedule in English and show its next ticks, without a server. Several expressions form one schedule.\n" +
			"With --name, H has the values that it has for that task.",
		Example: `  carillon schedule explain "30 2 * * 1-5" --timezone Europe/Berlin
  carillon schedule explain "0 9 LW */3 *"
  carillon schedule explain "H H(2-5) * * *" --name nightly-backup -o json`,
		Args:              factory.Args(1, -1, "the expression"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.bindFlags(cmd)
	cmd.Flags().IntVar(&count, "count", 3, "show the next `N` ticks")
	cmd.RunE = func(_ *cobra.Command, exprs []string) error {
		timing, from, err := parseTiming(f, flags, exprs)
		if err != nil {
			return err
		}

		if flags.name != "" {
			if err := task.CheckName("name", flags.name); err != nil {
				return err
			}
			if timing.Schedule, err = schedule.Spread(exprs, f.Namespace(), flags.name); err != nil {
				return err
			}
		}

		words, err := schedule.Explain(timing)
		if err != nil {
			return unquotedHint(err, exprs, "explain")
		}

		x := explanation{Text: words.Text, Notes: []string{}, Next: []client.Occurrence{}}
		for i, text := range words.Each {
			x.Expressions = append(x.Expressions, expressionText{exprs[i], text})
		}

		for _, found := range schedule.Lint(timing, from) {
			x.Notes = append(x.Notes, found.Message)
		}

		if ticks, err := upcomingTicks(f, timing, from, flags.name, count); err == nil { // fails for H without a name
			x.Next = convertOccurrences(f, ticks, flags.jitter)
		} else if count < 1 || count > schedule.MaxUpcoming {
			return err
		}

		return showExplained(f, x, flags.timezone)
	}

	return cmd
}

// showExplained prints the explanation.
func showExplained(f *factory.Factory, x explanation, timezone string) error {
	return output.EmitOne(&f.Printer, x, x.Text, func(d *output.Details) {
		d.Parts = append(d.Parts, output.Sanitize(x.Text)+".\n")
		d.Section("Notes", indentLines(x.Notes))
		if len(x.Next) > 0 {
			d.Section("Next ticks", f.RenderIndented(view.TickTable(f, x.Next, timezone)))
		}
	})
}

// indentLines indents lines.
func indentLines(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString("  " + output.Sanitize(line) + "\n")
	}
	return b.String()
}

// InWords returns in English when a task runs: its schedule, and the tasks after which it runs. It returns "" if the schedule cannot
// be explained.
func InWords(s task.Spec) string {
	words, err := schedule.Explain(s.Timing())
	if err != nil {
		return ""
	}

	switch {
	case len(s.After) == 0:
		return words.Text
	case s.Schedule.HasTicks():
		return words.Text + "; also after " + s.After.Describe()
	}

	return "after " + s.After.Describe()
}
