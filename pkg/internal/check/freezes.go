package check

import (
	"github.com/carillonhq/carillon/pkg/task"
)

// freezeJudge judges that nothing starts of what is frozen, and that nothing else is
// skipped for that (G21).
type freezeJudge struct{ judge }

// checkDecision judges the decision of a tick: of what is frozen none runs, and
// nothing else is skipped for that (G21).
func (j *freezeJudge) checkDecision(d *delta, ch *runChange, r *run, rec *task.Run, key string) {
	z := j.cluster.freezes.Of(ch.ref.Namespace)
	switch {
	case j.cluster.freezes.bad:
	case z != nil && !rec.State.Final():
		j.breachTask("G21", ch.ref, r.tick, key, "run %s is made, and %s has been frozen since %s", ch.id, frozen(z), stamp(z.Since.Time))
	case z == nil && d.freezes == nil && rec.State == task.Skipped && rec.Reason == task.ReasonFrozen:
		j.breachTask("G21", ch.ref, r.tick, key, "run %s is skipped as frozen, and nothing is", ch.id)
	}
}

// checkDispatch checks that nothing is dispatched that is frozen (G21).
func (j *freezeJudge) checkDispatch(d *delta, ch *runChange, r *run, put attemptPut) {
	z := j.cluster.freezes.Of(ch.ref.Namespace)
	if z == nil && d.freezes != nil && !d.freezes.bad {
		z = d.freezes.Of(ch.ref.Namespace) // a commit that compares the record never shares its revision
	}
	if z != nil && !j.cluster.freezes.bad {
		j.breachTask("G21", ch.ref, r.tick, put.key, "run %s is dispatched, and %s has been frozen since %s", ch.id, frozen(z), stamp(z.Since.Time))
	}
}

// checkStart checks that a node that has said to obey a freeze starts
// nothing from then on, by its own clock, as far as that can be relied on, while that
// holds (G21).
func (j *freezeJudge) checkStart(ch *runChange, r *run, node string, started task.Time, key string) {
	z, n := j.cluster.freezes.Of(ch.ref.Namespace), j.cluster.nodes[node]
	if z == nil || j.cluster.freezes.bad || started.IsZero() || n.froze < j.cluster.freezes.mod || n.frozeAt == 0 {
		return
	}
	if ms(started) > n.frozeAt+j.opts.Skew.Milliseconds() && started.After(z.Since.Time) {
		j.breachTask("G21", ch.ref, r.tick, key, "run %s started at %s on node %s, which had said at %s that it obeys the freeze of %s",
			ch.id, stamp(started.Time), node, stamp(instant(n.frozeAt)), frozen(z))
	}
}

func frozen(z *task.Freeze) string {
	if z.Namespace == "" {
		return "the cluster"
	}
	return "namespace " + z.Namespace
}
