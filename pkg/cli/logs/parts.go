package logs

import (
	"context"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// WithPartStates returns a run with the states of its parts. Lists omit them.
func WithPartStates(ctx context.Context, c *client.Client, r task.Run) (task.Run, error) {
	if r.Fan == nil || r.Fan.Parts != nil {
		return r, nil
	}
	return c.Runs.Get(ctx, r.Namespace, r.Task, r.ID)
}

// replaceByParts replaces each run that has parts by those parts, because only parts print output. any is true
// if there was such a run.
func replaceByParts(ctx context.Context, f *factory.Factory, c *client.Client, runs []task.Run) (list []task.Run, any bool, err error) {
	for _, r := range runs {
		if r.Fan == nil {
			list = append(list, r)
			continue
		}

		any = true
		full, err := WithPartStates(ctx, c, r)
		if err != nil {
			return nil, any, err
		}

		for _, p := range full.Fan.Parts {
			if p.Node != "" && p.Attempt > 0 {
				list = append(list, full.OfPart(p))
			}
		}
	}

	return list, any, nil
}

// followBegunParts starts followers for the parts of the run that have begun, each once.
func (t *RunFollower) followBegunParts(ctx context.Context) error {
	if t.Part == nil || t.Run.Fan == nil {
		return nil
	}

	parts, _, err := replaceByParts(ctx, t.M.Factory, t.C, []task.Run{t.Run})
	for _, p := range parts {
		if !t.known[p.ID] {
			if t.known == nil {
				t.known = map[string]bool{}
			}

			t.known[p.ID] = true
			t.M.numberLines()
			t.Part(p)
		}
	}

	return err
}
