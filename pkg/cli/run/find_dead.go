package run

import (
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// findDead returns the run that a user named, as FindRun does. A dead run may no longer be in its task's
// history; then it can be named by its id or a prefix of it.
func findDead(ctx context.Context, f *factory.Factory, c *client.Client, word string) (task.Run, error) {
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
