package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) taskCreate() *cobra.Command {
	var f taskFlags
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "create TASK --schedule EXPR [flags] -- COMMAND [ARG...]",
		Short: "Create a task; fails if it exists",
		Long: "Create a task from flags. It fails if the task exists: use update to change it, or apply for files.\n" +
			"The command runs as it stands, without a shell; use --shell for pipes, variables and globs.",
		Example: `  carillon task create hello --schedule "@every 5s" -- echo hello
  carillon task create nightly-backup --schedule "30 2 * * *" --timezone Europe/Berlin -- pg_dump orders
  carillon task create report --schedule "0 9 * * MON-FRI" --retries 2 --timeout 10m --label team=data \
      --shell 'make-report | mail -s report ops@example.org'
  carillon task create campaign --schedule "H 9 * * *" --start 2026-12-01 --end "2026-12-24 18:00" --jitter 10m --ttl 168h -- ./mail
  carillon task create reminder --schedule "@in 10m" --ttl 1h --shell 'echo tea | wall'
  carillon task create cleanup --schedule @hourly --selector role=db --env DAYS=30 -- /opt/cleanup`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.bind(cmd)
	bindDryRun(cmd, &dryRun)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		name, command, err := a.nameAndCommand(cmd, words)
		if err != nil {
			return err
		}
		p, err := f.patch(cmd.Flags(), command)
		if err == nil {
			err = complain(p)
		}
		if err == nil {
			err = readTimes(p, func() (string, error) { return task.Defaults().Timezone, nil })
		}
		if err != nil {
			return err
		}
		spec, err := specOf(p, name.namespace, name.name)
		if err == nil {
			err = manifest.Check(&spec)
		}
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		write := c.Create
		if dryRun {
			write = c.WouldCreate
		}
		t, err := write(cmd.Context(), name.namespace, spec)
		if err != nil {
			return err
		}
		if dryRun {
			return a.wouldBe(t)
		}
		a.say("created %s%s", a.show(name), a.nextWords(t))
		return emitChanged(a, []client.Task{t}, 1, a.taskName)
	}
	return cmd
}

func bindDryRun(cmd *cobra.Command, dry *bool) {
	cmd.Flags().BoolVar(dry, "dry-run", false, "have the server check it, and tell what would change")
}

// wouldBe tells what a dry run of one task found.
func (a *app) wouldBe(t client.Task) error {
	if !a.human() {
		return emitChanged(a, []client.Task{t}, 1, a.taskName)
	}
	text := fmt.Sprintf("%s %s (dry run)\n", t.Result, a.taskName(t))
	if t.DryRun != nil {
		text += strings.Join(append(a.changeLines(t.DryRun, t.Timezone), ""), "\n")
	}
	return a.print(a.plain(text))
}

// complain says in the command line's words what every task needs.
func complain(p map[string]any) error {
	action, _ := p["action"].(map[string]any)
	process, _ := action["process"].(map[string]any)
	switch {
	case p["schedule"] == nil:
		return usage("--schedule is missing").hinting(`such as --schedule "*/5 * * * *", "@every 90s", or @manual; see carillon help schedules`)
	case action["noop"] == nil && process["command"] == nil && process["shell"] == nil:
		return usage("there is nothing to run").hinting("give a command behind two dashes (-- command args…), or --shell, or --noop")
	}
	return nil
}

// nameAndCommand splits the words at --: one name before it, a command behind.
func (a *app) nameAndCommand(cmd *cobra.Command, words []string) (ref, []string, error) {
	at := cmd.ArgsLenAtDash()
	var command []string
	if at >= 0 {
		words, command = words[:at], words[at:]
		if len(command) == 0 {
			return ref{}, nil, usage("there is no command after --")
		}
	}
	switch {
	case len(words) == 0:
		return ref{}, nil, usage("%s: the task's name is missing", cmd.CommandPath()).hinting("%s", cmd.UseLine())
	case len(words) > 1:
		return ref{}, nil, usage("%s: %s is too much", cmd.CommandPath(), quote(words[1])).
			hinting("the command to run goes behind two dashes: carillon task %s %s … -- %s …", cmd.Name(), words[0], words[1])
	}
	r, err := a.ref(words[0])
	return r, command, err
}

func (a *app) taskUpdate() *cobra.Command {
	var f taskFlags
	var revision revisionFlag
	var clear []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "update TASK [flags] [-- COMMAND [ARG...]]",
		Short: "Change the given fields of a task, and no others",
		Long: "Change the given fields of a task, and no others. --label and --env add to what is there; KEY- takes\n" +
			"one away; --unset sets a field back to its default.",
		Example: `  carillon task update nightly-backup --schedule "0 3 * * *"
  carillon task update nightly-backup --label team=data --label old- --unset retry
  carillon task update nightly-backup --revision 812 --timeout 20m
  carillon task update nightly-backup --schedule "0 3 * * *" --dry-run
  carillon task update nightly-backup -- pg_dump --jobs 4 orders`,
		ValidArgsFunction: a.completeTask,
	}
	f.bind(cmd)
	revision.bind(cmd)
	bindDryRun(cmd, &dryRun)
	cmd.Flags().StringSliceVar(&clear, "unset", nil, "field to set back to its default, such as retry or labels.team; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		name, command, err := a.nameAndCommand(cmd, words)
		if err != nil {
			return err
		}
		p, err := f.patch(cmd.Flags(), command)
		if err == nil {
			err = unset(p, clear)
		}
		if err != nil {
			return err
		}
		if len(p) == 0 {
			return usage("nothing to change").hinting("give the fields that change, such as --schedule; see %s --help", cmd.CommandPath())
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		err = readTimes(p, func() (string, error) {
			t, err := c.Get(ctx, name.namespace, name.name)
			return t.Timezone, a.missing(ctx, c, name, err)
		})
		if err != nil {
			return err
		}
		body, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("write the change as JSON: %w", err)
		}
		write := c.Patch
		if dryRun {
			write = c.WouldPatch
		}
		t, err := write(ctx, name.namespace, name.name, body, int64(revision))
		if err != nil {
			return a.missing(ctx, c, name, err)
		}
		if dryRun {
			return a.wouldBe(t)
		}
		a.say("updated %s%s", a.show(name), a.nextWords(t))
		return emitChanged(a, []client.Task{t}, 1, a.taskName)
	}
	return cmd
}
