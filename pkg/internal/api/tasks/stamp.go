package tasks

import (
	"errors"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// An edit that changes the ticks of a task writes the time from which it applies: the entry's from, the version's
// updated_at, and the beginning or the end of a pause. Ticks up to this stamp belong to the previous version, and later ones
// to the new version.
//
// The stamp is a time of this node's clock. Until etcd applies the write, the owner may decide further ticks of the
// previous version, and it may pass ticks of the new one. So the write fails if the watermark of the shard has reached the
// first tick of either version after the stamp (Stored.MarkBy), and is repeated with a later stamp. Ticks of other tasks do
// not make it fail.
//
// A task whose ticks follow each other faster than etcd answers could never be changed this way. After maxRaces failures,
// the write omits the comparison, and some ticks after the stamp may have been decided before the change.
//
// With jitter, the write never omits it. The same tick may be due at another time in the new version, so a tick
// that is decided could be due again (G3), and a tick that the watermark has passed would be lost (G4). The store's key
// revised does not prevent this: it stops commits that come after the edit, and these came before it.

const (
	// maxRaces is how many writes of an edit may fail because of a tick before one is made without the comparison.
	maxRaces = 2
	// maxClockLead is how far the watermark may be ahead of this node's clock to be used as a stamp. Each of two clocks is
	// wrong by up to 2 s before its node stops using it.
	maxClockLead = 4 * time.Second
)

// tickRaces counts the writes of one edit that have failed because of a tick. It belongs to one task.
type tickRaces struct {
	// grouped is set if the writes share their transactions with edits of other tasks.
	grouped bool

	lost int
	// tried is what the last write compared. Without a markBy, it did not compare the watermark.
	tried struct {
		spec, entry int64 // mod revisions
		markBy      task.Time
	}
}

// noteRead compares the task, as read for the next attempt, with that of the previous attempt. If it is unchanged, a tick made
// the previous attempt fail. In a group, that may have been a tick of another task, unless this task has had one by now.
func (r *tickRaces) noteRead(old store.Stored, now task.Time) {
	tried := r.tried
	r.tried.markBy = task.Time{}

	switch {
	case tried.markBy.IsZero(), tried.spec != old.Task.Revision, tried.entry != old.EntryMod:
	case r.grouped && tried.markBy.After(now.Time):
	default:
		r.lost++
	}
}

// markBy returns the time up to which the watermark may have advanced when e replaces old. Zero means that there is no limit.
func (r *tickRaces) markBy(old store.Stored, e task.Entry, stamp task.Time) (by task.Time) {
	if r.lost < maxRaces || movesDueTimes(old.Entry, e) {
		by = lastBeforeTicks(stamp, old.Entry, e)
	}

	r.tried.spec, r.tried.entry, r.tried.markBy = old.Task.Revision, old.EntryMod, by

	return by
}

// stampEdit returns the time stamp of the next attempt to write spec over old. This is the time of this node's clock. The
// owner's clock may be ahead, and has then decided later ticks already. So after a failure, the stamp is the time of the watermark if that is later.
func (h *Handlers) stampEdit(c *httpapi.Call, old store.Stored, spec task.Spec, r *tickRaces) (task.Time, error) {
	now := h.Now.Stamp()
	r.noteRead(old, now)
	jitter := old.Entry.Jitter > 0 || spec.Jitter > 0

	// A group does not read the watermarks of all its tasks. Tasks that fail again are written one by one.
	if r.lost == 0 || r.grouped && !jitter {
		return now, nil
	}

	mark, err := h.Store.Mark(c.Context(), old.Ref.Shard)
	switch {
	// Nobody decides the ticks of a damaged shard, so there is nothing to compare. Its tasks can still be changed.
	case errors.Is(err, store.ErrDamaged) && !jitter:
		r.lost = maxRaces
		return now, nil
	case err != nil:
		return now, err
	case mark.After(now.Time) && (jitter || mark.Sub(now.Time) <= maxClockLead):
		return mark, nil
	}

	return now, nil
}

// changesTicks reports whether an edit of old writes a time that separates the ticks of the two versions.
func changesTicks(old store.Stored, spec task.Spec, e task.Entry) bool {
	return !task.SameTicks(old.Task.Spec, spec) || !e.From.Equal(old.Entry.From.Time) || e.Paused != old.Entry.Paused ||
		!slices.EqualFunc(pausesOf(e), pausesOf(old.Entry), task.Pause.Equal)
}

// pausesOf returns the record of an entry's pauses.
func pausesOf(e task.Entry) []task.Pause {
	if e.Own == nil {
		return nil
	}
	return e.Own.Pauses
}

// movesDueTimes reports whether the same tick may be due at different times in two versions.
func movesDueTimes(old, edited task.Entry) bool {
	return (old.Jitter > 0 || edited.Jitter > 0) && !old.Timing().Same(edited.Timing())
}

// lastBeforeTicks returns the last instant before the first tick of any of the entries after a time, or zero if they have none.
// A tick that jitter delays counts from its time in the schedule.
func lastBeforeTicks(after task.Time, entries ...task.Entry) (last task.Time) {
	for _, e := range entries {
		sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
		if err != nil {
			continue // an entry that cannot be parsed has no ticks
		}

		tick, ok := sched.Next(after.Time)
		if !ok {
			continue
		}

		if before := task.At(tick.Add(-time.Millisecond)); last.IsZero() || before.Before(last.Time) {
			last = before
		}
	}

	return last
}
