package background

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

// TaskExpirer deletes tasks whose ttl has expired. ExpireTask returns task.ErrConflict, and changes
// nothing, if one of its conditions does not hold or if the shard's watermark was written meanwhile.
type TaskExpirer interface {
	ExpireTask(ctx context.Context, f store.Fences, ref record.Ref, entryMod int64, t record.Tombstone) error
}

// Deletion is the deletion of a task whose ttl has expired. Nothing of the task is dispatched until it is
// over.
type Deletion struct {
	Fences    store.Fences
	Ref       record.Ref
	Mod       int64 // mod revision of the entry, which must be unchanged
	Tombstone record.Tombstone
	over      atomic.Bool // it has succeeded, failed, or was dropped; set once
	then      func()      // called when it is over
}

// IsOver reports whether the deletion has succeeded, failed or was dropped. Any goroutine may call it. A
// late answer does no harm, because the deletion compares the entry.
func (d *Deletion) IsOver() bool { return d.over.Load() }

// DropUnasked ends a deletion that was not requested. Its task requests another one later.
func (d *Deletion) DropUnasked() { d.over.Store(true) }

// Deleter deletes tasks whose ttl has expired. It works in parallel with the workers, so that no tick waits
// for it. A request that does not fit into its queue is dropped, and the task requests the deletion again.
type Deleter struct {
	store TaskExpirer
	line  chan *Deletion // requests; 1,024 may wait
	count func()         // called for each task that was deleted
	log   *zap.Logger
}

// deletersAtOnce is how many deletions run in parallel, so that they can share requests to etcd.
const deletersAtOnce = 8

// NewDeleter returns a Deleter. It does nothing until Run is called. It calls count for each task that it
// has deleted.
func NewDeleter(s TaskExpirer, count func(), log *zap.Logger) *Deleter {
	return &Deleter{store: s, line: make(chan *Deletion, 1024), count: count, log: log}
}

// AskAll requests deletions. then is called after each one that is carried out. If there is no room for
// one, it is over at once, without a call of then.
func (d *Deleter) AskAll(deletions []*Deletion, then func()) {
	for _, b := range deletions {
		b.then = then
		select {
		case d.line <- b:
		default:
			b.DropUnasked()
		}
	}
}

// Pending returns the queue from which Run takes deletions. Tests use it in place of Run.
func (d *Deleter) Pending() <-chan *Deletion { return d.line }

// Run carries out deletions until ctx ends.
func (d *Deleter) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)

	for range deletersAtOnce {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case b := <-d.line:
					d.Delete(ctx, b)
				}
			}
		})
	}

	return g.Wait()
}

// maxDeletionTries is how often a deletion is tried that fails with a conflict. Every commit of the shard
// writes the watermark, which the deletion compares.
const maxDeletionTries = 5

// Delete carries out one deletion. It logs a failure and does not retry it: the task requests the deletion
// again.
func (d *Deleter) Delete(ctx context.Context, b *Deletion) {
	err := task.ErrConflict
	for try := 0; try < maxDeletionTries && errors.Is(err, task.ErrConflict); try++ {
		err = d.store.ExpireTask(ctx, b.Fences, b.Ref, b.Mod, b.Tombstone)
	}

	b.over.Store(true)
	b.then()

	if err != nil {
		d.log.Debug("could not delete an expired task", zap.String("task", b.Ref.String()), zap.Error(err))
		return
	}

	d.count()
	d.log.Info("deleted an expired task", zap.String("task", b.Ref.String()))
}
