package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// TicksService computes the ticks of schedules. It changes nothing.
type TicksService struct{ conn *connection }

// ComingOptions select future ticks.
type ComingOptions struct {
	Namespace   string         // "" means all namespaces
	Query       string         // as in TaskListOptions
	From, Until time.Time      // zero: from now, and without an end
	Limit       int            // the maximum number of ticks; 0 means all, which may be infinitely many without Until
	Info        func(ListInfo) // as in TaskListOptions
}

// All yields the next ticks of many tasks, merged in the order of time. It reads each page when it is needed. An error
// ends the iteration.
func (s *TicksService) All(ctx context.Context, o ComingOptions) iter.Seq2[Coming, error] {
	path, err := namespacePath(o.Namespace, "/next")
	q := TaskListOptions{Query: o.Query}.queryValues()
	setTimes(q, map[string]time.Time{"from": o.From, "until": o.Until})

	return iterateQuery[Coming](ctx, s.conn, path, q, maxPage, o.Limit, o.Info, err)
}

// ListByTask returns the next ticks of a task after from (zero: now), even if the task is paused. A count of 0
// means the server's default of 5. It returns task.ErrNotFound if there is no such task.
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

// schedulePath is the path of a POST request that writes nothing.
const schedulePath = "/v1/schedule/next"

// ListBySchedule returns the next ticks of a schedule that belongs to no task. It returns task.ErrInvalid if
// the schedule is not valid.
func (s *TicksService) ListBySchedule(ctx context.Context, r ScheduleRequest) ([]Occurrence, error) {
	var l List[Occurrence]
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: schedulePath, body: r}, &l)

	return l.Items, err
}
