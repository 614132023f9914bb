package failures

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/scheduler/board"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

func taskNamed(name string) *taskstate.Task {
	return &taskstate.Task{Text: name, NameLen: uint16(len(name)), Present: true}
}

func failedAt(mod int64) *Failure {
	return &Failure{Mod: mod, Failure: board.Failure{State: task.Failed}}
}

func TestSet_RestoreAddsWhatNoLaterEndContradicts(t *testing.T) {
	t.Parallel()

	a, b, unreadable := taskNamed("default/a"), taskNamed("default/b"), taskNamed("default/unreadable")
	unreadable.Bad = true
	var tasks taskstate.Tasks
	tasks.Put(a)
	tasks.Put(b)
	tasks.Put(unreadable)

	s := NewSet()
	if _, isNew := s.NoteEnd(b, &store.ShardEvent{Mod: 9, Value: []byte(`{"state":"succeeded"}`)}); !isNew {
		t.Fatal("the end of a run is not new")
	}

	s.Restore(&Found{More: true, Failing: map[string]*Failure{
		"default/a": failedAt(3), "default/b": failedAt(4), "default/unreadable": failedAt(5), "default/deleted": failedAt(6),
	}}, &tasks)

	if _, fails := s.failing[a]; !fails || s.Len() != 1 {
		t.Errorf("%d tasks are failing, want only %s", s.Len(), a.FullName())
	}
}

// The set must remember ends that the watch delivers only until the Reader has delivered its last part.
func TestSet_StopsNotingEndsWhenAllIsRestored(t *testing.T) {
	t.Parallel()

	s := NewSet()
	s.Restore(&Found{More: true}, nil)
	if s.endedWhileReading == nil {
		t.Error("it stopped noting ends before the last part")
	}

	s.Restore(&Found{}, nil)
	s.NoteEnd(taskNamed("default/a"), &store.ShardEvent{Mod: 9, Value: []byte(`{"state":"succeeded"}`)})
	if s.endedWhileReading != nil {
		t.Error("ends are still noted after the last page")
	}
}
