package kv

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// loadAll lists the range and delivers it as a Reset. The first list is at FollowConfig.Revision if that is set,
// every later list at the current revision.
func (f *follower) loadAll(ctx context.Context) error {
	at := int64(0)
	if f.revision == 0 {
		at = f.cfg.Revision
	}

	list := f.listAt
	if f.cfg.PageSize > 0 {
		list = f.listPages
	}

	// If the requested revision has been compacted away, the current content replaces it. An error of the consumer may wrap
	// ErrCompacted, too, and must end Follow instead.
	err := list(ctx, at)
	var final applyError
	if at > 0 && errors.Is(err, rpctypes.ErrCompacted) && !errors.As(err, &final) {
		err = list(ctx, 0)
	}

	return err
}

// listAt reads the whole range at a revision, or at the current one if it is 0, and delivers it as one batch.
func (f *follower) listAt(ctx context.Context, at int64) error {
	kvs, rev, err := List(ctx, f.client, f.cfg.Key, f.cfg.End, at)
	if err != nil {
		return err
	}
	return f.deliverBatch(Batch{Reset: true, KVs: kvs, Revision: rev})
}

// listPages reads the range at a revision, or at the current one if it is 0, and delivers each page as a batch. It
// reads the next page while apply processes one, but not further ahead, so at most two pages are in memory.
func (f *follower) listPages(ctx context.Context, at int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	pages, failed := make(chan Batch), error(nil)
	go func() {
		defer close(pages)
		failed = eachPage(ctx, f.client, f.cfg.Key, f.cfg.End, at, f.cfg.PageSize, func(b Batch) error {
			select {
			case pages <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()

	for b := range pages {
		if err := f.deliverBatch(b); err != nil {
			// Wait until the goroutine that reads has ended.
			cancel()
			for range pages {
			}
			return err
		}
	}

	return failed // the goroutine set it before it closed pages
}
