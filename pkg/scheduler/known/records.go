// Package known has what an owner knows of the records of its shard, and compares it with what etcd
// holds. It decides nothing, and repairs nothing.
package known

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Records is what of a shard's records is known: by events, by commits, and by what was read.
type Records struct {
	Shard int
	Keys  record.Keys

	Tasks        map[string]*taskstate.Task // by namespace/name
	Watermark    record.Watermark
	WatermarkRev int64 // the watermark's mod revision
}

// TaskNamed returns the state of the task called name, namespace/name. It adds an empty one if there is none.
func (r *Records) TaskNamed(name string) *taskstate.Task {
	t := r.Tasks[name]
	if t == nil {
		t = &taskstate.Task{Text: strings.Clone(name), NameLen: uint16(len(name)), At: -1}
		r.Tasks[t.Text] = t
	}

	return t
}

// TaskOf returns the state of the task that an event is about.
func (r *Records) TaskOf(ev *store.ShardEvent) *taskstate.Task { return r.TaskNamed(ev.Task) }

// CoveredByWatermark reports whether the task existed when the watermark was written, so that the
// watermark says which of its ticks are decided.
func (r *Records) CoveredByWatermark(t *taskstate.Task) bool { return t.Create <= r.Watermark.Seen }
