package events

import "github.com/carillonhq/carillon/pkg/task"

// pauseEvents returns the events about the pause of an attempt: what was requested of its node,
// and what the node has done.
func (t *Translator) pauseEvents(c *runChange, before, after *task.Assigned) (list []task.Event) {
	add := func(action, actor string) *task.Event {
		e := t.runEvent(c, action, after.Run, nil)
		e.Actor = actor
		list = append(list, e)
		return &list[len(list)-1]
	}

	switch was, is := before.State == task.Paused, after.State == task.Paused; {
	case is && !was:
		add(task.ActionPaused, c.node).Time = after.PausedAt
	case was && !is:
		add(task.ActionResumed, c.node)
	}

	switch was, is := before.PauseRequested, after.PauseRequested; {
	case is && !was:
		add(task.ActionPausing, after.PausedBy)
	case was && !is && after.ResumedBy == "": // nobody withdrew the request: the node reports that it cannot pause the attempt
		add(task.ActionUnpausable, c.node).Detail = after.Message
	case was && !is:
		add(task.ActionResuming, after.ResumedBy)
	}

	return list
}
