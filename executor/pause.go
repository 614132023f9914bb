package executor

import (
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// stood takes over what an attempt's goroutine reports about pausing its process.
func (e *Executor) stood(a *attempt, o *process.Orders, s process.PauseState) {
	if a.orders != o {
		return // a report of an earlier start
	}

	e.tally(a, -1)
	a.PauseState = s
	e.tally(a, 1)

	if s.Err != nil {
		e.log.Warn("cannot pause an attempt", zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID), zap.Error(s.Err))
	}

	e.touch(a)
}

// turns reports whether the attempt's goroutine was not yet given the current PauseRequested.
func (a *attempt) turns() bool { return a.PauseRequested != a.told }

// unpausable reports whether a pause is requested that has failed.
func (a *attempt) unpausable() bool { return a.PauseRequested && a.told && a.Err != nil }

// unsaid reports whether the record has to be rewritten because the attempt started, paused or
// resumed. A start is written only after markAfter, which saves a write for short attempts.
func (a *attempt) unsaid(now time.Time) bool {
	if a.startedAt.IsZero() || !a.Since.IsZero() && !a.PauseRequested {
		return false // it is about to resume, and that is written instead
	}

	h := *a.Held
	a.say(&h)

	if h.State == task.Running && a.State == task.Dispatched && h.PausedMS == a.PausedMS && !a.unpausable() {
		return now.Sub(a.startedAt) >= markAfter
	}

	return h.State != a.State || !h.PausedAt.Equal(a.PausedAt.Time) || h.PausedMS != a.PausedMS || h.PauseRequested != a.PauseRequested
}

// say sets the fields of a record that describe whether the attempt is running or paused.
func (a *attempt) say(h *record.Held) {
	h.State, h.StartedAt, h.Reason = task.Running, task.At(a.startedAt), ""
	h.PausedAt, h.PausedMS = task.Time{}, a.Sum.Milliseconds()
	switch {
	case a.unpausable():
		h.PauseRequested, h.PausedBy, h.ResumedBy, h.Message = false, "", "", "it could not be paused: "+a.Err.Error()
	case h.PauseRequested && !a.Since.IsZero():
		h.State, h.PausedAt = task.Paused, task.At(a.Since)
	case !h.PauseRequested:
		h.PausedBy = ""
	}
}
