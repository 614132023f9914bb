// Package known holds what an owner knows about the records of its shard, and compares it with what etcd
// holds. It decides no ticks and does no I/O: it names what to repair, and the owner reads and applies that.
package known

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Records is what is known about a shard's records, from events, from the owner's commits, and from reads.
type Records struct {
	Shard int
	Keys  record.Keys

	// Tasks are the tasks of the shard by namespace/name, including those of which only runs or history is
	// left.
	Tasks taskstate.Tasks
	// Watermark is the last known watermark, and WatermarkRev its mod revision, which the next commit
	// compares.
	Watermark    record.Watermark
	WatermarkRev int64

	parts record.EntryParts // scratch space for splitting entries
}

// TaskNamed returns the task with the given name (namespace/name). It adds an empty one if there is none.
func (r *Records) TaskNamed(name string) *taskstate.Task {
	t := r.Tasks.Get(name)
	if t == nil {
		t = &taskstate.Task{Text: strings.Clone(name), NameLen: uint16(len(name)), At: -1, Row: -1}
		r.Tasks.Put(t)
	}

	return t
}

// TaskOf returns the task that an event is about, as TaskNamed does.
func (r *Records) TaskOf(ev *store.ShardEvent) *taskstate.Task { return r.TaskNamed(ev.Task) }

// CoveredByWatermark reports whether the task existed when the watermark was written, so that the watermark
// determines which of its ticks are decided (G4).
func (r *Records) CoveredByWatermark(t *taskstate.Task) bool { return t.Create <= r.Watermark.Seen }

// NextUndecided returns the task's first tick that neither the entry's from nor the watermark decides, in
// Unix milliseconds, or 0 if there is none. See "Covered entries" in docs/architecture.md.
func (r *Records) NextUndecided(t *taskstate.Task) int64 {
	after, mark := t.From, r.Watermark.Time.UnixMilli()
	if t.Paused {
		// A pause with an end acts as a from: ticks up to its end do not exist.
		until, _ := t.Silence()
		after = max(after, until)
	}

	covered := r.CoveredByWatermark(t)
	if covered && mark > after {
		// All ticks that were due before the watermark's time are decided. At exactly that time, only those
		// of tasks up to Watermark.Last may be.
		after = max(after, t.LastDue(mark-1))
	}

	tick := t.After(after)
	if covered && tick != 0 && r.Watermark.Decided(task.At(taskstate.Instant(t.Due(tick))), t.FullName()) {
		return t.After(tick)
	}

	return tick
}
