package backup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/backup/restore"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// untilBackup is the value of --lost-until if nothing happened after the backup.
const untilBackup = "backup"

// fullAt is the use of the quota in percent from which a restore warns.
const fullAt = 80

// restoreFlags are the flags of "carillon backup restore".
type restoreFlags struct {
	config, work, install, lostUntil, backupTime, sha256, freeze string
	planOnly, noTokens, dropUnknown, dropOther, acceptCorrupt    bool
	gone                                                         []string
}

// restoreCommand returns "carillon backup restore".
func restoreCommand(f *factory.Factory) *cobra.Command {
	var r restoreFlags
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "restore DIRECTORY/ID | FILE | s3://BUCKET/PREFIX/ID",
		Short: "Restore the cluster from a backup, while all agents are stopped",
		Long: "Restore the cluster from a backup, while all agents are stopped. It has two steps. The first prepares the restore, once: it\n" +
			"writes prepared.db and prepared.json to the directory --work. The second, --install, replaces the data of the embedded etcd on\n" +
			"each host. Begin with --plan, which changes nothing.\n\n" +
			"Ticks that the lost cluster may have decided do not run: those between the backup and --lost-until. Ticks after that are\n" +
			"decided by the missed policy of each task.\n\n" +
			"Each node of the backup must answer that it has no session with etcd, or be named in --gone. A node that is only cut off\n" +
			"would run tasks beside the restored cluster.",
		Example: "  carillon backup restore /backups/20261128T020000.000Z --config /etc/carillon/agent.yaml --plan\n" +
			"  carillon backup restore /backups/20261128T020000.000Z --config /etc/carillon/agent.yaml --work /var/lib/restore --lost-until 2026-11-28T09:49:58Z --gone n3\n" +
			"  carillon backup restore --install /var/lib/restore/prepared.db --config /etc/carillon/agent.yaml",
		Args: factory.Args(0, 1, "the backup"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := factory.RefuseEmpty(cmd, "work", "config", "install", "lost-until", "backup-time", "sha256", "freeze"); err != nil {
				return err
			}

			if r.config == "" {
				return errNoConfig()
			}

			if r.install != "" {
				if len(words) > 0 || r.work != "" || r.planOnly {
					return failure.Usage("--install: needs only --config; the backup was chosen when the restore was prepared")
				}
				return explain(r.runInstall(cmd.Context(), f))
			}

			switch {
			case len(words) == 0:
				return failure.Usage("name the backup, as DIRECTORY/ID, or --install")
			case r.planOnly == (r.work != ""):
				return failure.Usage("add either --plan, to see what a restore would do, or --work DIRECTORY, to prepare it")
			}

			return explain(r.runPrepare(cmd.Context(), f, words[0]))
		},
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML)

	flags := cmd.Flags()
	flags.StringVar(&r.config, "config", "", "`FILE` with the settings of the agent of this host")
	flags.BoolVar(&r.planOnly, "plan", false, "only print what a restore would do")
	flags.StringVar(&r.work, "work", "", "prepare the restore in this `DIRECTORY`, which must be on a disk with three times the size of the snapshot")
	flags.StringVar(&r.install, "install", "", "replace the data of the embedded etcd of this host by this prepared `FILE`")
	flags.StringVar(&r.lostUntil, "lost-until", "", "last `TIME` at which the lost cluster may have decided ticks, or \"backup\" if all agents were stopped before the backup (default: now)")
	flags.StringVar(&r.backupTime, "backup-time", "", "`TIME` at which a snapshot of etcdctl was made")
	flags.StringSliceVar(&r.gone, "gone", nil, "`NODES` that do not answer because they are switched off, and stay off; or all")
	flags.StringVar(&r.sha256, "sha256", "", "refuse a backup with another `SHA-256` than this")
	flags.StringVar(&r.freeze, "freeze", "", "freeze the restored cluster, with this `REASON`")
	flags.BoolVar(&r.noTokens, "no-tokens", false, "delete all tokens; root on the host of a node then has access through the unix socket")
	flags.BoolVar(&r.dropUnknown, "drop-unknown", false, "delete keys of kinds that this version does not know")
	flags.BoolVar(&r.dropOther, "drop-other-keys", false, "delete the keys of other applications")
	flags.BoolVar(&r.acceptCorrupt, "accept-corrupt", false, "restore the content of an etcd that had raised the alarm CORRUPT")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // the flag exists
	_ = cmd.MarkFlagDirname("work")

	return cmd
}

// host returns the host from the settings of its agent.
func (r *restoreFlags) host(f *factory.Factory) (restore.Host, error) {
	if f.RestoreHost == nil {
		return restore.Host{}, errors.New("this program contains no agent")
	}
	return f.RestoreHost(r.config)
}

// options returns the options that the flags say, except for those of the host.
func (r *restoreFlags) options(f *factory.Factory) (o restore.Options, err error) {
	if o.BackupTime, err = f.ParseTime("backup-time", r.backupTime, time.UTC, schedule.Past); err != nil {
		return o, err
	}
	if o.NothingLost = r.lostUntil == untilBackup; !o.NothingLost {
		if o.Until, err = f.ParseTime("lost-until", r.lostUntil, time.UTC, schedule.Past); err != nil {
			return o, err
		}
	}

	o.Now, o.By, o.Logger = f.Now(), task.NewActor(fmt.Sprintf("unix:uid=%d", os.Geteuid())), zap.NewNop()
	o.Progress = func(step string) { f.Note("%s", step) }
	o.SHA256, o.Freeze, o.NoTokens = r.sha256, r.freeze, r.noTokens
	o.DropUnknown, o.DropOtherKeys, o.AcceptCorrupt = r.dropUnknown, r.dropOther, r.acceptCorrupt

	return o, nil
}

// prepared is the result of a restore that was prepared.
type prepared struct {
	*restore.Prepared
	Plan *restore.Plan `json:"plan"`
	Next []string      `json:"next"` // commands
}

// runPrepare plans or prepares a restore.
func (r *restoreFlags) runPrepare(ctx context.Context, f *factory.Factory, name string) (err error) {
	o, err := r.options(f)
	if err != nil {
		return err
	}

	host, err := r.host(f)
	if err != nil {
		return err
	}

	work := r.work
	if r.planOnly {
		work = filepath.Join(filepath.Dir(host.DataDir), "."+filepath.Base(host.DataDir)+".restore-plan")
	}
	if work, err = filepath.Abs(work); err != nil {
		return err
	}
	if isBelow(work, "/tmp") && !isBelow(host.DataDir, "/tmp") {
		return failure.Usage("--work %s: /tmp may be in memory; take a directory beside %s", work, host.DataDir)
	}

	host.Complete(&o, work)

	stored, remove, err := open(ctx, f, name, filepath.Dir(work))
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, remove()) }()

	plan, p, err := restore.Restore(ctx, stored, &host, &o, r.gone, r.planOnly)
	if err != nil {
		return err
	}

	if p == nil {
		return output.EmitOne(&f.Printer, plan, plan.Cluster, func(d *output.Details) { showPlan(d, plan, host.SecretKeys) })
	}

	result := prepared{p, plan, p.Commands(&host, work, r.config)}

	return output.EmitOne(&f.Printer, result, p.Restored.ID, func(d *output.Details) {
		showPlan(d, plan, host.SecretKeys)
		d.Field("Prepared", "%s: epoch %d, revision %d, %d MiB", filepath.Join(work, restore.PreparedFile), p.Restored.Epoch, p.Revision, p.Size>>20)
		if used := p.Size * 100 / max(host.Quota, 1); host.Quota > 0 && used >= fullAt {
			d.Field("Warning", "it takes %d %% of the quota of etcd: raise etcd_quota before you start the agents", used)
		}
		if len(p.EtcdUsers) > 0 {
			d.Section("Users of etcd, which you make again after the start:", strings.Join(p.EtcdUsers, "\n")+"\n")
		}
		d.Section("Next:", strings.Join(result.Next, "\n")+"\n")
	})
}

// isBelow reports whether a path is a directory or below it.
func isBelow(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// showPlan prints a plan for people.
func showPlan(d *output.Details, p *restore.Plan, held []string) {
	lost := fmt.Sprintf("%s of %s until %s will not run", output.Plural(p.Gap.Ticks, "tick"), output.Plural(p.Gap.Tasks, "task"), instant(p.Until))
	if p.KeepsRuns {
		lost = "nothing: the backup was made after the end of the cluster"
	}
	d.Field("Lost", "%s", lost)
	if p.LastSign != nil {
		d.Field("Last sign of life", "%s, %s (%s)", p.LastSign.Node, instant(p.LastSign.At), p.LastSign.From)
	}

	d.Field("Backup", "%s: %s, epoch %d, revision %d", instant(p.BackupTime), output.Plural(p.Tasks, "task"), p.Epoch, p.Revision)
	if p.SHA256 != "" {
		proof := "no audit file of this host has it: compare it with what you know, and add --sha256"
		if p.Audit != nil && p.Audit.Recorded {
			proof = "as in " + p.Audit.File
		}
		d.Field("SHA-256", "%s; %s", p.SHA256, proof)
	}

	policies := ""
	for _, policy := range slices.Sorted(maps.Keys(p.ByPolicy)) {
		policies += fmt.Sprintf("; %s: %s", policy, output.Plural(p.ByPolicy[policy], "task"))
	}
	d.Field("Late", "%s of %s until now, which the missed policy decides%s", output.Plural(p.Late.Ticks, "tick"), output.Plural(p.Late.Tasks, "task"), policies)

	fate := "end as lost or missed"
	if p.KeepsRuns {
		fate = "go on"
	}
	d.Field("In the backup", "%s, %s, %s with parts, %s: they %s", output.Plural(p.Attempts, "attempt"), output.Plural(p.Waiting, "waiting run"),
		output.Plural(p.Parents, "run"), output.Plural(p.Triggers, "trigger"), fate)
	if p.OneShots.Count > 0 {
		d.Field("Never run", "%s", names(p.OneShots))
	}
	if p.Unreadable.Count > 0 {
		d.Field("Unreadable", "%s", names(p.Unreadable))
	}

	d.Field("Paused", "%s", output.Plural(p.Paused, "task"))
	for _, freeze := range p.Freezes {
		what := "the cluster"
		if freeze.Namespace != "" {
			what = "namespace " + freeze.Namespace
		}
		d.Field("Frozen", "%s, since %s: %s", what, instant(freeze.Since), output.OneLine(freeze.Reason))
	}

	d.Field("Admins", "%s", output.OneLine(strings.Join(p.Admins, ", ")))
	for _, token := range p.AdminTokens {
		d.Field("Token of an admin", "%s", output.OneLine(token))
	}
	if p.Audit != nil {
		showAudit(d, p)
	}
	if len(p.MissingKeys) > 0 {
		d.Field("Secret keys", "this host has %d keys, but not %s: tasks with their secrets fail here", len(held), strings.Join(p.MissingKeys, ", "))
	}
	if len(p.Dropped) > 0 {
		d.Field("Deleted", "%s", output.OneLine(strings.Join(p.Dropped, ", ")))
	}
}

// maxRevoked is how many revoked access records a plan shows at most.
const maxRevoked = 20

// showAudit prints which access was revoked after the backup, and is valid again after the restore.
func showAudit(d *output.Details, p *restore.Plan) {
	a := p.Audit
	for i, revoked := range a.Revoked {
		if i == maxRevoked {
			d.Field("", "and %d more, which -o json lists", len(a.Revoked)-i)
			break
		}
		d.Field("Valid again", "%s", output.OneLine(revoked.String()))
	}

	switch {
	case a.Problem != "":
		d.Field("Audit file", "%s: %s", a.File, output.OneLine(a.Problem))
	case a.From.After(p.BackupTime.Time):
		d.Field("Audit file", "%s begins on %s: what was revoked before that is in an older file", a.File, instant(a.From))
	}
}

// names lists names and counts the others.
func names(n restore.Names) string {
	text := output.OneLine(strings.Join(n.First, ", "))
	if more := n.Count - int64(len(n.First)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}

	return text
}

// instant formats an instant in UTC, so that it can be compared with logs, and used as a flag.
func instant(t task.Time) string { return t.UTC().Format(time.RFC3339) }

// installed is the result of --install.
type installed struct {
	Already bool     `json:"already"`
	Started bool     `json:"started"` // the agent has been started since, so there is no undo
	Etcd    string   `json:"etcd"`
	Former  string   `json:"former,omitempty"`
	Epoch   int      `json:"epoch"`
	Undo    []string `json:"undo"`
}

// runInstall installs a prepared restore on this host.
func (r *restoreFlags) runInstall(ctx context.Context, f *factory.Factory) error {
	host, err := r.host(f)
	if err != nil {
		return err
	}

	i, err := restore.Install(ctx, r.install, host.NewTarget(zap.NewNop()))
	if err != nil {
		return err
	}

	result := installed{i.Already, i.Started, i.Etcd, i.Former, i.Prepared.Restored.Epoch, i.Undo()}
	if result.Undo == nil {
		result.Undo = []string{}
	}

	return output.EmitOne(&f.Printer, result, i.Prepared.Restored.ID, func(d *output.Details) { showInstalled(d, result, len(i.Prepared.Members)) })
}

// showInstalled prints the result of --install for people. members is the number of members of the cluster.
func showInstalled(d *output.Details, i installed, members int) {
	what := "has the restored data, of epoch " + fmt.Sprint(i.Epoch)
	if i.Already {
		what += "; it had them before, and nothing was changed"
	}
	d.Field("etcd", "%s %s", i.Etcd, what)
	if i.Former != "" {
		d.Field("Former data", "%s", i.Former)
	}

	if i.Started {
		d.Field("Undo", "impossible: the agent has been started since; to go back, prepare another restore")
	} else {
		d.Field("Undo", "%s   (only before the agent is started)", strings.Join(i.Undo, "; "))
	}

	if members > 1 {
		d.Field("Next", "install it on the other members, and then start the agents (systemctl start carillon)")
	} else {
		d.Field("Next", "start the agent (systemctl start carillon)")
	}
}
