package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/carillonhq/carillon/pkg/task"
)

// WhyQuestion is about a time (At), or about a range (From, and To, which is now
// if it is empty); if all are empty, about the latest tick and the next one. Times
// are 2026-03-29T02:30, with seconds and an offset such as Z if wanted; without an
// offset they are local times of Timezone, by default the task's. A date is a day.
type WhyQuestion struct {
	At, From, To string
	Timezone     string
}

// Why says why a task ran at a time, did not, or will. task.ErrNotFound if there
// is no such task and none is remembered; of one that was deleted the answer says
// so.
func (c *Client) Why(ctx context.Context, namespace, name string, q WhyQuestion) (task.Answer, error) {
	query := url.Values{}
	set(query, "at", q.At)
	set(query, "from", q.From)
	set(query, "to", q.To)
	set(query, "timezone", q.Timezone)
	var a task.Answer
	err := c.onTask(ctx, namespace, name, call{method: http.MethodGet, query: query}, &a, "why")
	return a, err
}
