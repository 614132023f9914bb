package taskstate

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/scheduler/definition"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// For a task with a ttl, many ends are read, but a long history does not delay the worker.
func TestHistoryReader_ReadsABoundedNumberOfEnds(t *testing.T) {
	t.Parallel()
	s := NewHistoryReader(&Task{Policy: &definition.Policy{PolicyFields: &definition.PolicyFields{TTL: 1000}}}, 1, make([]store.ShardEvent, task.MaxKeep))

	for want := 1; ; want *= 4 {
		page := s.Wants(want)
		if len(page) == 0 {
			break
		}
		s.ends = append(s.ends, make([]End, len(page))...)
	}

	if len(s.ends) != MaxEndsRead {
		t.Errorf("%d records are read, want %d", len(s.ends), MaxEndsRead)
	}
}
