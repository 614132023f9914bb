package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// A client that leaves ends its request. Only other failures are logged.
func TestLogFailure_IgnoresClientsThatHaveLeft(t *testing.T) {
	left := fmt.Errorf("%w: %w", task.ErrUnavailable, context.Canceled)
	for _, c := range []struct {
		what   string
		isGone bool
		err    error
		want   int
	}{
		{"the client has left", true, left, 0},
		{"the node has canceled what the request waits for", false, left, 1},
		{"etcd does not answer, and the client has left", true, fmt.Errorf("%w: %w", task.ErrUnavailable, context.DeadlineExceeded), 1},
	} {
		core, logs := observer.New(zap.WarnLevel)
		ctx, leave := context.WithCancel(t.Context())
		if c.isGone {
			leave()
		}

		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/events", nil)
		httpapi.NewProblemWriter(zap.New(core)).LogFailure(r, httpapi.AsFailure(c.err))
		leave()

		if n := logs.Len(); n != c.want {
			t.Errorf("%s: %d lines are logged, want %d", c.what, n, c.want)
		}
	}
}
