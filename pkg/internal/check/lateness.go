package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func inOrder(faults []Fault) []Fault {
	return slices.SortedFunc(slices.Values(faults), func(a, b Fault) int { return cmp.Compare(a.From.UnixMilli(), b.From.UnixMilli()) })
}

// judgeLateness checks that a decision came in time: after the faults that its
// tick fell into (G16), and at once where nothing was disturbed (G15, G19). It
// goes by the owner's clock, as the record has it.
func (c *checker) judgeLateness(ch *runChange, r *run, rec *task.Run, key string) {
	at := decisionTime(rec)
	if at == 0 {
		return // judgeEarly has said it
	}
	due := r.line.stretch.ticks.due(r.tick)
	if c.opts.Converge > 0 {
		if by := c.healed(due) + c.opts.Converge.Milliseconds(); at > by {
			c.breachOf("G16", ch.ref, r.tick, key, "run %s was decided at %s, %s after its tick; all was well since %s", ch.id, stamp(instant(at)),
				milliseconds(at-due), stamp(instant(c.healed(due))))
		}
	}
	if late := at - due; c.opts.Lateness > 0 && late > c.opts.Lateness.Milliseconds() && c.undisturbed(ch, r.tick) {
		promise, why := "G15", "nothing happened to its shard"
		if s := c.shard(ch.ref.Shard); len(s.bad) > 0 && !s.bad[c.keys.Entry(ch.ref)] {
			promise, why = "G19", fmt.Sprintf("another record of its shard cannot be read: %s", slices.Sorted(maps.Keys(s.bad))[0])
		}
		c.breachOf(promise, ch.ref, r.tick, key, "run %s was decided %s late, and %s", ch.id, milliseconds(late), why)
	}
}

// healed is from when on a tick could be decided: its own time, or the end of
// the faults that it fell into, one of which may begin before another's effects
// are over.
func (c *checker) healed(tick int64) int64 {
	from := tick
	for _, f := range c.opts.Faults {
		if f.From.UnixMilli() <= from+c.opts.Converge.Milliseconds() {
			from = max(from, f.To.UnixMilli())
		}
	}
	return from
}

// undisturbed reports whether a shard had, from before a tick on, one owner with
// one session, its task no new schedule, and no fault was near.
func (c *checker) undisturbed(ch *runChange, tick int64) bool {
	s, t := c.shard(ch.ref.Shard), c.task(ch.ref)
	n, present := c.nodes[s.owner.Node]
	if !present || t.entry == nil || !s.opened || tick <= ms(s.owner.Since) || tick <= n.joined || s.owner.Since.IsZero() || n.joined == 0 {
		return false
	}
	quiet := cmp.Or(c.opts.Converge, DefaultConverge)
	for _, f := range c.opts.Faults {
		if tick >= f.From.Add(-time.Second).UnixMilli() && tick <= f.To.Add(quiet).UnixMilli() {
			return false
		}
	}
	return true
}

// endOwners checks, if the cluster is to have settled, that every shard has an
// owner that is present (G16).
func (c *checker) endOwners() {
	if !c.opts.Settled {
		return
	}
	for id := range max(c.cluster, len(c.shards)) {
		s := c.shard(id)
		if _, present := c.nodes[s.owner.Node]; s.owner.Node == "" || !present {
			c.breach("G16", c.keys.Owner(id), "at the end shard %d has no owner that is present (it says %q)", id, s.owner.Node)
		}
	}
}

// endGone checks that nothing is left of nodes that were drained (G20).
func (c *checker) endGone() {
	for _, node := range c.opts.Gone {
		for _, key := range slices.Sorted(maps.Keys(c.live)) {
			if key == c.keys.Node(node) || strings.HasPrefix(key, c.keys.Inbox(node)) {
				c.breach("G20", key, "node %s was drained, and this is left of it", node)
			}
		}
		for id, s := range c.shards {
			if s.owner.Node == node {
				c.breach("G20", c.keys.Owner(id), "node %s was drained, and owns shard %d", node, id)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(c.candidates)) {
			if c.candidates[key] == node {
				c.breach("G20", key, "node %s was drained, and is still a candidate for leader", node)
			}
		}
	}
}
