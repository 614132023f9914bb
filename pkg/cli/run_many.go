package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// runPick says which runs a verb is for, where they are not named one by one.
type runPick struct {
	pick
	all    bool
	states []string
	dead   bool                // only runs that have used up their attempts
	parts  bool                // parts of runs are found, too
	of     []task.State        // the states that runs have which the verb is for
	only   func(task.Run) bool // nil: all of these
}

func (p *runPick) bind(cmd *cobra.Command) {
	p.pick.bind(cmd, true)
	what := "all runs that wait or run"
	if p.dead {
		what = "all dead runs"
	}
	cmd.Flags().BoolVar(&p.all, "all", false, what+" of the namespace, or with -A of all")
	cmd.Flags().StringSliceVar(&p.states, "state", nil, "only runs in these `STATES`: "+strings.Join(stateNames(p.of), ", "))
	completeFixed(cmd, "state", stateNames(p.of)...)
	cmd.Use += " RUN|GLOB... | -l SELECTOR | --state STATE | --all"
}

func stateNames(states []task.State) []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return names
}

// manyRuns makes cmd do one thing to each of the runs that it is given.
func manyRuns[R any](a *app, cmd *cobra.Command, p *runPick, past string,
	do func(context.Context, *client.Client, task.Run) (R, string, error), name func(R) string) *cobra.Command {
	p.bind(cmd)
	cmd.ValidArgsFunction = a.completeRuns
	if p.dead {
		cmd.ValidArgsFunction = a.completeDead
	}
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		states, err := readStates(p.states, p.of)
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		chosen, broad, err := a.chosenRuns(ctx, c, words, p, states)
		if err != nil {
			return err
		}
		var absent error
		if p.dryRun {
			chosen, absent = present(ctx, a, chosen, func(r chosenRun) error {
				if r.run.ID != "" {
					return nil
				}
				_, err := a.namedRun(ctx, c, r.word, p.dead)
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
		if ok, err := a.confirm(ctx, cmd.Name(), "run", names, broad && len(chosen) > 1, p.dryRun, false); !ok {
			if err == nil {
				err = absent
			}
			return err
		}
		changed, failed := many(ctx, a, cmd.Name(), past, "run", chosen, func(ctx context.Context, r chosenRun) (R, string, error) {
			if r.run.ID == "" {
				var err error
				if r.run, err = a.namedRun(ctx, c, r.word, p.dead); err != nil {
					var none R
					return none, "", err
				}
			}
			return do(ctx, c, r.run)
		})
		if err := emitChanged(a, changed, len(chosen), name); err != nil {
			return err
		}
		return failed
	}
	return cmd
}

// chosenRun is a run that a verb is for: as it was found, or as it was named.
type chosenRun struct {
	word string
	run  task.Run // with an id, if it was found
}

func (a *app) namedRun(ctx context.Context, c *client.Client, word string, dead bool) (task.Run, error) {
	if dead {
		return a.findDead(ctx, c, word)
	}
	return a.findRun(ctx, c, word)
}

// chosenRuns finds the runs that names, globs of tasks and flags stand for, each once.
// It is broad if not each was named.
func (a *app) chosenRuns(ctx context.Context, c *client.Client, words []string, p *runPick, states []task.State) (list []chosenRun, broad bool, err error) {
	broad = p.selector != "" || p.all || len(states) > 0 && len(words) == 0
	globs := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !isGlob(w) })
	switch {
	case p.selector != "" && (p.all || len(words) > 0), p.all && len(words) > 0:
		return nil, false, failure.Usage("names, -l and --all exclude each other")
	case len(states) > 0 && len(globs) < len(words):
		return nil, false, failure.Usage("--state is for those that globs, -l and --all find")
	case !broad && len(words) == 0:
		return nil, false, failure.Usage("which run? name one, or several, or use -l, --state or --all")
	}
	for _, word := range words {
		if !isGlob(word) {
			list = append(list, chosenRun{word: word})
		}
	}
	if !broad && len(globs) == 0 {
		return list, false, nil
	}
	f := client.RunFilter{Namespace: a.scope(), Dead: p.dead, Parts: p.parts, States: states}
	if len(states) == 0 && !p.dead {
		f.States = p.of
	}
	var of map[ref]bool // nil: any task
	if len(globs) > 0 || p.selector != "" {
		if f.Namespace, _, err = a.patterns(globs); err != nil {
			return nil, false, err
		}
		chosen, err := a.tasks(ctx, c, globs, pick{selector: p.selector})
		if err != nil {
			return nil, false, err
		}
		of = map[ref]bool{}
		for _, r := range chosen.refs {
			of[r] = true
		}
	}
	runs, err := c.ListRuns(ctx, f)
	if err != nil {
		return nil, false, err
	}
	for _, r := range runs {
		if (of == nil || of[ref{r.Namespace, r.Task}]) && (p.only == nil || p.only(r)) {
			list = append(list, chosenRun{r.Namespace + "/" + r.Task + "@" + r.ID, r})
		}
	}
	return list, true, nil
}

// readStates checks states that were typed.
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

func (a *app) runCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel",
		Short: "End runs: what waits goes, what runs is stopped",
		Long: "End runs. One that waits ends at once; one that runs gets SIGTERM, or the task's kill_signal, and SIGKILL after its\n" +
			"grace; one that is paused goes on for that. A glob stands for the runs of the tasks that it matches, which wait or run.\n\n" + runNames,
		Example: `  carillon run cancel nightly-backup
  carillon run cancel 20261120T220500.000Z-k3f9
  carillon run cancel 'sync-*' --state queued --dry-run
  carillon run cancel -l team=data --yes`,
	}
	return manyRuns(a, cmd, &runPick{of: []task.State{task.Queued, task.Dispatched, task.Running, task.Paused}}, "cancelled",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			end, err := c.Cancel(ctx, r.Namespace, r.Task, r.ID)
			said := "cancelled " + r.ID
			if !end.State.Final() {
				said = fmt.Sprintf("asked %s to end; %s tells when it has", r.ID, "carillon run get "+r.ID)
			}
			return end, said, err
		}, runName)
}

// deadStates are those of runs that have used up their attempts.
var deadStates = []task.State{task.Failed, task.TimedOut, task.Lost}

func (a *app) runRetry() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry",
		Short: "Run dead runs again",
		Long: "Run dead runs again: those that failed, timed out or were lost and have no attempt left. A new run is queued, with the\n" +
			"environment of the old one, which leaves the list of dead runs. A glob stands for the dead runs of the tasks that\n" +
			"it matches.\n\n" + runNames,
		Example: `  carillon run retry nightly-backup
  carillon run retry 'nightly-*' --state timed_out
  carillon run retry -l team=data --yes
  carillon run retry --all --dry-run`,
	}
	return manyRuns(a, cmd, &runPick{dead: true, of: deadStates}, "queued again",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			t, err := c.Retry(ctx, r.Namespace, r.Task, r.ID)
			if err == nil {
				a.noteHeld(ref{r.Namespace, r.Task}, t)
			}
			return t.Run, fmt.Sprintf("queued %s in place of %s", t.ID, r.ID), err
		}, runName)
}

func (a *app) runDismiss() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dismiss",
		Short: "Take dead runs off their list",
		Long: "Take dead runs off their list, as nothing is to be done about them. Their history stays. A glob stands for the dead\n" +
			"runs of the tasks that it matches.\n\n" + runNames,
		Example: `  carillon run dismiss nightly-backup@-1
  carillon run dismiss 'nightly-*' --dry-run
  carillon run dismiss -l team=data --yes`,
	}
	return manyRuns(a, cmd, &runPick{dead: true, of: deadStates}, "dismissed",
		func(ctx context.Context, c *client.Client, r task.Run) (task.Run, string, error) {
			run, err := c.Dismiss(ctx, r.Namespace, r.Task, r.ID)
			return run, "dismissed " + r.ID, err
		}, runName)
}
