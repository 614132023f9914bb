package scheduler

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/scheduler/pastruns"
)

// requestPast requests how the runs of the shard's tasks had ended before the shard was opened.
func (w *worker) requestPast() {
	opening := w.openings.Load()
	current := func() bool { return w.openings.Load() == opening && w.served.Load() != nil }

	// offer passes a review to the worker. It waits while the worker is busy.
	offer := func(ctx context.Context, r review) bool {
		for current() && !w.offerReview(r) {
			if !clock.Sleep(ctx, reviewPause) {
				return false
			}
		}

		return current()
	}

	w.e.pastRuns.Request(pastruns.Request{
		Shard: w.state.Shard, Current: current,
		Wanted: func(ctx context.Context) ([]pastruns.Want, bool) {
			answer := make(chan []pastruns.Want, 1)
			if !offer(ctx, wantedPast{answer}) {
				return nil, false
			}

			for {
				select {
				case list := <-answer:
					return list, true
				case <-time.After(time.Second):
					// The worker may have opened the shard again without having seen the request.
					if !current() {
						return nil, false
					}
				case <-ctx.Done():
					return nil, false
				}
			}
		},
		Deliver: func(ctx context.Context, some []pastruns.Past, more bool) bool {
			return offer(ctx, foundPast{some, more, opening})
		},
	})
}

// reviewPause is the pause before a worker that was busy is asked again.
const reviewPause = 20 * time.Millisecond

// wantedPast asks for the tasks whose past is not known.
type wantedPast struct{ answer chan<- []pastruns.Want }

func (r wantedPast) reviewBy(_ context.Context, w *worker) error {
	r.answer <- w.state.rows.Wanted(&w.state.Tasks)
	return nil
}

// foundPast is what has been read of the past of some tasks.
type foundPast struct {
	some    []pastruns.Past
	more    bool  // further tasks follow
	opening int64 // the value of worker.openings when it was requested
}

func (r foundPast) reviewBy(_ context.Context, w *worker) error {
	// If the shard was opened again since, that opening has made a request of its own.
	if r.opening != w.openings.Load() {
		return nil
	}

	for i := range r.some {
		w.state.rows.Restore(w.state.Tasks.Get(r.some[i].Task), &r.some[i], w.state.applied)
	}

	if r.more {
		return nil
	}

	w.state.rows.Restored()

	w.requestMissingPast() // entries of some tasks could not be read before

	return nil
}

// requestMissingPast requests the past of the tasks of which it is not known, if there are any: the watch has lost
// events of them, or their entries could not be read before.
func (w *worker) requestMissingPast() {
	w.state.rows.Flush(w.state.applied)

	if w.state.rows.Index.Size().Unread > 0 {
		w.requestPast()
	}
}
