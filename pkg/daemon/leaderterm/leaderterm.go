// Package leaderterm repeats the work of a leader in its term, for the packages boots and notifier. It writes nothing itself. The
// package is small, because the work that is compared with the term belongs to those that do it.
package leaderterm

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// passTimeout is the time limit of all requests of one pass.
const passTimeout = time.Minute

// Loop is work that a leader repeats. What a pass that failed has written is not known, so each pass begins with what it reads.
type Loop struct {
	Pass    func(ctx context.Context) error
	Every   time.Duration // the shortest interval between two passes
	Changed wake.Signal   // begins a pass, as a failure of the last one does; nil: each interval has one
	Failure string        // what to log when passes begin to fail
	Log     *zap.Logger
}

// Run makes passes until ctx ends or the term is over: then it returns task.ErrFenced. Other errors are retried. The first of
// consecutive ones is logged, unless it is a conflict, which the next pass solves.
func (l Loop) Run(ctx context.Context) error {
	failing := false
	for {
		err := l.makePass(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, task.ErrFenced):
			return err
		case err == nil:
			failing = false
		case !errors.Is(err, task.ErrConflict):
			if !failing {
				l.Log.Warn(l.Failure, zap.Error(err))
			}
			failing = true
		}

		if !clock.Sleep(ctx, l.Every) {
			return ctx.Err()
		}
		if l.Changed == nil || err != nil {
			continue
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.Changed:
		}
	}
}

func (l Loop) makePass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()

	return l.Pass(ctx)
}
