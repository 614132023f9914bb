package scheduler

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// knownRecords is what of a shard's records is known: by events, by commits, and by what was read.
type knownRecords struct {
	shard int
	keys  record.Keys

	tasks map[string]*taskState
	mark  record.Watermark
	known int64 // the watermark's mod revision
}

// task returns the state of a task, namespace/name, made if need be.
func (s *knownRecords) task(name string) *taskState {
	t := s.tasks[name]
	if t == nil {
		t = &taskState{text: strings.Clone(name), name: uint16(len(name)), at: -1}
		s.tasks[t.text] = t
	}
	return t
}

// taskOf is the task that an event is about.
func (s *knownRecords) taskOf(ev *store.ShardEvent) *taskState { return s.task(ev.Task) }

// covered reports whether the watermark speaks for the task.
func (s *knownRecords) covered(t *taskState) bool { return t.create <= s.mark.Seen }
