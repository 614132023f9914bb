package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Snapshot judges what is there at one moment, when nothing was recorded: one
// list of the prefix, as List reads it. Every record is read and is consistent
// with its place; no run is in two places and no tick has two outcomes; every
// decided tick has an outcome, as far back as history has not been trimmed; with
// Options.Until all ticks up to then are decided.
//
// It sees far less than Check: not who wrote what, nor in which order, and
// nothing that was deleted. Where history may have been trimmed it judges only
// what is newer than the first end on record.
func Snapshot(keys store.Keys, events []Event, opts Options) Report {
	c := newChecker(keys, opts)
	if len(events) == 0 {
		c.note("there is nothing below %s", keys.Root())
		return c.report()
	}
	c.revision = events[0].Revision
	d := c.parse(events)
	c.list(d)
	c.auditCluster(events, d)
	c.auditSpecs(d)
	for _, ch := range d.sortedRuns() {
		c.auditRun(ch)
	}
	for _, ref := range slices.SortedFunc(maps.Keys(c.tasks), compareRefs) {
		t := c.tasks[ref]
		if t.entry != nil {
			c.stats.Tasks++
		}
		c.auditTask(d, t)
		c.endTicks(t)
		c.endRuns(t)
	}
	return c.report()
}

// auditCluster checks what every shard has to have.
func (c *checker) auditCluster(events []Event, d *delta) {
	var cluster task.Cluster
	i := slices.IndexFunc(events, func(e Event) bool { return e.Key == c.keys.Cluster() })
	if i < 0 {
		c.note("there is no record of the cluster")
		return
	}
	if err := json.Unmarshal(events[i].Value, &cluster); err != nil {
		c.unreadable(events[i], err)
		return
	}
	for id := range cluster.Shards {
		if d.marks[id] == nil {
			c.breach("G5", c.keys.Watermark(id), "the shard has no watermark")
		}
		if s := c.shard(id); s.owner.Node == "" {
			c.note("shards without an owner")
		} else if _, present := c.nodes[s.owner.Node]; !present {
			c.note("shards whose owner is absent")
		}
	}
}

// auditSpecs checks that every spec has its entry.
func (c *checker) auditSpecs(d *delta) {
	specs := maps.Clone(d.specs)
	for ref := range d.entries {
		delete(specs, nameOf(ref))
	}
	for _, ref := range slices.SortedFunc(maps.Keys(specs), compareRefs) {
		c.breachOf("form", ref, 0, c.keys.Spec(ref), "a spec without an entry: it never fires")
	}
}

// auditRun checks one run's record against its place.
func (c *checker) auditRun(ch *runChange) {
	t := c.task(ch.ref)
	r := t.runs[ch.id]
	rec, key := ch.record()
	if r == nil || rec == nil {
		return
	}
	wrong := func(format string, args ...any) {
		c.breachOf("state", ch.ref, r.tick, key, "run %s %s", ch.id, fmt.Sprintf(format, args...))
	}
	switch {
	case ch.ended != nil && !rec.State.Final():
		wrong("is in history as %q", rec.State)
	case ch.ended == nil && len(ch.puts) > 0 && !rec.State.Active():
		wrong("is in an inbox as %q", rec.State)
	case ch.ended == nil && len(ch.puts) == 0 && rec.State != task.Queued:
		wrong("waits as %q", rec.State)
	}
	if scheduled(rec.Trigger) && ch.id != task.RunID(rec.ScheduledTime.Time, rec.UID) {
		c.breachOf("form", ch.ref, r.tick, key, "run %s does not have the id of its tick", ch.id)
	}
	if len(ch.puts) == 0 {
		c.judgeTokens(ch, r, rec.Attempts, rec.Token, key)
	}
	if r.tick != 0 {
		c.judgeEarly(ch, r, rec, key)
	}
	if t.entry == nil || t.entry.UID != rec.UID {
		c.note("records of tasks that are gone, to be purged")
	}
	if ch.ended != nil {
		c.stats.end(r, ch.ended)
	}
	if scheduled(r.trigger) {
		c.stats.decide(r, rec)
		if rec.State.Final() && rec.State != task.Skipped && rec.State != task.Missed {
			c.stats.Runs++
		}
	} else {
		c.stats.Manual++
	}
}

// auditTask checks a task's entry and spec, its active runs, and its ticks.
func (c *checker) auditTask(d *delta, t *tasked) {
	_, hasSpec := d.specs[nameOf(t.ref)]
	switch {
	case t.entry == nil:
		return
	case !hasSpec:
		c.breachOf("form", t.ref, 0, c.keys.Entry(t.ref), "an entry without a spec")
	}
	c.auditActive(t)
	if t.entry.line.stretch.ticks == nil {
		return
	}
	st := &t.entry.line.stretch
	decided := st.start // where the next judgement begins: all before it is decided
	st.start = max(c.auditFrom(d, t), st.silent)
	st.pauses = own(t.entry.Entry).Pauses
	if t.entry.Generation > 1 { // the owner may not have known of it at once
		st.start = max(st.start, ms(t.entry.From)+unknownMark)
	}
	c.endStretch(t, c.decided(t))
	st.start = decided
}

// unknownMark is how far behind the watermark the from of a new version may have been
// when it was written, in ms: clocks of nodes differ by no more.
const unknownMark = 5000

// auditFrom is the instant after which every tick up to the watermark must have
// a record: the entry's from, or the first end on record where others may have been
// trimmed. Trims keep what ended last, so a record that is gone ended before those
// that are left, and its tick was before that.
func (c *checker) auditFrom(d *delta, t *tasked) int64 {
	const slack = 2500 // ends are by clocks of different nodes

	from := ms(t.entry.From)
	var kept int
	var first int64

	for id, r := range t.runs {
		if !r.ended {
			continue
		}
		if e := d.run(t.ref, id).ended; e != nil && (first == 0 || ms(e.EndedAt) < first) {
			first = ms(e.EndedAt)
		}
		kept++
	}

	// A task that was updated may have kept fewer before.
	if kept >= t.entry.History.Keep || (kept > 0 && t.entry.Generation > 1) {
		return max(from, first+slack)
	}
	return from
}

// auditActive checks the attempts of a task that are in inboxes (G8, G11).
func (c *checker) auditActive(t *tasked) {
	seen := map[int64]string{}
	var newest int64
	for _, id := range slices.Sorted(maps.Keys(t.active)) {
		for _, a := range t.active[id].in {
			if other, ok := seen[a.create]; ok {
				c.breachOf("G11", t.ref, 0, "", "runs %s and %s have the same token %d", other, id, a.create)
			}
			seen[a.create] = id
			newest = max(newest, a.create)
		}
	}
	// An attempt that is older than the policy may have been allowed.
	if len(t.active) > 1 && newest > t.entry.mod && t.entry.Overlap != task.OverlapAllow {
		c.breachOf("G8", t.ref, 0, "", "run %s was started beside another, and overlap is %q", seen[newest], t.entry.Overlap)
	}
}
