package api_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The cursor of a page must not be an active run that is older than the last record that the page has read. The
// next page would begin after it, and skip the records between.
func TestRuns_BehindACutPageAreNotJumpedOver(t *testing.T) {
	w := newWorld(t)
	w.maxScanned = 20
	w.url = w.serve("node-a")
	w.create("a", "@daily")
	onNodeB := func(r *task.Run) { r.Node = "node-b" }
	w.active("node-b", "a", id(1, "aaaa"))
	w.waiting("a", id(2, "aaaa"), onNodeB)
	w.ended("a", id(3, "aaaa"), task.Failed, onNodeB)

	for minute := 4; minute < 34; minute++ {
		w.ended("a", id(minute, "aaaa"), task.Succeeded, nil)
	}

	w.ended("a", id(34, "aaaa"), task.Failed, onNodeB)

	from := time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC).Format(time.RFC3339)

	got, page := "", ""
	for range 8 {
		res := w.do(request{method: "GET", path: "/v1/runs?limit=10&node=node-b&since=" + from + page})
		var l client.List[task.Run]
		must(t, json.Unmarshal([]byte(res.body), &l))

		if got += told(l.Items) + ", "; l.Next == "" {
			break
		}

		if page = "&page=" + l.Next; len(l.Items) == 0 {
			t.Error("an empty page has a next")
		}
	}

	if want := "34:failed, 03:failed 02:queued 01:running, "; got != want {
		t.Errorf("page by page: %s want %s", got, want)
	}
}
