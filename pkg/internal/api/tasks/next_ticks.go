package tasks

import (
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// The default and the maximum number of ticks in a list of next ticks.
const (
	DefaultCount = 5
	MaxCount     = 1000
)

// localLayout formats a local time in milliseconds with its offset.
const localLayout = "2006-01-02T15:04:05.000Z07:00"

// nextQuery are the parameters of the next ticks of a task.
type nextQuery struct {
	Count int       `query:"count" minimum:"1" maximum:"1000" default:"5" doc:"How many ticks."`
	From  task.Time `query:"from" format:"date-time" direction:"future" doc:"Ticks later than this time. Default: now."`
}

// nextTicks serves the next ticks of a task. A pause without an end is ignored.
func (h *Handlers) nextTicks(c *httpapi.Call, q nextQuery) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	count, from := q.Count, q.From
	if from.IsZero() {
		from = h.Now.Stamp()
	}

	st, err := h.Store.Task(c.Context(), ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	e := st.Entry
	// The entry is missing. The spec still shows when the task would tick.
	if st.EntryMod == 0 {
		if e, err = entryOf(st.Task, st.Task.CreatedAt, st.Task.CreatedAt); err != nil {
			return httpapi.Answer{}, err
		}
	}

	// A pause with an end: no tick up to that end exists.
	if until, ends := e.Silence(); ends && until.After(from.Time) {
		from = until
	}

	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		return httpapi.Answer{}, err
	}

	list := sched.Upcoming(from.Time, int(min(int64(count), views.RunsLeft(&e, int64(count)))), e.UID)

	return answerOccurrences(list, h.newObstacles(c).of(ref.Namespace, &e))
}

// answerOccurrences answers with a list of ticks. obstacle is why their runs could not start now.
func answerOccurrences(list []schedule.Occurrence, obstacle string) (httpapi.Answer, error) {
	out := make([]client.Occurrence, len(list))
	for i, o := range list {
		out[i] = showOccurrence(o)
		out[i].Obstacle = obstacle
	}
	return httpapi.All(out)
}

// showOccurrence converts an occurrence to the form of the API. DueAt is set only if jitter delays the tick.
func showOccurrence(o schedule.Occurrence) client.Occurrence {
	v := client.Occurrence{Time: task.At(o.Time), Local: o.Local.Format(localLayout), DueBefore: dueBefore(o), Note: o.Note}
	if !o.Due.IsZero() && !o.Due.Equal(o.Time) {
		v.DueAt = task.At(o.Due)
	}
	return v
}

// scheduleNext serves the next ticks of a schedule in the request, without a task.
func (h *Handlers) scheduleNext(c *httpapi.Call) (httpapi.Answer, error) {
	now := h.Now.Stamp()
	ask := client.ScheduleRequest{Timezone: "UTC", DST: task.Defaults().DST, From: now, Count: DefaultCount}
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}
	if ask.Count < 1 || ask.Count > MaxCount {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "count", "%d is not between 1 and %d", ask.Count, MaxCount)
	}
	if err := httpapi.CheckTime("from", ask.From); err != nil {
		return httpapi.Answer{}, err
	}

	timing, err := timingOf(ask)
	if err != nil {
		return httpapi.Answer{}, err
	}

	list, err := schedule.Upcoming(timing, ask.From.Time, ask.From.Time, ask.Count)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return answerOccurrences(list, "")
}
