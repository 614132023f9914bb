package executor

import (
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// pauseReported stores what an attempt's goroutine reports about pausing its process.
func (e *Executor) pauseReported(a *attempt, o *process.Orders, s process.PauseState) {
	if a.orders != o {
		return // a report of an earlier start
	}

	e.addToCounts(a, -1)
	a.PauseState = s
	e.addToCounts(a, 1)

	if s.Err != nil {
		e.log.Warn("cannot pause an attempt", zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID), zap.Error(s.Err))
	}

	e.markDirty(a)
}

// pauseChanged reports whether the attempt's goroutine was not yet given the current PauseRequested.
func (a *attempt) pauseChanged() bool { return a.PauseRequested != a.pauseSent }

// pauseFailed reports whether a pause is requested that has failed.
func (a *attempt) pauseFailed() bool { return a.PauseRequested && a.pauseSent && a.Err != nil }

// recordIsStale reports whether the record has to be rewritten because the attempt started, paused or
// resumed. A start is written only after markAfter, which saves a write for short attempts.
func (a *attempt) recordIsStale(now time.Time) bool {
	if a.startedAt.IsZero() || !a.Since.IsZero() && !a.PauseRequested {
		return false // it is about to resume, and that is written instead
	}

	h := *a.Held
	a.describeIn(&h)

	if h.State == task.Running && a.State == task.Dispatched && h.PausedMS == a.PausedMS && !a.pauseFailed() {
		return now.Sub(a.startedAt) >= markAfter
	}

	return h.State != a.State || !h.PausedAt.Equal(a.PausedAt.Time) || h.PausedMS != a.PausedMS || h.PauseRequested != a.PauseRequested
}

// describeIn sets the fields of a record that describe whether the attempt is running or paused.
func (a *attempt) describeIn(h *record.Held) {
	h.State, h.StartedAt, h.Reason = task.Running, task.At(a.startedAt), ""
	h.PausedAt, h.PausedMS = task.Time{}, a.Sum.Milliseconds()
	switch {
	case a.pauseFailed():
		h.PauseRequested, h.PausedBy, h.ResumedBy, h.Message = false, "", "", "it could not be paused: "+a.Err.Error()
	case h.PauseRequested && !a.Since.IsZero():
		h.State, h.PausedAt = task.Paused, task.At(a.Since)
	case !h.PauseRequested:
		h.PausedBy = ""
	}
}
