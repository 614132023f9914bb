package check

import (
	"github.com/carillonhq/carillon/pkg/task"
)

// freezeJudge judges that nothing frozen starts, and that no other tick is skipped with that reason (G21). It
// judges nothing while the freeze record cannot be read.
type freezeJudge struct{ judge }

// checkDecision judges the decision of a tick (G21). A frozen tick does not become a run. A tick that is not frozen
// is not skipped as frozen, unless the freeze ends in this very revision.
func (j *freezeJudge) checkDecision(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	z := j.cluster.freezes.Of(ch.ref.Namespace)
	switch {
	case j.cluster.freezes.unreadable:
	case z != nil && !rec.State.Final():
		j.breachTask("G21", ch.ref, r.tick, key, "run %s is created, although %s has been frozen since %s", ch.id, frozenScope(z), formatTime(z.Since.Time))
	case z == nil && d.freezes == nil && rec.State == task.Skipped && rec.Reason == task.ReasonFrozen:
		j.breachTask("G21", ch.ref, r.tick, key, "run %s is skipped as frozen, but nothing is frozen", ch.id)
	}
}

// checkDispatch checks that no attempt of a frozen task is dispatched (G21).
func (j *freezeJudge) checkDispatch(d *delta, ch *runChange, r *runHistory, put inboxPut) {
	z := j.cluster.freezes.Of(ch.ref.Namespace)
	if z == nil && d.freezes != nil && !d.freezes.unreadable {
		// A commit compares the freeze record, so it never shares a revision with a change of it.
		z = d.freezes.Of(ch.ref.Namespace)
	}

	if z != nil && !j.cluster.freezes.unreadable {
		j.breachTask("G21", ch.ref, r.tick, put.key, "run %s is dispatched, although %s has been frozen since %s", ch.id, frozenScope(z), formatTime(z.Since.Time))
	}
}

// checkStart checks that a node that has confirmed a freeze starts nothing while the freeze holds (G21). It
// compares times of the node's own clock, which may have been corrected by up to Options.Skew in between, and ignores
// those of Options.WrongClocks.
func (j *freezeJudge) checkStart(ch *runChange, r *runHistory, node string, started task.Time, key string) {
	z, n := j.cluster.freezes.Of(ch.ref.Namespace), j.cluster.nodes[node]
	if z == nil || j.cluster.freezes.unreadable || started.IsZero() || n.freezesObeyed < j.cluster.freezes.mod || n.freezesObeyedAt == 0 {
		return
	}

	if j.opts.wrongClock(node, started.Time) || j.opts.wrongClock(node, timeOfMS(n.freezesObeyedAt)) {
		return
	}

	if unixMS(started) > n.freezesObeyedAt+j.opts.Skew.Milliseconds() && started.After(z.Since.Time) {
		j.breachTask("G21", ch.ref, r.tick, key, "run %s started at %s on node %s, which had confirmed the freeze at %s (freeze of %s)",
			ch.id, formatTime(started.Time), node, formatTime(timeOfMS(n.freezesObeyedAt)), frozenScope(z))
	}
}

// frozenScope names what a freeze covers, for messages.
func frozenScope(z *task.Freeze) string {
	if z.Namespace == "" {
		return "the cluster"
	}
	return "namespace " + z.Namespace
}
