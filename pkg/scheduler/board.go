package scheduler

import (
	"context"

	"github.com/carillonhq/carillon/pkg/scheduler/board"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// Part returns what this node adds to the board.
func (e *Engine) Part(ctx context.Context, q task.BoardQuery) task.BoardPart {
	return e.board.Part(ctx, q, e.cfg.Now())
}

// boardWorkers returns the workers of the node, for the collector of the board.
func (e *Engine) boardWorkers() []board.Worker {
	e.mu.Lock()
	defer e.mu.Unlock()

	workers := make([]board.Worker, 0, len(e.workers))
	for _, w := range e.workers {
		workers = append(workers, w)
	}

	return workers
}

// ShardID, OwnerRevision, Serving, Undecided and RequestSummary implement board.Worker. Any goroutine may call them.
func (w *worker) ShardID() int { return w.state.Shard }

func (w *worker) OwnerRevision() int64 { return w.state.fences.Owner.ModRevision }

func (w *worker) Serving() bool { return w.serving.Load() }

func (w *worker) Undecided() int64 { return w.undecided.Load() }

func (w *worker) RequestSummary(g *board.Summary) {
	select {
	case <-w.summaryRequests:
		// The worker has not answered the previous request. Nobody waits for it any more, so replace it.
	default:
	}

	w.summaryRequests <- g
}

// addToBoard answers a request for a summary of the shard.
func (s *shardState) addToBoard(g *board.Summary) {
	shown := board.Shard{
		Census: &s.census, Due: s.due, Active: s.active.Tasks,
		Failing: func(yield func(*taskstate.Task, *board.Failure) bool) {
			for t, f := range s.failures.All() {
				if !yield(t, &f.Failure) {
					return
				}
			}
		},
	}
	shown.Answer(g)
}
