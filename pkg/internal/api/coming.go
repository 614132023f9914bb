package api

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// ahead is a tick of a task that is to come.
type ahead struct {
	entry *task.Entry
	sched *schedule.Schedule
}

// comingQuery are the parameters of a list of ticks to come.
type comingQuery struct {
	nameQuery
	From    task.Time `query:"from" format:"date-time" doc:"Ticks later than this time. Default: now."`
	Until   task.Time `query:"until" format:"date-time" doc:"No ticks later than this time. Default: any."`
	Failing bool      `query:"failing" default:"false" doc:"Only of tasks of which a run has used up its attempts, and none has succeeded since."`
	PageQuery
}

// comingTicks serves the next ticks of many tasks, merged in the order of time.
// It holds no more of them than a page has.
func (h *taskHandlers) comingTicks(c *call, q comingQuery) (answer, error) {
	f, err := c.taskFilter(q.nameQuery)
	if err != nil {
		return answer{}, err
	}
	f.failing = q.Failing
	p, err := c.paging(q.PageQuery)
	if err != nil {
		return answer{}, err
	}
	from, until := q.From, q.Until
	if from.IsZero() {
		from = h.Now.Stamp()
	}
	if !until.IsZero() && !until.After(from.Time) {
		return answer{}, task.Invalid(task.CodeBadTime, "until", "%s is not after from, %s", until.Format(time.RFC3339), from.Format(time.RFC3339))
	}
	first := firsts[ahead]{most: p.limit}
	if p.after != "" {
		at, err := parsePlaced(p.after)
		if err != nil {
			return answer{}, err
		}
		first.after = &at
	}
	err = h.Finder.eachEntry(c.ctx(), f, func(refs []store.Ref, entries []*task.Entry) error {
		for i, e := range entries {
			if e != nil {
				lookAhead(c.ctx(), &first, refs[i], e, from.Time, until.Time, q.From.IsZero())
			}
		}
		return c.ctx().Err()
	})
	if err != nil {
		return answer{}, err
	}
	kept, after := first.list()
	list := make([]client.Coming, len(kept))
	for i, k := range kept {
		before := time.UnixMilli(k.at - 1)
		list[i] = client.Coming{Namespace: k.ref.Namespace, Task: k.ref.Name, Timezone: k.of.entry.Timezone, Schedule: k.of.entry.Schedule,
			Occurrence: shown(k.of.sched.Upcoming(before, 1, k.of.entry.UID)[0])}
	}
	return page(c, p, list, after)
}

// lookAhead offers the ticks of an entry, later than from and no later than until
// (zero: any), until one comes behind all that is wanted. live: from is now, and
// what is decided already does not come. Where runs are counted it cannot skip what
// former pages had, which may be a lot: it ends with ctx.
func lookAhead(ctx context.Context, first *firsts[ahead], ref store.Ref, e *task.Entry, from, until time.Time, live bool) {
	if !e.Ticks() {
		return
	}
	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil || sched.Manual() {
		return // the owner raises the alarm
	}
	if silent, ends := e.Silence(); ends && silent.After(from) {
		from = silent.Time
	}
	if live && e.From.After(from) {
		from = e.From.Time
	}
	const any = int64(1) << 62
	left := runsLeft(e, any)
	if left == any && first.after != nil && first.after.at-1 > from.UnixMilli() {
		from = time.UnixMilli(first.after.at - 1)
	}
	for ; left > 0 && ctx.Err() == nil; left-- {
		tick, ok := sched.Next(from)
		if !ok || !until.IsZero() && tick.After(until) || !first.offer(placed{tick.UnixMilli(), ref}, ahead{e, sched}) {
			return
		}
		from = tick
	}
}
