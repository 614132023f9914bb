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

// A pause is stored in two places. The spec contains what a user wrote: that the task is paused, until when,
// and why. The entry contains the pause in force. The owner of the shard also sets it, when the task has failed
// too often, without changing the spec. These rules keep the two consistent:
//
//   - A user's write over a spec that is paused decides. If the new spec is not paused, the task ticks again.
//   - A pause that only the entry contains stays until somebody resumes the task. Applying the same file again
//     must not end it.
//   - A pause whose end has passed is not in force, wherever it is stored. The next write removes it.

// pauseChange contains what a write needs to compute the pause of an entry.
type pauseChange struct {
	now    task.Time
	who    *task.Actor // who writes; recorded with the pause
	resume bool        // an explicit resume also ends a pause that only the entry contains
}

// pauseAfter sets the pause and the own state of e, the entry that replaces the one of old when spec is written.
// since is the earliest From that the new entry may have: ticks that fell into a pause never run later. It is
// zero if no pause has ended.
func (p pauseChange) pauseAfter(old store.Stored, spec task.Spec, e *task.Entry) (since task.Time) {
	// The record of pauses is copied, because old must stay as it was read.
	own := task.Own{}
	if o := old.Entry.Own; o != nil {
		own = *o
		own.Pauses = append([]task.Pause(nil), o.Pauses...)
	}

	// The new entry is paused if the spec is, or if the pause in force was not part of the old spec (the owner
	// set it) and this write does not resume the task.
	was, holds := views.PauseInForce(&old.Entry, p.now.Time)
	until, _ := old.Entry.Silence()
	e.Paused = spec.Paused || holds && !views.Settled(old.Task.Spec, p.now.Time).Paused && !p.resume
	begin := func() {
		if n := len(own.Pauses); n > 0 && own.Pauses[n-1].Ended.IsZero() && own.Pauses[n-1].Until.IsZero() {
			own.Pauses[n-1].Ended = p.now // begun by a version of Carillon that did not record ends
		}
		own.Pauses = append(own.Pauses, task.Pause{Since: p.now, By: p.who, Reason: spec.PauseReason, Until: spec.PausedUntil})
		own.Pauses = own.Pauses[max(0, len(own.Pauses)-task.KeepPauses):]
	}

	// end closes the record of the pause in force. The count of consecutive failures starts again if the task
	// ticks from now on, or if that count had caused the pause.
	end := func() {
		if n := len(own.Pauses); n > 0 && own.Pauses[n-1].Ended.IsZero() {
			own.Pauses[n-1].Ended, own.Pauses[n-1].EndedBy = p.now, p.who
		}

		if !e.Paused || was != nil && was.By.Is(task.PausedByFailures) {
			own.Failures = 0
		}
	}

	// Four cases change the record: the pause ends; it gets another reason or end; it had ended by its own
	// Until; a pause begins.
	switch {
	case holds && !e.Paused:
		end()
		since = p.now
	case holds && spec.Paused && !pauseMatchesSpec(was, spec):
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

	e.Own = keepOwn(own, old, spec)

	return since
}

// pauseMatchesSpec reports whether the pause in force has the reason and the end that the spec requests.
func pauseMatchesSpec(p *task.Pause, s task.Spec) bool {
	if p == nil {
		return s.PauseReason == "" && s.PausedUntil.IsZero()
	}
	return p.Reason == s.PauseReason && p.Until.Equal(s.PausedUntil.Time)
}

// keepOwn returns the own state that the entry keeps under another spec, or nil if it is empty. A counter that the
// new spec does not use is reset, so that it starts from zero if it is used again.
func keepOwn(own task.Own, old store.Stored, spec task.Spec) *task.Own {
	if spec.MaxRuns == 0 {
		own.Runs = 0
	}

	if spec.PauseAfter == 0 {
		own.Failures, own.Counted = 0, 0
	} else if old.Task.PauseAfter == 0 { // failures before this write do not count
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

// pauseTask serves the request to pause a task. If the task is already paused, omitted fields keep their
// values.
func (h *Handlers) pauseTask(c *httpapi.Call) (httpapi.Answer, error) {
	var body struct {
		client.PauseRequest
		For *task.Duration `json:"for"` // a pointer, to reject "0s": as an absent value it would mean a pause without an end
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

	return h.editAndAnswer(&taskWrite{Call: c}, edit{is: task.ChangePaused, spec: func(_, shown task.Spec) (task.Spec, error) {
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

// checkPause validates a pause request, and replaces a duration by the time at which the pause ends.
func (h *Handlers) checkPause(ask *client.PauseRequest) error {
	now := h.Now.Stamp()

	if ask.For != 0 {
		if !ask.Until.IsZero() {
			return task.Invalid(task.CodeBadValue, "for", "cannot be combined with until")
		}
		if ask.For < task.Duration(time.Second) || ask.For > task.MaxTimeout {
			return task.Invalid(task.CodeOutOfRange, "for", "%s is not between 1s and %s", ask.For, task.MaxTimeout)
		}
		if err := h.trustClock(); err != nil {
			return err
		}

		ask.Until = task.At(now.Add(ask.For.Std()))
	}

	// The limits of the fields are those of a spec, so a minimal spec with these values is validated.
	probe := task.Defaults()
	probe.Name, probe.Action.Noop = "x", &task.Noop{}
	probe.Paused, probe.PausedUntil, probe.PauseReason = true, ask.Until, ask.Reason
	var fault *task.Error
	if err := probe.Validate(); errors.As(err, &fault) { // the request's fields have shorter names than the spec's
		field := map[string]string{"paused_until": "until", "pause_reason": "reason"}[fault.Field]
		return task.Invalid(fault.Code, field, "%s", fault.Message)
	}

	if !ask.Until.IsZero() && !ask.Until.After(now.Time) {
		return task.Invalid(task.CodeBadTime, "until", "%s has passed", ask.Until.Format(time.RFC3339))
	}

	return nil
}

// resumeTask serves the request to resume a task.
func (h *Handlers) resumeTask(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	write := &taskWrite{Call: c}
	st, result, err := h.changeTask(write, ref, edit{is: task.ChangeResumed, resume: true, spec: func(spec, _ task.Spec) (task.Spec, error) {
		return views.Unpaused(spec), nil
	}})
	if err != nil {
		return httpapi.Answer{}, err
	}

	a, err := h.answerTask(write, http.StatusOK, st, result)
	v, ok := a.Body.(client.Task)
	if pauses := pausesOf(st.Entry); ok && len(pauses) > 0 && result == client.Configured && len(st.Task.After) > 0 && c.Rights().CanReadRuns(ref.Namespace) {
		// The task is resumed, so the answer must not look as if that had failed.
		v.DroppedTriggers, _ = h.Store.DroppedTriggers(c.Context(), ref, pauses[len(pauses)-1].Since.Time)
		a.Body = v
	}

	return a, err
}

// editAndAnswer applies ed to the task in the path and answers with the result.
func (h *Handlers) editAndAnswer(c *taskWrite, ed edit) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	st, result, err := h.changeTask(c, ref, ed)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerTask(c, http.StatusOK, st, result)
}
