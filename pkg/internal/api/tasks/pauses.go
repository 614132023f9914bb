package tasks

import (
	"errors"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// A pause stands in two places. The spec says that a user paused the task, until
// when, and why. The entry is what holds: its owner sets it, too, when the task has
// failed too often, and the spec does not know. Both are kept in step so:
//
//   - What a user writes over a spec that says paused decides: if it says so no more,
//     the task ticks again.
//   - A pause that only the entry knows stays until somebody resumes the task: to
//     apply the same file again must not end it.
//   - A pause whose end has passed is none, wherever it stands. It is cleared by the
//     next write.

// pausing is a write over a task, as far as pauses go.
type pausing struct {
	now    task.Time
	who    string
	resume bool // somebody asks for it: a pause ends that only the entry knows
}

// over makes the pause of the entry that is written over old what spec says. since
// is what the entry's from is to be at least: ticks of a pause never run later.
func (p pausing) over(old store.Stored, spec task.Spec, e *task.Entry) (since task.Time) {
	own := task.Own{}
	if o := old.Entry.Own; o != nil {
		own = *o
		own.Pauses = append([]task.Pause(nil), o.Pauses...)
	}

	was, holds := views.PauseInForce(&old.Entry, p.now.Time)
	until, _ := old.Entry.Silence()
	e.Paused = spec.Paused || holds && !views.Settled(old.Task.Spec, p.now.Time).Paused && !p.resume
	begin := func() {
		if n := len(own.Pauses); n > 0 && own.Pauses[n-1].Ended.IsZero() && own.Pauses[n-1].Until.IsZero() {
			own.Pauses[n-1].Ended = p.now // by a version that keeps no record of it
		}
		own.Pauses = append(own.Pauses, task.Pause{Since: p.now, By: p.who, Reason: spec.PauseReason, Until: spec.PausedUntil})
		own.Pauses = own.Pauses[max(0, len(own.Pauses)-task.KeepPauses):]
	}

	end := func() {
		if n := len(own.Pauses); n > 0 && own.Pauses[n-1].Ended.IsZero() {
			own.Pauses[n-1].Ended, own.Pauses[n-1].EndedBy = p.now, p.who
		}

		if !e.Paused || was != nil && was.By == task.PausedByFailures {
			own.Failures = 0
		}
	}

	switch {
	case holds && !e.Paused:
		end()
		since = p.now
	case holds && spec.Paused && !agrees(was, spec):
		end()
		begin()
	case old.Entry.Paused && !holds: // it ended by itself
		since, own.Failures = until, 0
		if e.Paused {
			begin()
		}
	case !holds && e.Paused:
		begin()
	}

	e.Own = kept(own, old, spec)

	return since
}

// agrees reports whether a pause that holds is the one that a spec asks for.
func agrees(p *task.Pause, s task.Spec) bool {
	if p == nil {
		return s.PauseReason == "" && s.PausedUntil.IsZero()
	}
	return p.Reason == s.PauseReason && p.Until.Equal(s.PausedUntil.Time)
}

// kept is what an entry goes on knowing under another spec: what is not counted
// any more begins anew when it is counted again. nil if that is nothing.
func kept(own task.Own, old store.Stored, spec task.Spec) *task.Own {
	if spec.MaxRuns == 0 {
		own.Runs = 0
	}

	if spec.PauseAfter == 0 {
		own.Failures, own.Counted = 0, 0
	} else if old.Task.PauseAfter == 0 { // what failed before does not count
		own.Counted = max(own.Counted, old.EntryMod, old.Task.Revision)
	}

	if spec.Target.Strategy != task.StrategySticky {
		own.Node = ""
	}

	if own.Runs == 0 && own.Failures == 0 && own.Counted == 0 && len(own.Pauses) == 0 && own.Node == "" {
		return nil
	}

	return &own
}

// pauseTask serves pause. Of a task that is paused already, what is not given
// stays.
func (h *Handlers) pauseTask(c *httpapi.Call) (httpapi.Answer, error) {
	var body struct {
		client.PauseRequest
		For *task.Duration `json:"for"` // 0s is not none: that would be a pause for ever
	}
	if err := c.Decode(&body); err != nil {
		return httpapi.Answer{}, err
	}

	ask := body.PauseRequest
	if body.For != nil {
		if ask.For = *body.For; ask.For == 0 {
			return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "for", "%s is not between 1s and %s", ask.For, task.MaxTimeout)
		}
	}

	if err := h.checkPause(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	return h.edited(&taskWrite{Call: c}, edit{is: task.ChangePaused, spec: func(_, shown task.Spec) (task.Spec, error) {
		shown.Paused = true
		if !ask.Until.IsZero() {
			shown.PausedUntil = ask.Until
		}

		if ask.Reason != "" {
			shown.PauseReason = ask.Reason
		}

		return shown, nil
	}})
}

// checkPause checks a pause, and makes an instant of its end.
func (h *Handlers) checkPause(ask *client.PauseRequest) error {
	now := h.Now.Stamp()

	if ask.For != 0 {
		if !ask.Until.IsZero() {
			return task.Invalid(task.CodeBadValue, "for", "is instead of until: give one of them")
		}
		if ask.For < task.Duration(time.Second) || ask.For > task.MaxTimeout {
			return task.Invalid(task.CodeOutOfRange, "for", "%s is not between 1s and %s", ask.For, task.MaxTimeout)
		}
		if err := h.trustClock(); err != nil {
			return err
		}

		ask.Until = task.At(now.Add(ask.For.Std()))
	}

	probe := task.Defaults()
	probe.Name, probe.Action.Noop = "x", &task.Noop{}
	probe.Paused, probe.PausedUntil, probe.PauseReason = true, ask.Until, ask.Reason
	var fault *task.Error
	if err := probe.Validate(); errors.As(err, &fault) { // of a spec's fields; the request's have shorter names
		field := map[string]string{"paused_until": "until", "pause_reason": "reason"}[fault.Field]
		return task.Invalid(fault.Code, field, "%s", fault.Message)
	}

	if !ask.Until.IsZero() && !ask.Until.After(now.Time) {
		return task.Invalid(task.CodeBadTime, "until", "%s has passed", ask.Until.Format(time.RFC3339))
	}

	return nil
}

// resumeTask serves resume.
func (h *Handlers) resumeTask(c *httpapi.Call) (httpapi.Answer, error) {
	return h.edited(&taskWrite{Call: c}, edit{is: task.ChangeResumed, resume: true, spec: func(spec, _ task.Spec) (task.Spec, error) {
		return views.Unpaused(spec), nil
	}})
}

// edited answers with the task in the path after a change.
func (h *Handlers) edited(c *taskWrite, ed edit) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	st, result, err := h.change(c, ref, ed)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerTask(c, http.StatusOK, st, result)
}
