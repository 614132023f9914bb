package check

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// judgeOwners checks that owner keys are written under a term that lasts: G2 of
// the leader.
func (c *checker) judgeOwners(d *delta) {
	for _, id := range slices.Sorted(maps.Keys(d.owners)) {
		o := d.owners[id]
		if o.Fence == 0 {
			c.note("the owner key of shard %d was deleted", id)
			continue
		}
		if o.Term == 0 || c.term() == o.Term {
			continue
		}
		c.breach("G2", c.keys.Owner(id), "the owner was written under term %d, but the term is %d", o.Term, c.term())
	}
}

// term is the create revision of the oldest key of the election; 0 without one.
func (c *checker) term() int64 {
	var oldest int64
	for _, created := range c.leaders {
		if oldest == 0 || created < oldest {
			oldest = created
		}
	}
	return oldest
}

// judgeMarks checks every write of a watermark, and with it every commit: there
// was an owner (G1), its node was present (G2), nothing goes back (G5), and the
// first commit under a new fence or session changes nothing (G1): only then has
// its writer seen what every earlier writer did.
func (c *checker) judgeMarks(d *delta) {
	for _, id := range slices.Sorted(maps.Keys(d.marks)) {
		m, s := d.marks[id], c.shard(id)
		switch {
		case m.gone:
			c.breach("G5", m.key, "the watermark was deleted")
			continue
		case m.bad:
			continue
		case m.create == m.mod:
			if m.mark.Time.UnixMilli() != 0 {
				c.breach("G5", m.key, "the watermark was made anew, at %s", stamp(m.mark.Time.Time))
			}
			continue
		}
		c.judgeWriter(d, id, m)
		if !s.opened && !opens(s.mark, m.mark) {
			c.breach("G1", m.key, "the first commit under fence %d of node %q does not open the shard: it changes the watermark",
				s.owner.Fence, s.owner.Node)
		}
		if backwards(s.mark, m.mark) {
			c.breach("G5", m.key, "the watermark goes back from %s to %s", describe(s.mark), describe(m.mark))
		}
		if m.mark.Seen < s.mark.Seen {
			c.breach("G5", m.key, "seen goes back from %d to %d", s.mark.Seen, m.mark.Seen)
		}
		if m.mark.Seen >= m.mod {
			c.breach("G5", m.key, "seen is %d, which had not been when this was written", m.mark.Seen)
		}
	}
}

func (c *checker) judgeWriter(d *delta, id int, m *marked) {
	s := c.shard(id)
	_, moved := d.owners[id]
	switch node, present := c.nodes[s.owner.Node]; {
	case s.owner.Fence == 0 || s.owner.Node == "":
		c.breach("G1", m.key, "a commit to a shard without an owner")
	case moved:
		c.breach("G1", m.key, "a commit in the very revision that rewrites the shard's owner key")
	case !present:
		c.breach("G2", m.key, "a commit while the owner's node %q is absent", s.owner.Node)
	default:
		if now, changed := d.nodes[s.owner.Node]; changed && (now == nil || now.create != node.create) {
			c.breach("G2", m.key, "a commit in the very revision in which the session of node %q ends", s.owner.Node)
		}
	}
}

func opens(before, after store.Watermark) bool {
	return before.Time.Equal(after.Time.Time) && before.Last == after.Last && before.Seen == after.Seen
}

func backwards(before, after store.Watermark) bool {
	switch {
	case !after.Time.Equal(before.Time.Time):
		return after.Time.Before(before.Time.Time)
	case after.Last == "":
		return false
	}
	return before.Last == "" || after.Last < before.Last
}

func describe(w store.Watermark) string {
	if w.Last == "" {
		return stamp(w.Time.Time)
	}
	return stamp(w.Time.Time) + " up to " + w.Last
}

// needCommit checks that what only an owner writes came in a commit of the
// shard, and not in an opening one.
func (c *checker) needCommit(d *delta, ref store.Ref, tick int64, key, what string) {
	m := d.marks[ref.Shard]
	switch {
	case m == nil || m.gone || m.create == m.mod:
		c.breachOf("G1", ref, tick, key, "%s was written outside of a commit", what)
	case !c.shard(ref.Shard).opened:
		c.breachOf("G1", ref, tick, key, "%s was written by a commit that should have opened the shard", what)
	}
}

// judgeOwner checks that the run's word for its owner is the owner key's.
func (c *checker) judgeOwner(r task.Run, ref store.Ref, key string) {
	if s := c.shard(ref.Shard); r.Owner != "" && r.Owner != s.owner.Node {
		c.breachOf("G1", ref, ms(r.ScheduledTime), key, "decided by node %q while the shard's owner is %q", r.Owner, s.owner.Node)
	}
}

func (c *checker) applyMarks(d *delta) {
	for id, m := range d.marks {
		s := c.shard(id)
		if m.gone {
			s.markMod = 0
			continue
		}
		if m.bad {
			continue
		}
		s.mark, s.markMod = m.mark, m.mod
		if m.create == m.mod {
			continue
		}
		s.opened = true
	}
}

// applyFleet applies what changes fences and sessions.
func (c *checker) applyFleet(d *delta) {
	for name, n := range d.nodes {
		if n == nil {
			delete(c.nodes, name)
			continue
		}
		if c.nodes[name].create != n.create {
			for _, s := range c.shards {
				if s.owner.Node == name {
					s.opened = false
				}
			}
		}
		c.nodes[name] = *n
	}
	for key, created := range d.leaders {
		if created == 0 {
			delete(c.leaders, key)
		} else {
			c.leaders[key] = created
		}
	}
	for id, o := range d.owners {
		s := c.shard(id)
		s.owner, s.opened = *o, false
	}
}
