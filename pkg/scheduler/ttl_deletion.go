package scheduler

import (
	"context"
	"errors"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// burial is the deletion of a task that is over and that nobody needs any more.
// While it is under way nothing of the task is dispatched.
type burial struct {
	fences store.Fences
	ref    store.Ref
	mod    int64 // of the entry
	stone  store.Tombstone
	over   atomic.Bool // it has succeeded, or not
	then   func()      // called when it is over
}

// burials deletes tasks that are over, beside the workers, so that no tick waits
// for it. What does not fit into the line is asked for again.
type burials struct {
	store  Store
	line   chan *burial
	buried func() // counts
	log    *zap.Logger
}

// undertakers is how many tasks are deleted at once: their deletes then share
// requests.
const undertakers = 8

func newBurials(s Store, buried func(), log *zap.Logger) *burials {
	return &burials{store: s, line: make(chan *burial, 1024), buried: buried, log: log}
}

// askAll asks for deletions; then is called when one is over. One for which there is no room is over
// at once: its task asks again.
func (u *burials) askAll(deletions []*burial, then func()) {
	for _, b := range deletions {
		b.then = then
		select {
		case u.line <- b:
		default:
			b.over.Store(true)
		}
	}
}

func (u *burials) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range undertakers {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case b := <-u.line:
					u.bury(ctx, b)
				}
			}
		})
	}
	return g.Wait()
}

// mostBurials is how often in a row a deletion is tried that finds something changed.
const mostBurials = 5

func (u *burials) bury(ctx context.Context, b *burial) {
	err := task.ErrConflict
	for try := 0; try < mostBurials && errors.Is(err, task.ErrConflict); try++ { // the watermark moves all the time
		err = u.store.ExpireTask(ctx, b.fences, b.ref, b.mod, b.stone)
	}
	b.over.Store(true)
	b.then()
	if err != nil {
		u.log.Debug("could not delete a task that is over", zap.String("task", b.ref.String()), zap.Error(err))
		return
	}
	u.buried()
	u.log.Info("deleted a task that is over", zap.String("task", b.ref.String()))
}
