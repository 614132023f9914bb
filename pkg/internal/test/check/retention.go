package check

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// keptVersions is how many former versions of a spec are kept.
const keptVersions = 10

// withoutShard returns a task's name without its shard. Keys of specs, versions and tombstones do not contain the
// shard.
func withoutShard(ref record.Ref) record.Ref {
	return record.Ref{Namespace: ref.Namespace, Name: ref.Name}
}

// retentionJudge judges what the cluster keeps of the past: former versions of specs, tombstones of deleted tasks,
// and dead-letter runs (G25). Most of its rules apply only with Options.Remembered.
type retentionJudge struct {
	judge
	kept map[string]int // by the uid of a task: how few records it has ever kept. A trim may be asked for by an earlier setting.
}

// checkRevision judges whether a revision keeps what it overwrites or deletes.
func (j *retentionJudge) checkRevision(d *delta) {
	for v, ch := range d.versions {
		j.checkVersion(d, v, ch)
	}

	for k, ch := range d.dead {
		if ch.dismissed && j.cluster.taskOf(k.ref).dead[k.id] != 0 {
			continue // a dismissal of a dead run: the record is deleted next
		}

		if r := d.runs[k]; ch.state != "" && (r == nil || r.ended == nil || r.ended.State != ch.state || !isFailure(ch.state) && !isUnfinishedFlow(r.ended)) {
			j.breachTask("G25", k.ref, 0, ch.key, "run %s is dead as %s, but it has no such end in this revision", k.id, ch.state)
		}
	}

	for ref, ch := range d.ledgers {
		j.checkLastSuccess(d, j.cluster.taskOf(ref), ch.deleted)
		if j.opts.Remembered {
			j.checkTrim(d, j.cluster.taskOf(ref), ch.deleted)
		}
	}

	for _, ch := range d.entries {
		keep := ch.entry.History.Keep
		if ch.entry.History.Record == task.RecordFailures {
			keep = min(keep, 1) // successes are trimmed at once, except for the newest record
		}
		if least, known := j.kept[ch.entry.UID]; !ch.deleted && (!known || keep < least) {
			j.kept[ch.entry.UID] = keep
		}
	}

	if !j.opts.Remembered {
		return
	}

	for _, ref := range slices.SortedFunc(maps.Keys(d.specs), compareRefs) {
		now := d.specs[ref]
		was, there := j.cluster.kept.specs[ref]
		tomb := d.tombstones[ref]

		// A delete leaves a tombstone, an update keeps the former version, and a create removes the tombstone of
		// that name.
		switch {
		case now.value == nil && there:
			if tomb == nil && j.opts.Full {
				continue // etcd may have been full, and accepted only deletes
			}

			if tomb == nil || tomb.deleted || tomb.UID != was.uid {
				j.breachTask("G25", ref, 0, now.key, "the task is deleted without a tombstone")
			}
		case there && was.uid == now.uid:
			if v := d.versions[versionRef{ref, was.generation}]; v == nil || v.value == nil {
				j.breachTask("G25", ref, 0, now.key, "generation %d replaces %d, which is not kept", now.generation, was.generation)
			}

			if now.generation <= was.generation {
				j.breachTask("G25", ref, 0, now.key, "generation %d replaces %d", now.generation, was.generation)
			}
		case !there && now.value != nil:
			if _, deleted := j.cluster.kept.tombstones[ref]; deleted && (tomb == nil || !tomb.deleted) {
				j.breachTask("G25", ref, 0, now.key, "the task is created again, but its tombstone remains")
			}
			j.checkUndelete(ref, now)
		}
	}
}

// checkUndelete checks that a task which comes back after its deletion is the one that was deleted, apart from a pause that has
// ended since.
func (j *retentionJudge) checkUndelete(ref record.Ref, now *specChange) {
	back, err := record.DecodeTask(now.value, 0)
	if err != nil || back.Change != task.ChangeUndeleted {
		return
	}

	gone, deleted := j.cluster.kept.tombstones[ref]
	if !deleted || gone.Spec == nil {
		j.breachTask("G25", ref, 0, now.key, "the task is undeleted, but its tombstone has no copy")
		return
	}

	was := *gone.Spec
	if was.Paused && !back.Paused && !was.PausedUntil.IsZero() && back.CreatedAt.After(was.PausedUntil.Time) {
		was.Paused, was.PausedUntil, was.PauseReason = false, task.Time{}, ""
	}
	if diff := task.Differences(was, back.Spec); len(diff) > 0 {
		j.breachTask("G25", ref, 0, now.key, "the task is undeleted with other fields: %s", strings.Join(diff, "; "))
	}
	if back.UID == gone.UID {
		j.breachTask("G25", ref, 0, now.key, "the task is undeleted with the uid of the deleted one")
	}
}

// checkTrim checks that a trim leaves as many records of a task as it keeps.
func (j *retentionJudge) checkTrim(d *delta, t *taskHistory, deleted []deletedRecord) {
	if e := d.entries[t.ref]; t.entry == nil || e != nil && e.deleted {
		return
	}

	gone := map[string]bool{}
	for _, rec := range deleted {
		if r := t.runs[rec.run]; r != nil && r.incarnation == t.entry.incarnation && !rec.late {
			gone[rec.run] = true
		}
	}

	left := 0
	for id, r := range t.runs {
		if r.incarnation == t.entry.incarnation && r.ended && !r.trimmed && !r.purged && !gone[id] && !r.isPart() {
			left++
		}
	}

	if least := j.kept[t.entry.UID]; left < least && len(gone) > 0 {
		j.breachTask("G25", t.ref, 0, deleted[0].key, "%d records are deleted and %d are left; the task keeps %d", len(gone), left, least)
	}
}

// checkLastSuccess checks that the record of a task's last success stays as long as a dead run from before it. Without the
// record, readers would take the task for failing.
func (j *retentionJudge) checkLastSuccess(d *delta, t *taskHistory, deleted []deletedRecord) {
	if e := d.entries[t.ref]; t.entry == nil || e != nil && e.deleted {
		return
	}

	inc := t.entry.incarnation
	isLast := func(r *runHistory) bool {
		return r.incarnation == inc && r.state == task.Succeeded && r.endedRev != 0 && r.endedRev == inc.lastSuccess
	}

	gone := map[*runHistory]bool{}
	for _, rec := range deleted {
		if r := t.runs[rec.run]; r != nil && !rec.late {
			gone[r] = true
		}
	}

	for _, rec := range deleted {
		r := t.runs[rec.run]
		if r == nil || rec.late || !isLast(r) {
			continue
		}

		// One revision may record several successes. Any of their records is enough.
		for _, other := range t.runs {
			if isLast(other) && !other.trimmed && !gone[other] {
				return
			}
		}

		for dead, created := range t.dead {
			if created <= r.endedRev && task.RunBelongs(dead, inc.uid) {
				j.breachTask("G25", t.ref, r.tick, rec.key, "the record of the last success is deleted, but run %s, which failed before, is still dead", dead)
			}
		}
	}
}

// checkVersion judges a former version that is written or deleted. It must be the spec that the revision
// overwrites, and may be deleted only when keptVersions later ones exist, or with its task.
func (j *retentionJudge) checkVersion(d *delta, v versionRef, ch *versionChange) {
	spec, there := j.cluster.kept.specs[v.ref]
	next := d.specs[v.ref]

	// An edit keeps the spec that it overwrites, in the same revision.
	if ch.value != nil {
		if !there || next == nil || spec.generation != v.generation || !sameSpec(spec.value, ch.value) {
			j.breachTask("G25", v.ref, 0, ch.key, "generation %d is kept, but this revision does not overwrite it", v.generation)
		}
		return
	}

	// A version is deleted while its task exists, so enough later ones must remain.
	if there && (next == nil || next.value != nil) {
		left := 0
		for g := range j.cluster.kept.versions[v.ref] {
			if g > v.generation {
				left++
			}
		}

		if next != nil {
			left++ // the current version becomes a former one
		}

		if left < keptVersions {
			j.breachTask("G25", v.ref, 0, ch.key, "generation %d is deleted, but only %d later ones are kept", v.generation, left)
		}
	}
}

// isUnfinishedFlow reports whether a run is a workflow that was cancelled, or a retry of one that has not begun: it is dead, so that it can
// be retried.
func isUnfinishedFlow(r *task.Run) bool {
	return r.State != task.Succeeded && r.Fan != nil && r.Fan.Flow != nil
}

// sameSpec compares two specs as JSON, except for the revision, which is not part of what is stored.
func sameSpec(a, b []byte) bool {
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return string(a) == string(b)
	}

	delete(x, "revision")
	delete(y, "revision")

	return reflect.DeepEqual(x, y)
}

// checkKept checks that no more is kept than should be: it must be called after the changes of the revision are
// applied.
func (j *retentionJudge) checkKept(d *delta) {
	if !j.opts.Remembered {
		return
	}

	for ref, s := range d.specs {
		n := len(j.cluster.kept.versions[ref])
		if n > keptVersions {
			j.breachTask("G25", ref, 0, s.key, "%d earlier versions are kept; at most %d are allowed", n, keptVersions)
		}

		if s.value == nil && n > 0 {
			j.breachTask("G25", ref, 0, s.key, "the task is deleted, but %d of its earlier versions remain", n)
		}
	}
}

// checkDeadLetter checks that a run that failed and has no attempt left gets a dead-letter record in the same
// revision, unless somebody ended it on purpose. A cancel that a full etcd could not store is only in the run's end.
func (j *retentionJudge) checkDeadLetter(d *delta, ch *runChange, r *runHistory, taken *inboxRecord) {
	t := j.cluster.taskOf(ch.ref)
	gone := d.entries[ch.ref] != nil && d.entries[ch.ref].deleted
	if !j.opts.Remembered || taken == nil || taken.CancelRequested || ch.ended.CancelledBy != nil || !isFailure(ch.ended.State) || t.entry == nil || t.entry.incarnation != r.incarnation || gone {
		return
	}

	if dead := d.dead[ch.runRef]; dead == nil || dead.state == "" {
		j.breachTask("G25", ch.ref, r.tick, ch.endedKey, "run %s finally ends as %s, but is not among the dead runs", ch.id, ch.ended.State)
	}
}

// checkRetryOf checks that a dead run is retried once: the revision that creates the retry deletes the dead-letter
// record.
func (j *retentionJudge) checkRetryOf(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	if rec.RetryOf == "" {
		return
	}

	of := runRef{ch.ref, rec.RetryOf}
	if dead := d.dead[of]; j.cluster.taskOf(ch.ref).dead[rec.RetryOf] == 0 || dead == nil || dead.state != "" {
		j.breachTask("G25", ch.ref, 0, key, "run %s retries %s, but this revision does not remove that run from the dead runs", ch.id, rec.RetryOf)
	}

	if rec.Trigger != task.TriggerManual {
		j.breachTask("G25", ch.ref, 0, key, "run %s retries %s, but its trigger is %q", ch.id, rec.RetryOf, rec.Trigger)
	}
}

// checkTTLDeletion judges the deletion of a task by its ttl. Its schedule has ended, none of its runs waits or is
// active, and this has been so for as long as the ttl.
func (j *retentionJudge) checkTTLDeletion(d *delta, t *taskHistory) {
	tomb := d.tombstones[withoutShard(t.ref)]
	if t.entry == nil || tomb == nil || tomb.deleted || !deletedByTTL(tomb.tombstone) {
		return
	}

	e, inc := t.entry, t.entry.incarnation
	wrong := func(format string, args ...any) {
		j.breachTask("G25", t.ref, 0, tomb.key, "the task is deleted by its ttl, but "+format, args...)
	}

	if e.TTL == 0 {
		wrong("has no ttl")
		return
	}

	if slices.Contains(e.Schedule, "@manual") {
		wrong("has the schedule @manual")
	}

	if open := t.openRuns(inc); len(open) > 0 {
		wrong("run %s has not ended", open[0].id)
	}

	// The ttl counts from the last end, or from the last tick if that is later.
	since := inc.lastEnd

	if inc.epoch.ticks != nil {
		decided := j.cluster.decidedUpTo(t)
		if at, more := inc.epoch.ticks.NextTick(max(decided, inc.epoch.start)); more {
			wrong("has another tick, %s", formatTime(timeOfMS(at)))
		}
	}

	for at := range inc.outcomes {
		if !e.End.IsZero() {
			at = min(at, unixMS(e.End)) // an edit may let the schedule end before ticks that are decided
		}
		since = max(since, at)
	}

	// The end is by one node's clock and the deletion by another's.
	if at := unixMS(tomb.DeletedAt) + 2*j.opts.Skew.Milliseconds(); at < since+int64(e.TTL)/1e6 {
		wrong("%s had not passed since %s", e.TTL, formatTime(timeOfMS(since)))
	}

	(&restoreJudge{j.judge}).checkTTL(t, tomb.DeletedAt)
}

// deletedByTTL reports whether a tombstone describes a deletion by ttl, which no user requested.
func deletedByTTL(g tombstone) bool { return g.Why == "ttl" || g.DeletedBy.Is(task.PausedByFailures) }
