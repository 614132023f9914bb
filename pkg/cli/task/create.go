package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// createCommand returns "carillon task create".
func createCommand(f *factory.Factory) *cobra.Command {
	var flags taskFlags
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "create TASK --schedule EXPR | --after TASK [flags] -- COMMAND [ARG...] | --http METHOD URL",
		Short: "Create a task",
		Long: "Create a task from flags. The command fails if the task exists: change a task with update, or apply files.\n\n" +
			"The process starts without a shell. For pipes, variables and globs, use --shell. With --http, each run sends a request\n" +
			"instead.\n\n" +
			"The flags are for the fields that most tasks set. --set sets any field: its path is that in a task file, a list is JSON\n" +
			"or has commas between its elements, or is given as PATH[]=VALUE for each element. carillon task fields describes all\n" +
			"fields.",
		Example: `  carillon task create hello --schedule "@every 5s" -- echo hello
  carillon task create nightly-backup --schedule "30 2 * * *" --timezone Europe/Berlin -- pg_dump orders
  carillon task create report --schedule "0 9 * * MON-FRI" --retries 2 --timeout 10m --label team=data \
      --shell 'make-report | mail -s report ops@example.org'
  carillon task create campaign --schedule "H 9 * * *" --set start=2026-12-01 --set end="2026-12-24 18:00" --set jitter=10m -- ./mail
  carillon task create reminder --schedule "@in 10m" --set ttl=1h --shell 'echo tea | wall'
  carillon task create cleanup --schedule @hourly --selector role=db --env DAYS=30 -- /opt/cleanup
  carillon task create report --after etl -- ./report
  carillon task create ticket --after etl:failed --shell './ticket "$CARILLON_CAUSE_RUN"'
  carillon task create ping --schedule @hourly --http https://api.example.com/ping
  carillon task create order --schedule @daily --http POST https://api.example.com/orders \
      --json '{"day": "${run.scheduled_time}"}' --set action.http.auth.bearer=api/token --set action.http.expect.status=201`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.bindFlags(f, cmd)
	bindDryRun(cmd, &dryRun)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		words, err := flags.readRequest(cmd, words)
		if err != nil {
			return err
		}

		name, command, err := nameAndCommand(f, cmd, words)
		if err != nil {
			return err
		}

		a, err := flags.buildPatch(cmd.Context(), f, cmd.Flags(), command)
		if err == nil {
			err = manifest.ResolveTimes(a.Patch, f.Now(), func() (string, error) { return task.Defaults().Timezone, nil })
		}

		if err != nil {
			return err
		}

		spec, err := specOf(a.Patch, name.Namespace, name.Name)
		if err == nil {
			err = checkRequired(spec)
		}

		if err == nil {
			err = manifest.Check(&spec)
		}

		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		write := c.Tasks.Create
		if dryRun {
			write = c.Tasks.DryRunCreate
		}

		t, err := write(cmd.Context(), name.Namespace, spec)
		if errors.Is(err, task.ErrExists) {
			return f.Explain(err).WithHint("to change it: carillon task update %s, or carillon apply -f FILE", selection.Show(f, name))
		}
		if err != nil {
			return err
		}

		f.AboutTask(t.Timezone)
		selection.PrintWarnings(f, t)

		if dryRun {
			return wouldBe(f, t)
		}

		f.Say("created %s%s", selection.Show(f, name), view.NextText(f, t))
		if _, chosen := a.Patch["timezone"]; !chosen {
			noteUTC(f, name, spec.Schedule)
		}

		return output.EmitChanged(&f.Printer, []client.Task{t}, 1, func(t client.Task) string { return selection.TaskName(f, t) })
	}

	return cmd
}

// hasOffset matches a time with an offset.
var hasOffset = regexp.MustCompile(`(Z|UTC|GMT|[+-]\d\d:?\d\d)$`)

// followsClock reports whether ticks of a schedule depend on the time zone.
func followsClock(s task.Schedules) bool {
	return slices.ContainsFunc(s, func(expr string) bool {
		kind, _, _ := strings.Cut(expr, " ")
		return !slices.Contains([]string{"@every", "@in", "@at", "@manual", "@reboot"}, kind) || kind == "@at" && !hasOffset.MatchString(expr)
	})
}

// noteUTC tells users in other time zones that the schedule of a new task is in UTC. Those who know cron expect their own zone.
func noteUTC(f *factory.Factory, r selection.Ref, s task.Schedules) {
	local := f.Local
	if !f.ForPeople() || !followsClock(s) || local == nil {
		return
	}

	// Where clocks change, the offset of one of these days is not that of the other.
	year := f.Now().Year()
	_, winter := time.Date(year, time.January, 1, 0, 0, 0, 0, local).Zone()
	_, summer := time.Date(year, time.July, 1, 0, 0, 0, 0, local).Zone()
	if winter == 0 && summer == 0 {
		return
	}

	zone := f.LocalZoneName()
	if zone == "" {
		zone = "ZONE"
	}
	f.Note("the schedule is in UTC; for your time zone: carillon task update %s --timezone %s", selection.Show(f, r), zone)
}

// bindDryRun declares --dry-run.
func bindDryRun(cmd *cobra.Command, dry *bool) {
	cmd.Flags().BoolVar(dry, "dry-run", false, "validate the change on the server and print it, without making it")
}

// wouldBe prints the result of a dry run for one task.
func wouldBe(f *factory.Factory, t client.Task) error {
	if !f.ForPeople() {
		return output.EmitChanged(&f.Printer, []client.Task{t}, 1, func(t client.Task) string { return selection.TaskName(f, t) })
	}
	return f.Print(wouldBeWords(f, t))
}

// wouldBeWords describes the result of a dry run.
func wouldBeWords(f *factory.Factory, t client.Task) string {
	text := fmt.Sprintf("%s %s (dry run)\n", t.Result, selection.TaskName(f, t))
	if t.DryRun != nil {
		text += strings.Join(append(apply.ChangeText(f, t.DryRun, t.Timezone), ""), "\n")
	}
	return f.Plain(text)
}

// checkRequired reports missing fields in terms of the command line.
func checkRequired(s task.Spec) error {
	process, request := s.Action.Process, s.Action.HTTP
	hasProgram := process != nil && (len(process.Command) > 0 || process.Shell != "")
	switch {
	case len(s.Schedule) == 0:
		return failure.Usage("--schedule or --after is required").WithHint(`for example: --schedule "*/5 * * * *", "@every 90s", or @manual; see carillon help schedules`)
	case request != nil && request.URL == "":
		return failure.Usage("no URL given").WithHint("for example: --http POST https://api.example.com/orders")
	case request == nil && s.Action.Noop == nil && s.Action.Workflow == nil && !hasProgram:
		return failure.Usage("no command given").WithHint("give a command after -- (-- COMMAND ARG...), or use --shell, --http or --noop")
	}

	return nil
}

// nameAndCommand splits the words at "--": one name before it, a command after it.
func nameAndCommand(f *factory.Factory, cmd *cobra.Command, words []string) (selection.Ref, []string, error) {
	words, command, err := namesAndCommand(cmd, words)
	switch {
	case err != nil:
		return selection.Ref{}, nil, err
	case len(words) == 0:
		return selection.Ref{}, nil, failure.Usage("%s: the name of the task is missing", cmd.CommandPath()).WithHint("%s", cmd.UseLine())
	case len(words) > 1:
		return selection.Ref{}, nil, failure.Usage("%s: unexpected argument %s", cmd.CommandPath(), task.Quote(words[1])).
			WithHint("write the command to run after --: carillon task %s %s … -- %s …", cmd.Name(), words[0], words[1])
	}

	r, err := selection.ParseRef(f, words[0])
	return r, command, err
}

// namesAndCommand splits the words at "--": names before it, a command after it.
func namesAndCommand(cmd *cobra.Command, words []string) (names, command []string, err error) {
	at := cmd.ArgsLenAtDash()
	if at < 0 {
		return words, nil, nil
	}
	if at == len(words) {
		return nil, nil, failure.Usage("no command after --")
	}

	return words[:at], words[at:], nil
}

// updateCommand returns "carillon task update".
func updateCommand(f *factory.Factory) *cobra.Command {
	var flags taskFlags
	var p selection.Flags
	var revision revisionFlag
	var clear []string
	cmd := &cobra.Command{
		Use:   "update TASK... | -l SELECTOR [flags] [-- COMMAND [ARG...] | --http METHOD URL]",
		Short: "Change fields of tasks",
		Long: "Change the fields of tasks that you give as flags. Other fields stay as they are.\n\n" +
			"--label, --env, --limit and --header add to the existing values; KEY- (for a header KEY:) removes one. --set sets any\n" +
			"field, as in task create, and --unset resets one to its default. A list that you give replaces that of the task.\n" +
			"carillon task fields describes all fields.",
		Example: `  carillon task update nightly-backup --schedule "0 3 * * *"
  carillon task update nightly-backup --label team=data --label old- --unset retry
  carillon task update nightly-backup --revision 812 --timeout 20m
  carillon task update nightly-backup --schedule "0 3 * * *" --dry-run
  carillon task update -l team=data --timeout 5m
  carillon task update 'sync-*' --overlap queue --set queue.limit=3 --yes
  carillon task update nightly-backup -- pg_dump --jobs 4 orders
  carillon task update order --http PUT https://api.example.com/v2/orders --header 'X-Key: ${secret:api/key}'`,
		ValidArgsFunction: complete.Tasks(f),
	}
	flags.bindFlags(f, cmd)
	revision.bindFlag(cmd)
	cmd.Flags().StringVarP(&p.Selector, "where", "l", "", "change tasks whose labels match this `SELECTOR`, such as team=data (--selector selects nodes)")
	bindDryRun(cmd, &p.DryRun)
	cmd.Flags().StringSliceVar(&clear, "unset", nil, "reset this `FIELD` to its default, such as retry or labels.team; may be repeated")
	complete.Register(cmd, "unset", completeFields)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		words, err := flags.readRequest(cmd, words)
		if err != nil {
			return err
		}

		words, command, err := namesAndCommand(cmd, words)
		if err != nil {
			return err
		}
		if revision != 0 && !namesOne(words) {
			return failure.Usage("--revision requires exactly one task")
		}

		a, err := flags.buildPatch(ctx, f, cmd.Flags(), command)
		if err == nil {
			err = unsetFields(a, clear)
		}

		if err != nil {
			return err
		}
		if len(a.Patch) == 0 {
			return failure.Usage("nothing to change").WithHint("use flags for the fields to change, such as --schedule; see %s --help", cmd.CommandPath())
		}

		c, refs, err := toUpdate(f, cmd, words, p)
		if err != nil {
			return err
		}

		past := "updated"
		if p.DryRun {
			past = "checked"
		}

		changed, failed := batch.Run(ctx, f, "update", past, "task", refs, func(ctx context.Context, r selection.Ref) (client.Task, string, error) {
			t, err := updateTask(ctx, f, c, r, a.Patch, int64(revision), p.DryRun)
			if err == nil && namesOne(words) {
				f.AboutTask(t.Timezone)
			}
			if p.DryRun {
				return t, strings.TrimSuffix(wouldBeWords(f, t), "\n"), err
			}

			done := "updated"
			if t.Result == client.Unchanged {
				done = client.Unchanged
			}

			return t, fmt.Sprintf("%s %s%s", done, selection.Show(f, r), view.NextText(f, t)), err
		})

		selection.PrintWarnings(f, changed...)

		if err := output.EmitChanged(&f.Printer, changed, len(refs), func(t client.Task) string { return selection.TaskName(f, t) }); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// unsetFields resets fields.
func unsetFields(a *manifest.Assignments, paths []string) error {
	for _, path := range paths {
		if path == "name" || path == "namespace" {
			return failure.Usage("--unset %s: the %s of a task cannot be unset", path, path)
		}
		if err := a.SetValue(path, nil); err != nil {
			return err
		}
	}

	return nil
}

// toUpdate returns the tasks to update. A dry run needs no confirmation.
func toUpdate(f *factory.Factory, cmd *cobra.Command, words []string, p selection.Flags) (*client.Client, []selection.Ref, error) {
	if !p.DryRun {
		return approvedTasks(f, cmd, words, p, nil)
	}

	c, err := f.Connect()
	if err != nil {
		return nil, nil, err
	}

	ch, err := selection.Find(cmd.Context(), f, c, words, p)

	return c, ch.Refs, err
}

// updateTask changes a task, or lets the server compute the changes if dryRun is set. Local times are in the
// task's zone.
func updateTask(ctx context.Context, f *factory.Factory, c *client.Client, r selection.Ref, change map[string]any, revision int64, dryRun bool) (client.Task, error) {
	change = maps.Clone(change)
	err := manifest.ResolveTimes(change, f.Now(), func() (string, error) {
		t, err := c.Tasks.Get(ctx, r.Namespace, r.Name)
		return t.Timezone, selection.ExplainMissing(ctx, f, c, r, err)
	})

	if err != nil {
		return client.Task{}, err
	}

	body, err := json.Marshal(change)
	if err != nil {
		return client.Task{}, fmt.Errorf("write the change as JSON: %w", err)
	}

	write := c.Tasks.Patch
	if dryRun {
		write = c.Tasks.DryRunPatch
	}

	t, err := write(ctx, r.Namespace, r.Name, body, revision)

	return t, selection.ExplainMissing(ctx, f, c, r, err)
}
