package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) taskWhy() *cobra.Command {
	var q client.WhyQuestion
	cmd := &cobra.Command{
		Use:   "why TASK",
		Short: "Say why a task ran at a time, did not, or will",
		Long: "Say why a task ran at a time, did not, or will: one sentence, and the evidence below it.\n" +
			"Without a time it is about the latest tick and the next one. Times are local times of the task's zone,\n" +
			"or of --timezone, unless they have an offset; a date is the whole day.",
		Example: `  carillon why nightly-backup
  carillon why nightly-backup --at '2026-03-29 02:30'
  carillon task why nightly-backup --from 2026-03-01 --to 2026-03-31
  carillon task why nightly-backup --at 2026-12-24T18:00:00Z -o json`,
		Args:              args(1, 1, "the task's name"),
		ValidArgsFunction: a.completeTask,
	}
	f := cmd.Flags()
	f.StringVar(&q.At, "at", "", "a `TIME`, past or to come: 2026-03-29T02:30, or a date")
	f.StringVar(&q.From, "from", "", "the beginning of a range, a `TIME`")
	f.StringVar(&q.To, "to", "", "its end, a `TIME` (default now)")
	f.StringVar(&q.Timezone, "timezone", "", "read and show local times in this `ZONE` (default the task's)")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := filled(cmd, "at", "from", "to", "timezone"); err != nil {
			return err
		}
		switch {
		case q.At != "" && (q.From != "" || q.To != ""):
			return usage("--at and --from/--to exclude each other")
		case q.To != "" && q.From == "":
			return usage("--to needs --from")
		}
		r, err := a.ref(words[0])
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		answer, err := c.Why(cmd.Context(), r.namespace, r.name, q)
		if err != nil {
			return a.missing(cmd.Context(), c, r, err)
		}
		return emitOne(a, answer, string(answer.Verdict), func(d *details) { a.explainWhy(d, answer) })
	}
	return cmd
}

// explainWhy writes an answer for people: the sentence, then the evidence.
func (a *app) explainWhy(d *details, answer task.Answer) {
	d.parts = append(d.parts, a.plain(printable(answer.Sentence))+"\n")
	var lines strings.Builder
	for _, s := range answer.Stretches {
		lines.WriteString("  " + printable(s.Sentence) + "\n")
	}
	d.section("In order", lines.String())
	a.evidence(d, answer)
	for _, also := range answer.Also {
		d.section("And", "  "+printable(also.Sentence))
		if a.output == asWide {
			a.evidence(d, also)
		}
	}
}

func (a *app) evidence(d *details, answer task.Answer) {
	if len(answer.Lines) > 0 {
		d.parts = append(d.parts, "\n")
	}
	for _, l := range answer.Lines {
		d.field(l.What, "%s", a.plain(oneLine(l.Says)))
	}
	if len(answer.Lines) == 0 {
		for _, u := range answer.Unknown {
			d.field("Not on record", "%s", oneLine(u))
		}
	}
	d.flush()
}
