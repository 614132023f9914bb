package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// TicksService computes the times at which schedules are due. It changes nothing.
type TicksService struct{ conn *connection }

// ComingOptions say which ticks are wanted.
type ComingOptions struct {
	Namespace   string // "" is all of them
	Selector    string
	Names       []string // as in TaskListOptions
	Failing     bool
	From, Until time.Time // zero: from now, without an end
	Limit       int       // at most so many; 0 is all, which with no end have none
}

// All yields the next ticks of many tasks, merged in the order of time. It reads each
// page when it is needed, and for each the server looks at all tasks. An error ends it.
func (s *TicksService) All(ctx context.Context, o ComingOptions) iter.Seq2[Coming, error] {
	path, err := namespacePath(o.Namespace, "/next")
	q := TaskListOptions{Selector: o.Selector, Names: o.Names, Failing: o.Failing}.queryValues()
	setTimes(q, map[string]time.Time{"from": o.From, "until": o.Until})

	return iteratePages[Coming](ctx, s.conn, path, q, maxPage, o.Limit, err)
}

// ListByTask returns the next ticks of a task after from (zero: now), whether or not
// the task is paused. A count of 0 is the server's default of 5. The error is
// task.ErrNotFound if there is no such task.
func (s *TicksService) ListByTask(ctx context.Context, namespace, name string, count int, from time.Time) ([]Occurrence, error) {
	q := url.Values{}

	if count != 0 {
		q.Set("count", strconv.Itoa(count))
	}

	setTimes(q, map[string]time.Time{"from": from})

	var l List[Occurrence]
	err := s.conn.doTask(ctx, namespace, name, call{method: http.MethodGet, query: q}, &l, "next")

	return l.Items, err
}

// schedulePath is a POST that writes nothing.
const schedulePath = "/v1/schedule/next"

// ListBySchedule returns the next ticks of a schedule that belongs to no task. The error
// is task.ErrInvalid if the schedule is not valid.
func (s *TicksService) ListBySchedule(ctx context.Context, r ScheduleRequest) ([]Occurrence, error) {
	var l List[Occurrence]
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: schedulePath, body: r}, &l)

	return l.Items, err
}
