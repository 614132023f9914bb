package tasks

import (
	"context"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// upcomingQuery are the parameters of a list of future ticks.
type upcomingQuery struct {
	From  task.Time           `query:"from" format:"date-time" direction:"future" doc:"Ticks later than this time. Default: now."`
	Until task.Time           `query:"until" format:"date-time" direction:"future" doc:"No ticks later than this time. Default: any."`
	Query readmodel.QueryLine `query:"q" doc:"Only ticks of tasks that match this query: \"label:team=data -state:failing\"."`
	httpapi.PageQuery
}

// comingChunk is the number of tasks whose ticks are examined at once. It bounds the memory.
const comingChunk = 2000

// comingTicks serves the future ticks of many tasks, merged in the order of time. It keeps at most one page of
// them in memory.
func (h *Handlers) comingTicks(c *httpapi.Call, q upcomingQuery) (httpapi.Answer, error) {
	question, err := ask.QuestionOf(c, q.Query, readmodel.ByNext)
	if err != nil {
		return httpapi.Answer{}, err
	}

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

	first := tickHeap{most: p.Limit}
	if p.After != "" {
		at, err := parseTickPlace(p.After)
		if err != nil {
			return httpapi.Answer{}, err
		}
		first.after = &at
	}

	answer, err := h.eachDue(c, question, p.Limit, &first, until.Time, func(ref record.Ref, e *task.Entry) {
		lookAhead(c.Context(), &first, ref, e, from.Time, until.Time, q.From.IsZero())
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	// The page holds due times with their entries. Local time and notes are computed only for the ticks that are
	// shown.
	kept, after := first.sorted()
	list := make([]client.Coming, len(kept))
	obstacles := h.newObstacles(c)
	for i, k := range kept {
		before := time.UnixMilli(k.at - 1)
		list[i] = client.Coming{Namespace: k.ref.Namespace, Task: k.ref.Name, Timezone: k.entry.Timezone, Schedule: k.entry.Schedule,
			Occurrence: showOccurrence(k.sched.Upcoming(before, 1, k.entry.UID)[0])}
		list[i].Obstacle = obstacles.of(k.ref.Namespace, k.entry)
	}

	info := answer.Info(h.Now.Stamp())
	info.Count = nil // it counts tasks, not ticks

	return httpapi.QueryPage(c, p, list, after, info)
}

// eachDue visits the entries of the tasks that match, in the order of their next ticks, until the ticks of all others come
// after those in first, or after until (zero: no limit). No tick of a task is earlier than its next one, so the first
// page of a list needs no more tasks than it has ticks.
func (h *Handlers) eachDue(c *httpapi.Call, q ask.Question, limit int, first *tickHeap, until time.Time, visit func(record.Ref, *task.Entry)) (ask.Answer, error) {
	q.Limit = min(limit, comingChunk)
	answer, err := h.Asker.Ask(c, q)
	if err != nil {
		return answer, err
	}

	for chunk := answer; ; {
		refs := make([]record.Ref, len(chunk.Places))
		for i, p := range chunk.Places {
			namespace, name, _ := strings.Cut(p.Name, "/")
			refs[i] = h.Ref(namespace, name)
		}

		entries, err := h.Store.Entries(c.Context(), refs)
		if err != nil {
			return answer, err
		}

		for i, e := range entries {
			if e != nil {
				visit(refs[i], e)
			}
		}

		if err := c.Context().Err(); err != nil || !chunk.More || len(chunk.Places) == 0 {
			return answer, err
		}

		last := chunk.Places[len(chunk.Places)-1]
		if last.Key == readmodel.NoValue || first.endsBefore(last.Key) || !until.IsZero() && last.Key > until.UnixMilli() {
			return answer, nil
		}

		q.After, q.Limit = &last, comingChunk
		if chunk, err = h.Asker.AskNow(c, q); err != nil {
			return answer, err
		}

		answer.Include(chunk)
	}
}

// lookAhead offers the ticks of an entry that are later than from and not later than until (zero: no limit) to
// the page. It stops at the first tick that no longer fits into the page. If live is set, from is now, and
// ticks that have been decided are left out.
//
// If the task has a limit of runs, lookAhead must count from the first tick, so it cannot skip the ticks of
// earlier pages. These may be many, so the loop also ends when ctx is done.
func lookAhead(ctx context.Context, first *tickHeap, ref record.Ref, e *task.Entry, from, until time.Time, live bool) {
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
	if left == any && first.after != nil && first.after.at-1 > from.UnixMilli() {
		from = time.UnixMilli(first.after.at - 1)
	}

	for ; left > 0 && ctx.Err() == nil; left-- {
		tick, ok := sched.Next(from)
		if !ok || !until.IsZero() && tick.After(until) || !first.offer(futureTick{tickPlace{tick.UnixMilli(), ref}, e, sched}) {
			return
		}
		from = tick
	}
}
