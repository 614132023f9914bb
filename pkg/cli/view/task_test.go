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

func TestOwnersText(t *testing.T) {
	t.Parallel()

	n := func(v int) *int { return &v }
	for _, c := range []struct {
		info   client.ListInfo
		listed int
		people bool
		want   string
	}{
		{client.ListInfo{}, 3, true, ""},
		{client.ListInfo{Count: n(3), Shards: 256, AgeMS: 900}, 3, true, ""},
		{client.ListInfo{Count: n(12345), Shards: 256, AgeMS: 4000}, 20, true, "12,345 tasks; as of 4s ago"},
		{client.ListInfo{Count: n(1234567), Shards: 256}, 20, true, "1,234,567 tasks"},
		{client.ListInfo{Count: n(123), Shards: 256}, 20, false, ""},
		{client.ListInfo{Count: n(3), Shards: 256, Missing: []int{17, 18, 40}}, 3, true, "253 of 256 shards; missing 17, 18, 40"},
		{client.ListInfo{Shards: 256, Missing: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}, 3, false, "244 of 256 shards; missing 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"},
		{client.ListInfo{Count: n(0), Shards: 256, Collecting: n(62)}, 0, false, "collecting 62%"},
	} {
		if got := view.OwnersText(c.info, c.listed, c.people); got != c.want {
			t.Errorf("%+v: %q, want %q", c.info, got, c.want)
		}
	}
}
