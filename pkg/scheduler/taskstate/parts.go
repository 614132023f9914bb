package taskstate

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// Returned is how a part ended.
type Returned struct {
	task.Part
	Parent string // the id of its run
	Mod    int64  // revision of its record
}

// CountEnded counts the parts of a run that have ended, and how many succeeded.
func (t *Task) CountEnded(q *Waiting) (ended, succeeded int) {
	for _, r := range t.Activity.Returned {
		if r.Parent != q.ID {
			continue
		}

		ended++

		if r.State == task.Succeeded {
			succeeded++
		}
	}

	return ended, succeeded
}

// ParentOf is the run that a part belongs to, if it is under way.
func (t *Task) ParentOf(part string) *Waiting {
	id, _, is := task.ParentOf(part)
	if !is || t.Activity == nil {
		return nil
	}

	for _, q := range t.Activity.Queue {
		if q.ID == id && q.UnderWay() {
			return q
		}
	}

	return nil
}

// EndsWithParent is why a part is to end with its run; "": it is not.
func (t *Task) EndsWithParent(part string) (reason, who string) {
	if q := t.ParentOf(part); q != nil {
		return q.Fan.Cancel, q.CancelledBy
	}
	return "", ""
}

// GoesWithParent reports whether an attempt is of a part that is to end with its run.
func (t *Task) GoesWithParent(part string) bool {
	reason, _ := t.EndsWithParent(part)
	return reason != ""
}

// KnowsParent reports whether the queue has a record of the run that a part belongs
// to, if only one that cannot be read.
func (t *Task) KnowsParent(part string) bool {
	id, _, _ := task.ParentOf(part)
	return t.Activity != nil && (slices.Contains(t.Activity.Unreadable, id) || slices.ContainsFunc(t.Activity.Queue, func(q *Waiting) bool { return q.ID == id }))
}
