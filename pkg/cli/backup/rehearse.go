package backup

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/backup/restore"
)

// rehearseCommand returns "carillon backup rehearse".
func rehearseCommand(f *factory.Factory) *cobra.Command {
	var r restoreFlags
	var p place
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "rehearse DIRECTORY/ID | FILE | s3://BUCKET/PREFIX/ID",
		Short: "Restore a backup into a temporary directory, and audit the result",
		Long: "Restore a backup into a temporary directory, audit the result, print the plan and how long each step took, and remove\n" +
			"everything again. It changes nothing in the cluster, and can run on any host at any time.\n\n" +
			"It exits with 8 if the audit finds a problem, or if something is not proved: without the keys of secrets, the tasks that\n" +
			"need them would fail.",
		Example: "  carillon backup rehearse /backups/20261128T020000.000Z --config /etc/carillon/agent.yaml",
		Args:    factory.Args(1, 1, "the backup"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := factory.RefuseEmpty(cmd, "work", "config", "backup-time"); err != nil {
				return err
			}
			if r.config == "" {
				return errNoConfig()
			}

			return explain(r.runRehearsal(cmd.Context(), f, &p, words[0]))
		},
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML)
	p.bindWork(cmd, "three times as large as the unpacked snapshot")
	cmd.Flags().StringVar(&r.config, "config", "", "`FILE` with the settings of the agent of this host")
	cmd.Flags().StringVar(&r.backupTime, "backup-time", "", "`TIME` at which a snapshot of etcdctl was made")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // the flag exists

	return cmd
}

// runRehearsal rehearses a restore.
func (r *restoreFlags) runRehearsal(ctx context.Context, f *factory.Factory, p *place, name string) error {
	o, err := r.options(f)
	if err != nil {
		return err
	}

	host, err := r.host(f)
	if err != nil {
		return err
	}

	work, remove, err := p.makeWork(f)
	if err != nil {
		return err
	}
	defer func() { _ = remove() }()

	stored, removeCopy, err := open(ctx, f, name, p.directory(f))
	if err != nil {
		return err
	}
	defer func() { _ = removeCopy() }()

	// A rehearsal accepts what a restore would have to be told to accept. The plan says it.
	o.DropUnknown, o.DropOtherKeys = true, true
	host.Complete(&o, work)

	result, err := restore.Rehearse(ctx, stored, &host, &o)
	if err != nil {
		return err
	}

	err = output.EmitOne(&f.Printer, result, name, func(d *output.Details) { showRehearsal(d, result, host.SecretKeys) })
	if err == nil && len(result.Findings)+len(result.NotProved) > 0 {
		err = failure.AlreadyReported([]int{failure.ExitFinding})
	}

	return err
}

// showRehearsal prints the result for people.
func showRehearsal(d *output.Details, r *restore.Rehearsal, held []string) {
	showPlan(d, r.Plan, held)
	d.Field("Restored", "in %.1f s; the database has %d MiB", r.Seconds, r.Size>>20)
	for _, step := range r.Steps {
		d.Field("  "+step.Name, "%.1f s", step.Seconds)
	}

	d.Field("Audit", "%s, %s", output.Plural(r.Keys, "record"), output.Plural(int64(len(r.Findings)), "finding"))
	for _, finding := range r.Findings {
		d.Field("Finding", "%s: %s", finding.Kind, output.OneLine(finding.Message))
	}
	for _, what := range r.NotProved {
		d.Field("Not proved", "%s", output.OneLine(what))
	}
}

// errNoConfig is the error of a command without --config.
func errNoConfig() error {
	return failure.Usage("--config: name the file with the settings of the agent of this host, such as /etc/carillon/agent.yaml")
}
