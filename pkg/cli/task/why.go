package task

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/carillonhq/carillon/pkg/task"
)

// WhyCommand returns "carillon why", which is also "carillon task why".
func WhyCommand(f *factory.Factory) *cobra.Command {
	var q client.WhyQuestion
	var step string
	cmd := &cobra.Command{
		Use:   "why TASK|RUN",
		Short: "Explain why a task ran, did not run, or will run",
		Long: "Explain why a task ran, did not run, or will run at a given time: one sentence, followed by the evidence.\n" +
			"You can also name a run. With --step, explain a step of a run of a workflow, or one of its items.\n\n" +
			"Without a time, the command explains the latest tick and the next one. Times without an offset are in the\n" +
			"task's time zone, in --timezone, or in the zone that --time local or --time utc chooses for the output; see carillon\n" +
			"help times. A date means the whole day.",
		Example: `  carillon why nightly-backup
  carillon why nightly-backup --at '2026-03-29 02:30'
  carillon why nightly-backup --at 'yesterday 18:00'
  carillon why nightly-backup@-1
  carillon why orders --step load/1
  carillon task why nightly-backup --from 2026-03-01 --to 2026-03-31
  carillon task why nightly-backup --at 2026-12-24T18:00:00Z -o json`,
		Args:              factory.Args(1, 1, "the task's name"),
		ValidArgsFunction: complete.At(complete.Runs(f), nil),
	}
	flags := cmd.Flags()
	flags.StringVar(&q.At, "at", "", "explain this `TIME`, in the past or the future: 2026-03-29 02:30, 02:30 for today, yesterday 18:00, or a date")
	flags.StringVar(&q.From, "from", "", "start of a range, a `TIME`, or a duration ago such as 2d")
	flags.StringVar(&q.To, "to", "", "end of the range, a `TIME`, or a duration ago (default now)")
	flags.StringVar(&step, "step", "", "explain this `STEP` of a run of a workflow (of a task: its latest run): NAME, or NAME/ITEM for one item of its map")
	complete.Register(cmd, "step", complete.Steps(f))
	flags.StringVar(&q.Timezone, "timezone", "", "read and print local times in this `ZONE` (default: that of --time, or the task's)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "at", "from", "to", "timezone", "step"); err != nil {
			return err
		}

		switch {
		case q.At != "" && (q.From != "" || q.To != ""):
			return failure.Usage("--at and --from/--to cannot be used together")
		case q.To != "" && q.From == "":
			return failure.Usage("--to requires --from")
		case step != "" && (q.At != "" || q.From != ""):
			return failure.Usage("--step and --at, --from cannot be used together: name the run instead")
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		if step != "" {
			return whyStep(cmd.Context(), f, c, words[0], step, q.Timezone)
		}

		r, err := FindAskedTask(cmd.Context(), f, c, words[0], &q)
		if err != nil {
			return err
		}

		// The tick in the name of a run is in the task's zone.
		if q.Timezone == "" && (!strings.Contains(words[0], "@") || strings.HasSuffix(q.At, "Z")) {
			if q.Timezone, err = zoneOfAnswer(f); err != nil {
				return err
			}
		}

		answer, err := c.Tasks.Why(cmd.Context(), r.Namespace, r.Name, q)
		if err != nil {
			return selection.ExplainMissing(cmd.Context(), f, c, r, err)
		}

		return output.EmitOne(&f.Printer, answer, string(answer.Verdict), func(d *output.Details) { explainWhy(f, d, answer) })
	}

	return cmd
}

// whyStep explains a step of a run.
func whyStep(ctx context.Context, f *factory.Factory, c *client.Client, word, step, timezone string) error {
	r, err := selection.FindRun(ctx, f, c, word)
	if err != nil {
		return err
	}
	if timezone == "" {
		if timezone, err = zoneOfAnswer(f); err != nil {
			return err
		}
	}

	answer, err := c.Runs.Why(ctx, r.Namespace, r.Task, r.ID, step, timezone)
	if err != nil {
		return err
	}

	return output.EmitOne(&f.Printer, answer, string(answer.Verdict), func(d *output.Details) { explainWhy(f, d, answer) })
}

// zoneOfAnswer returns the zone that --time chooses for an answer, or "" for that of the task. It is an error if the name of the
// user's zone is not known: the server would read the times of the question, and print all others, in the zone of the task.
func zoneOfAnswer(f *factory.Factory) (string, error) {
	switch f.TimeMode {
	case output.TimeUTC:
		return "UTC", nil
	case output.TimeLocal:
		name := f.LocalZoneName()
		if name == "" {
			return "", failure.Usage("--time local: cannot determine the name of your time zone").WithHint("name it, for example: --timezone Europe/Berlin")
		}
		return name, nil
	}

	return "", nil
}

// FindAskedTask returns the task that a word names, either directly or by one of its runs. In the latter case, the
// time of the run becomes part of the question.
func FindAskedTask(ctx context.Context, f *factory.Factory, c *client.Client, word string, q *client.WhyQuestion) (selection.Ref, error) {
	w, err := selection.ParseRunWord(word)
	if err != nil || w == (selection.RunWord{Task: word}) {
		r, failed := selection.ParseRef(f, cmp.Or(w.Task, word))
		if err == nil {
			err = failed
		}
		return r, err
	}

	if q.At != "" || q.From != "" {
		return selection.Ref{}, failure.Usage("%s already names a time; remove --at, --from and --to", task.Quote(word))
	}

	if strings.Contains(w.Tick, "T") { // the tick may not exist
		q.At = w.Tick
		return selection.ParseRef(f, w.Task)
	}

	run, err := selection.FindRun(ctx, f, c, word)
	if isNotFound(err) {
		return whyTrimmedRun(ctx, f, c, w, q, err)
	}
	q.At = view.Timestamp(run.ScheduledTime)

	return selection.Ref{Namespace: run.Namespace, Name: run.Task}, err
}

// isNotFound reports whether an error says that a run or its task was not found.
func isNotFound(err error) bool {
	var fail *failure.Error
	return errors.Is(err, task.ErrNotFound) || errors.As(err, &fail) && fail.Exit == failure.ExitNotFound
}

// whyTrimmedRun asks about the time of a run that has no record, because the ledger of its task may remember it. missing is
// the error that there is no record.
func whyTrimmedRun(ctx context.Context, f *factory.Factory, c *client.Client, w selection.RunWord, q *client.WhyQuestion, missing error) (selection.Ref, error) {
	at, ok := task.TimeOfRunID(w.ID)
	if ok && w.Task == "" {
		// The id does not name the task.
		return selection.Ref{}, failure.NotFound("run %s is not on record", task.Quote(w.ID)).
			WithHint("carillon why TASK --at %s", view.Timestamp(task.At(at)))
	}
	if !ok && w.Tick == "" {
		return selection.Ref{}, missing
	}

	r, err := selection.ParseRef(f, w.Task)
	if err != nil {
		return r, err
	}

	if ok {
		q.At = view.Timestamp(task.At(at))
		return r, nil
	}

	loc, err := zoneOfQuestion(ctx, f, c, r, q)
	if err != nil {
		return r, err
	}

	// A time of day is that of yesterday if it is still to come today.
	m, err := schedule.ReadMoment(w.Tick, schedule.TimeBase{Now: f.Now(), Zone: loc, Direction: schedule.Past})
	q.At = m.Text

	return r, err
}

// zoneOfQuestion returns the zone of local times in a question: that of --timezone, or that of the task.
func zoneOfQuestion(ctx context.Context, f *factory.Factory, c *client.Client, r selection.Ref, q *client.WhyQuestion) (*time.Location, error) {
	zone := q.Timezone
	if zone == "" {
		t, err := c.Tasks.Get(ctx, r.Namespace, r.Name)
		if err != nil {
			return nil, selection.ExplainMissing(ctx, f, c, r, err)
		}
		zone = t.Timezone
	}

	loc, err := schedule.Location(zone)
	if err != nil {
		return nil, failure.Usage("--timezone: %s is not a time zone", task.Quote(zone))
	}

	return loc, nil
}

// explainWhy prints an answer for people: the sentence, then the evidence.
func explainWhy(f *factory.Factory, d *output.Details, answer task.Answer) {
	d.Parts = append(d.Parts, f.Plain(output.Sanitize(answer.Sentence))+"\n")
	var lines strings.Builder

	for _, s := range answer.Stretches {
		lines.WriteString("  " + output.Sanitize(s.Sentence) + "\n")
	}

	d.Section("In order", lines.String())
	addEvidence(f, d, answer)

	for _, also := range answer.Also {
		d.Section("And", "  "+output.Sanitize(also.Sentence))
		if f.Format == output.FormatWide {
			addEvidence(f, d, also)
		}
	}
}

// addEvidence adds the evidence of an answer.
func addEvidence(f *factory.Factory, d *output.Details, answer task.Answer) {
	if len(answer.Lines) > 0 {
		d.Parts = append(d.Parts, "\n")
	}

	for _, l := range answer.Lines {
		d.Field(l.What, "%s", f.Plain(output.OneLine(l.Says)))
	}

	if len(answer.Lines) == 0 {
		for _, u := range answer.Unknown {
			d.Field("Not on record", "%s", output.OneLine(u))
		}
	}

	d.Flush()
}
