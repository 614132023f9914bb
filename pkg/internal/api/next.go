package api

import (
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	defaultCount = 5
	maxCount     = 1000
)

// localLayout is an instant in a zone with its offset.
const localLayout = "2006-01-02T15:04:05.000Z07:00"

// nextQuery are the parameters of the next ticks of a task.
type nextQuery struct {
	Count int       `query:"count" minimum:"1" maximum:"1000" default:"5" doc:"How many ticks."`
	From  task.Time `query:"from" format:"date-time" doc:"Ticks later than this time. Default: now."`
}

// nextTicks serves the next ticks of a task.
func (h *taskHandlers) nextTicks(c *call, q nextQuery) (answer, error) {
	ref, err := c.ref()
	if err != nil {
		return answer{}, err
	}
	count, from := q.Count, q.From
	if from.IsZero() {
		from = h.Now.Stamp()
	}
	st, err := h.Store.Task(c.ctx(), ref)
	if err != nil {
		return answer{}, err
	}
	e := st.Entry
	if st.EntryMod == 0 {
		if e, err = entryOf(st.Task, st.Task.CreatedAt, st.Task.CreatedAt); err != nil {
			return answer{}, err
		}
	}
	if until, ends := e.Silence(); ends && until.After(from.Time) {
		from = until
	}
	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		return answer{}, err
	}
	return occurrences(sched.Upcoming(from.Time, int(min(int64(count), runsLeft(&e, int64(count)))), e.UID))
}

func occurrences(list []schedule.Occurrence) (answer, error) {
	out := make([]client.Occurrence, len(list))
	for i, o := range list {
		out[i] = shown(o)
	}
	return all(out)
}

// shown is an occurrence as users see it.
func shown(o schedule.Occurrence) client.Occurrence {
	v := client.Occurrence{Time: task.At(o.Time), Local: o.Local.Format(localLayout), DueBefore: dueBefore(o), Note: o.Note}
	if !o.Due.IsZero() && !o.Due.Equal(o.Time) {
		v.DueAt = task.At(o.Due)
	}
	return v
}

// scheduleNext serves the next ticks of a schedule that no task has.
func (h *taskHandlers) scheduleNext(c *call) (answer, error) {
	now := h.Now.Stamp()
	ask := client.ScheduleRequest{Timezone: "UTC", DST: task.Defaults().DST, From: now, Count: defaultCount}
	if err := c.decode(&ask); err != nil {
		return answer{}, err
	}
	if ask.Count < 1 || ask.Count > maxCount {
		return answer{}, task.Invalid(task.CodeOutOfRange, "count", "%d is not between 1 and %d", ask.Count, maxCount)
	}
	if err := checkTime("from", ask.From); err != nil {
		return answer{}, err
	}
	timing, err := timingOf(ask)
	if err != nil {
		return answer{}, err
	}
	list, err := schedule.Upcoming(timing, ask.From.Time, ask.From.Time, ask.Count)
	if err != nil {
		return answer{}, err
	}
	return occurrences(list)
}
