package logs

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// progressEvery is how often the progress of runs is polled, and progressMost the maximum number of runs for
	// which it is.
	progressEvery = 2 * time.Second
	progressMost  = 20
)

// TellProgress prints the progress of runs until ctx ends: a line whenever it has changed.
func TellProgress(ctx context.Context, f *factory.Factory, c *client.Client, m *Merger, runs []task.Run) {
	if !f.ForPeople() || f.Quiet || len(runs) > progressMost {
		return
	}

	told := make([]string, len(runs))
	over := make([]bool, len(runs))
	for factory.Sleep(ctx, progressEvery) == nil {
		for i, r := range runs {
			if over[i] {
				continue
			}

			now, err := c.Runs.Get(ctx, r.Namespace, r.Task, r.ID)
			if err != nil {
				continue // the follower of the output reports errors
			}

			over[i] = now.State.Final()

			if now.Progress == nil || now.Progress.Percent == nil {
				continue
			}

			if words := view.ProgressText(f, now); words != told[i] {
				told[i] = words
				m.Tell("%s: %s", selection.Name(f, r.Namespace, r.Task), view.ProgressBar(f, now))
			}
		}
	}
}
