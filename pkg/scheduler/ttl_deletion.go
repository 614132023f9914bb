package scheduler

import (
	"context"
	"errors"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ttlDeletion is the deletion of a task that is over and that nobody needs any more.
// While it is under way nothing of the task is dispatched.
type ttlDeletion struct {
	fences    store.Fences
	ref       record.Ref
	mod       int64 // of the entry
	tombstone record.Tombstone
	over      atomic.Bool // it has succeeded, or not
	then      func()      // called when it is over
}

// ttlDeleter deletes tasks that are over, beside the workers, so that no tick waits
// for it. What does not fit into the line is asked for again.
type ttlDeleter struct {
	store taskExpirer
	line  chan *ttlDeletion
	count func() // counts a deletion that has succeeded
	log   *zap.Logger
}

// ttlDeleters is how many tasks are deleted at once: their deletes then share
// requests.
const ttlDeleters = 8

func newTTLDeleter(s taskExpirer, count func(), log *zap.Logger) *ttlDeleter {
	return &ttlDeleter{store: s, line: make(chan *ttlDeletion, 1024), count: count, log: log}
}

// askAll asks for deletions; then is called when one is over. One for which there is no room is over
// at once: its task asks again.
func (u *ttlDeleter) askAll(deletions []*ttlDeletion, then func()) {
	for _, b := range deletions {
		b.then = then
		select {
		case u.line <- b:
		default:
			b.over.Store(true)
		}
	}
}

func (u *ttlDeleter) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range ttlDeleters {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case b := <-u.line:
					u.delete(ctx, b)
				}
			}
		})
	}
	return g.Wait()
}

// maxTTLDeletionTries is how often in a row a deletion is tried that finds something changed.
const maxTTLDeletionTries = 5

func (u *ttlDeleter) delete(ctx context.Context, b *ttlDeletion) {
	err := task.ErrConflict
	for try := 0; try < maxTTLDeletionTries && errors.Is(err, task.ErrConflict); try++ { // the watermark moves all the time
		err = u.store.ExpireTask(ctx, b.fences, b.ref, b.mod, b.tombstone)
	}
	b.over.Store(true)
	b.then()
	if err != nil {
		u.log.Debug("could not delete a task that is over", zap.String("task", b.ref.String()), zap.Error(err))
		return
	}
	u.count()
	u.log.Info("deleted a task that is over", zap.String("task", b.ref.String()))
}
