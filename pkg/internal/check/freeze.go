package check

import (
	"encoding/json"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// freezes are the switches that stop firing, as they stand at a revision.
type freezes struct {
	task.Freezes
	mod int64 // 0: there is no record
	bad bool
}

type freezesChange struct{ freezes }

func (c *checker) parseFreezes(d *delta, ev Event) {
	f := &freezesChange{}
	if !ev.Deleted {
		f.mod = ev.ModRevision
		if err := json.Unmarshal(ev.Value, &f.Freezes); err != nil {
			c.unreadable(ev, err)
			f.bad = true
		}
	}
	d.freezes = f
}

func (c *checker) applyFreezes(d *delta) {
	if d.freezes != nil {
		c.freezes = d.freezes.freezes
	}
}

// judgeFrozen judges the decision of a tick: of what is frozen none runs, and
// nothing else is skipped for that (G21).
func (c *checker) judgeFrozen(d *delta, ch *runChange, r *run, rec *task.Run, key string) {
	z := c.freezes.Of(ch.ref.Namespace)
	switch {
	case c.freezes.bad:
	case z != nil && !rec.State.Final():
		c.breachOf("G21", ch.ref, r.tick, key, "run %s is made, and %s has been frozen since %s", ch.id, frozen(z), stamp(z.Since.Time))
	case z == nil && d.freezes == nil && rec.State == task.Skipped && rec.Reason == task.ReasonFrozen:
		c.breachOf("G21", ch.ref, r.tick, key, "run %s is skipped as frozen, and nothing is", ch.id)
	}
}

// judgeThawed checks that nothing is dispatched that is frozen (G21).
func (c *checker) judgeThawed(d *delta, ch *runChange, r *run, put attemptPut) {
	z := c.freezes.Of(ch.ref.Namespace)
	if z == nil && d.freezes != nil && !d.freezes.bad {
		z = d.freezes.Of(ch.ref.Namespace) // a commit that compares the record never shares its revision
	}
	if z != nil && !c.freezes.bad {
		c.breachOf("G21", ch.ref, r.tick, put.key, "run %s is dispatched, and %s has been frozen since %s", ch.id, frozen(z), stamp(z.Since.Time))
	}
}

// judgeFrozenStart checks that a node that has said to obey a freeze starts
// nothing from then on, by its own clock, as far as that can be relied on, while that
// holds (G21).
func (c *checker) judgeFrozenStart(ch *runChange, r *run, node string, started task.Time, key string) {
	z, n := c.freezes.Of(ch.ref.Namespace), c.nodes[node]
	if z == nil || c.freezes.bad || started.IsZero() || n.froze < c.freezes.mod || n.frozeAt == 0 {
		return
	}
	if ms(started) > n.frozeAt+c.opts.Skew.Milliseconds() && started.After(z.Since.Time) {
		c.breachOf("G21", ch.ref, r.tick, key, "run %s started at %s on node %s, which had said at %s that it obeys the freeze of %s",
			ch.id, stamp(started.Time), node, stamp(instant(n.frozeAt)), frozen(z))
	}
}

// namespaceThawed reports whether a task's namespace is not frozen, and has not
// been since an instant, in ms.
func (c *checker) namespaceThawed(ref store.Ref, since int64) bool {
	if c.freezes.Of(ref.Namespace) != nil {
		return false
	}
	for _, z := range c.freezes.Past {
		if (z.Namespace == "" || z.Namespace == ref.Namespace) && ms(z.Ended) >= since {
			return false
		}
	}
	return true
}

func frozen(z *task.Freeze) string {
	if z.Namespace == "" {
		return "the cluster"
	}
	return "namespace " + z.Namespace
}
