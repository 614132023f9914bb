package task

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon task".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "task",
		Aliases: []string{"tasks"},
		Short:   "Manage tasks",
	}
	cmd.AddGroup(
		&cobra.Group{ID: "look", Title: "View:"},
		&cobra.Group{ID: "change", Title: "Change:"},
		&cobra.Group{ID: "fire", Title: "Run and stop:"},
	)
	factory.AddGroup(cmd, "look", listCommand(f), getCommand(f), NextCommand(f), graphCommand(f), historyCommand(f), statsCommand(f), WhyCommand(f), keysCommand(f), deletedCommand(f), fieldsCommand(f))
	factory.AddGroup(cmd, "change", createCommand(f), apply.Command(f), apply.DiffCommand(f), editCommand(f), exportCommand(f), updateCommand(f), copyCommand(f), rollbackCommand(f), deleteCommand(f), undeleteCommand(f))
	factory.AddGroup(cmd, "fire", triggerCommand(f), pauseCommand(f), resumeCommand(f))

	return cmd
}

// verbCommand completes cmd, which calls do for each selected task. alone is true if the words name only one, see namesOne.
// done returns the sentence for people; for programs, the result of do is printed.
func verbCommand[T any](f *factory.Factory, cmd *cobra.Command, name func(T) string,
	do func(ctx context.Context, c *client.Client, r selection.Ref, alone bool) (T, error), done func(r selection.Ref, t T) string) *cobra.Command {
	p := bindTasks(f, cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		alone := namesOne(words)
		c, refs, err := approvedTasks(f, cmd, words, *p, nil)
		if err != nil {
			return err
		}

		changed, failed := batch.Run(ctx, f, cmd.Name(), pastOf(cmd.Name()), "task", refs, func(ctx context.Context, r selection.Ref) (T, string, error) {
			t, err := do(ctx, c, r, alone)
			if err != nil {
				return t, "", selection.ExplainMissing(ctx, f, c, r, err)
			}
			if changed, ok := any(t).(client.Task); ok && alone {
				f.AboutTask(changed.Timezone)
			}
			return t, done(r, t), nil
		})

		if err := output.EmitChanged(&f.Printer, changed, len(refs), name); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// namesOne reports whether the words of a command name exactly one task. Such a command is about that task, and its times are in
// the task's zone. A glob or a selector is a list, also if it matches one task: the zone must not depend on what tasks exist.
func namesOne(words []string) bool { return len(words) == 1 && !selection.IsGlob(words[0]) }

// aboutTask says that the command is about only t. Times that the user passed without an offset are in the zone of t then, unless
// --time chooses another one. So it is an error if there are any and this program does not know the zone.
func aboutTask(f *factory.Factory, t client.Task, passed ...string) error {
	f.AboutTask(t.Timezone)

	if strings.Join(passed, "") == "" || f.TimeMode == output.TimeUTC || f.TimeMode == output.TimeLocal {
		return nil
	}

	if _, err := schedule.Location(t.Timezone); err != nil {
		return failure.Usage("%s is in the time zone %s, which this program does not know", task.Quote(t.Name), task.Quote(t.Timezone)).
			WithHint("to pass times in UTC, add --time utc")
	}

	return nil
}

// pastOf returns the past participle of a verb: "paused".
func pastOf(verb string) string {
	return strings.TrimSuffix(verb, "e") + "ed"
}

// bindTasks declares the arguments and flags of a command that changes tasks.
func bindTasks(f *factory.Factory, cmd *cobra.Command) *selection.Flags {
	p := &selection.Flags{}
	p.Bind(cmd, true)
	cmd.Use += " TASK... | -l SELECTOR"
	cmd.ValidArgsFunction = complete.Tasks(f)

	return p
}

// approvedTasks returns the tasks to change, after a confirmation if one is needed. It returns no client if
// nothing is to be done. deletion is set if the command deletes them.
func approvedTasks(f *factory.Factory, cmd *cobra.Command, words []string, p selection.Flags, deletion *client.DeleteOptions) (*client.Client, []selection.Ref, error) {
	c, err := f.Connect()
	if err != nil {
		return nil, nil, err
	}

	ch, err := selection.Find(cmd.Context(), f, c, words, p)
	if err != nil {
		return nil, nil, err
	}

	// A dry run reports the tasks that the change itself would refuse.
	var refused error
	switch {
	case p.DryRun && deletion != nil:
		ch.Refs, refused = dryRunDelete(cmd.Context(), f, c, ch.Refs, *deletion)
	case p.DryRun && !ch.Broad:
		ch.Refs, refused = batch.Existing(cmd.Context(), f, ch.Refs, func(r selection.Ref) error {
			_, err := c.Tasks.Get(cmd.Context(), r.Namespace, r.Name)
			return selection.ExplainMissing(cmd.Context(), f, c, r, err)
		})
	}
	if len(ch.Refs) == 0 && refused != nil {
		return nil, nil, refused
	}

	ok, err := selection.Approve(cmd.Context(), f, cmd.Name(), ch, p, deletion != nil)
	if !ok {
		if err == nil {
			err = refused
		}
		return nil, nil, err
	}

	return c, ch.Refs, nil
}

// revisionFlag is the revision of a task. 0 means any revision and cannot be typed.
type revisionFlag int64

// bindFlag declares --revision.
func (r *revisionFlag) bindFlag(cmd *cobra.Command) {
	cmd.Flags().Var(r, "revision", "change the task only if it is still at this `REVISION`; otherwise exit with 4")
}

// ofOne makes a command reject --revision for more than one task.
func (r *revisionFlag) ofOne(cmd *cobra.Command) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if *r != 0 && !namesOne(words) {
			return failure.Usage("--revision requires exactly one task")
		}
		return run(cmd, words)
	}

	return cmd
}

// String implements pflag.Value.
func (r *revisionFlag) String() string {
	if *r == 0 {
		return ""
	}
	return fmt.Sprint(int64(*r))
}

// Set implements pflag.Value.
func (r *revisionFlag) Set(s string) error {
	var n int64
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil || n < 1 || fmt.Sprint(n) != s {
		return fmt.Errorf("%s is not a revision: a whole number from task get -o json", task.Quote(s))
	}

	*r = revisionFlag(n)

	return nil
}

// Type implements pflag.Value.
func (r *revisionFlag) Type() string { return "revision" }
