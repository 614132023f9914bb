package check

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/test/check/oracle"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// entryTracker follows entries from version to version: it has each change judged, and applies it. Whenever the
// schedule of a task or the task itself ends, the ticks of that epoch are judged (G4).
type entryTracker struct {
	judge
	fences    *fenceJudge
	counters  *counterJudge
	retention *retentionJudge
	gaps      *gapJudge
}

// applyEntries judges and applies changes of entries. An entry that changes without its spec was changed by the
// owner, so the change must be part of a commit (G1).
func (et *entryTracker) applyEntries(d *delta) {
	for _, ref := range slices.SortedFunc(maps.Keys(d.entries), compareRefs) {
		ch, t, s := d.entries[ref], et.cluster.taskOf(ref), et.cluster.shardOf(ref.Shard)
		if t.entry != nil && !ch.deleted && !ch.unreadable && d.specs[withoutShard(ref)] == nil {
			et.fences.requireCommit(d, ref, 0, ch.key, "an entry without its spec")
		}

		switch {
		case ch.deleted:
			et.retention.checkTTLDeletion(d, t)
			et.gaps.checkDecided(t, et.cluster.decidedUpTo(t))
			t.entry = nil
		// A new task, or another one under the same name. The ticks of the former task end here.
		case t.entry == nil || (!ch.unreadable && t.entry.UID != ch.entry.UID):
			et.gaps.checkDecided(t, et.cluster.decidedUpTo(t))
			et.beginTask(t, s, ch)
		default:
			et.nextVersion(d, t, s, ch)
		}
	}
}

// beginTask begins a new task, whose ticks start after its from. The ticks of a task of the first list that are
// already decided are not judged.
func (et *entryTracker) beginTask(t *taskHistory, s *shardState, ch *entryChange) {
	t.entry = &entryState{Entry: ch.entry, create: ch.create, mod: ch.mod}
	inc := t.incarnationOf(ch.entry.UID)
	t.entry.incarnation = inc
	t.entry.ticks = et.timingOf(t.ref, ch)
	inc.countingSince = ch.mod
	inc.epoch = scheduleEpoch{ticks: t.entry.ticks, start: t.entry.decidedUpTo(t.ref, s.watermark, s.watermarkMod), rev: ch.mod}
	inc.epoch.silenceUntil(pausedUntil(ch.entry))
}

// nextVersion judges and applies a new version of an entry.
func (et *entryTracker) nextVersion(d *delta, t *taskHistory, s *shardState, ch *entryChange) {
	old := *t.entry
	inc := old.incarnation

	// An entry that cannot be read has no ticks. Continue with the former version as if it were paused.
	if ch.unreadable {
		ch.entry, ch.entry.Paused, ch.entry.Own = old.Entry, true, nil
	}

	if unixMS(ch.entry.From) < unixMS(old.From) {
		et.breachTask("G5", t.ref, 0, ch.key, "from goes back from %s to %s", formatTime(old.From.Time), formatTime(ch.entry.From.Time))
	}

	et.counters.checkEntry(d, t, ch)

	if _, edited := d.specs[withoutShard(t.ref)]; edited && !ch.unreadable && countsAnew(old.Entry, ch.entry) {
		inc.countingSince = et.cluster.revision
	}

	// A version with the same ticks continues the epoch. Otherwise the ticks of the epoch that ends are judged, and
	// a new epoch begins.
	next := &entryState{Entry: ch.entry, create: ch.create, mod: ch.mod, incarnation: inc}
	if sameTicks(old.Entry, ch.entry) && (inc.epoch.ticks == nil) == (ch.unreadable || !hasTicks(ch.entry)) {
		next.ticks = old.ticks
		t.entry = next
		return
	}

	et.checkRevisedKey(d, t, ch)

	// The epoch ends where its ticks are decided. Ticks that are due but not decided yet belong to the next
	// version.
	decided := old.decidedUpTo(t.ref, s.watermark, s.watermarkMod)

	// The commit that counts the last allowed run decides its tick by the entry's from, and the watermark may be
	// behind.
	if _, edited := d.specs[withoutShard(t.ref)]; !edited && usedUp(ch.entry) && !usedUp(old.Entry) {
		decided = max(decided, unixMS(ch.entry.From))
	}

	et.gaps.checkDecided(t, decided)
	next.ticks = et.timingOf(t.ref, ch)
	t.entry = next
	inc.epoch = scheduleEpoch{
		ticks: next.ticks, start: max(unixMS(ch.entry.From), decided), rev: ch.mod,
	}

	// When a pause that ran to its end is cleared later, the ticks that it removed stay removed.
	if until := pausedUntil(old.Entry); !ch.entry.Paused && unixMS(ch.entry.From) == unixMS(old.From) {
		inc.epoch.silenceUntil(until)
	}

	inc.epoch.silenceUntil(pausedUntil(ch.entry))
}

// checkRevisedKey checks that an edit which may give a task new ticks also writes the shard's revised key (G4).
// Commits that move the watermark compare that key. Without it, an owner that has not seen the edit could move the
// watermark past the new ticks.
func (et *entryTracker) checkRevisedKey(d *delta, t *taskHistory, ch *entryChange) {
	if _, edited := d.specs[withoutShard(t.ref)]; !edited || ch.unreadable || t.entry.ticks == nil && hasTicks(t.entry.Entry) || d.revised[t.ref.Shard] {
		return
	}

	old, next := t.entry.Entry, ch.entry

	// The edit may give new ticks if there were none, if schedule or anchor differ, or if a pause ends earlier.
	more := !hasTicks(old) || !old.Timing().Same(next.Timing()) || !old.Anchor.Equal(next.Anchor.Time) ||
		old.Paused && (!next.Paused || pausedUntil(next) < pausedUntil(old))
	if hasTicks(next) && more {
		et.breachTask("G4", t.ref, 0, ch.key, "an edit gives the task new ticks, but does not write %s", et.keys.Revised(t.ref.Shard))
	}
}

// timingOf returns the timing of an entry, or nil if the entry has no ticks.
func (et *entryTracker) timingOf(ref record.Ref, ch *entryChange) *oracle.Timing {
	if ch.unreadable || !hasTicks(ch.entry) {
		return nil
	}

	t, err := oracle.NewTiming(ch.entry)
	if err != nil {
		et.addNote("the schedule of %s cannot be read and has no ticks: %v", ref, err)
		return nil
	}

	if t.UsesSchedule() {
		et.addNote("the ticks of %q in %s were computed by package schedule, not by the oracle", []string(ch.entry.Schedule), ch.entry.Timezone)
	}

	return t
}

// usedUp reports whether an entry has had as many runs as max_runs allows.
func usedUp(e task.Entry) bool { return e.MaxRuns > 0 && ownCounters(e).Runs >= e.MaxRuns }

// ownCounters returns the counts that the owner keeps in an entry; zero values if it has none yet.
func ownCounters(e task.Entry) task.Own {
	if e.Own == nil {
		return task.Own{}
	}
	return *e.Own
}

// pausedUntil returns the end of a pause in ms, until when a paused entry has no ticks; 0 if it is not paused, or
// its pause has no end.
func pausedUntil(e task.Entry) int64 {
	until, _ := e.Silence()
	return unixMS(until)
}

// hasTicks reports whether an entry has ticks: it is not paused without an end, and has runs left.
func hasTicks(e task.Entry) bool { return e.Ticks() && !usedUp(e) }

// sameTicks reports whether two versions of an entry have the same ticks, so that they belong to one epoch.
func sameTicks(a, b task.Entry) bool {
	return a.Timing().Same(b.Timing()) && a.Anchor.Equal(b.Anchor.Time) && a.Paused == b.Paused &&
		pausedUntil(a) == pausedUntil(b) && hasTicks(a) == hasTicks(b)
}
