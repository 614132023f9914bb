package events

import (
	"bytes"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskChange contains the changes that a revision made to the keys of one task.
type taskChange struct {
	ref               record.Ref
	spec, entry, tomb *Change
	cursor            *Change // of a source
}

// tombstone contains the fields of a tombstone record that an event needs.
type tombstone struct {
	DeletedAt task.Time   `json:"deleted_at"`
	DeletedBy *task.Actor `json:"deleted_by"`
	Why       string      `json:"why"`
}

// readTombstone decodes the tombstone that was written with the deletion, if there is one.
func (c taskChange) readTombstone() (t tombstone) {
	if c.tomb != nil && c.tomb.After != nil {
		t, _ = record.Decode[tombstone](c.tomb.After.Value)
	}
	return t
}

// isDeleted reports whether the task was deleted.
func (c taskChange) isDeleted() bool { return c.spec != nil && c.spec.After == nil }

// taskEvent returns the event of the task itself. It returns false if nothing that its user
// sees has changed.
func (c taskChange) taskEvent() (task.Event, bool) {
	e := task.Event{Kind: task.EventTask, Namespace: c.ref.Namespace, Task: c.ref.Name}

	switch {
	case c.spec == nil && c.entry != nil:
		return c.ofEntry(e)
	case c.spec == nil:
		return c.ofCursor(e)
	case c.isDeleted():
		t := c.readTombstone()
		e.Action, e.Time, e.Actor, e.Detail = task.ActionDeleted, t.DeletedAt, t.DeletedBy, t.Why
		if before, err := record.DecodeTask(c.spec.Before.Value, 0); err == nil {
			e.UID = before.UID
		}

		return e, true
	case c.spec.Before != nil && bytes.Equal(c.spec.Before.Value, c.spec.After.Value):
		return e, false
	}

	after, err := record.DecodeTask(c.spec.After.Value, 0)
	if err != nil {
		e.Action, e.Detail = task.ChangeUpdated, unreadableRecord
		return e, true
	}

	e.UID, e.Generation, e.Time, e.Actor, e.Action = after.UID, after.Generation, after.UpdatedAt, after.UpdatedBy, after.Change
	var before task.Task
	if c.spec.Before != nil {
		before, _ = record.DecodeTask(c.spec.Before.Value, 0)
	}

	// The spec records the action of its last write. Another version of Carillon may have written
	// it without updating that field.
	switch {
	case c.spec.Before == nil && e.Action == task.ChangeUndeleted:
	case c.spec.Before == nil:
		e.Action = task.ChangeCreated
	case e.Action == "" || e.Action == task.ChangeCreated || after.Generation == before.Generation:
		e.Action = task.ChangeUpdated // written by a version that does not record the action
		if before.Paused != after.Paused {
			e.Action = pauseChange(after.Paused)
		}
	}

	if e.Action == task.ChangePaused {
		e.Reason = after.PauseReason
	}

	return e, true
}

// ofCursor returns the event for a cursor that its owner has repaired. Only such a cursor names no run.
func (c taskChange) ofCursor(e task.Event) (task.Event, bool) {
	if c.cursor == nil || c.cursor.After == nil {
		return e, false
	}

	after, err := record.DecodeCursor(c.cursor.After.Value)
	if err != nil || after.Run != "" {
		return e, false
	}

	e.Action = task.ActionRepaired
	e.Detail = "it was not known which of its ended runs had started its dependents; those that had ended before start none"

	return e, true
}

// pauseChange returns the action for a task that is, or is not, paused now.
func pauseChange(is bool) string {
	if is {
		return task.ChangePaused
	}
	return task.ChangeResumed
}

// ofEntry returns the event for an entry that its owner has written without the spec: the task
// was paused because it failed too often.
func (c taskChange) ofEntry(e task.Event) (task.Event, bool) {
	if c.entry == nil || c.entry.Before == nil || c.entry.After == nil {
		return e, false
	}

	before, err := record.DecodeEntry(c.entry.Before.Value)
	after, err2 := record.DecodeEntry(c.entry.After.Value)
	if err != nil || err2 != nil || before.Paused == after.Paused || before.UID != after.UID {
		return e, false
	}

	e.UID, e.Generation, e.Action = after.UID, after.Generation, pauseChange(after.Paused)
	if after.Own != nil && len(after.Own.Pauses) > 0 {
		switch p := after.Own.Pauses[len(after.Own.Pauses)-1]; {
		case after.Paused:
			e.Time, e.Actor, e.Reason = p.Since, p.By, p.Reason
		default:
			e.Time, e.Actor = p.Ended, p.EndedBy
		}
	}

	return e, true
}
