package tasks

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/selection"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// pageTick is one future tick of a task, as the page of a list holds it.
type pageTick struct {
	entry *task.Entry
	sched *schedule.Schedule
}

// upcomingQuery are the parameters of a list of future ticks.
type upcomingQuery struct {
	selection.NameQuery
	From    task.Time `query:"from" format:"date-time" doc:"Ticks later than this time. Default: now."`
	Until   task.Time `query:"until" format:"date-time" doc:"No ticks later than this time. Default: any."`
	Failing bool      `query:"failing" default:"false" doc:"Only runs of tasks with a run that has used up its attempts and no success since then."`
	httpapi.PageQuery
}

// comingTicks serves the future ticks of many tasks, merged in the order of time. It keeps at most one page of
// them in memory.
func (h *Handlers) comingTicks(c *httpapi.Call, q upcomingQuery) (httpapi.Answer, error) {
	f, err := selection.FilterOf(c, q.NameQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	f.Failing = q.Failing
	p, err := c.Paging(q.PageQuery)
	if err != nil {
		return httpapi.Answer{}, err
	}

	// Without from, ticks count from now, and ticks that are already decided are left out.
	from, until := q.From, q.Until
	if from.IsZero() {
		from = h.Now.Stamp()
	}

	if !until.IsZero() && !until.After(from.Time) {
		return httpapi.Answer{}, task.Invalid(task.CodeBadTime, "until", "%s is not after from, %s", until.Format(time.RFC3339), from.Format(time.RFC3339))
	}

	first := selection.PageHeap[pageTick]{Most: p.Limit}
	if p.After != "" {
		at, err := selection.ParsePlace(p.After)
		if err != nil {
			return httpapi.Answer{}, err
		}
		first.After = &at
	}

	err = h.Finder.EachEntry(c.Context(), f, func(refs []record.Ref, entries []*task.Entry) error {
		for i, e := range entries {
			if e != nil {
				lookAhead(c.Context(), &first, refs[i], e, from.Time, until.Time, q.From.IsZero())
			}
		}

		return c.Context().Err()
	})

	if err != nil {
		return httpapi.Answer{}, err
	}

	// The page holds due times with their entries. Local time and notes are computed only for the ticks that are
	// shown.
	kept, after := first.Sorted()
	list := make([]client.Coming, len(kept))
	obstacles := h.newObstacles(c)
	for i, k := range kept {
		before := time.UnixMilli(k.At - 1)
		list[i] = client.Coming{Namespace: k.Ref.Namespace, Task: k.Ref.Name, Timezone: k.Of.entry.Timezone, Schedule: k.Of.entry.Schedule,
			Occurrence: showOccurrence(k.Of.sched.Upcoming(before, 1, k.Of.entry.UID)[0])}
		list[i].Obstacle = obstacles.of(k.Ref.Namespace, k.Of.entry)
	}

	return httpapi.Page(c, p, list, after)
}

// lookAhead offers the ticks of an entry that are later than from and not later than until (zero: no limit) to
// the page. It stops at the first tick that no longer fits into the page. If live is set, from is now, and
// ticks that have been decided are left out.
//
// If the task has a limit of runs, lookAhead must count from the first tick, so it cannot skip the ticks of
// earlier pages. These may be many, so the loop also ends when ctx is done.
func lookAhead(ctx context.Context, first *selection.PageHeap[pageTick], ref record.Ref, e *task.Entry, from, until time.Time, live bool) {
	if !e.Ticks() {
		return
	}

	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil || sched.Manual() {
		return // the owner reports entries that it cannot parse
	}

	// A pause with an end: no tick up to that end exists.
	if silent, ends := e.Silence(); ends && silent.After(from) {
		from = silent.Time
	}

	if live && e.From.After(from) {
		from = e.From.Time
	}

	// Without a limit of runs, the ticks of earlier pages need not be computed again.
	const any = int64(1) << 62
	left := views.RunsLeft(e, any)
	if left == any && first.After != nil && first.After.At-1 > from.UnixMilli() {
		from = time.UnixMilli(first.After.At - 1)
	}

	for ; left > 0 && ctx.Err() == nil; left-- {
		tick, ok := sched.Next(from)
		if !ok || !until.IsZero() && tick.After(until) || !first.Offer(selection.Place{At: tick.UnixMilli(), Ref: ref}, pageTick{e, sched}) {
			return
		}
		from = tick
	}
}
