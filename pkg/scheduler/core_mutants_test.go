package scheduler

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// coreMutants break the rule that a plan whose commit fails changes nothing. Each one stands for a possible
// bug in the planner or in applyAbandoned.
var coreMutants = []struct {
	name    string
	abandon func(s *shardState, p *plan)
}{
	{"an effect is applied on failure", func(s *shardState, p *plan) {
		for _, e := range p.effects {
			e.applyTo(s, s.applied+1, p.now)
		}
		s.applyAbandoned(p)
	}},
	{"a claim is applied on failure", func(s *shardState, p *plan) {
		for _, c := range p.claims {
			s.addActiveAttempt(c.t, &taskstate.Attempt{Run: c.run, Node: c.node, Create: s.applied + 1, Since: p.now.UnixMilli()})
		}
		s.applyAbandoned(p)
	}},
	{"an entry change is applied on failure", func(s *shardState, p *plan) {
		for i := range p.changes {
			if c := &p.changes[i]; c.entry != nil {
				c.entry.applyTo(c.task, s.applied+1)
			}
		}

		s.applyAbandoned(p)
	}},
	{"the watermark moves on failure", func(s *shardState, p *plan) {
		s.records.Watermark = p.commit.Watermark
		s.applyAbandoned(p)
	}},
	{"all of it is applied on failure", func(s *shardState, p *plan) { s.applyCommitted(p, s.applied+1) }},
	{"a due task is not put back", func(s *shardState, p *plan) {
		p.popped = nil
		s.applyAbandoned(p)
	}},
	{"a note decides: a task to examine later has no ticks", func(s *shardState, p *plan) {
		tasks := p.popped
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
		p.reserved.reserved = nil
		s.applyAbandoned(p)
	}},
	{"a slot is given back twice", func(s *shardState, p *plan) {
		for _, slot := range p.reserved.reserved {
			s.ports.placement.Release(slot.node.Name, slot.pool)
		}
		s.applyAbandoned(p)
	}},
	{"a token is not given back", func(s *shardState, p *plan) {
		p.reserved.tokens = 0
		s.applyAbandoned(p)
	}},
}

// planIsHarmless, which every round driven by hand goes through, detects each of the mutants in one of two
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
	}

	harm := func(t *testing.T, abandon func(*shardState, *plan)) (found int) {
		for i, situation := range situations {
			h := situation(t)
			at := []float64{120, 240}[i]
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
