package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// deadPick says which dead runs a verb is for, where they are not named.
type deadPick struct {
	pick
	all bool
}

func (p *deadPick) bind(cmd *cobra.Command) {
	p.pick.bind(cmd, true)
	cmd.Flags().BoolVar(&p.all, "all", false, "all dead runs of the namespace, or with -A of all")
}

func (a *app) runRetry() *cobra.Command {
	var p deadPick
	cmd := &cobra.Command{
		Use:   "retry RUN... | -l SELECTOR | --all",
		Short: "Run dead runs again",
		Long: "Run dead runs again: those that failed, timed out or were lost and have no attempt left. A new run is queued, with the\n" +
			"environment of the old one, which leaves the list of dead runs.\n\n" + runNames,
		Example: `  carillon run retry nightly-backup
  carillon run retry -l team=data --yes
  carillon run retry --all --dry-run`,
	}
	p.bind(cmd)
	var queued []task.Run
	return a.deadVerb(cmd, &p, func(ctx context.Context, c *client.Client, r task.Run) error {
		t, err := c.Retry(ctx, r.Namespace, r.Task, r.ID)
		if err != nil {
			return err
		}
		queued = append(queued, t.Run)
		a.say("queued %s in place of %s", t.ID, r.ID)
		a.noteHeld(ref{r.Namespace, r.Task}, t)
		return nil
	}, func(asked int) error { return emitChanged(a, queued, asked, runName) })
}

func (a *app) runDismiss() *cobra.Command {
	var p deadPick
	cmd := &cobra.Command{
		Use:   "dismiss RUN... | -l SELECTOR | --all",
		Short: "Take dead runs off their list",
		Long:  "Take dead runs off their list, as nothing is to be done about them. Their history stays.\n\n" + runNames,
		Example: `  carillon run dismiss nightly-backup@-1
  carillon run dismiss -l team=data --yes`,
	}
	p.bind(cmd)
	var gone []task.Run
	return a.deadVerb(cmd, &p, func(ctx context.Context, c *client.Client, r task.Run) error {
		run, err := c.Dismiss(ctx, r.Namespace, r.Task, r.ID)
		if err != nil {
			return err
		}
		gone = append(gone, run)
		a.say("dismissed %s", r.ID)
		return nil
	}, func(asked int) error { return emitChanged(a, gone, asked, runName) })
}

// deadVerb makes cmd do one thing to each of the dead runs that it is given.
func (a *app) deadVerb(cmd *cobra.Command, p *deadPick, do func(context.Context, *client.Client, task.Run) error, show func(asked int) error) *cobra.Command {
	cmd.ValidArgsFunction = a.completeDead
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		c, err := a.connect()
		if err != nil {
			return err
		}
		broad := p.selector != "" || p.all
		var known map[string]task.Run
		if broad {
			if len(words) > 0 || p.all && p.selector != "" {
				return usage("names, -l and --all exclude each other")
			}
			if words, known, err = a.deadOf(ctx, c, p); err != nil {
				return err
			}
		} else if len(words) == 0 {
			return usage("which run? name one, or several, or use -l or --all")
		}
		if ok, err := a.confirm(ctx, cmd.Name(), "run", words, broad && len(words) > 1, p.dryRun, false); !ok {
			return err
		}
		failed := together(ctx, a, words, func(word string) error {
			r, found := known[word]
			if !found {
				if r, err = a.findDead(ctx, c, word); err != nil {
					return err
				}
			}
			return do(ctx, c, r)
		})
		if err := show(len(words)); err != nil {
			return err
		}
		return failed
	}
	return cmd
}

// deadOf is the dead runs that a selector of tasks, or --all, stands for, and their names.
func (a *app) deadOf(ctx context.Context, c *client.Client, p *deadPick) (words []string, known map[string]task.Run, err error) {
	runs, err := c.ListRuns(ctx, client.RunFilter{Namespace: a.scope(), Dead: true})
	if err != nil {
		return nil, nil, err
	}
	if p.selector != "" {
		chosen, err := a.tasks(ctx, c, nil, p.pick)
		if err != nil {
			return nil, nil, err
		}
		of := map[ref]bool{}
		for _, r := range chosen.refs {
			of[r] = true
		}
		runs = slices.DeleteFunc(runs, func(r task.Run) bool { return !of[ref{r.Namespace, r.Task}] })
	}
	known = map[string]task.Run{}
	for _, r := range runs {
		word := r.Namespace + "/" + r.Task + "@" + r.ID
		words, known[word] = append(words, word), r
	}
	return words, known, nil
}

// findDead finds the run that a user named, as findRun does. A dead run may have
// left its task's history by now: then its id, or the beginning of it, names it.
func (a *app) findDead(ctx context.Context, c *client.Client, word string) (task.Run, error) {
	w, err := parseRunWord(word)
	if err != nil {
		return task.Run{}, err
	}
	if w.id == "" {
		return a.findRun(ctx, c, word)
	}
	f := client.RunFilter{Namespace: a.scope(), Dead: true}
	if w.task != "" {
		r, err := a.ref(w.task)
		if err != nil {
			return task.Run{}, err
		}
		f.Namespace, f.Task = r.namespace, r.name
	}
	dead, err := c.ListRuns(ctx, f)
	if err != nil {
		return task.Run{}, err
	}
	found := slices.DeleteFunc(dead, func(r task.Run) bool { return !strings.HasPrefix(r.ID, w.id) })
	if i := slices.IndexFunc(found, func(r task.Run) bool { return r.ID == w.id }); i >= 0 {
		return found[i], nil
	}
	if len(found) == 0 {
		return a.findRun(ctx, c, word)
	}
	return a.only(found, "dead run "+quote(w.id))
}

// listDead is run list --dead: of some tasks, or of all.
func (a *app) listDead(ctx context.Context, c *client.Client, f client.RunFilter, words []string) ([]task.Run, error) {
	f.Dead = true
	if len(words) == 0 {
		return c.ListRuns(ctx, f)
	}
	var runs []task.Run
	for _, word := range words {
		r, err := a.ref(word)
		if err != nil {
			return nil, err
		}
		f.Namespace, f.Task = r.namespace, r.name
		some, err := c.ListRuns(ctx, f)
		if err != nil {
			return nil, a.missing(ctx, c, r, err)
		}
		runs = append(runs, some...)
	}
	slices.SortStableFunc(runs, func(a, b task.Run) int { return b.ScheduledTime.Compare(a.ScheduledTime.Time) })
	if f.Limit > 0 && len(runs) > f.Limit {
		runs = runs[:f.Limit]
	}
	return runs, nil
}

// noteHeld says what keeps a run that was just queued from starting, or does not.
func (a *app) noteHeld(r ref, t client.Triggered) {
	if z := t.Frozen; z != nil {
		what := "the cluster"
		if z.Namespace != "" {
			what = "namespace " + z.Namespace
		}
		a.note("%s is frozen, %s; the run waits for the end of that", what, a.freezeWords(*z))
		return
	}
	if t.Paused {
		a.note("%s is paused; this run starts all the same", a.show(r))
	}
}

// deadOnly refuses names where there is no --dead.
func deadOnly(word string) error {
	return usage("%s is too much: names are for --dead", quote(word)).hinting("carillon run list --task %s", word)
}
