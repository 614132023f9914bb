package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// planIsHarmless makes two plans one after another, abandons both, and compares. It holds what
// a plan promises: one whose commit fails leaves nothing behind but notes, and notes do not change
// what is decided. Every test that drives a worker by hand goes through it before each round.
func (h *hand) planIsHarmless(at float64) {
	h.world.Helper()

	for _, harm := range h.harmOfPlans(at, h.applyAbandoned) {
		h.world.Error(harm)
	}
}

// harmOfPlans is what planIsHarmless finds, with a function that abandons plans.
func (h *hand) harmOfPlans(at float64, abandon func(*plan)) (harm []string) {
	// The notes of these plans must not help the round that follows.
	looks, wakes, rests, restUntil, unread := slices.Clone(h.looks), h.wakes, maps.Clone(h.rests), h.restUntil, maps.Clone(h.unread)
	defer func() {
		for _, t := range h.looks {
			t.Looked = false
		}

		h.looks = nil
		for _, t := range looks {
			h.addLook(t)
		}

		h.wakes, h.rests, h.restUntil, h.unread = wakes, rests, restUntil, unread
	}()

	h.lookAtAll() // a look that comes earlier makes the plan larger: both look at everything
	before := h.knowledge()
	first := h.dryPlan(at, abandon)

	if after := h.knowledge(); after != before {
		harm = append(harm, fmt.Sprintf("at %gs a plan that is abandoned changes what is known.\nbefore: %s\nafter:  %s", at, before, after))
	}

	h.lookAtAll()

	if second := h.dryPlan(at, abandon); first != second {
		harm = append(harm, fmt.Sprintf("at %gs the plan depends on the one before it, which was abandoned.\nfirst:  %s\nsecond: %s", at, first, second))
	}

	return harm
}

// dryPlan makes a plan and abandons it. It returns what would have been done, apart from which nodes
// would have had it: that is drawn.
func (h *hand) dryPlan(at float64, abandon func(*plan)) string {
	p := h.planRound(sec(at))

	var b strings.Builder
	fmt.Fprintf(&b, "watermark %v;", p.commit.Watermark)

	for _, c := range p.claims {
		fmt.Fprintf(&b, " %s starts %s;", c.t.FullName(), c.run)
	}

	for _, c := range p.changes {
		if c.entry != nil {
			fmt.Fprintf(&b, " entry %s %d %d %t %d %d;", c.task.FullName(), c.entry.from, c.entry.anchor, c.entry.paused, c.entry.own.Runs, c.entry.own.Failures)
		}
	}

	var effects []string
	for _, e := range p.effects {
		effects = append(effects, describe(e))
	}

	slices.Sort(effects) // purges come in the order of a map

	for _, d := range p.deletions {
		d.DropUnasked() // it is not asked for
	}

	abandon(p)

	return b.String() + strings.Join(effects, "; ")
}

// describe names an effect.
func describe(e effect) string {
	switch e := e.(type) {
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

// knowledge is all that decisions depend on, and that only a commit or an event may change: not the
// notes.
func (h *hand) knowledge() string {
	var b strings.Builder
	fmt.Fprintf(&b, "known %d, mark %v, applied %d, overtaken %d, queued %d;", h.WatermarkRev, h.Watermark, h.applied, h.overtaken, h.queued)

	for _, name := range slices.Sorted(maps.Keys(h.Tasks)) {
		t := h.Tasks[name]
		if t.Empty() {
			continue // a plan may forget it
		}

		fmt.Fprintf(&b, "\n%s mod %d/%d from %d anchor %d next %d second %d in heap %t present %t bad %t paused %t failed %d own %v", name,
			t.Mod, t.Create, t.From, t.Anchor, t.Next, t.Second, t.At >= 0, t.Present, t.Bad, t.Paused, t.Failed, t.Own())

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

	fmt.Fprintf(&b, "\nslots %v", h.e.cfg.Fleet.Given())

	level, _ := h.e.pace.Snapshot(h.world.clock())
	fmt.Fprintf(&b, ", tokens %.6f", level)

	return b.String()
}
