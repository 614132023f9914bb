package scheduler

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// coreMutants break the rule that a plan whose commit fails changes nothing. Each one stands for a possible
// bug in the planner or in applyAbandoned.
var coreMutants = []struct {
	name    string
	abandon func(s *shardState, p *plan)
}{
	{"the queue changes on failure", func(s *shardState, p *plan) {
		applyOnly(s, p, func(e effect) bool { _, is := e.(runEnqueued); return is })
		s.applyAbandoned(p)
	}},
	{"an attempt is active on failure", func(s *shardState, p *plan) {
		applyOnly(s, p, func(e effect) bool { _, is := e.(*attemptDispatched); return is })
		s.applyAbandoned(p)
	}},
	{"an entry changes on failure", func(s *shardState, p *plan) {
		applyOnly(s, p, func(e effect) bool { _, is := e.(*entryChanged); return is })
		s.applyAbandoned(p)
	}},
	{"a task moves to its next tick on failure", func(s *shardState, p *plan) {
		s.applyAbandoned(p)
		applyOnly(s, p, func(e effect) bool { _, is := e.(tickDecided); return is })
	}},
	{"a range of skipped ticks ends on failure", func(s *shardState, p *plan) {
		applyOnly(s, p, func(e effect) bool { _, is := e.(spanEnded); return is })
		s.applyAbandoned(p)
	}},
	{"the watermark moves on failure", func(s *shardState, p *plan) {
		s.records.Watermark = p.commit.Watermark
		s.applyAbandoned(p)
	}},
	{"all of it is applied on failure", func(s *shardState, p *plan) { s.applyCommitted(p, s.applied+1) }},
	{"a due task is not put back", func(s *shardState, p *plan) {
		p.reserved.due = nil
		s.applyAbandoned(p)
	}},
	{"a note decides: a task to examine later has no ticks", func(s *shardState, p *plan) {
		tasks := p.reserved.due
		for i := range p.changes {
			tasks = append(tasks, p.changes[i].task)
		}

		s.applyAbandoned(p)

		for _, t := range tasks {
			s.agenda.examineAgainAt(t, p.now.Add(time.Second))
			s.due.Set(t, 0)
		}
	}},
	{"a slot is not given back", func(s *shardState, p *plan) {
		p.reserved.slots = nil
		s.applyAbandoned(p)
	}},
	{"a slot is given back twice", func(s *shardState, p *plan) {
		for _, slot := range p.reserved.slots {
			s.ports.placement.Release(slot.node.Name, slot.pool)
		}
		s.applyAbandoned(p)
	}},
	{"a token is not given back", func(s *shardState, p *plan) {
		p.reserved.tokens = 0
		s.applyAbandoned(p)
	}},
}

// applyOnly applies the effects of a plan for which the function returns true.
func applyOnly(s *shardState, p *plan, which func(effect) bool) {
	for _, e := range p.effects {
		if which(e) {
			e.applyTo(s, s.applied+1, p.now)
		}
	}
}

// planIsHarmless, which every round driven by hand goes through, detects each of the mutants in one of three
// situations. It reports nothing without a mutant.
func TestPlanIsHarmless_CatchesMutants(t *testing.T) {
	t.Parallel()

	situations := []func(t *testing.T) *testWorker{
		func(t *testing.T) *testWorker { // a tick is due while the previous run is active
			w := newWorld(t, "n1")
			h := w.work("n1")
			w.create("a", cronned("0 * * * * *"), allow)
			h.decide(60)
			h.see()

			return h
		},
		func(t *testing.T) *testWorker { // three late ticks: one has a token and starts, two wait
			w := newWorld(t, "n1")
			h := w.work("n1")
			w.create("a", cronned("0 * * * * *"), missed(task.MissedAll, 3))
			w.at(240)
			h.see()

			return h
		},
		func(t *testing.T) *testWorker { // a tick is due after one that was skipped
			w := newWorld(t, "n1")
			h := w.work("n1")
			w.create("a", cronned("0 * * * * *"))
			h.decide(60)
			h.decide(120)
			w.finish("a", task.Succeeded)
			h.see()

			return h
		},
	}

	harm := func(t *testing.T, abandon func(*shardState, *plan)) (found int) {
		for i, situation := range situations {
			h := situation(t)
			at := []float64{120, 240, 180}[i]
			h.world.at(at)
			found += len(h.effectsOfPlans(at, func(p *plan) { abandon(&h.state, p) }))
		}

		return found
	}

	if n := harm(t, (*shardState).applyAbandoned); n > 0 {
		t.Errorf("%d complaints without a mutant", n)
	}

	for _, m := range coreMutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if harm(t, m.abandon) == 0 {
				t.Error("nothing notices it")
			}
		})
	}
}

// A plan points into the state from which it was made. The state must not change before the worker has
// reported the outcome of the commit.
func TestShardState_TakesNoInputWhileADecisionIsOutstanding(t *testing.T) {
	t.Parallel()

	for name, input := range map[string]func(h *testWorker){
		"an event":        func(h *testWorker) { h.state.applyRecords(store.ShardBatch{}, sec(61)) },
		"a scan":          func(h *testWorker) { h.state.applyActiveRuns(nil) },
		"a second plan":   func(h *testWorker) { h.worker.planRound(sec(61)) },
		"the shard again": func(h *testWorker) { h.discardState() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n1")
			h := w.work("n1")
			w.create("a", cronned("0 * * * * *"))
			h.see()
			w.at(60)
			p := h.worker.planRound(sec(60))

			func() {
				defer func() {
					if recover() == nil {
						t.Error("is accepted while a decision is outstanding")
					}
				}()

				input(h)
			}()

			h.state.applyAbandoned(p)
			input(h)
		})
	}
}
