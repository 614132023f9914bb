package run

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/task"
)

// bulkFlags defines which runs a command applies to, if they are not named individually.
type bulkFlags struct {
	selection.Flags
	all    bool
	states []string
	dead   bool                // only dead runs
	parts  bool                // include parts of runs
	once   bool                // the command has --idempotency-key
	key    string              // its value
	of     []task.State        // the states of runs to which the command applies
	only   func(task.Run) bool // a further condition; nil: none
	// skip returns the runs of a list that a glob or a flag selects, without those to which the command does not apply. nil: all.
	skip func(context.Context, *factory.Factory, *client.Client, []task.Run) []task.Run
}

// bindFlags declares the flags.
func (b *bulkFlags) bindFlags(cmd *cobra.Command) {
	b.Flags.Bind(cmd, true)
	usage := "select all waiting and active runs"
	if b.dead {
		usage = "select all dead runs"
	}

	cmd.Flags().BoolVar(&b.all, "all", false, usage+" of the namespace, or of all namespaces with -A")
	cmd.Flags().StringSliceVar(&b.states, "state", nil, "select only runs in these `STATES`: "+strings.Join(stateNames(b.of), ", "))
	complete.RegisterFixed(cmd, "state", stateNames(b.of)...)
	if b.once {
		factory.BindKey(cmd, &b.key, "retry only one run of each task")
	}
	cmd.Use += " RUN|GLOB... | -l SELECTOR | --state STATE | --all"
}

// stateNames returns states as strings.
func stateNames(states []task.State) []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return names
}

// runsCommand completes cmd, which calls do for each selected run.
func runsCommand[R any](f *factory.Factory, cmd *cobra.Command, p *bulkFlags, past string,
	do func(context.Context, *client.Client, task.Run) (R, string, error), name func(R) string) *cobra.Command {
	p.bindFlags(cmd)
	cmd.ValidArgsFunction = complete.Runs(f)
	if p.dead {
		cmd.ValidArgsFunction = complete.DeadRuns(f)
	}

	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		states, err := readStates(p.states, p.of)
		if err != nil {
			return err
		}
		if p.once {
			if err := factory.RefuseEmpty(cmd, "idempotency-key"); err != nil {
				return err
			}
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		chosen, broad, err := chosenRuns(ctx, f, c, words, p, states)
		if err == nil && p.key != "" {
			err = refuseSharedKey(chosen)
		}
		if err != nil {
			return err
		}

		var absent error
		if p.DryRun {
			chosen, absent = batch.Existing(ctx, f, chosen, func(r chosenRun) error {
				if r.run.ID != "" {
					return nil
				}
				_, err := namedRun(ctx, f, c, r.word, p.dead)
				return err
			})

			if len(chosen) == 0 && absent != nil {
				return absent
			}
		}

		names := make([]string, len(chosen))
		for i, r := range chosen {
			names[i] = r.word
		}

		if ok, err := f.Confirm(ctx, cmd.Name(), "run", names, broad && len(chosen) > 1, p.DryRun, false); !ok {
			if err == nil {
				err = absent
			}
			return err
		}

		changed, failed := batch.Run(ctx, f, cmd.Name(), past, "run", chosen, func(ctx context.Context, r chosenRun) (R, string, error) {
			if r.run.ID == "" {
				var err error
				if r.run, err = namedRun(ctx, f, c, r.word, p.dead); err != nil {
					var none R
					return none, "", err
				}
			}

			return do(ctx, c, r.run)
		})

		if err := output.EmitChanged(&f.Printer, changed, len(chosen), name); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// chosenRun is a selected run: as it was found, or only as it was named.
type chosenRun struct {
	word string
	run  task.Run // has an id if it was found
}

// namedRun returns the run that a word names.
func namedRun(ctx context.Context, f *factory.Factory, c *client.Client, word string, dead bool) (task.Run, error) {
	if dead {
		return FindDead(ctx, f, c, word)
	}
	return selection.FindRun(ctx, f, c, word)
}

// chosenRuns returns the runs that names, globs of tasks and flags select, each once. broad is true if not all
// of them were named.
func chosenRuns(ctx context.Context, f *factory.Factory, c *client.Client, words []string, p *bulkFlags, states []task.State) (list []chosenRun, broad bool, err error) {
	broad = p.Selector != "" || p.all || len(states) > 0 && len(words) == 0
	globs := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !selection.IsGlob(w) })
	switch {
	case p.Selector != "" && (p.all || len(words) > 0), p.all && len(words) > 0:
		return nil, false, failure.Usage("names, -l and --all cannot be used together")
	case len(states) > 0 && len(globs) < len(words):
		return nil, false, failure.Usage("--state cannot be used with the name of a run; use a glob, -l or --all")
	case !broad && len(words) == 0:
		return nil, false, failure.Usage("no run given; name one or more runs, or use -l, --state or --all")
	}

	for _, word := range words {
		if !selection.IsGlob(word) {
			list = append(list, chosenRun{word: word})
		}
	}

	if !broad && len(globs) == 0 {
		return list, false, nil
	}

	filter := client.RunListOptions{Namespace: f.Scope(), Dead: p.dead, Parts: p.parts, States: states}
	if len(states) == 0 && !p.dead {
		filter.States = p.of
	}

	var of map[selection.Ref]bool // nil: any task
	if len(globs) > 0 || p.Selector != "" {
		if filter.Namespace, _, err = selection.Query(f, globs, ""); err != nil {
			return nil, false, err
		}

		chosen, err := selection.Find(ctx, f, c, globs, selection.Flags{Selector: p.Selector})
		if err != nil {
			return nil, false, err
		}

		of = map[selection.Ref]bool{}
		for _, r := range chosen.Refs {
			of[r] = true
		}
	}

	runs, err := c.Runs.List(ctx, filter)
	if err != nil {
		return nil, false, err
	}
	if p.skip != nil {
		runs = p.skip(ctx, f, c, runs)
	}

	for _, r := range runs {
		if (of == nil || of[selection.Ref{Namespace: r.Namespace, Name: r.Task}]) && (p.only == nil || p.only(r)) {
			list = append(list, chosenRun{r.Namespace + "/" + r.Task + "@" + r.ID, r})
		}
	}

	return list, true, nil
}

// refuseSharedKey rejects two runs of one task: the server would reject the second one, because its key was used for the first.
func refuseSharedKey(chosen []chosenRun) error {
	first := map[selection.Ref]string{}
	for _, r := range chosen {
		if r.run.ID == "" {
			continue // it was named; the server decides
		}

		of := selection.Ref{Namespace: r.run.Namespace, Name: r.run.Task}
		if before, twice := first[of]; twice {
			e := failure.Usage("--idempotency-key: a key is for one run of each task, but %s and %s are runs of the same task", before, r.word)
			e.Hint = "name the runs, each with a key of its own"
			return e
		}
		first[of] = r.word
	}

	return nil
}

// readStates parses the values of --state.
func readStates(names []string, known []task.State) ([]task.State, error) {
	var states []task.State
	for _, name := range names {
		s := task.State(strings.TrimSpace(name))
		if !slices.Contains(known, s) {
			e := failure.Usage("--state %s: use %s", task.Quote(name), strings.Join(stateNames(known), ", "))
			if near := task.Nearest(name, stateNames(known)); near != "" {
				e.Hint = "did you mean: --state " + near
			}
			return nil, e
		}

		states = append(states, s)
	}

	return states, nil
}

// cancelCommand returns "carillon run cancel".
func cancelCommand(f *factory.Factory) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "cancel",
		Short: "Cancel waiting and active runs",
		Long: "Cancel waiting and active runs. A waiting run ends immediately. The process of an active run gets SIGTERM, or the\n" +
			"kill_signal of the task, and SIGKILL after kill_grace. A paused run is resumed for this. While etcd is full, only\n" +
			"active runs can be cancelled. A glob selects the waiting and active runs of all tasks whose names match.\n\n" +
			"A run of a workflow ends after its cleanup, the steps with when: always. --force ends the cleanup, too.\n\n" +
			selection.RunHelp,
		Example: `  carillon run cancel nightly-backup
  carillon run cancel 20261120T220500.000Z-k3f9
  carillon run cancel 'sync-*' --state queued --dry-run
  carillon run cancel -l team=data --yes
  carillon run cancel orders --force`,
	}
	cmd.Flags().BoolVar(&force, "force", false, "also end the cleanup of a workflow: its steps with when: always")

	return runsCommand(f, cmd, &bulkFlags{of: []task.State{task.Queued, task.Dispatched, task.Running, task.Paused}}, "cancelled",
		func(ctx context.Context, c *client.Client, r task.Run) (client.Cancelled, string, error) {
			end, err := c.Runs.CancelWith(ctx, r.Namespace, r.Task, r.ID, client.CancelOptions{Force: force})
			message := "cancelled " + r.ID

			switch {
			case end.Unrecorded:
				message = fmt.Sprintf("cancelled %s on node %s; etcd is full, so its record follows when there is space", r.ID, end.Node)
			case !end.State.Final():
				message = fmt.Sprintf("requested the cancellation of %s; to check it: %s", r.ID, "carillon run get "+r.ID)
			}

			return end, message, err
		}, func(r client.Cancelled) string { return selection.RunName(r.Run) })
}

// deadStates are the states of dead runs. Only cancelled runs of workflows are dead.
var deadStates = []task.State{task.Failed, task.TimedOut, task.Lost, task.Cancelled}

// retryCommand returns "carillon run retry".
func retryCommand(f *factory.Factory) *cobra.Command {
	p := &bulkFlags{dead: true, of: deadStates, skip: skipMessages, once: true}
	var from string
	cmd := &cobra.Command{
		Use:   "retry",
		Short: "Retry dead runs",
		Long: "Retry dead runs: runs that failed, timed out or were lost and have no attempt left, and cancelled runs of workflows.\n" +
			"The command queues a new run with the environment of the old one, and removes the old one from the list of dead runs. A\n" +
			"glob selects the dead runs of all tasks whose names match. Messages to receivers of alerts are not retried: what is\n" +
			"still open is sent again.\n\n" +
			"A script that may run twice, or is repeated after a failure, names the run and gives --idempotency-key. Within an hour,\n" +
			"and while the history of the task still has the dead run, the same key of the same user gives the run that was queued\n" +
			"before, and other runs of the task are rejected with that key.\n\n" +
			"A retry of a workflow keeps the steps and the items that succeeded, if all steps before them are kept. It always repeats\n" +
			"cleanup. With --from, it also repeats that step and all steps that follow it.\n\n" + selection.RunHelp,
		Example: `  carillon run retry nightly-backup
  carillon run retry 20261120T220500.000Z-k3f9 --idempotency-key ticket-4711
  carillon run retry 'nightly-*' --state timed_out
  carillon run retry -l team=data --yes
  carillon run retry --all --dry-run
  carillon run retry orders --from load`,
	}
	cmd.Flags().StringVar(&from, "from", "", "of a workflow: also repeat this `STEP` and all steps that follow it, even if they succeeded")
	complete.Register(cmd, "from", complete.Steps(f))

	return runsCommand(f, cmd, p, "queued again",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			t, err := c.Runs.RetryFrom(ctx, r.Namespace, r.Task, r.ID, client.RetryOptions{From: from, IdempotencyKey: p.key})
			if err != nil {
				return t.Run, "", err
			}
			view.NoteHeld(f, selection.Ref{Namespace: r.Namespace, Name: r.Task}, t)

			message := fmt.Sprintf("%s as a retry of %s", queuedWords(f, t, p.key), r.ID)
			if r.Fan != nil && r.Fan.Flow != nil {
				message += repeatedWords(ctx, c, t.Run)
			}

			return t.Run, message, nil
		}, selection.RunName)
}

// repeatedWords says which steps a retry of a workflow repeats, and which it keeps. It returns "" for other runs.
func repeatedWords(ctx context.Context, c *client.Client, r task.Run) string {
	steps, err := c.Runs.Steps(ctx, r.Namespace, r.Task, r.ID, client.StepsOptions{Items: 1})
	if err != nil {
		return "" // the run is queued in any case
	}

	var repeated, kept []string
	for _, s := range steps.Steps {
		switch {
		case s.Kept > 0 && s.Items == 0 && workflow.State(s.State) == workflow.Succeeded:
			kept = append(kept, s.Name)
			continue
		case s.Kept > 0:
			kept = append(kept, fmt.Sprintf("%s of %s", output.Plural(int64(s.Kept), "item"), s.Name))
		}
		repeated = append(repeated, s.Name)
	}

	words := "; it repeats " + strings.Join(repeated, ", ")
	if len(kept) > 0 {
		words += " and keeps " + strings.Join(kept, ", ")
	}

	return words
}

// queuedWords describes a run that was queued now, or by an earlier command with the same --idempotency-key.
func queuedWords(f *factory.Factory, t client.Triggered, key string) string {
	if t.Replayed && key != "" {
		return fmt.Sprintf("already queued %s, %s,", t.ID, view.PlainRunResult(f, t.Run))
	}
	return "queued " + t.ID
}

// skipMessages removes the runs of receivers of alerts, which the server does not retry. Their runs are all manual.
func skipMessages(ctx context.Context, f *factory.Factory, c *client.Client, runs []task.Run) []task.Run {
	isReceiver := map[selection.Ref]bool{}
	skipped := 0

	kept := slices.DeleteFunc(runs, func(r task.Run) bool {
		if r.Trigger != task.TriggerManual {
			return false
		}

		ref := selection.Ref{Namespace: r.Namespace, Name: r.Task}
		is, known := isReceiver[ref]
		if !known {
			// Whoever may not read the task learns from the server that its run is not retried.
			t, err := c.Tasks.Get(ctx, r.Namespace, r.Task)
			is = r.IsMessage() || err == nil && t.Receiver != nil
			isReceiver[ref] = is
		}
		if is {
			skipped++
		}

		return is
	})

	if skipped > 0 {
		f.Note("skipped %s of receivers of alerts: what is still open is sent again", wording.Plural(int64(skipped), "run"))
	}

	return kept
}

// dismissCommand returns "carillon run dismiss".
func dismissCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dismiss",
		Short: "Remove runs from the list of dead runs",
		Long: "Remove runs from the list of dead runs, if you do not want to retry them. They stay in the history. A glob selects\n" +
			"the dead runs of all tasks whose names match.\n\n" + selection.RunHelp,
		Example: `  carillon run dismiss nightly-backup@-1
  carillon run dismiss 'nightly-*' --dry-run
  carillon run dismiss -l team=data --yes`,
	}
	return runsCommand(f, cmd, &bulkFlags{dead: true, of: deadStates}, "dismissed",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			run, err := c.Runs.Dismiss(ctx, r.Namespace, r.Task, r.ID)
			return run, "dismissed " + r.ID, err
		}, selection.RunName)
}

// FindDead returns the run that a user named, as FindRun does. A dead run may no longer be in its task's
// history; then it can be named by its id or a prefix of it.
func FindDead(ctx context.Context, f *factory.Factory, c *client.Client, word string) (task.Run, error) {
	w, err := selection.ParseRunWord(word)
	if err != nil {
		return task.Run{}, err
	}
	if w.ID == "" {
		return selection.FindRun(ctx, f, c, word)
	}

	filter := client.RunListOptions{Namespace: f.Scope(), Dead: true}
	if w.Task != "" {
		r, err := selection.ParseRef(f, w.Task)
		if err != nil {
			return task.Run{}, err
		}
		filter.Namespace, filter.Task = r.Namespace, r.Name
	}

	dead, err := c.Runs.List(ctx, filter)
	if err != nil {
		return task.Run{}, err
	}

	found := slices.DeleteFunc(dead, func(r task.Run) bool { return !strings.HasPrefix(r.ID, w.ID) })
	if i := slices.IndexFunc(found, func(r task.Run) bool { return r.ID == w.ID }); i >= 0 {
		return found[i], nil
	}
	if len(found) == 0 {
		return selection.FindRun(ctx, f, c, word)
	}

	return selection.OnlyRun(f, found, "dead run "+task.Quote(w.ID))
}
