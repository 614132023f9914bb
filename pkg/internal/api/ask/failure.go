package ask

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// away is the error if no node answers for any shard.
type away struct {
	since task.Time
	why   string
}

func (a *away) Error() string {
	return fmt.Sprintf("no scheduling node has answered since %s: %s", a.since.Format(time.RFC3339), a.why)
}

// failure converts an error of askAll to one for the caller.
func (a *Asker) failure(c *httpapi.Call, err error) error {
	var busy *readmodel.Busy
	var gone *away

	switch {
	case errors.As(err, &busy):
		return busyFailure(c, busy)
	case errors.As(err, &gone):
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeUnavailable, "%s", gone).
			WithHint("lists by name, without other filters, need no scheduling node")
	}

	return err
}

// busyFailure returns the failure of a node that answers no query at the moment.
func busyFailure(c *httpapi.Call, busy *readmodel.Busy) error {
	seconds := max((busy.RetryAfter+time.Second-1)/time.Second, 1)
	c.Writer.Header().Set("Retry-After", strconv.Itoa(int(seconds)))

	return httpapi.Fail(http.StatusTooManyRequests, client.CodeBusy, "node %s is busy with other queries", busy.Node).
		WithHint("try again later, or list by name, without other filters")
}

// judge returns why an answer cannot be given: a node is busy, or no node has answered.
func (a *Asker) judge(answer *Answer, failures map[string]error, now task.Time) error {
	var worst *readmodel.Busy
	var refused *task.Error
	for _, err := range failures {
		var busy *readmodel.Busy
		if errors.As(err, &busy) && (worst == nil || busy.RetryAfter > worst.RetryAfter) {
			worst = busy
		}
		_ = errors.As(err, &refused)
	}

	switch {
	case refused != nil:
		return refused
	case worst != nil:
		return worst
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	if len(answer.Missing) < a.Shards {
		a.since = task.Time{}
		return nil
	}

	if a.since.IsZero() {
		a.since = now
	}

	why := "no shard has an owner"
	if names := slices.Sorted(maps.Keys(failures)); len(names) > 0 {
		why = failures[names[0]].Error()
	}

	return &away{since: a.since, why: why}
}
