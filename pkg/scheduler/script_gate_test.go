package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// gate is between a decider and etcd. While it is open, each commit of the shard waits for a verdict of the
// script.
type gate struct {
	kv.Committer
	mark      string // the key of the watermark, which only commits of the shard write
	open      atomic.Bool
	proposals chan kv.Txn
	verdicts  chan verdict
	txn       kv.Txn // the latest transaction; accessed by the script
}

// verdict is what happens to a commit. Zero means that etcd applies it and answers.
type verdict struct {
	refused  bool // etcd refuses it with a definite answer
	lost     bool // no answer arrives
	applied  bool // with lost: it was applied
	dies     bool // with lost: the decider ends before it learns of that
	die      context.CancelFunc
	written  func(kv.Txn) // called after etcd has applied it
	conflict func(kv.Txn) // called after it has changed nothing
}

var errNoAnswer = errors.New("connection lost")

func (g *gate) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if !g.open.Load() || !g.writesMark(t) {
		return g.Committer.Commit(ctx, t)
	}

	var v verdict

	select {
	case g.proposals <- t:
	case <-ctx.Done(): // the script has failed
		return kv.Result{}, errNoAnswer
	}

	select {
	case v = <-g.verdicts:
	case <-ctx.Done(): // the script has failed
		return kv.Result{}, errNoAnswer
	}

	if v.die != nil {
		defer v.die()
	}

	switch {
	case v.refused:
		return kv.Result{}, rpctypes.ErrTooManyRequests
	case v.lost && !v.applied:
		return kv.Result{}, errNoAnswer
	}

	res, err := g.Committer.Commit(context.WithoutCancel(ctx), t)
	switch {
	case err != nil || v.lost:
	case res.Succeeded:
		v.written(t)
	default:
		v.conflict(t)
	}

	if v.lost {
		return kv.Result{}, errNoAnswer
	}

	return res, err
}

func (g *gate) writesMark(t kv.Txn) bool {
	for _, op := range t.Then {
		if op.IsPut() && string(op.KeyBytes()) == g.mark {
			return true
		}
	}

	return false
}

// faultyStore fails the reads that a script names.
type faultyStore struct {
	Store
	failing map[string]bool
}

func (f *faultyStore) fail(what string) error {
	if f.failing[what] {
		return fmt.Errorf("%w: the script has reads of %s fail", task.ErrUnavailable, what)
	}
	return nil
}

func (f *faultyStore) Sightings(ctx context.Context, runs []record.RunKey) ([]store.Sighting, error) {
	if err := f.fail("attempts"); err != nil {
		return nil, err
	}
	return f.Store.Sightings(ctx, runs)
}

func (f *faultyStore) HistoriesOf(ctx context.Context, refs []record.Ref) ([][]store.ShardEvent, int64, error) {
	if err := f.fail("histories"); err != nil {
		return nil, 0, err
	}
	return f.Store.HistoriesOf(ctx, refs)
}

func (f *faultyStore) RecordsAt(ctx context.Context, keys []string, rev int64) ([]store.ShardEvent, error) {
	if err := f.fail("records"); err != nil {
		return nil, err
	}
	return f.Store.RecordsAt(ctx, keys, rev)
}

func (f *faultyStore) Cleared(ctx context.Context, instance string) (bool, error) {
	if err := f.fail("cleared"); err != nil {
		return false, err
	}
	return f.Store.Cleared(ctx, instance)
}
