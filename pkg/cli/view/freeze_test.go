package view_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
)

// The freeze of the cluster is only read by callers who may read it: nodes log denied requests.
func TestFrozenText_AsksNothingThatWouldBeDenied(t *testing.T) {
	for rules, want := range map[string]int32{
		`[]`: 0,
		`[{"verbs":["read"],"objects":["nodes"]}]`:                                          0,
		`[{"verbs":["operate"],"objects":["cluster"]}]`:                                     0,
		`[{"verbs":["read"],"objects":["nodes"]},{"verbs":["read"],"objects":["cluster"]}]`: 1,
	} {
		var asked atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			body := `{}`
			switch r.URL.Path {
			case "/v1/whoami":
				body = `{"subject":"user:bob","cluster":` + rules + `}`
			case "/v1/cluster/freeze":
				asked.Add(1)
			}
			_, _ = w.Write([]byte(body))
		}))

		c, err := client.New(client.Config{Server: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		if text := view.FrozenText(t.Context(), &factory.Factory{LookupTimeout: time.Minute}, c, ""); text != "" || asked.Load() != want {
			t.Errorf("with the rights %s: %q, and %d requests for the freeze, want %d", rules, text, asked.Load(), want)
		}
		s.Close()
	}
}
