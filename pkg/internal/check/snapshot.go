package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Snapshot judges the state at one moment, without a recording: one list of the prefix, as List returns it. Every
// record can be read and is consistent with its place. No run is in two places, and no tick has two outcomes. Every
// decided tick has an outcome, as far back as the history has not been trimmed. With Options.Until, all ticks up to
// then are decided.
//
// Snapshot sees far less than Check: not who wrote what, not in which order, and nothing that was deleted. Where
// the history may have been trimmed, it judges only what is newer than the first end on record.
func Snapshot(keys record.Keys, events []Event, opts Options) Report {
	c := newChecker(keys, opts)

	if len(events) == 0 {
		c.addNote("there is nothing below %s", keys.Root())
		return c.findings.buildReport(c.stats)
	}

	// The list becomes the state of the cluster, which also judges the runs' places and their ticks.
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

// snapshotJudge judges what must be consistent at a single revision. It has all judges of Check, of which it uses
// those that need no order of events.
type snapshotJudge struct {
	*checker
	keys record.Keys
}

// checkCluster checks that every shard has a watermark. Shards without an owner that is present are only noted,
// because a list may be taken in the middle of a failover.
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

// checkSpecs checks that every spec has an entry.
func (j *snapshotJudge) checkSpecs(d *delta) {
	specs := maps.Clone(d.specs)

	for ref := range d.entries {
		delete(specs, withoutShard(ref))
	}

	for _, ref := range slices.SortedFunc(maps.Keys(specs), compareRefs) {
		j.breachTask("form", ref, 0, j.keys.Spec(ref), "a spec without an entry: it never fires")
	}
}

// checkRun checks that a run's record is consistent with its place.
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

	// The state of a record must be possible in its place.
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

	// The tokens of an attempt that is in an inbox are the keys' create revisions, which checkActive compares.
	if len(ch.puts) == 0 {
		j.attempts.checkTokens(ch, r, rec.Attempts, rec.Token, key)
	}

	if r.tick != 0 {
		j.decisions.checkNotEarly(ch, r, rec, key)
	}

	if t.entry == nil || t.entry.UID != rec.UID {
		j.addNote("records of tasks that are gone, to be purged")
	}

	// Count what the history would have counted event by event.
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

// checkTask checks a task's entry and spec, its active runs and its decided ticks.
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

	// Judge the decided ticks from the first one whose record must still exist. finishTask later judges the ticks
	// that are not decided, from where the epoch started before.
	st := &t.entry.incarnation.epoch
	decided := st.start
	st.start = max(j.completeSince(d, t), st.silentUntil)
	st.pauses = ownCounters(t.entry.Entry).Pauses
	if t.entry.Generation > 1 { // the owner may have learned of the new version late
		st.start = max(st.start, unixMS(t.entry.From)+versionSlack)
	}

	j.gaps.checkDecided(t, j.cluster.decidedUpTo(t))
	st.start = decided
}

// versionSlack is how far the from of a new version may have been behind the watermark when it was written, in ms.
// It is more than the clocks of two nodes may differ.
const versionSlack = 5000

// completeSince returns the instant after which every tick up to the watermark must have a record: the entry's
// from, or the first end on record if other records may have been trimmed. Trims keep what ended last. So a trimmed
// record ended before those that are left, and its tick was before that.
func (j *snapshotJudge) completeSince(d *delta, t *taskHistory) int64 {
	const slack = 2500 // the clocks of different nodes give the ends

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

	// An earlier version of the task may have kept fewer records.
	if kept >= t.entry.History.Keep || (kept > 0 && t.entry.Generation > 1) {
		return max(from, first+slack)
	}

	return from
}

// checkActive checks that the active attempts of a task have distinct tokens (G11), and that they do not overlap
// against the policy (G8).
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

	// An earlier policy may have allowed attempts that are older than the current entry.
	if len(t.active) > 1 && newest > t.entry.mod && t.entry.Overlap != task.OverlapAllow {
		j.breachTask("G8", t.ref, 0, "", "run %s was started beside another, and overlap is %q", seen[newest], t.entry.Overlap)
	}
}
