package check

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// entryTracker takes entries from version to version: it has each change judged, and applies it.
// The ticks of a task are judged whenever its schedule, or its life, ends (G4).
type entryTracker struct {
	judge
	fences    *fenceJudge
	counters  *counterJudge
	retention *retentionJudge
	gaps      *gapJudge
}

// applyEntries applies changes of entries, and judges the ticks of those that
// they end (G4).
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
		case t.entry == nil || (!ch.unreadable && t.entry.UID != ch.entry.UID):
			et.gaps.checkDecided(t, et.cluster.decidedUpTo(t))
			et.beginTask(t, s, ch)
		default:
			et.nextVersion(d, t, s, ch)
		}
	}
}

// beginTask takes a new task, whose ticks begin after its from, or one of the
// first list, whose past cannot be judged.
func (et *entryTracker) beginTask(t *taskHistory, s *shardState, ch *entryChange) {
	t.entry = &entryState{Entry: ch.entry, create: ch.create, mod: ch.mod}
	inc := t.incarnationOf(ch.entry.UID)
	t.entry.incarnation = inc
	t.entry.ticks = et.timingOf(t.ref, ch)
	inc.countingSince = ch.mod
	inc.epoch = scheduleEpoch{ticks: t.entry.ticks, start: t.entry.decidedUpTo(t.ref, s.watermark, s.watermarkMod), rev: ch.mod}
	inc.epoch.silenceUntil(pausedUntil(ch.entry))
}

// nextVersion takes a new version of an entry.
func (et *entryTracker) nextVersion(d *delta, t *taskHistory, s *shardState, ch *entryChange) {
	old := *t.entry
	inc := old.incarnation

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

	next := &entryState{Entry: ch.entry, create: ch.create, mod: ch.mod, incarnation: inc}
	if sameTicks(old.Entry, ch.entry) && (inc.epoch.ticks == nil) == (ch.unreadable || !hasTicks(ch.entry)) {
		next.ticks = old.ticks
		t.entry = next
		return
	}

	et.checkRevisedKey(d, t, ch)
	decided := old.decidedUpTo(t.ref, s.watermark, s.watermarkMod)
	if _, edited := d.specs[withoutShard(t.ref)]; !edited && usedUp(ch.entry) && !usedUp(old.Entry) { // by the tick that its from says
		decided = max(decided, unixMS(ch.entry.From))
	}

	et.gaps.checkDecided(t, decided)
	next.ticks = et.timingOf(t.ref, ch)
	t.entry = next
	inc.epoch = scheduleEpoch{
		ticks: next.ticks, start: max(unixMS(ch.entry.From), decided), rev: ch.mod,
	}

	// Of a pause that ran to its end, and is cleared afterwards, the silence stays.
	if until := pausedUntil(old.Entry); !ch.entry.Paused && unixMS(ch.entry.From) == unixMS(old.From) {
		inc.epoch.silenceUntil(until)
	}

	inc.epoch.silenceUntil(pausedUntil(ch.entry))
}

// checkRevisedKey checks that an edit which may give a task new ticks tells the shard's
// owner so, by the key that its commits compare (G4).
func (et *entryTracker) checkRevisedKey(d *delta, t *taskHistory, ch *entryChange) {
	if _, edited := d.specs[withoutShard(t.ref)]; !edited || ch.unreadable || t.entry.ticks == nil && hasTicks(t.entry.Entry) || d.revised[t.ref.Shard] {
		return
	}

	old, next := t.entry.Entry, ch.entry
	more := !hasTicks(old) || !old.Timing().Same(next.Timing()) || !old.Anchor.Equal(next.Anchor.Time) ||
		old.Paused && (!next.Paused || pausedUntil(next) < pausedUntil(old))
	if hasTicks(next) && more {
		et.breachTask("G4", t.ref, 0, ch.key, "an edit gives the task ticks, and %s is not written with it", et.keys.Revised(t.ref.Shard))
	}
}

// timingOf is the timing of an entry; nil if it has no ticks.
func (et *entryTracker) timingOf(ref record.Ref, ch *entryChange) *timing {
	if ch.unreadable || !hasTicks(ch.entry) {
		return nil
	}

	t, err := newTiming(ch.entry)
	if err != nil {
		et.addNote("the schedule of %s cannot be read and has no ticks: %v", ref, err)
		return nil
	}

	if !t.fromOracle {
		et.addNote("the ticks of %q in %s are package schedule's word", []string(ch.entry.Schedule), ch.entry.Timezone)
	}

	return t
}
