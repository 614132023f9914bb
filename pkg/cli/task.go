package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// lookLimit bounds what is asked only to make a message better.
var lookLimit = 2 * time.Second

func (a *app) taskCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "task",
		Aliases: []string{"tasks"},
		Short:   "What is scheduled: create, change, look at, run now",
	}
	cmd.AddGroup(
		&cobra.Group{ID: "look", Title: "Look:"},
		&cobra.Group{ID: "change", Title: "Change:"},
		&cobra.Group{ID: "fire", Title: "Run and stop:"},
	)
	add(cmd, "look", a.taskList(), a.taskGet(), a.taskNext(), a.taskHistory(), a.taskWhy(), a.taskKeys())
	add(cmd, "change", a.taskCreate(), a.taskApply(), a.taskDiff(), a.taskEdit(), a.taskExport(), a.taskUpdate(), a.taskRollback(), a.taskDelete())
	add(cmd, "fire", a.taskTrigger(), a.taskPause(), a.taskResume())
	return cmd
}

// verb makes cmd do one thing to each of the tasks that it is given. done is
// the sentence for people; programs get what do returned.
func verb[T any](a *app, cmd *cobra.Command, severe bool, name func(T) string,
	do func(ctx context.Context, c *client.Client, r ref) (T, error), done func(r ref, t T) string) *cobra.Command {
	p := a.manyTasks(cmd)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		c, refs, err := a.approved(cmd, words, *p, severe)
		if err != nil {
			return err
		}
		changed, failed := many(ctx, a, cmd.Name(), pastOf(cmd.Name()), "task", refs, func(ctx context.Context, r ref) (T, string, error) {
			t, err := do(ctx, c, r)
			if err != nil {
				return t, "", a.missing(ctx, c, r, err)
			}
			return t, done(r, t), nil
		})
		if err := emitChanged(a, changed, len(refs), name); err != nil {
			return err
		}
		return failed
	}
	return cmd
}

// pastOf is a verb when it is done: paused.
func pastOf(verb string) string {
	return strings.TrimSuffix(verb, "e") + "ed"
}

// manyTasks gives a command that changes tasks its arguments and flags.
func (a *app) manyTasks(cmd *cobra.Command) *pick {
	p := &pick{}
	p.bind(cmd, true)
	cmd.Use += " TASK... | -l SELECTOR"
	cmd.ValidArgsFunction = a.completeTasks
	return p
}

// approved is the tasks that a command is to change, after whoever has to was
// asked; none if nothing is to be done.
func (a *app) approved(cmd *cobra.Command, words []string, p pick, severe bool) (*client.Client, []ref, error) {
	c, err := a.connect()
	if err != nil {
		return nil, nil, err
	}
	ch, err := a.tasks(cmd.Context(), c, words, p)
	if err != nil {
		return nil, nil, err
	}
	var absent error
	if p.dryRun && !ch.broad {
		ch.refs, absent = present(cmd.Context(), a, ch.refs, func(r ref) error {
			_, err := c.Get(cmd.Context(), r.namespace, r.name)
			return a.missing(cmd.Context(), c, r, err)
		})
		if len(ch.refs) == 0 && absent != nil {
			return nil, nil, absent
		}
	}
	ok, err := a.approve(cmd.Context(), cmd.Name(), ch, p, severe)
	if !ok {
		if err == nil {
			err = absent
		}
		return nil, nil, err
	}
	return c, ch.refs, nil
}

// emitChanged prints what changes returned, for programs; people have been told
// already. One task that was asked for is an object, several are a list.
func emitChanged[T any](a *app, changed []T, asked int, name func(T) string) error {
	switch {
	case a.ForPeople(), asked == 0, asked == 1 && len(changed) == 0:
		return nil
	case asked == 1:
		return output.EmitOne(&a.Printer, changed[0], name(changed[0]), nil)
	}
	return output.EmitList(&a.Printer, changed, name, nil)
}

func (a *app) taskName(t client.Task) string { return a.named(t.Namespace, t.Name) }

// named is a task's name as -o name prints it, such that it can be typed again.
func (a *app) named(namespace, name string) string { return a.show(ref{namespace, name}) }

// deleted is what a delete tells programs.
type deleted struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Deleted   bool   `json:"deleted"`
}

func (a *app) taskDelete() *cobra.Command {
	var revision revisionFlag
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete tasks, with their history and what waits",
		Long:  "Delete tasks with their history and their waiting runs. Active runs are cancelled.",
		Example: `  carillon task delete nightly-backup
  carillon task delete 'tmp-*' --dry-run
  carillon task delete -l team=data --yes`,
	}
	revision.bind(cmd)
	verb(a, cmd, true, func(d deleted) string { return a.named(d.Namespace, d.Name) },
		func(ctx context.Context, c *client.Client, r ref) (deleted, error) {
			return deleted{r.namespace, r.name, true}, c.Delete(ctx, r.namespace, r.name, int64(revision))
		},
		func(r ref, _ deleted) string { return "deleted " + a.show(r) })
	return revision.ofOne(cmd)
}

// revisionFlag is a task's revision; 0 is any, and cannot be typed.
type revisionFlag int64

func (r *revisionFlag) bind(cmd *cobra.Command) {
	cmd.Flags().Var(r, "revision", "only if the task is still at this revision; else exit code 4")
}

// ofOne has a verb refuse a revision for more than one task.
func (r *revisionFlag) ofOne(cmd *cobra.Command) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if *r != 0 && (len(words) != 1 || isGlob(words[0])) {
			return failure.Usage("--revision needs exactly one task")
		}
		return run(cmd, words)
	}
	return cmd
}

func (r *revisionFlag) String() string {
	if *r == 0 {
		return ""
	}
	return fmt.Sprint(int64(*r))
}

func (r *revisionFlag) Set(s string) error {
	var n int64
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil || n < 1 || fmt.Sprint(n) != s {
		return fmt.Errorf("%s is not a revision: a whole number from task get -o json", task.Quote(s))
	}
	*r = revisionFlag(n)
	return nil
}

func (r *revisionFlag) Type() string { return "revision" }

// nextWords ends a sentence with when the task runs next.
func (a *app) nextWords(t client.Task) string {
	var words string
	switch {
	case t.Paused:
		words = a.pausedWords(t)
	case t.Next.IsZero():
		words = "no next tick"
		if manual(t.Spec) {
			words = "runs when triggered"
		} else if t.NoNext != "" {
			words = "no more ticks: " + t.NoNext
		}
	default:
		left := a.TimeLeft(t.Next)
		if left != "now" {
			left = "in " + left
		}
		words = fmt.Sprintf("next %s (%s)", a.DateTime(t.Next, t.Timezone), left)
	}
	return a.Plain(" · ") + words
}

func manual(s task.Spec) bool { return len(s.Schedule) == 1 && s.Schedule[0] == "@manual" }
