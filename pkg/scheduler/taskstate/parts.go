package taskstate

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// Returned is how a part ended.
type Returned struct {
	task.Part
	Parent string // id of its run
	Mod    int64  // mod revision of its record
}

// CountEnded returns how many parts of a run have ended, and how many of these succeeded. t must have an
// Activity.
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

// ParentOf returns the run to which a part belongs, or nil if that run is not in the queue with its parts.
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

// EndsWithParent returns why a part must end with its run, and who cancelled the run. The reason is empty
// if the part may continue.
func (t *Task) EndsWithParent(part string) (reason, who string) {
	if q := t.ParentOf(part); q != nil {
		return q.Fan.Cancel, q.CancelledBy
	}
	return "", ""
}

// GoesWithParent reports whether an attempt belongs to a part that must end with its run.
func (t *Task) GoesWithParent(part string) bool {
	reason, _ := t.EndsWithParent(part)
	return reason != ""
}

// KnowsParent reports whether the queue has a record of the run to which a part belongs, including one that
// cannot be read.
func (t *Task) KnowsParent(part string) bool {
	id, _, _ := task.ParentOf(part)
	return t.Activity != nil && (slices.Contains(t.Activity.Unreadable, id) || slices.ContainsFunc(t.Activity.Queue, func(q *Waiting) bool { return q.ID == id }))
}
