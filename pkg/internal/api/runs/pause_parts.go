package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// partsIn returns the attempts in inboxes that belong to the parts of a run.
func partsIn(held []record.Held, parent string) []record.Held {
	return slices.DeleteFunc(slices.Clone(held), func(h record.Held) bool {
		of, _, is := task.ParentOf(h.ID)
		return !is || of != parent
	})
}

// setPartsPaused sends a request to all nodes that have parts of a run, with a separate write for each part. A
// request that is already in force needs no write, so setPartsPaused can be repeated. The answer is the run with the
// current state of all its parts. setPartsPaused returns task.ErrConflict if some parts have moved in between. If
// some requests failed, the error contains how many succeeded.
func (h *Handlers) setPartsPaused(c *httpapi.Call, ref record.Ref, id string, parts []record.Held, wanted string, ask func(context.Context, record.Held, string) (task.Run, error)) (task.Run, error) {
	if wanted == pausedState {
		stay := slices.DeleteFunc(slices.Clone(parts), func(attempt record.Held) bool { return attempt.CancelRequested })
		if len(stay) > 0 {
			parts = stay // the answer shows that the parts which are being cancelled are not paused
		}
	}

	var mu sync.Mutex
	var moved, failed error
	asked := 0
	g := callgroup.New()
	g.SetLimit(partsAtOnce)

	for _, attempt := range parts {
		g.Go(func() error {
			_, err := ask(c.Context(), attempt, c.Actor())
			mu.Lock()
			defer mu.Unlock()

			switch {
			case err == nil:
				asked++
			case errors.Is(err, task.ErrConflict):
				moved = err
			case failed == nil:
				failed = err
			}

			return nil
		})
	}

	_ = g.Wait() // the functions return no errors

	switch {
	case failed != nil:
		f := *httpapi.AsFailure(httpapi.About(id, failed))
		f.Detail = fmt.Sprintf("%s (%d of %d parts were asked)", f.Detail, asked, len(parts))
		return task.Run{}, &f
	case moved != nil:
		return task.Run{}, fmt.Errorf("%d of %d parts were asked: %w", asked, len(parts), moved)
	}

	return h.Find(c.Context(), ref, id)
}

// partsAtOnce is the maximum number of parts that are written at the same time.
const partsAtOnce = 32
