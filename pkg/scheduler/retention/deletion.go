package retention

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

// TaskExpirer deletes a task whose schedule has ended and whose ttl is over.
type TaskExpirer interface {
	ExpireTask(ctx context.Context, f store.Fences, ref record.Ref, entryMod int64, t record.Tombstone) error
}

// Deletion is the deletion of a task that is over and that nobody needs any more.
// While it is under way nothing of the task is dispatched.
type Deletion struct {
	Fences    store.Fences
	Ref       record.Ref
	Mod       int64 // of the entry
	Tombstone record.Tombstone
	over      atomic.Bool // it has succeeded, or not
	then      func()      // called when it is over
}

// IsOver reports whether it has succeeded or failed.
func (b *Deletion) IsOver() bool { return b.over.Load() }

// DropUnasked ends a deletion that is not asked for. Its task asks again.
func (b *Deletion) DropUnasked() { b.over.Store(true) }

// Deleter deletes tasks that are over, beside the workers, so that no tick waits
// for it. What does not fit into the line is asked for again.
type Deleter struct {
	store TaskExpirer
	line  chan *Deletion
	count func() // counts a deletion that has succeeded
	log   *zap.Logger
}

// deletersAtOnce is how many tasks are deleted at once: their deletes then share
// requests.
const deletersAtOnce = 8

// NewDeleter returns a Deleter, which Run has to serve. It calls count for each task that it has deleted.
func NewDeleter(s TaskExpirer, count func(), log *zap.Logger) *Deleter {
	return &Deleter{store: s, line: make(chan *Deletion, 1024), count: count, log: log}
}

// AskAll asks for deletions; then is called when one is over. One for which there is no room is over
// at once: its task asks again.
func (u *Deleter) AskAll(deletions []*Deletion, then func()) {
	for _, b := range deletions {
		b.then = then
		select {
		case u.line <- b:
		default:
			b.DropUnasked()
		}
	}
}

// Pending is the line of the deletions that were asked for, as Run takes them.
func (u *Deleter) Pending() <-chan *Deletion { return u.line }

// Run deletes until ctx ends.
func (u *Deleter) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)

	for range deletersAtOnce {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case b := <-u.line:
					u.Delete(ctx, b)
				}
			}
		})
	}

	return g.Wait()
}

// maxDeletionTries is how often in a row a deletion is tried that finds something changed.
const maxDeletionTries = 5

// Delete makes one deletion.
func (u *Deleter) Delete(ctx context.Context, b *Deletion) {
	err := task.ErrConflict
	for try := 0; try < maxDeletionTries && errors.Is(err, task.ErrConflict); try++ { // the watermark moves all the time
		err = u.store.ExpireTask(ctx, b.Fences, b.Ref, b.Mod, b.Tombstone)
	}

	b.over.Store(true)
	b.then()

	if err != nil {
		u.log.Debug("could not delete an expired task", zap.String("task", b.Ref.String()), zap.Error(err))
		return
	}

	u.count()
	u.log.Info("deleted an expired task", zap.String("task", b.Ref.String()))
}
