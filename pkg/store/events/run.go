package events

import (
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// runChange contains the changes that a revision made to the keys of one run. A run is in one
// place at a time: a move deletes its record in one place and puts it in another at the same
// revision.
type runChange struct {
	ref                          record.Ref
	id                           string
	queue, inbox, history, taken *Change   // taken: the deletion in another inbox, if it moved between inboxes
	late                         []*Change // late results
	dead                         *Change   // the record of the dead run
	node                         string    // the node of inbox
	takenFrom                    string    // the node of taken
}

// inInbox adds a change in the inbox of a node. If the run moved from one inbox to another, the
// put becomes inbox and the deletion becomes taken, in whatever order they come.
func (c *runChange) inInbox(node string, ch *Change) {
	switch {
	case c.inbox == nil:
		c.inbox, c.node = ch, node
	case ch.After != nil:
		c.taken, c.takenFrom = c.inbox, c.node
		c.inbox, c.node = ch, node
	default:
		c.taken, c.takenFrom = ch, node
	}
}

// wasPut reports whether the key was written.
func wasPut(c *Change) bool { return c != nil && c.After != nil }

// wasRemoved reports whether the key existed and was deleted.
func wasRemoved(c *Change) bool { return c != nil && c.Before != nil && c.After == nil }

// runEvents returns the events of a run. gone is the event of the deletion of its task at the
// same revision, or nil.
func (t *Translator) runEvents(c *runChange, gone *task.Event) (list []task.Event) {
	// The place where the run is after the revision determines the event. A move deletes the run
	// in another place, which the functions use to tell who has moved it.
	switch {
	case wasPut(c.history):
		list = t.intoHistory(c)
	case wasPut(c.inbox):
		list = t.intoInbox(c)
	case wasPut(c.queue):
		list = t.intoQueue(c)
	case wasRemoved(c.inbox), wasRemoved(c.queue):
		list = t.purgedEvents(c, gone)
	case wasRemoved(c.dead) && gone == nil:
		list = t.dismissedEvents(c)
	}

	for _, l := range c.late {
		if wasPut(l) {
			r, err := record.DecodeRunValue(l.After.Value)
			e := t.runEvent(c, task.ActionLate, r, err)
			e.Actor, e.Time = task.NodeActor(r.Node), r.EndedAt
			e.Detail = string(r.State) + ", but it had been declared lost"
			e.State = "" // it does not change the state of the run
			list = append(list, e)
		}
	}

	return list
}

// runEvent returns an event with the fields of the run's record. err is the error of its
// decoding.
func (t *Translator) runEvent(c *runChange, action string, r task.Run, err error) task.Event {
	shard := c.ref.Shard
	e := task.Event{Kind: task.EventRun, Action: action, Namespace: c.ref.Namespace, Task: c.ref.Name, Run: c.id, Shard: &shard,
		UID: r.UID, State: string(r.State), Reason: r.Reason, Trigger: r.Trigger, ScheduledTime: r.ScheduledTime,
		Attempt: r.Attempt, Node: r.Node, Last: r.Last, Count: r.Count}
	if err != nil {
		e.Detail = unreadableRecord
	}

	return e
}

// intoHistory returns the event of a run whose history record was written.
func (t *Translator) intoHistory(c *runChange) []task.Event {
	r, err := record.DecodeRunValue(c.history.After.Value)
	e := t.runEvent(c, task.ActionEnded, r, err)
	e.Time, e.Dead, e.Detail = r.EndedAt, wasPut(c.dead), words{e.Detail, r.Message}.joinWords()
	owner := t.ownerActor(c.ref.Shard)

	// A run leaves an inbox by a finish of its node, or by a commit of the owner that declares it
	// lost. It leaves the queue by a commit of the owner or by a cancel. A history record without
	// a move is a tick that did not run, or a further tick of such a record.
	switch {
	case wasRemoved(c.inbox):
		e.Node = c.node
		e.Actor = task.NodeActor(c.node)
		if r.State == task.Lost && !t.present[c.node] { // a commit of an owner requires that the node is absent
			e.Actor = owner
		}
	case wasRemoved(c.queue):
		e.Actor = owner
	case c.history.Before != nil:
		before, _ := record.DecodeRunValue(c.history.Before.Value)
		if before.State == r.State && before.Count == r.Count && before.Last.Equal(r.Last.Time) {
			return nil // a repair, or a changed message
		}
		e.Action, e.Actor = task.ActionExtended, owner
	default:
		e.Actor = owner

		switch r.State {
		case task.Skipped:
			e.Action = task.ActionSkipped
		case task.Missed:
			e.Action = task.ActionMissed
		}
	}

	if r.State == task.Cancelled && r.CancelledBy != nil {
		e.Actor = r.CancelledBy
	}

	return []task.Event{e}
}

// intoInbox returns the events of a run whose inbox record was written.
func (t *Translator) intoInbox(c *runChange) (list []task.Event) {
	var r, before task.Assigned
	err := record.DecodeAssignedValue(c.inbox.After.Value, &r)

	r.Node, r.Token = c.node, c.inbox.After.CreateRevision
	// A new record is a dispatch. A rewritten one is a step of the attempt, or a request to its
	// node. One rewrite may be several events.
	if c.inbox.Before == nil {
		if err != nil {
			r.State = task.Dispatched
		}

		e := t.runEvent(c, task.ActionDispatched, r.Run, err)
		e.Generation, e.Time, e.Actor, e.Previous = r.Generation, r.DispatchedAt, t.ownerActor(c.ref.Shard), c.takenFrom
		return []task.Event{e}
	}

	if err != nil || record.DecodeAssignedValue(c.inbox.Before.Value, &before) != nil {
		return nil // a damaged record, which the audit reports; the run has not moved
	}

	if before.State == task.Dispatched && before.State != r.State {
		e := t.runEvent(c, task.ActionStarted, r.Run, nil)
		e.Time, e.Actor = r.StartedAt, task.NodeActor(c.node)
		list = append(list, e)
	}

	list = append(list, t.pauseEvents(c, &before, &r)...)
	if r.CancelRequested && !before.CancelRequested {
		e := t.runEvent(c, task.ActionCancelling, r.Run, nil)
		e.Actor, e.Reason = r.CancelledBy, r.CancelReason
		if e.Reason == "" {
			e.Reason = task.ReasonCancelled
		}

		if e.Actor == nil {
			e.Actor = t.ownerActor(c.ref.Shard)
		}

		list = append(list, e)
	}

	return list
}

// intoQueue returns the event of a run whose queue record was written.
func (t *Translator) intoQueue(c *runChange) []task.Event {
	w, err := record.DecodeWaitingValue(c.queue.After.Value)
	if err != nil {
		w.State = task.Queued
	}

	e := t.runEvent(c, task.ActionQueued, w.Run, err)
	e.Actor, e.Time = t.ownerActor(c.ref.Shard), w.CreatedAt

	// A run enters the queue from an inbox (handed back, or retried), as a new run, or changes there.
	switch {
	case wasRemoved(c.inbox) && w.Reason == task.ReasonHandBack:
		e.Action, e.Actor, e.Previous, e.Time = task.ActionHandedBack, task.NodeActor(c.node), c.node, task.Time{}
	case wasRemoved(c.inbox):
		e.Action, e.Previous, e.Time = task.ActionRetrying, c.node, task.Time{}
		if w.WaitsForTarget() {
			e.Actor, e.Time, e.Detail = task.NodeActor(c.node), w.Unsent.Last, "attempt not sent: "+w.Unsent.Message
		} else if n := len(w.Attempts); n > 0 {
			last := w.Attempts[n-1]
			e.Time, e.Detail = last.EndedAt, attemptWords(last)
			if last.State != task.Lost || t.present[c.node] {
				e.Actor = task.NodeActor(c.node)
			}
		}
	case w.UnderWay():
		before, ok := parentStep(c.queue, w)
		if !ok {
			return nil // parts were dispatched or have ended; they have their own events
		}

		e.Action, e.Time, e.Detail = before, task.Time{}, w.Fan.String()
		switch before {
		case task.ActionCancelling:
			e.Reason = w.Fan.Cancel
			if w.CancelledBy != nil {
				e.Actor = w.CancelledBy
			}
			if w.Fan.Flow != nil && w.Fan.Flow.Forced {
				e.Detail += ", with its cleanup"
			}
		case task.ActionPaused:
			e.Actor, e.Time = w.PausedBy, w.PausedAt
		case task.ActionResumed:
			e.Actor = nil // the record does not say who resumed the run
		}
	case c.queue.Before != nil:
		before, _ := record.DecodeWaitingValue(c.queue.Before.Value)
		if before.Reason == w.Reason {
			return nil
		}
		e.Action, e.Time = task.ActionWaiting, task.Time{}
	case w.Trigger == task.TriggerManual:
		e.Actor = w.CreatedBy
		e.Detail = requestWords(w.Run)
	case w.Trigger == task.TriggerAfter && len(w.Causes) > 0:
		e.Detail = "after run " + w.Causes[0].Run + " of " + w.Causes[0].Task
	}

	return []task.Event{e}
}

// requestWords describes what a user requested for a run.
func requestWords(r task.Run) string {
	var details words
	if r.RetryOf != "" {
		details = append(details, "again, after "+r.RetryOf)
	}

	if r.RerunOf != "" {
		details = append(details, "again, as "+r.RerunOf)
	}

	if len(r.EnvNames) > 0 {
		details = append(details, "env "+strings.Join(r.EnvNames, ", "))
	}

	if len(r.Args) > 0 {
		details = append(details, "arguments: "+strconv.Itoa(len(r.Args)))
	}

	switch {
	case r.IsBootRun():
		details = append(details, "for the boot of node "+r.TargetNode)
	case r.TargetNode != "":
		details = append(details, "on node "+r.TargetNode)
	}

	return details.String()
}

// attemptWords describes how an attempt ended.
func attemptWords(a task.Attempt) string {
	return words{"attempt ended: " + string(a.State), a.Reason}.joinWords()
}

// joinWords joins the words that are not empty.
func (w words) joinWords() string {
	var all words
	for _, s := range w {
		if s != "" {
			all = append(all, s)
		}
	}

	return all.String()
}

// dismissedEvents returns the event of a dead run that a user has dismissed. Records that were
// trimmed name no user and have no event.
func (t *Translator) dismissedEvents(c *runChange) []task.Event {
	w, err := record.DecodeWaitingValue(c.dead.Before.Value)
	if err != nil || w.DismissedBy == nil {
		return nil
	}

	e := t.runEvent(c, task.ActionDismissed, w.Run, nil)
	e.Actor = w.DismissedBy

	return []task.Event{e}
}

// purgedEvents returns the event of a run that leaves no record, because its task was deleted
// or by a repair.
func (t *Translator) purgedEvents(c *runChange, gone *task.Event) []task.Event {
	var r task.Run
	if wasRemoved(c.queue) {
		r, _ = record.DecodeRunValue(c.queue.Before.Value)
	} else {
		r, _ = record.DecodeRunValue(c.inbox.Before.Value)
		r.Node = c.node
	}

	e := t.runEvent(c, task.ActionDeleted, r, nil)
	e.State, e.Reason, e.Previous = "", "", string(r.State)
	if gone != nil {
		e.Reason, e.Actor, e.Time = task.ReasonDeleted, gone.Actor, gone.Time
	}

	return []task.Event{e}
}

// parentStep returns the action of a new record of a run with parts. It returns false if only
// its parts have changed.
func parentStep(c *Change, now task.Waiting) (action string, ok bool) {
	var before task.Waiting
	if c.Before != nil {
		before, _ = record.DecodeWaitingValue(c.Before.Value)
	}

	switch {
	case !before.UnderWay():
		return task.ActionStarted, true
	case before.Fan.Cancel == "" && now.Fan.Cancel != "":
		return task.ActionCancelling, true
	case now.Fan.Flow == nil || before.Fan.Flow == nil:
		return "", false
	case !before.Fan.Flow.Forced && now.Fan.Flow.Forced:
		return task.ActionCancelling, true
	case before.PausedAt.IsZero() && !now.PausedAt.IsZero():
		return task.ActionPaused, true
	case !before.PausedAt.IsZero() && now.PausedAt.IsZero():
		return task.ActionResumed, true
	}

	return "", false
}

// pauseEvents returns the events about the pause of an attempt: what was requested of its node,
// and what the node has done.
func (t *Translator) pauseEvents(c *runChange, before, after *task.Assigned) (list []task.Event) {
	add := func(action string, actor *task.Actor) *task.Event {
		e := t.runEvent(c, action, after.Run, nil)
		e.Actor = actor
		list = append(list, e)
		return &list[len(list)-1]
	}

	switch was, is := before.State == task.Paused, after.State == task.Paused; {
	case is && !was:
		add(task.ActionPaused, task.NodeActor(c.node)).Time = after.PausedAt
	case was && !is:
		add(task.ActionResumed, task.NodeActor(c.node))
	}

	switch was, is := before.PauseRequested, after.PauseRequested; {
	case is && !was:
		add(task.ActionPausing, after.PausedBy)
	case was && !is && after.ResumedBy == nil: // nobody withdrew the request: the node reports that it cannot pause the attempt
		add(task.ActionUnpausable, task.NodeActor(c.node)).Detail = after.Message
	case was && !is:
		add(task.ActionResuming, after.ResumedBy)
	}

	return list
}
