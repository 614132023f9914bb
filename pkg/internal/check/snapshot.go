package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
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
func Snapshot(keys record.Keys, events []Event, opts Options) Report {
	c := newChecker(keys, opts)

	if len(events) == 0 {
		c.addNote("there is nothing below %s", keys.Root())
		return c.findings.buildReport(c.stats)
	}

	c.setRevision(events[0].Revision)
	d := c.decoder.decodeEvents(events)
	c.applyFirstList(d)

	j := snapshotJudge{checker: c, keys: keys}
	j.checkCluster(events, d)
	j.checkSpecs(d)

	for _, ch := range d.sortedRuns() {
		j.checkRun(ch)
	}

	for _, ref := range slices.SortedFunc(maps.Keys(c.cluster.tasks), compareRefs) {
		t := c.cluster.tasks[ref]
		if t.entry != nil {
			c.stats.Tasks++
		}

		j.checkTask(d, t)
		c.finishTask(t)
	}

	return c.findings.buildReport(c.stats)
}

// snapshotJudge judges one list: what is consistent at a single revision.
type snapshotJudge struct {
	*checker
	keys record.Keys
}

// checkCluster checks what every shard has to have.
func (j *snapshotJudge) checkCluster(events []Event, d *delta) {
	var cluster task.Cluster
	i := slices.IndexFunc(events, func(e Event) bool { return e.Key == j.keys.Cluster() })
	if i < 0 {
		j.addNote("there is no record of the cluster")
		return
	}

	if err := json.Unmarshal(events[i].Value, &cluster); err != nil {
		j.decoder.reportUnreadable(events[i], err)
		return
	}

	for id := range cluster.Shards {
		if d.watermarks[id] == nil {
			j.addViolation("G5", j.keys.Watermark(id), "the shard has no watermark")
		}

		if s := j.cluster.shardOf(id); s.owner.Node == "" {
			j.addNote("shards without an owner")
		} else if _, present := j.cluster.nodes[s.owner.Node]; !present {
			j.addNote("shards whose owner is absent")
		}
	}
}

// checkSpecs checks that every spec has its entry.
func (j *snapshotJudge) checkSpecs(d *delta) {
	specs := maps.Clone(d.specs)

	for ref := range d.entries {
		delete(specs, withoutShard(ref))
	}

	for _, ref := range slices.SortedFunc(maps.Keys(specs), compareRefs) {
		j.breachTask("form", ref, 0, j.keys.Spec(ref), "a spec without an entry: it never fires")
	}
}

// checkRun checks one run's record against its place.
func (j *snapshotJudge) checkRun(ch *runChange) {
	t := j.cluster.taskOf(ch.ref)
	r := t.runs[ch.id]
	rec, key := ch.recordedRun()
	if r == nil || rec == nil {
		return
	}

	wrong := func(format string, args ...any) {
		j.breachTask("state", ch.ref, r.tick, key, "run %s %s", ch.id, fmt.Sprintf(format, args...))
	}

	switch {
	case ch.ended != nil && !rec.State.Final():
		wrong("is in history as %q", rec.State)
	case ch.ended == nil && len(ch.puts) > 0 && !rec.State.Active():
		wrong("is in an inbox as %q", rec.State)
	case ch.ended == nil && len(ch.puts) == 0 && rec.State != task.Queued:
		wrong("waits as %q", rec.State)
	}

	if isTickTrigger(rec.Trigger) && ch.id != task.RunID(rec.ScheduledTime.Time, rec.UID) {
		j.breachTask("form", ch.ref, r.tick, key, "run %s does not have the id of its tick", ch.id)
	}

	if len(ch.puts) == 0 {
		j.attempts.checkTokens(ch, r, rec.Attempts, rec.Token, key)
	}

	if r.tick != 0 {
		j.decisions.checkNotEarly(ch, r, rec, key)
	}

	if t.entry == nil || t.entry.UID != rec.UID {
		j.addNote("records of tasks that are gone, to be purged")
	}

	if ch.ended != nil {
		j.stats.countOutcome(r, ch.ended)
	}

	if isTickTrigger(r.trigger) {
		j.stats.countDecision(r, rec)
		if rec.State.Final() && rec.State != task.Skipped && rec.State != task.Missed {
			j.stats.Runs++
		}
	} else {
		j.stats.Manual++
	}
}

// checkTask checks a task's entry and spec, its active runs, and its ticks.
func (j *snapshotJudge) checkTask(d *delta, t *taskHistory) {
	_, hasSpec := d.specs[withoutShard(t.ref)]
	switch {
	case t.entry == nil:
		return
	case !hasSpec:
		j.breachTask("form", t.ref, 0, j.keys.Entry(t.ref), "an entry without a spec")
	}

	j.checkActive(t)

	if t.entry.incarnation.epoch.ticks == nil {
		return
	}

	st := &t.entry.incarnation.epoch
	decided := st.start // where the next judgement begins: all before it is decided
	st.start = max(j.completeSince(d, t), st.silentUntil)
	st.pauses = ownCounters(t.entry.Entry).Pauses
	if t.entry.Generation > 1 { // the owner may not have known of it at once
		st.start = max(st.start, unixMS(t.entry.From)+versionSlack)
	}

	j.gaps.checkDecided(t, j.cluster.decidedUpTo(t))
	st.start = decided
}

// versionSlack is how far behind the watermark the from of a new version may have been
// when it was written, in ms: clocks of nodes differ by no more.
const versionSlack = 5000

// completeSince is the instant after which every tick up to the watermark must have
// a record: the entry's from, or the first end on record where others may have been
// trimmed. Trims keep what ended last, so a record that is gone ended before those
// that are left, and its tick was before that.
func (j *snapshotJudge) completeSince(d *delta, t *taskHistory) int64 {
	const slack = 2500 // ends are by clocks of different nodes

	from := unixMS(t.entry.From)
	var kept int
	var first int64

	for id, r := range t.runs {
		if !r.ended {
			continue
		}

		if e := d.runChangeOf(t.ref, id).ended; e != nil && (first == 0 || unixMS(e.EndedAt) < first) {
			first = unixMS(e.EndedAt)
		}

		kept++
	}

	// A task that was updated may have kept fewer before.
	if kept >= t.entry.History.Keep || (kept > 0 && t.entry.Generation > 1) {
		return max(from, first+slack)
	}

	return from
}

// checkActive checks the attempts of a task that are in inboxes (G8, G11).
func (j *snapshotJudge) checkActive(t *taskHistory) {
	seen := map[int64]string{}
	var newest int64
	for _, id := range slices.Sorted(maps.Keys(t.active)) {
		for _, a := range t.active[id].inboxes {
			if other, ok := seen[a.create]; ok {
				j.breachTask("G11", t.ref, 0, "", "runs %s and %s have the same token %d", other, id, a.create)
			}
			seen[a.create] = id
			newest = max(newest, a.create)
		}
	}

	// An attempt that is older than the policy may have been allowed.
	if len(t.active) > 1 && newest > t.entry.mod && t.entry.Overlap != task.OverlapAllow {
		j.breachTask("G8", t.ref, 0, "", "run %s was started beside another, and overlap is %q", seen[newest], t.entry.Overlap)
	}
}
