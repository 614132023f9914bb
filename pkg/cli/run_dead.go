package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

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
	return a.only(found, "dead run "+task.Quote(w.id))
}

// noteHeld says what keeps a run that was just queued from starting, or does not.
func (a *app) noteHeld(r ref, t client.Triggered) {
	if z := t.Frozen; z != nil {
		what := "the cluster"
		if z.Namespace != "" {
			what = "namespace " + z.Namespace
		}
		a.Note("%s is frozen, %s; the run waits for the end of that", what, a.freezeWords(*z))
		return
	}
	if t.Paused {
		a.Note("%s is paused; this run starts all the same", a.show(r))
	}
}
