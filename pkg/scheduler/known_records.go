package scheduler

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// knownRecords is what of a shard's records is known: by events, by commits, and by what was read.
type knownRecords struct {
	shard int
	keys  record.Keys

	tasks map[string]*taskstate.Task
	mark  record.Watermark
	known int64 // the watermark's mod revision
}

// taskNamed returns the state of a task, namespace/name, made if need be.
func (s *knownRecords) taskNamed(name string) *taskstate.Task {
	t := s.tasks[name]
	if t == nil {
		t = &taskstate.Task{Text: strings.Clone(name), NameLen: uint16(len(name)), At: -1}
		s.tasks[t.Text] = t
	}

	return t
}

// taskOf is the task that an event is about.
func (s *knownRecords) taskOf(ev *store.ShardEvent) *taskstate.Task { return s.taskNamed(ev.Task) }

// coveredByWatermark reports whether the watermark speaks for the task.
func (s *knownRecords) coveredByWatermark(t *taskstate.Task) bool { return t.Create <= s.mark.Seen }
