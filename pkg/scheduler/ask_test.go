package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/node"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// ask asks for all tasks of a node.
func (r *runningEngine) ask(order readmodel.Order, without ...int) readmodel.NodeAnswer {
	a, err := r.Ask(context.Background(), &readmodel.Query{Subject: "user:ann", Order: order, Limit: 100, Now: time.Now().UnixMilli()}, without)
	if err != nil {
		panic(err)
	}

	return a
}

// rows describes the rows of a node's tasks, and reports whether they are complete.
func (r *runningEngine) rows() (list []string, complete bool) {
	_ = r.EachIndex(context.Background(), "user:ann", nil, func(s readmodel.ShardAnswer, x *readmodel.Index) bool {
		complete = s.Unread == 0
		x.EachRow(0, func(r *readmodel.Row) {
			list = append(list, fmt.Sprintf("%s %v: last %s at %d, success at %d, %d failures, failing %t, %d active, %d waiting", r.Name, r.Labels,
				r.Last().State(), r.LastEnd, r.LastSuccess, r.Failures, r.Flags.Has(readmodel.Failing), r.Active, r.Waiting))
		})

		return true
	})

	slices.Sort(list)

	return list, complete
}

// A new owner finds out how runs had ended before. Dismissed failures stay dismissed.
//
// Verifies: G30
func TestAsk_ANewOwnerKnowsThePast(t *testing.T) {
	t.Parallel()

	for name, takeOver := range map[string]func(w *world) *runningEngine{
		"loaded": func(w *world) *runningEngine { return w.run("n2") },
		"preloaded": func(w *world) *runningEngine {
			loaded := make(chan struct{}, 1)
			var preloading chan struct{}
			return w.run("n2", func(e *Engine) {
				preloading = make(chan struct{})
				go func() {
					defer close(preloading)
					_ = e.Preload(w.ctx, 0, func() { loaded <- struct{}{} })
				}()
				<-loaded
				w.finish("meanwhile", task.Failed)
				time.Sleep(time.Second)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			inVirtualTime(t, func(t *testing.T) {
				w := newWorld(t, "n1", "n2").judged()
				w.setClockToNow()
				first := w.run("n1")
				labels := func(t *task.Task) { t.Labels = map[string]string{"team": "data"} }
				for _, name := range []string{"fails", "dismissed", "recovered", "meanwhile", "fresh"} {
					w.create(name, cronned("@manual"), allow, labels)
				}

				run := func(name string, states ...task.State) {
					for _, state := range states {
						w.setClockToNow()
						w.trigger(name)
						w.eventually(name+" runs", func() bool { return len(w.active(name)) == 1 })
						time.Sleep(1500 * time.Millisecond)
						w.setClockToNow()
						w.finish(name, state)
					}
				}

				run("fails", task.Succeeded, task.Failed, task.Cancelled, task.TimedOut)
				run("dismissed", task.Succeeded, task.Failed)
				run("recovered", task.Failed, task.Succeeded)
				run("meanwhile", task.Succeeded)
				dead, err := w.store.DeadRuns(w.ctx, ref("dismissed"))
				w.ok(err)
				w.ok(w.store.Dismiss(w.ctx, ref("dismissed"), dead[0], task.NewActor("ann"), w.clock()))
				w.trigger("meanwhile")
				w.eventually("another run is active", func() bool { return len(w.active("meanwhile")) == 1 })
				time.Sleep(time.Second)

				if name == "loaded" {
					w.setClockToNow()
					w.finish("meanwhile", task.Failed)
					time.Sleep(time.Second)
				}

				second := takeOver(w)
				want, _ := first.rows() // nobody has told the former owner to stop
				first.stop()
				<-first.work

				if a := first.ask(readmodel.ByName); len(a.Shards) > 0 {
					t.Errorf("the former owner still answers: %+v", a)
				}

				w.eventually("the new owner knows the past", func() bool {
					_, complete := second.rows()
					return complete && len(second.ask(readmodel.ByName).Shards) == 1
				})

				got, _ := second.rows()
				if !slices.Equal(got, want) {
					t.Errorf("the new owner says\n%q, the former one said\n%q", got, want)
				}

				for _, row := range []string{
					"default/dismissed map[team:data]: last failed", "default/fails map[team:data]: last timed_out", "default/fresh map[team:data]: last  at 0, success at 0, 0 failures, failing false",
				} {
					if !slices.ContainsFunc(got, func(line string) bool { return len(line) > len(row) && line[:len(row)] == row }) {
						t.Errorf("no %q in %q", row, got)
					}
				}

				a := second.ask(readmodel.ByFailures)
				if a.Shards[0].Failing != 2 || a.Shards[0].Tasks != 5 || a.Places[0].Name != "default/fails" || a.Shards[0].Owner != second.fences.Owner.ModRevision {
					t.Errorf("%+v", a)
				}
			})
		})
	}
}

// heldOpening is a store that delays openings: the reading of the queue, which follows the scan for active attempts.
type heldOpening struct {
	Store
	hold chan chan struct{} // each reading waits until the channel that it receives from here is closed
}

func (h *heldOpening) Queue(ctx context.Context, shard int) ([]store.ShardEvent, error) {
	select {
	case held := <-h.hold:
		<-held
	case <-ctx.Done():
	}

	return h.Store.Queue(ctx, shard)
}

// A shard is left out until it is loaded and its active attempts are known, also when it is opened again.
//
// Verifies: G30
func TestAsk_LeavesOutAShardThatIsBeingOpened(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		w.create("a", every("1h"))
		s := &heldOpening{hold: make(chan chan struct{})}
		r := w.run("n1", func(e *Engine) { s.Store, e.cfg.Store = e.cfg.Store, s })

		for range 2 {
			held := make(chan struct{})
			s.hold <- held
			time.Sleep(time.Second)

			if a := r.ask(readmodel.ByName); len(a.Shards)+len(a.Places) != 0 {
				t.Errorf("before all is known: %+v", a)
			}

			close(held)
			w.eventually("the shard is open", func() bool { return len(r.ask(readmodel.ByName).Shards) == 1 })

			if a := r.ask(readmodel.ByNext); len(a.Places) != 1 || a.Places[0].Key != w.clock().Add(time.Hour).UnixMilli() || a.Node != "n1" {
				t.Errorf("%+v", a)
			}

			if a := r.ask(readmodel.ByName, 0); len(a.Shards)+len(a.Places) != 0 {
				t.Errorf("without the shard: %+v", a)
			}

			r.Restart(0)
			time.Sleep(time.Millisecond)
		}
	})
}

// A quiet shard is as current as its watch.
func TestAsk_AQuietShardIsCurrent(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		w.create("a", every("24h"))
		r := w.run("n1")
		w.eventually("the shard is open", func() bool { return len(r.ask(readmodel.ByName).Shards) == 1 })

		for range 20 {
			time.Sleep(7 * time.Second)

			if a := r.ask(readmodel.ByName); a.Shards[0].AgeMS > 2000 {
				t.Errorf("%d ms old", a.Shards[0].AgeMS)
			}
		}
	})
}

// Queries take a small part of the time. A caller that asks for more gets the time when it may ask again.
func TestAsk_KeepsToItsBudget(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		r := w.run("n1")
		w.eventually("the shard is open", func() bool { return len(r.ask(readmodel.ByName).Shards) == 1 })

		r.scanLimit = node.NewScanLimiterMeasuredBy(func() time.Duration { return time.Since(start) }) // the scan only sleeps
		slow := func(readmodel.ShardAnswer, *readmodel.Index) bool { time.Sleep(10 * time.Second); return true }
		w.ok(r.EachIndex(t.Context(), "user:ann", nil, slow))

		_, err := r.Ask(t.Context(), &readmodel.Query{Subject: "user:ann"}, nil)
		var busy *readmodel.Busy
		if !errors.As(err, &busy) || busy.Node != "n1" || busy.RetryAfter < time.Second {
			t.Fatal(err)
		}

		time.Sleep(busy.RetryAfter + time.Millisecond)

		if _, err := r.Ask(t.Context(), &readmodel.Query{Subject: "user:ann"}, nil); err != nil {
			t.Error(err)
		}
	})
}

// heldWatch is a store whose watches of shards deliver nothing while somebody holds it: hold contains a value then.
type heldWatch struct {
	Store
	hold chan struct{}
}

func (h *heldWatch) FollowShard(ctx context.Context, shard int, rev int64, apply func(store.ShardBatch) error) error {
	return h.Store.FollowShard(ctx, shard, rev, func(b store.ShardBatch) error {
		h.hold <- struct{}{}
		defer func() { <-h.hold }()

		return apply(b)
	})
}

// An answer contains the revisions that it must contain, or leaves the shard out.
func TestAsk_WaitsForWhatTheCallerHasWritten(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		w.create("a", every("24h"))
		s := &heldWatch{hold: make(chan struct{}, 1)}
		r := w.run("n1", func(e *Engine) { s.Store, e.cfg.Store = e.cfg.Store, s })
		w.eventually("the shard is open", func() bool { return len(r.ask(readmodel.ByName).Shards) == 1 })

		for _, c := range []struct {
			late, within   time.Duration
			shards, places int
		}{
			{0, 50 * time.Millisecond, 1, 2},
			{300 * time.Millisecond, 350 * time.Millisecond, 1, 3},
			{700 * time.Millisecond, 550 * time.Millisecond, 0, 0}, // too late
		} {
			s.hold <- struct{}{}
			rev := w.create(fmt.Sprint("b", c.late.Milliseconds()), every("24h"))
			time.AfterFunc(c.late, func() { <-s.hold })

			if a := r.ask(readmodel.ByName); c.late > 0 && len(a.Places) != c.places-1 && c.shards > 0 {
				t.Errorf("%s late, nothing required: %+v", c.late, a)
			}

			began := time.Now()
			a, err := r.Ask(t.Context(), &readmodel.Query{Subject: "user:ann", Order: readmodel.ByName, Limit: 100, MinRevisions: map[int]int64{0: rev, 7: rev}}, nil)
			w.ok(err)

			if took := time.Since(began); len(a.Shards) != c.shards || len(a.Places) != c.places || took > c.within {
				t.Errorf("%s late: %+v after %s", c.late, a, took)
			}

			time.Sleep(time.Second)
		}
	})
}
