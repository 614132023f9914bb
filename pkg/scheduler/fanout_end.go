package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// endRun moves a run whose parts have all ended to history. If it failed, it also becomes a dead run. It
// returns false if the commit has no room.
func (r *parentRun) endRun() bool {
	t, q := r.t, r.q

	size := len(q.Message) + q.Fan.Count*roomForPart + roomForDetails + task.MaxPartCheckpoints + 4*roomForRecord
	if !r.reserveRoom(t, 3, min(size, roomForParent)) {
		return false
	}

	end := concludedRun(t, q, r.now)
	ref := t.Ref(r.s.Shard)
	r.dequeueRun(t, q)
	r.commit.Record(ref, end)

	if end.State == task.Failed {
		r.commit.BuryParent(ref, end, q.Env)
	}

	// Another run may start now, and the records of the parts can be deleted.
	r.lookAfterCommit(t)

	return true
}

// roomForParent is the largest size in bytes of the two records of a run with MaxParts parts.
const roomForParent = 640<<10 + roomForDetails + task.MaxPartCheckpoints

// roomForDetails limits the size in bytes of what the parts report, in the record of their run.
const roomForDetails = 64 << 10

// concludedRun returns the final record of a run whose parts have ended. The run is cancelled if that cut
// parts short, succeeded if enough parts succeeded, and otherwise failed.
func concludedRun(t *taskstate.Task, q *taskstate.Waiting, now time.Time) task.Run {
	end, f := q.Run, *q.Fan
	f.Parts, f.Ended, f.Succeeded, f.Checkpoints = make([]task.Part, 0, f.Count), 0, 0, nil

	// cut means that parts did not start or were cancelled.
	cut := len(f.Left) > 0

	// Parts that are left are left only because the run was cancelled.
	for _, i := range f.Left {
		f.Parts = append(f.Parts, task.Part{Index: i, State: task.Cancelled, Reason: f.Cancel})
	}

	for _, r := range t.Activity.Returned {
		if r.Parent != q.ID {
			continue
		}

		f.Parts = append(f.Parts, r.Part)
		cut = cut || r.State == task.Cancelled

		if r.State == task.Succeeded {
			f.Succeeded++
		}

		if at := r.StartedAt; !at.IsZero() && (end.StartedAt.IsZero() || at.Before(end.StartedAt.Time)) {
			end.StartedAt = at
		}
	}

	f.Ended, f.Left = len(f.Parts), nil
	slices.SortFunc(f.Parts, func(a, b task.Part) int { return a.Index - b.Index })
	end.Usage = f.Usage()
	f.Fit(roomForDetails) // drops details of the parts until they fit
	end.Fan, end.EndedAt, end.NotBefore = &f, task.At(now), task.Time{}
	due := end.ScheduledTime
	if !end.DueAt.IsZero() {
		due = end.DueAt
	}

	if !end.StartedAt.IsZero() {
		end.LatenessMS = new(max(0, end.StartedAt.Sub(due.Time).Milliseconds()))
	}

	switch {
	case f.Cancel != "" && cut:
		end.State, end.Reason = task.Cancelled, f.Cancel
	case f.Met():
		end.State, end.Reason, end.CancelledBy = task.Succeeded, "", ""
	default:
		end.State, end.Reason, end.CancelledBy = task.Failed, task.ReasonParts, ""
		end.Message = describeMissedParts(f)
	}

	return end
}

// describeMissedParts returns a message that names the parts that did not succeed, for people. It is cut
// after about 400 bytes.
func describeMissedParts(f task.Fan) string {
	text := fmt.Sprintf("%d of %d parts succeeded, %d had to", f.Succeeded+f.Kept, f.Count, f.Need)
	for n, p := range f.Parts {
		if p.State != task.Succeeded {
			text += fmt.Sprintf("; part %d", p.Index)
			if p.Node != "" {
				text += " on " + p.Node
			}

			text += fmt.Sprintf(": %s (%s)", p.State, p.Reason)
			if len(text) > 400 && n < len(f.Parts)-1 {
				return text + "; …"
			}
		}
	}

	return text
}

// loseMissingParts ends the parts of a run that have no record anywhere: they are not left, not in an
// inbox, not in the queue, and have not ended. That happens only if somebody deleted the record. Such a
// part is lost when it has been missing for lost_after; until then, its record may only be unknown to this
// worker. It returns false if the commit has no room.
func (r *parentRun) loseMissingParts() bool {
	t, q := r.t, r.q

	// Start with all parts of the run, and remove those of which any record is known.
	nowhere := map[int]bool{}
	for _, i := range q.Fan.Numbers() {
		nowhere[i] = true
	}

	for _, i := range q.Fan.Left {
		delete(nowhere, i)
	}

	found := func(id string) {
		if parent, i, is := task.ParentOf(id); is && parent == q.ID {
			delete(nowhere, i)
		}
	}

	for id := range t.Activity.Returned {
		found(id)
	}

	for _, a := range t.Activity.Active {
		found(a.Run)
	}

	for _, other := range t.Activity.Queue {
		found(other.ID)
	}

	for _, id := range t.Activity.Unreadable {
		found(id)
	}

	if len(nowhere) == 0 {
		q.Missing = time.Time{}
		return true
	}

	// A time in the future means that the clock was set back.
	if q.Missing.IsZero() || r.now.Before(q.Missing) {
		q.Missing = r.now
	}

	// The watch may be late, or may have lost an event. With the defaults, the reconciliation finds that
	// before lost_after has passed. In any case, the commit requires that there is no record of the part's
	// end.
	if until := q.Missing.Add(r.lostAfter()); r.now.Before(until) {
		r.s.wakeAt(until)
		return true
	}

	return r.endNowhere(nowhere)
}

// endNowhere ends parts that have no record. The commit requires that no record of their end exists.
func (r *parentRun) endNowhere(nowhere map[int]bool) bool {
	t := r.t

	for _, i := range slices.Sorted(maps.Keys(nowhere)) {
		if !r.reserveRoom(t, 3, roomForTask(t)) {
			return false
		}

		end := r.partRun(i)
		end.State, end.Reason, end.EndedAt, end.Message = task.Lost, task.ReasonBadEntry, task.At(r.now), "its record is gone"
		r.addEffect(partEnded{task: t, end: &end})
		r.notices = append(r.notices, notice{kind: partNowhere, task: t.FullName(), run: end.ID})
	}

	return true
}
