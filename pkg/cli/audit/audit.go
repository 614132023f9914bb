// Package audit implements "carillon audit". It makes the server check its records, shows the findings, and has
// them repaired after confirmation.
//
// Its subcommands log and export show the audit records of who changed what.
package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// audited is the output of the command.
type audited struct {
	task.Audit
	Repairs []task.RepairResult `json:"repairs,omitempty"`
}

// auditFlags contains the flags of the command.
type auditFlags struct {
	repair, dryRun bool
	pause          time.Duration
}

// Command returns "carillon audit".
func Command(f *factory.Factory) *cobra.Command {
	var o auditFlags
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "audit",
		Short: "Check the cluster for inconsistencies; show who changed what",
		Long: "Without a subcommand, check every record in etcd, the clocks of the nodes, and etcd itself. The command checks each\n" +
			"suspected problem a second time, and reports only problems that have not changed in between.\n\n" +
			"The command writes nothing without --repair. With --repair, it deletes only records that no component uses\n" +
			"any more, and only if they have not changed since the check.\n\n" +
			"It exits with 8 if it found a problem that was not repaired, and with 5 if etcd or the server is unavailable.\n\n" +
			"carillon audit log and carillon audit export show something else: the audit records of who changed what.",
		Example: "  carillon audit\n  carillon audit -o json | jq '.findings[].keys[0]'\n  carillon audit --repair --dry-run\n  carillon audit --repair --yes\n  carillon audit log --since 1d",
		Args:    noSuchCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runAudit(cmd.Context(), f, o) },
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML)

	cmd.Flags().BoolVar(&o.repair, "repair", false, "repair what is safe to repair, after confirmation")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "with --repair: print the repairs without making them")
	factory.DurationVar(cmd.Flags(), &o.pause, "pause", 6*time.Second, "wait this `DURATION` between the two checks, 1s to 60s")
	factory.RunsAlone(cmd)
	cmd.AddCommand(logCommand(f), exportCommand(f))

	return cmd
}

// noSuchCommand refuses arguments: they are misspelled subcommands.
func noSuchCommand(cmd *cobra.Command, words []string) error {
	if len(words) == 0 {
		return nil
	}

	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}

	err := failure.Usage("unknown command %s for %s", task.Quote(words[0]), cmd.CommandPath()).WithHint("see %s --help", cmd.CommandPath())
	if near := task.Nearest(words[0], names); near != "" {
		err.Hint = "did you mean: " + cmd.CommandPath() + " " + near
	}

	return err
}

// runAudit runs the audit and, on request, the repairs.
func runAudit(ctx context.Context, f *factory.Factory, o auditFlags) error {
	if o.pause < time.Second || o.pause > time.Minute || o.pause%time.Second != 0 {
		return failure.Usage("--pause %s: use whole seconds, 1s to 60s", task.Duration(o.pause))
	}
	if o.dryRun && !o.repair {
		return failure.Usage("--dry-run requires --repair; an audit alone changes nothing")
	}

	c, err := f.Connect()
	if err != nil {
		return err
	}

	meter := newAuditMeter(f)
	found, err := c.Audit.Run(ctx, client.AuditOptions{Pause: o.pause, Tell: meter.showProgress})
	meter.clearLine()
	if err != nil {
		return err
	}

	out, left := audited{Audit: found}, found.Findings
	repairable := slices.DeleteFunc(slices.Clone(left), func(finding task.Finding) bool { return finding.Repair == "" })
	var failed error
	if o.repair && !o.dryRun && len(repairable) > 0 {
		if f.ForPeople() {
			err = f.Print(auditText(f, found))
		}

		if err == nil {
			err = approveRepairs(ctx, f, repairable)
		}

		if err != nil {
			return err
		}

		out.Repairs, failed = repairAll(ctx, f, c, repairable)
		left = leftFindings(left, out.Repairs)
	}

	if err := output.EmitOne(&f.Printer, out, "", func(d *output.Details) { d.Parts = append(d.Parts, auditResult(f, out, o, repairable)) }); err != nil {
		return err
	}

	switch {
	case failed != nil:
		return failed
	case len(left) > 0:
		return failure.AlreadyReported([]int{failure.ExitFinding})
	}

	return nil
}

// approveRepairs asks for confirmation of the repairs.
func approveRepairs(ctx context.Context, f *factory.Factory, list []task.Finding) error {
	if f.Yes {
		return nil
	}

	if f.ForPeople() {
		for _, finding := range list {
			fmt.Fprintf(f.Err, "would %s: %s\n", finding.Repair, output.OneLine(finding.Keys[0]))
		}
	}

	_, err := f.Ask(ctx, fmt.Sprintf("repair %s?", output.Plural(int64(len(list)), "finding")), len(list), false)
	return err
}

// repairAll repairs findings, up to 20 per request, until a repair fails.
func repairAll(ctx context.Context, f *factory.Factory, c *client.Client, list []task.Finding) ([]task.RepairResult, error) {
	const atOnce = 20
	var results []task.RepairResult
	for some := range slices.Chunk(list, atOnce) {
		asked := make([]task.RepairRequest, len(some))
		for i, finding := range some {
			asked[i] = task.RepairRequest{Kind: finding.Kind, Key: finding.Keys[0], Revision: finding.Revision}
		}

		done, err := c.Audit.Repair(ctx, asked)
		results = append(results, done...)
		if err != nil {
			return results, err
		}

		if n := len(done); n < len(some) || done[n-1].Result == task.RepairFailed {
			return results, &failure.Error{Exit: failure.ExitUnavailable, Problem: failure.Problem{Code: client.CodeUnavailable,
				Message: "the repair stopped before it was complete", Hint: "run the command again; this is safe"}}
		}
	}

	return results, nil
}

// leftFindings returns the findings that were not repaired.
func leftFindings(all []task.Finding, results []task.RepairResult) []task.Finding {
	return slices.DeleteFunc(slices.Clone(all), func(f task.Finding) bool {
		return slices.ContainsFunc(results, func(r task.RepairResult) bool {
			return r.Kind == f.Kind && len(f.Keys) > 0 && r.Key == f.Keys[0] && (r.Result == task.Repaired || r.Result == task.NotAsFound)
		})
	})
}

// auditResult returns the text after the audit: the findings, unless they were printed before the question, and
// the results of the repairs.
func auditResult(f *factory.Factory, out audited, o auditFlags, repairable []task.Finding) string {
	if len(out.Repairs) == 0 {
		text := auditText(f, out.Audit)
		if o.dryRun {
			for _, finding := range repairable {
				text += fmt.Sprintf("would %s: %s\n", finding.Repair, output.OneLine(finding.Keys[0]))
			}
		}

		return text
	}

	var b strings.Builder

	for _, r := range out.Repairs {
		words := map[string]string{task.Repaired: "repaired", task.NotAsFound: "changed since the audit", task.NotRepairable: "repair it yourself", task.RepairFailed: "failed"}[r.Result]
		fmt.Fprintf(&b, "%s: %s", output.OneLine(r.Key), words)

		if r.Deleted > 0 {
			fmt.Fprintf(&b, ", %d deleted", r.Deleted)
		}

		if r.Message != "" && r.Result == task.RepairFailed {
			fmt.Fprintf(&b, ": %s", output.OneLine(r.Message))
		}

		b.WriteByte('\n')
	}

	return b.String()
}

// auditText returns the findings, grouped by group and kind. It prints the text that all findings of a kind share once.
func auditText(f *factory.Factory, found task.Audit) string {
	var b strings.Builder
	group, kind, shown := "", "", 0
	_, tty := f.Terminal(f.Out)
	const most = 20

	for _, finding := range found.Findings {
		if finding.Group != group {
			group = finding.Group
			fmt.Fprintf(&b, "%s\n", f.Paint(output.Bold, output.OneLine(group)))
		}

		if finding.Kind != kind {
			kind, shown = finding.Kind, 0
			kindText(f, &b, finding)
		}

		if shown++; shown > most && tty && f.Format == output.FormatTable {
			if shown == most+1 {
				b.WriteString(f.Plain("    … -o wide shows all of them\n"))
			}
			continue
		}

		fmt.Fprintf(&b, "    %s\n", output.OneLine(finding.Message))

		for _, key := range finding.Keys {
			fmt.Fprintf(&b, "      %s\n", f.Paint(output.Dim, output.OneLine(key)))
		}
	}

	for _, n := range found.Notes {
		fmt.Fprintf(&b, "note: %s\n", output.OneLine(n))
	}

	fmt.Fprintf(&b, "%s in %s at revision %d\n", formatVerdict(f, found.Findings), output.Plural(int64(found.Keys), "record"), found.Revision)

	return b.String()
}

// kindText writes what all findings of a kind share.
func kindText(f *factory.Factory, b *strings.Builder, finding task.Finding) {
	sign, c := "!", output.Yellow
	if finding.Severity == task.Grave {
		sign, c = "✗", output.Red
		if f.ASCII {
			sign = "x"
		}
	}

	fmt.Fprintf(b, "  %s\n", f.Paint(c, sign+" "+output.OneLine(finding.Kind)+" ("+output.OneLine(finding.Severity)+")"))
	fmt.Fprintf(b, "    why: %s\n    do:  %s\n", output.OneLine(finding.Why), output.OneLine(finding.Do))
}

// formatVerdict returns the summary of the findings.
func formatVerdict(f *factory.Factory, found []task.Finding) string {
	grave := 0
	for _, finding := range found {
		if finding.Severity == task.Grave {
			grave++
		}
	}

	switch {
	case len(found) == 0:
		return f.Paint(output.Green, "no findings")
	case grave == 0:
		return f.Paint(output.Yellow, fmt.Sprintf("findings: %d, errors: 0,", len(found)))
	}

	return f.Paint(output.Red, fmt.Sprintf("findings: %d, errors: %d,", len(found), grave))
}

// newAuditMeter returns the progress display of an audit.
func newAuditMeter(f *factory.Factory) *auditMeter {
	_, tty := f.Terminal(f.Err)
	return &auditMeter{factory: f, tty: tty && f.Env("TERM") != "dumb", last: f.Now()}
}

// auditMeter shows the progress of an audit: on a terminal in one line that changes, otherwise in a new line
// from time to time.
type auditMeter struct {
	factory *factory.Factory
	tty     bool
	used    bool
	last    time.Time
}

// showProgress shows the progress.
func (m *auditMeter) showProgress(p task.AuditProgress) {
	a := m.factory
	if a.Quiet || !a.ForPeople() {
		return
	}

	words := fmt.Sprintf("%s, %s read", output.OneLine(p.Stage), output.Plural(int64(p.Keys), "record"))

	switch now := a.Now(); {
	case m.tty:
		m.used = true
		fmt.Fprintf(a.Err, "\r\x1b[K%s", words)
	case now.Sub(m.last) >= batch.LineInterval:
		m.last = now
		a.Note("%s", words)
	}
}

// clearLine removes the line of the progress.
func (m *auditMeter) clearLine() {
	if m.used {
		fmt.Fprint(m.factory.Err, "\r\x1b[K")
	}
}
