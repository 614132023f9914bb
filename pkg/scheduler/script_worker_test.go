package scheduler

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// scriptedWorker makes a worker the decider of a script. Only this file depends on how a worker is created,
// driven and inspected.
type scriptedWorker struct {
	w     *worker
	t     testing.TB
	ctx   context.Context
	leave func()
	held  store.ShardBatch // what the watch has delivered and the script has not
}

func newScriptedWorker(t testing.TB, cfg deciderConfig) decider {
	e := New(Config{
		Node: cfg.node, Store: cfg.store, Now: cfg.now, Cluster: cfg.cluster, Freezes: cfg.freezes, Namespaces: cfg.namespaces, Logger: zap.NewNop(),
		Fleet: placement.NewFleet(cfg.node, func() int { return 1000 }),
		// The middle of the jitter of a retry is its backoff.
		NextAttempt: func(a task.Assigned, end task.Run, now time.Time, _ float64) *task.Waiting {
			return executor.Next(a, end, now, 0.5)
		},
	})

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s := &scriptedWorker{w: newWorker(e, 0, cfg.fences), t: t, ctx: ctx, leave: func() {}}
	t.Cleanup(func() { cancel(); s.leave() })

	return s
}

func (s *scriptedWorker) open() error {
	s.leave()
	s.w.discardState()
	s.held = store.ShardBatch{}

	mark, rev, err := s.w.e.cfg.Store.Open(s.ctx, s.w.state.records.Shard, s.w.state.fences)
	if err != nil {
		return err
	}

	s.w.state.records.Watermark, s.w.state.records.WatermarkRev = mark, rev
	s.w.noteOpening(mark)

	f := background.StartFeed(s.ctx, func(ctx context.Context, apply func(store.ShardBatch) error) {
		_ = s.w.e.cfg.Store.FollowShard(ctx, s.w.state.records.Shard, rev, apply) // ends with ctx
	})

	s.w.batches = f.Batches
	s.leave = func() { f.Stop(); s.leave = func() {} }
	if err := s.w.loadShard(s.ctx, f.Batches); err != nil {
		return err
	}

	keys, _, err := s.w.e.cfg.Store.ScanActive(s.ctx)
	if err != nil {
		return err
	}

	return s.w.applyScan(s.ctx, keys)
}

func (s *scriptedWorker) learn(rev int64) {
	for s.w.state.applied < rev {
		b := s.held
		s.held = store.ShardBatch{}

		if b.Revision == 0 {
			select {
			case b = <-s.w.batches:
			case <-time.After(time.Minute):
				s.t.Fatal("the watch does not tell of what has happened")
			}
		}

		b, s.held = splitBatch(b, rev)
		if err := s.w.applyBatch(b); err != nil {
			s.t.Fatal(err)
		}
	}
}

// splitBatch splits off the events after a revision.
func splitBatch(b store.ShardBatch, rev int64) (upTo, later store.ShardBatch) {
	if b.Reset || b.Revision <= rev {
		return b, later
	}

	upTo, later = b, b
	upTo.Revision, upTo.Events, later.Events = rev, nil, nil
	for _, ev := range b.Events {
		if ev.Mod <= rev {
			upTo.Events = append(upTo.Events, ev)
		} else {
			later.Events = append(later.Events, ev)
		}
	}

	return upTo, later
}

func (s *scriptedWorker) learnNodes(nodes []task.Node) {
	s.w.e.cfg.Fleet.Set(nodes)
	s.w.state.examineAll()
}

func (s *scriptedWorker) learnFreezes() { s.w.state.examineAll() }

func (s *scriptedWorker) decide(ctx context.Context) error {
	err := s.w.runRound(ctx)
	switch {
	case err == nil:
		for _, fault := range s.w.rowFaults() {
			s.t.Error(fault)
		}
		return nil
	case ctx.Err() != nil, errors.Is(err, task.ErrUnknown):
		return errUnsettled
	case errors.Is(err, errReload), errors.Is(err, store.ErrMoved):
		return errOpenAgain
	case errors.Is(err, task.ErrFenced):
		return errStopped
	}

	return err
}

func (s *scriptedWorker) nextLook() time.Time { return s.w.e.cfg.Now().Add(s.w.sleepFor()) }

func (s *scriptedWorker) known(name string) (k knownTask) {
	t := s.w.state.records.Tasks.Get(name)
	if t == nil {
		k.absent = true
		return k
	}

	if t.Next != 0 {
		k.next = state.Instant(t.Next)
	}

	for _, q := range t.Queue() {
		k.waiting = append(k.waiting, q.ID)
	}

	for _, a := range t.Active() {
		k.active = append(k.active, a.Run)
	}

	slices.Sort(k.waiting)
	slices.Sort(k.active)

	return k
}

func (s *scriptedWorker) deletions(ctx context.Context) (deleted []string) {
	for {
		select {
		case b := <-s.w.e.ttlDeleter.Pending():
			s.w.e.ttlDeleter.Delete(ctx, b)
			deleted = append(deleted, b.Ref.String())
		default:
			slices.Sort(deleted)
			return deleted
		}
	}
}
