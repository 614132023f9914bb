package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
)

// planIsHarmless makes two plans, abandons both, and compares the state before and after. It verifies that
// a plan whose commit fails leaves nothing behind but notes, that notes do not change what is decided, and that no plan exceeds the room of its
// commit.
// Every test that drives a worker by hand calls it before each round.
func (tw *testWorker) planIsHarmless(at float64) {
	tw.world.Helper()

	for _, harm := range tw.effectsOfPlans(at, tw.state.applyAbandoned) {
		tw.world.Error(harm)
	}
}

// effectsOfPlans returns the differences that planIsHarmless reports. abandon is the function that abandons
// plans.
func (tw *testWorker) effectsOfPlans(at float64, abandon func(*plan)) (harm []string) {
	// The notes of these plans must not help the round that follows.
	tasks, allAt, later, unread := slices.Clone(tw.state.agenda.toExamine), tw.state.agenda.examineAllAt, tw.state.agenda.later.times(), maps.Clone(tw.state.unread)
	wanted := maps.Clone(tw.state.wantedPlans)
	defer func() {
		for _, t := range tw.state.agenda.toExamine {
			t.SetListed(false)
		}

		tw.state.agenda.toExamine = nil
		for _, t := range tasks {
			tw.state.agenda.examineNext(t)
		}

		tw.state.wantedPlans = wanted
		tw.state.agenda.examineAllAt, tw.state.unread, tw.state.agenda.later = allAt, unread, laterTasks{}
		for t, at := range later {
			tw.state.agenda.later.add(t, at)
		}
	}()

	tw.state.examineAll() // notes from the first plan could make the second larger, so both examine all tasks
	before := tw.knowledge()
	first := tw.dryPlan(at, abandon)

	if after := tw.knowledge(); after != before {
		harm = append(harm, fmt.Sprintf("at %gs a plan that is abandoned changes what is known.\nbefore: %s\nafter:  %s", at, before, after))
	}

	tw.state.examineAll()

	if second := tw.dryPlan(at, abandon); first != second {
		harm = append(harm, fmt.Sprintf("at %gs the plan depends on the one before it, which was abandoned.\nfirst:  %s\nsecond: %s", at, first, second))
	}

	return harm
}

// times returns when tasks are to be examined.
func (l *laterTasks) times() map[*state.Task]int64 {
	times := map[*state.Task]int64{}
	for t, n := range l.notes {
		times[t] = n.at
	}

	return times
}

// planRound returns the plan that a round at now would commit first.
func (w *worker) planRound(now time.Time) *plan { return w.state.buildPlan(now, w.currentSettings()) }

// dryPlan makes a plan and abandons it. It returns what the plan would have done, without the nodes, which
// are random.
func (tw *testWorker) dryPlan(at float64, abandon func(*plan)) string {
	p := tw.planRound(sec(at))

	// etcd would refuse a commit that is much larger than what its changes have reserved.
	if !p.commit.Fits(0, 0) {
		tw.world.Errorf("at %gs a plan has more changes than a commit has room for", at)
	}

	var b strings.Builder
	fmt.Fprintf(&b, "watermark %v;", p.commit.Watermark)

	var effects []string
	for _, e := range p.effects {
		effects = append(effects, describe(e))
	}

	slices.Sort(effects) // purges are in the order of a map

	for _, d := range p.deletions {
		d.DropUnasked() // it is not requested
	}

	abandon(p)

	return b.String() + strings.Join(effects, "; ")
}

// describe returns the name of an effect.
func describe(e effect) string {
	switch e := e.(type) {
	case *attemptDispatched:
		return e.task.FullName() + " starts " + e.run
	case *entryChanged:
		return fmt.Sprintf("entry %s %d %d %t %d %d", e.task.FullName(), e.from, e.anchor, e.paused, e.own.Runs, e.own.Failures)
	case tickDecided:
		return "decided " + e.task.FullName()
	case spanEnded:
		return "end the range of " + e.task.FullName()
	case runEnqueued:
		return "enqueue " + e.run.ID
	case runRequeued:
		return "requeue " + e.run.ID + " " + e.record.Reason
	case runDequeued:
		return "dequeue " + e.run.ID
	case ticksSkipped:
		return fmt.Sprintf("skip %s %s %d", e.record.ID, e.record.Reason, e.record.Count)
	case cancelAsked:
		return "ask " + e.attempt.Run + " " + e.reason
	case runLost:
		return "lose " + e.attempt.Run
	case partEnded:
		return "end " + e.end.ID
	case recordPurged:
		return "purge " + e.key
	}

	return fmt.Sprintf("%T", e)
}

// knowledge returns everything on which decisions depend and which only a commit or an event may change,
// without the notes.
func (tw *testWorker) knowledge() string {
	var b strings.Builder
	fmt.Fprintf(&b, "known %d, mark %v, applied %d, overtaken %d, queued %d;", tw.state.records.WatermarkRev, tw.state.records.Watermark, tw.state.applied, tw.state.overtaken, tw.state.queued)

	for _, t := range slices.SortedFunc(tw.state.records.Tasks.All(), state.ByName) {
		if t.Empty() {
			continue // a plan may forget the task
		}

		fmt.Fprintf(&b, "\n%s mod %d/%d from %d anchor %d next %d second %d in heap %t present %t bad %t paused %t failed %d own %v", t.FullName(),
			t.Mod, t.Create, t.From, t.Anchor, t.Next, t.Second, t.At >= 0, t.Present, t.Bad, t.Paused, t.FailedCommits, t.Own())

		if at, ok := tw.state.aside.retryAt[t]; ok {
			fmt.Fprintf(&b, " aside %d", at)
		}

		if t.Row >= 0 {
			fmt.Fprintf(&b, " row %+v", tw.state.rows.Index.Row(t.Row))
		}

		if span := tw.state.skippedSpans[t]; span != nil {
			fmt.Fprintf(&b, " skipped %d to %d, %d", span.first, span.last, span.mod)
		}

		for _, q := range t.Queue() {
			fmt.Fprintf(&b, " waits %s %d %s %s", q.ID, q.Mod, q.State, q.Reason)
		}

		for _, a := range t.Active() {
			fmt.Fprintf(&b, " active %s %s %d", a.Run, a.Node, a.Create)
		}

		if t.Activity != nil {
			for _, id := range slices.Sorted(maps.Keys(t.Activity.Returned)) {
				fmt.Fprintf(&b, " returned %s", id)
			}
		}

		if t.Past != nil && t.Past.Turn != "" {
			fmt.Fprintf(&b, " turn %s", t.Past.Turn)
		}
	}

	fmt.Fprintf(&b, "\nslots %v %v", tw.e.cfg.Fleet.Given(placement.ProcessSlots), tw.e.cfg.Fleet.Given(placement.HTTPSlots))

	level, _ := tw.e.pace.Snapshot(tw.world.clock())
	fmt.Fprintf(&b, ", tokens %.6f", level)

	return b.String()
}
