package scheduler

import (
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/fanout"
	"github.com/carillonhq/carillon/pkg/task"
)

// endRun moves a run whose parts have all ended to history. If it failed, it also becomes a dead run. It
// returns false if the commit has no room.
func (r *parentRun) endRun() bool {
	t, q := r.t, r.q

	size := len(q.Message) + q.Fan.Count*roomForPart + fanout.RoomForDetails + task.MaxPartCheckpoints + 4*roomForRecord
	if !r.plan.reserveRoom(t, 3, min(size, roomForParent)) {
		return false
	}

	end := fanout.Conclude(t, q, r.plan.now)
	ref := t.Ref(r.plan.s.Shard)
	r.plan.dequeueRun(t, q)
	r.plan.commit.Record(ref, end)

	if end.State == task.Failed {
		r.plan.commit.PutParentDeadLetter(ref, end, q.Env)
	}

	// Another run may start now, and the records of the parts can be deleted.
	r.plan.examineAfterCommit(t)

	return true
}

// roomForParent is the largest size in bytes of the two records of a run with MaxParts parts.
const roomForParent = 640<<10 + fanout.RoomForDetails + task.MaxPartCheckpoints

// loseMissingParts ends the parts of a run that have no record anywhere: they are not left, not in an
// inbox, not in the queue, and have not ended. That happens only if somebody deleted the record. Such a
// part is lost when it has been missing for lost_after; until then, its record may only be unknown to this
// worker. It returns false if the commit has no room.
func (r *parentRun) loseMissingParts() bool {
	t, q := r.t, r.q

	nowhere := fanout.Missing(t, q)
	if len(nowhere) == 0 {
		q.Missing = time.Time{}
		return true
	}

	// A time in the future means that the clock was set back.
	if q.Missing.IsZero() || r.plan.now.Before(q.Missing) {
		q.Missing = r.plan.now
	}

	// The watch may be late, or may have lost an event. With the defaults, the reconciliation finds that
	// before lost_after has passed. In any case, the commit requires that there is no record of the part's
	// end.
	if until := q.Missing.Add(r.plan.cluster.EffectiveLostAfter().Std()); r.plan.now.Before(until) {
		r.plan.s.examineAgainAt(t, until)
		return true
	}

	return r.endWithoutRecords(nowhere)
}

// endWithoutRecords ends parts that have no record. The commit requires that no record of their end exists.
func (r *parentRun) endWithoutRecords(nowhere map[int]bool) bool {
	t := r.t

	for _, i := range slices.Sorted(maps.Keys(nowhere)) {
		if !r.plan.reserveRoom(t, 3, roomForTask(t)) {
			return false
		}

		end := r.partRun(i)
		end.State, end.Reason, end.EndedAt, end.Message = task.Lost, task.ReasonBadEntry, task.At(r.plan.now), "its record no longer exists"
		r.plan.addEffect(partEnded{task: t, end: &end})
		r.plan.notices = append(r.plan.notices, notice{kind: partNowhere, task: t.FullName(), run: end.ID})
	}

	return true
}
