package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/testkit/apikit"
	"github.com/carillonhq/carillon/pkg/task"
)

// boardOf makes the API of a world answer for the board with a part.
func (w *world) boardOf(edit func(*task.BoardPart)) {
	w.t.Helper()
	w.online("node-a")
	for id := range apikit.Shards {
		w.owns("node-a", "", id)
	}
	w.api = w.apiWith(func(c *api.Config) {
		c.Board = func(context.Context, task.BoardQuery) task.BoardPart {
			p := task.BoardPart{Node: "node-a", At: task.At(w.Clock.Now())}
			for id := range apikit.Shards {
				p.Shards = append(p.Shards, task.BoardShardCounts{Shard: id, Owner: 1, BoardCounts: task.BoardCounts{Serving: 1, Tasks: 2}})
			}
			edit(&p)
			return p
		}
	})
}

// Failures are grouped by their cause, and each of them can be retried.
func TestNow_GroupsFailuresByCause(t *testing.T) {
	w := newWorld(t)
	at, one, two := task.At(w.Clock.Now().Add(-time.Minute)), 1, 2
	w.boardOf(func(p *task.BoardPart) {
		for _, name := range []string{"a", "b", "c"} {
			p.Failing = append(p.Failing, task.BoardFailing{Namespace: "prod", Task: name, Run: "20261120T210500.000Z-" + name, State: task.Failed, Reason: task.ReasonExit, ExitCode: &one, Node: "node-a", EndedAt: at})
		}
		p.Failing = append(p.Failing, task.BoardFailing{Namespace: "prod", Task: "d", Run: "20261120T210500.000Z-d", State: task.Failed, Reason: task.ReasonExit, ExitCode: &two, EndedAt: at})
		p.Overdue = []task.BoardTick{{Namespace: "prod", Task: "late", Time: at}}
		p.Shards[0].FailingCount, p.Shards[0].OverdueCount = 4, 1
	})

	page := w.as("user:ann").page("/ui")
	want(t, page, "6 things need you", `<span class="count">6</span><span class="dot"`, "4 failing", "3 tasks", "all on node-a", "its process exited with a code that does not count as success", "/ui/now/retry/prod/20261120T210500.000Z-d", "Retry these 3…", "Overdue", "/ui/tasks/prod/late", "carillon top")

	w.Bind("user:bob", "viewer", "prod")
	if page := w.as("user:bob").page("/ui"); strings.Contains(page, "Retry") || !strings.Contains(page, "4 failing") {
		t.Errorf("the page of a viewer:\n%s", page)
	}
}

// The navigation counts what needs a human as the page does, and says so if tasks of some shards are not counted.
func TestNow_CountsAsNavigation(t *testing.T) {
	w := newWorld(t)
	w.boardOf(func(p *task.BoardPart) {
		for i := range p.Shards {
			p.Shards[i].Tasks = 1000
		}
		p.Shards[0].Waiting = map[string]int{task.ReasonNoNode: 2}
		p.Waits = []task.BoardWait{{Namespace: "prod", Task: "gpu", Run: "20261120T210500.000Z-a", Reason: task.ReasonNoNode}}
		p.Failing = []task.BoardFailing{{Namespace: "prod", Task: "web", Run: "20261120T210500.000Z-b", State: task.Failed, Reason: task.ReasonSignal}}
		p.Shards[0].FailingCount = 1
		p.Shards = p.Shards[:len(p.Shards)-1]
	})

	page := w.as("user:ann").page("/ui")
	want(t, page, "killed by a signal", "2× no node matches", "5 things need you", `<span class="count">5</span><span class="dot"`, fmt.Sprintf(`<span class="count">%d,000&#43;</span>`, apikit.Shards-1))
}

// With nothing wrong the page says so, and when that was judged. What is paused and frozen is shown with who and why.
func TestNow_IsCalm(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	w.boardOf(func(*task.BoardPart) {})
	w.Bind("user:bob", "operator", "prod") // the cluster of the test has no leader, of which bob is not told
	bob := w.as("user:bob")

	want(t, bob.page("/ui"), "Nothing needs you", "As of ", "No tick is due", "Nothing runs at the moment")

	a := bob.do(http.MethodPost, "/ui/tasks/prod/web/pause", url.Values{"at": {"/ui"}, "reason": {"migration"}})
	if a.StatusCode != http.StatusSeeOther {
		t.Fatalf("pause: %d %s", a.StatusCode, a.body)
	}
	want(t, bob.page("/ui"), "prod/web", "migration", "user:bob", "/ui/now/resume/prod/web")
	if a := bob.do(http.MethodPost, "/ui/now/resume/prod/web", url.Values{"at": {"/ui"}}); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui" {
		t.Fatalf("resume: %d %s", a.StatusCode, a.body)
	}
	if page := bob.page("/ui"); strings.Contains(page, "migration") {
		t.Errorf("the page still shows the pause:\n%s", page)
	}
}
