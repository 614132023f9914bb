package check

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Verifies: G21-G25
func TestCheck_Ranges(t *testing.T) {
	began := func(h hand) { h.until(2); h.sealed(h.none(1, 2, 2, task.ReasonQueueFull, 2)) }
	turns(t, []turn{
		{"a range grows", "", nil, func(h hand) {
			began(h)
			h.until(4)
			h.sealed(h.none(1, 4, 4, task.ReasonQueueFull, 2))
		}},
		{"a single tick grows to a range", "", nil, func(h hand) {
			h.until(1)
			h.sealed(h.none(1, 1, 1, task.ReasonQueueFull, 1))
			h.until(2)
			h.sealed(h.none(1, 2, 2, task.ReasonQueueFull, 1))
		}},
		{"a range grows by too many", "G3", nil, func(h hand) { began(h); h.until(4); h.sealed(h.none(1, 4, 5, task.ReasonQueueFull, 2)) }},
		{"a range grows by too few", "G3", nil, func(h hand) { began(h); h.until(4); h.sealed(h.none(1, 4, 3, task.ReasonQueueFull, 2)) }},
		{"a range grows over a tick that ran", "G3", nil, func(h hand) {
			began(h)
			h.until(3)
			h.sealed(h.fires(3))
			h.done(task.Succeeded)
			h.until(4)
			h.sealed(h.none(1, 4, 4, task.ReasonQueueFull, 2))
		}},
		{"a range shrinks", "G12", nil, func(h hand) { began(h); h.sealed(h.none(1, 1, 1, task.ReasonQueueFull, 2)) }},
		{"a range changes its reason", "G12", nil, func(h hand) {
			began(h)
			h.until(3)
			h.sealed(h.none(1, 3, 3, task.ReasonDropped, 2), h.not(3, task.Skipped, task.ReasonQueueFull))
		}},
		{"a range grows outside of a commit", "G1", nil, func(h hand) {
			began(h)
			h.until(3)
			h.sealed(h.not(3, task.Skipped, task.ReasonQueueFull))
			h.txn(h.none(1, 3, 3, task.ReasonQueueFull, 2))
		}},
		{"a range grows before its tick", "G6", nil, func(h hand) {
			began(h)
			h.until(3)
			op := h.none(1, 3, 3, task.ReasonQueueFull, 2)
			r := op.value.(task.Run)
			r.EndedAt = task.At(r.EndedAt.Add(-time.Millisecond))
			op.value = r
			h.sealed(op)
		}},
		{"a range goes on behind a pause", "", nil, func(h hand) {
			began(h)
			h.pause(h.simTask)
			h.until(4.5)
			h.resume(h.simTask)
			h.until(5)
			h.sealed(h.none(1, 5, 3, task.ReasonQueueFull, 2))
		}},
		{"a reason that is none", "G23", nil, func(h hand) { h.until(1); h.sealed(h.not(1, task.Skipped, "because")) }},
		{"no reason", "G23", nil, func(h hand) { h.until(1); h.sealed(h.not(1, task.Missed, "")) }},
		{"a reason of another state", "G23", nil, func(h hand) { h.until(1); h.sealed(h.not(1, task.Missed, task.ReasonQueueFull)) }},
		{"waits without a reason", "G23", nil, func(h hand) { h.until(1); h.sealed(h.waits(1, "")) }},
	})
}
