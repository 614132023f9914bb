package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// A request takes more than the usual time only if it asks to wait.
func TestTimeLimit_IsLongerOnlyForAWait(t *testing.T) {
	for _, c := range []struct {
		waits bool
		query string
		more  time.Duration
	}{
		{true, "", 0},
		{true, "?wait=30s", 30 * time.Second},
		{true, "?wait=1m", httpapi.MaxWait},
		{true, "?wait=2m", 0},
		{true, "?wait=-5s", 0},
		{true, "?wait=soon", 0},
		{false, "?wait=30s", 0},
	} {
		o := &httpapi.Operation{Waits: c.waits}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/namespaces/default/runs/2026"+c.query, nil)
		if got := o.TimeLimit(r); got != httpapi.RequestTimeout+c.more {
			t.Errorf("waits %t, %q: %s", c.waits, c.query, got)
		}
	}
}
