package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/client"
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

// The work for an answer does not depend on the length of the paths in it.
func TestAsFailure_ShortensPathsBeforeItUsesThem(t *testing.T) {
	problems := func(parts int) error {
		path := strings.Repeat("a.", parts)
		return errors.Join(task.Invalid(task.CodeUnknown, path+"x", "is not a field"), task.Invalid(task.CodeUnknown, path+"y", "is not a field"))
	}
	short, long := problems(200), problems(200_000)

	var f *httpapi.Failure
	few := testing.AllocsPerRun(10, func() { f = httpapi.AsFailure(short) })
	many := testing.AllocsPerRun(10, func() { f = httpapi.AsFailure(long) })
	if many > few+10 {
		t.Errorf("%v allocations for long paths, %v for short ones", many, few)
	}
	if len(f.Errors) != 2 || len(f.Errors[1].Pointer) > 210 || len(f.Errors[1].Field) > 210 {
		t.Errorf("got %d problems, %+v", len(f.Errors), f.Problem)
	}
}

// Pointers are those of the body that the request has, which need not be a task.
func TestAsFailure_PointsIntoTheBodyOfTheRequest(t *testing.T) {
	var trigger client.TriggerRequest
	err := (&httpapi.Call{Body: []byte(`{"env":{"A.B":1,"C.D":2}}`)}).Decode(&trigger)

	var pointers []string
	for _, p := range httpapi.AsFailure(err).Errors {
		pointers = append(pointers, p.Pointer)
	}
	if got := strings.Join(pointers, " "); got != "#/env/A.B #/env/C.D" {
		t.Errorf("got %s", got)
	}
}
