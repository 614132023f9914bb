package scheduler

import (
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// applyPart applies the record of a part that has ended. It exists until the run is in history, or until
// the task is gone.
func (s *shardState) applyPart(ev *store.ShardEvent) {
	t := s.TaskOf(ev)

	if ev.Deleted {
		delete(s.purges, ev.Key)

		if t.Activity != nil {
			delete(t.Activity.Returned, ev.Run)
		}

		// The next tick or the ttl may wait until nothing of the run is left.
		if t.DependsOnPast() {
			s.examineNext(t)
		}

		s.dropTask(t)

		return
	}

	s.applyAttemptEnd(t, ev.Run, ev.Mod)
	end, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if err != nil {
		// A record that cannot be read counts as a failure, so that the run can end (G19).
		end = task.Run{ID: ev.Run, State: task.Failed, Reason: task.ReasonBadEntry}
		s.addNotice(notice{kind: partUnreadable, task: t.FullName(), run: ev.Run, err: err})
	}

	s.notePartEnded(t, ev.Run, end.AsPart(), ev.Mod)
}

// notePartEnded notes that a part has ended. mod is the revision of its record.
func (s *shardState) notePartEnded(t *taskstate.Task, id string, p task.Part, mod int64) {
	parent, _, is := task.ParentOf(id)
	if !is {
		return
	}

	l := s.ensureActivity(t)
	if l.Returned == nil {
		l.Returned = map[string]taskstate.Returned{}
	}

	l.Returned[id] = taskstate.Returned{Part: p, Parent: parent, Mod: mod}
	s.examineNext(t)
}

// forgetParts requests the deletion of the records of parts whose run has ended. Each is requested once:
// the parts stay known until the watch has reported the deletion.
func (p *plan) forgetParts(t *taskstate.Task) {
	if t.Activity == nil || len(t.Activity.Returned) == 0 {
		return
	}

	ref := t.Ref(p.s.Shard)

	for id, r := range t.Activity.Returned {
		key := p.s.Keys.Ended(ref, id)
		if _, purged := p.s.gone[key]; !purged && !t.KnowsParent(id) {
			p.s.purges[key] = r.Mod
		}
	}
}
