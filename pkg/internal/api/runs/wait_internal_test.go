package runs

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// The event of a change may not have arrived when the time is over. The answer has the run as it is then.
func TestAwaitEnd_ReadsTheRunWhenItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Handlers{Heartbeat: time.Hour, Watch: func(*httpapi.Call, string, string, string) (<-chan struct{}, func(), error) {
			return nil, func() {}, nil // no event arrives
		}}
		c := &httpapi.Call{Request: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)}

		begun := time.Now()
		run, err := h.awaitEnd(c, time.Minute, task.Run{State: task.Running}, func(context.Context) (task.Run, error) {
			if time.Since(begun) < time.Second {
				return task.Run{State: task.Running}, nil
			}
			return task.Run{State: task.Succeeded}, nil
		})
		if err != nil || run.State != task.Succeeded || time.Since(begun) != time.Minute {
			t.Errorf("got %s after %s, %v", run.State, time.Since(begun), err)
		}
	})
}
