package kv

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// loadAll lists the range and tells it as a Reset.
func (f *follower) loadAll(ctx context.Context) error {
	at := int64(0)
	if f.revision == 0 {
		at = f.cfg.Revision
	}

	list := f.listAt
	if f.cfg.PageSize > 0 {
		list = f.listPages
	}

	err := list(ctx, at)
	var final applyError
	if at > 0 && errors.Is(err, rpctypes.ErrCompacted) && !errors.As(err, &final) {
		err = list(ctx, 0)
	}

	return err
}

func (f *follower) listAt(ctx context.Context, at int64) error {
	kvs, rev, err := List(ctx, f.client, f.cfg.Key, f.cfg.End, at)
	if err != nil {
		return err
	}
	return f.deliver(Batch{Reset: true, KVs: kvs, Revision: rev})
}

// listPages reads a page while the one before is told.
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
		if err := f.deliver(b); err != nil {
			cancel()
			for range pages { // its reader ends
			}
			return err
		}
	}

	return failed
}
