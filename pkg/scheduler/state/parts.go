package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// NewFan returns the parts that a run has if it begins now, or the reason why it must wait. nodes are the names of the
// nodes that match, the best first. Parts with their own node get it here, once.
func NewFan(target task.Target, nodes []string) (*task.Fan, string) {
	f := &task.Fan{Count: target.Parts, Stagger: target.Stagger}

	switch {
	case len(nodes) == 0:
		return nil, task.ReasonNoNode
	case !target.Enough(len(nodes)):
		return nil, task.ReasonCount
	case target.Count == task.All:
		f.Nodes = nodes
	case target.Parts == 0:
		f.Nodes = nodes[:target.Count]
	}

	if f.Nodes != nil {
		// Without an order from the strategy, number the parts in the order of their nodes' names.
		if !task.Ordered(target.Strategy) {
			slices.Sort(f.Nodes)
		}
		f.Count = len(f.Nodes)
	}

	for i := range f.Count {
		f.Left = append(f.Left, i)
	}

	f.Need, _ = target.Succeed.Need(f.Count) // cannot fail: the policy was validated

	return f, ""
}

// PartRun returns the run record of a part before its first attempt. owner is the node that owns the shard.
func PartRun(q *Waiting, index int, owner string, now time.Time) task.Run {
	return task.Run{
		ID: task.PartID(q.ID, index), UID: q.UID, Namespace: q.Namespace, Task: q.Task, Shard: q.Shard, ScheduledTime: q.ScheduledTime,
		DueAt: q.DueAt, Trigger: task.TriggerPart, Owner: owner, Attempt: 1, CreatedAt: task.At(now), FanOut: task.FanOut{PartCount: q.Fan.Count},
		StatusReport: task.StatusReport{Checkpoint: q.Fan.Checkpoints[index]}, Requests: task.Requests{CreatedBy: q.CreatedBy, EnvNames: q.EnvNames, Args: q.Args},
		Causation: q.Causation,
	}
}

// PartStartBefore returns until when a run's next part must start, or zero if it may start at any time. The deadline is as
// long as that of the run, and counts from the part's turn (G22).
func PartStartBefore(q *Waiting) time.Time {
	until := q.StartBefore.Time
	if until.IsZero() {
		return until
	}

	if due := q.Due(); q.NotBefore.After(due) {
		// With stagger, the part's turn is later than the run's tick.
		until = until.Add(q.NotBefore.Sub(due))
	}

	return until
}

// NextPartTurn returns when the part after the next one has its turn, if the next one does not start. Without stagger, that
// is unchanged.
func NextPartTurn(q *Waiting) task.Time {
	if q.Fan.Stagger <= 0 {
		return q.NotBefore
	}

	// The first part has its turn when the run begins.
	turn := q.DispatchedAt.Time
	if !q.NotBefore.IsZero() {
		turn = q.NotBefore.Time
	}

	return task.At(turn.Add(q.Fan.Stagger.Std()))
}

// MissingParts returns the parts of a run that have no record anywhere: they are not left, not in an inbox, not in the
// queue, and have not ended. t must have an Activity.
func MissingParts(t *Task, q *Waiting) map[int]bool {
	// Start with all parts of the run, and remove those that have a known record.
	missing := map[int]bool{}
	for _, i := range q.Fan.Numbers() {
		missing[i] = true
	}

	for _, i := range q.Fan.Left {
		delete(missing, i)
	}

	found := func(id string) {
		if parent, i, ok := task.ParentOf(id); ok && parent == q.ID {
			delete(missing, i)
		}
	}

	for id := range t.Activity.Returned {
		found(id)
	}

	for _, a := range t.Activity.Active {
		found(a.Run)
	}

	for _, other := range t.Activity.Queue {
		found(other.ID)
	}

	for _, id := range t.Activity.Unreadable {
		found(id)
	}

	return missing
}

// RoomForPartDetails limits the size in bytes of what the parts report, in the record of their run.
const RoomForPartDetails = 64 << 10

// ConcludeParts returns the final record of a run whose parts have ended. The run is cancelled if that cut
// parts short, succeeded if enough parts succeeded, and otherwise failed.
func ConcludeParts(t *Task, q *Waiting, now time.Time) task.Run {
	end, f := q.Run, *q.Fan
	f.Parts, f.Ended, f.Succeeded, f.Checkpoints = make([]task.Part, 0, f.Count), 0, 0, nil

	// cut means that parts did not start or were cancelled.
	cut := len(f.Left) > 0

	// Parts that are left are left only because the run was cancelled.
	for _, i := range f.Left {
		f.Parts = append(f.Parts, task.Part{Index: i, State: stateOfCut(f.Cancel), Reason: f.Cancel})
	}

	for _, r := range t.Activity.Returned {
		if r.Parent != q.ID {
			continue
		}

		f.Parts = append(f.Parts, r.Part)
		cut = cut || r.State == task.Cancelled || r.Reason == task.ReasonRestored

		if r.State == task.Succeeded {
			f.Succeeded++
		}

		if at := r.StartedAt; !at.IsZero() && (end.StartedAt.IsZero() || at.Before(end.StartedAt.Time)) {
			end.StartedAt = at
		}
	}

	f.Ended, f.Left = len(f.Parts), nil
	slices.SortFunc(f.Parts, func(a, b task.Part) int { return a.Index - b.Index })
	end.Usage = f.Usage()
	f.Fit(RoomForPartDetails) // drops details of the parts until they fit
	end.Fan, end.EndedAt, end.NotBefore = &f, task.At(now), task.Time{}
	due := end.ScheduledTime
	if !end.DueAt.IsZero() {
		due = end.DueAt
	}

	if !end.StartedAt.IsZero() {
		end.LatenessMS = new(max(0, end.StartedAt.Sub(due.Time).Milliseconds()))
	}

	switch {
	case f.Cancel != "" && cut:
		end.State, end.Reason = stateOfCut(f.Cancel), f.Cancel
	case f.Met():
		end.State, end.Reason, end.CancelledBy = task.Succeeded, "", nil
	default:
		end.State, end.Reason, end.CancelledBy = task.Failed, task.ReasonParts, nil
		end.Message = describeUnsuccessfulParts(f)
	}

	return end
}

// stateOfCut returns the state of a run, or of a part, that was cut short for a reason.
func stateOfCut(reason string) task.State {
	if reason == task.ReasonRestored {
		return task.Lost
	}
	return task.Cancelled
}

// describeUnsuccessfulParts returns a message that names the parts that did not succeed, for people. It is cut
// after about 400 bytes.
func describeUnsuccessfulParts(f task.Fan) string {
	text := fmt.Sprintf("%d of %d parts succeeded, %d required", f.Succeeded+f.Kept, f.Count, f.Need)
	for n, p := range f.Parts {
		if p.State != task.Succeeded {
			text += fmt.Sprintf("; part %d", p.Index)
			if p.Node != "" {
				text += " on " + p.Node
			}

			text += fmt.Sprintf(": %s (%s)", p.State, p.Reason)
			if len(text) > 400 && n < len(f.Parts)-1 {
				return text + "; …"
			}
		}
	}

	return text
}
