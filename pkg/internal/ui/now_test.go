package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/overview/overviewtest"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/internal/top"
	"github.com/carillonhq/carillon/pkg/task"
)

// boardOf makes the node answer questions for a board with two tasks in each shard, after edit has changed the answer.
func (w *world) boardOf(edit func(*readmodel.NodeAnswer)) {
	w.t.Helper()
	w.online("node-a")
	for id := range apikit.Shards {
		w.owns("node-a", "", id)
	}
	w.api = w.apiWith(func(c *api.Config) {
		others := c.Ask
		c.Ask = func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
			if q.Board == nil {
				return others(ctx, q, without)
			}

			a := readmodel.NodeAnswer{Node: "node-a", Board: &readmodel.BoardAnswer{Counts: task.BoardCounts{Tasks: 2 * apikit.Shards}}}
			for id := range apikit.Shards {
				a.Shards = append(a.Shards, readmodel.ShardAnswer{Shard: id, Owner: 1})
			}
			edit(&a)

			return a, nil
		}
	})
}

// Failures are grouped by their cause, and each of them can be retried.
func TestNow_GroupsFailuresByCause(t *testing.T) {
	w := newWorld(t)
	at, one, two := task.At(w.Clock.Now().Add(-time.Minute)), 1, 2
	w.boardOf(func(a *readmodel.NodeAnswer) {
		l := &a.Board.Lists
		for _, name := range []string{"a", "b", "c"} {
			l.Failing = append(l.Failing, task.BoardFailing{Namespace: "prod", Task: name, Run: "20261120T210500.000Z-" + name, State: task.Failed, Reason: task.ReasonExit, ExitCode: &one, Node: "node-a", EndedAt: at})
		}
		l.Failing = append(l.Failing, task.BoardFailing{Namespace: "prod", Task: "d", Run: "20261120T210500.000Z-d", State: task.Failed, Reason: task.ReasonExit, ExitCode: &two, EndedAt: at})
		l.Overdue = []task.BoardTick{{Namespace: "prod", Task: "late", Time: at}}
		a.Board.Counts.FailingCount, a.Board.Counts.OverdueCount = 4, 1
	})

	page := w.as("user:ann").page("/ui")
	want(t, page, "6 things need you", `<span class="count">6</span><span class="dot"`, "4 failing", "3 tasks", "all on node-a", "its process exited with a code that does not count as success", "/ui/now/retry/prod/20261120T210500.000Z-d", "Retry these 3…", "Overdue", "/ui/tasks/prod/late", "carillon top")

	w.Bind("user:bob", "viewer", "prod")
	if page := w.as("user:bob").page("/ui"); strings.Contains(page, "Retry") || !strings.Contains(page, "4 failing") {
		t.Errorf("the page of a viewer:\n%s", page)
	}
}

// A viewer who may read tasks but not runs sees which tasks are failing, and how many runs need a human.
func TestNow_WithoutTheRightToReadRuns(t *testing.T) {
	w := newWorld(t)
	board := task.Board{ShardCount: 8, ShardsOwned: 8}
	board.Failing, board.FailingCount, board.AwayCount = []task.BoardFailing{{Namespace: "prod", Task: "web"}, {Namespace: "prod", Task: "mail"}}, 2, 1
	w.answerBoard(&board)

	page := w.as("user:ann").page("/ui")
	want(t, page, "a run failed, timed out or was lost", "2 tasks", "/ui/tasks/prod/web", "/ui/tasks/prod/mail", "Node gone", "1 not listed")
	for _, text := range []string{"newest", "/ui/now/retry", "Retry these", "and 1 more"} {
		if strings.Contains(page, text) {
			t.Errorf("the page contains %q:\n%s", text, page)
		}
	}
}

// The navigation counts what needs a human as the page does, and says so if tasks of some shards are not counted.
func TestNow_CountsAsNavigation(t *testing.T) {
	w := newWorld(t)
	w.boardOf(func(a *readmodel.NodeAnswer) {
		c, l := &a.Board.Counts, &a.Board.Lists
		a.Shards = a.Shards[1:]
		c.Tasks = 1000 * len(a.Shards)
		c.Waiting = map[string]int{task.ReasonNoNode: 2}
		l.Waits = []task.BoardWait{{Namespace: "prod", Task: "gpu", Run: "20261120T210500.000Z-a", Reason: task.ReasonNoNode}}
		l.Failing = []task.BoardFailing{{Namespace: "prod", Task: "web", Run: "20261120T210500.000Z-b", State: task.Failed, Reason: task.ReasonSignal}}
		c.FailingCount = 1
	})

	page := w.as("user:ann").page("/ui")
	want(t, page, "killed by a signal", "missing, 2 no node, failing", "5 things need you", `<span class="count">5</span><span class="dot"`, fmt.Sprintf(`<span class="count">%d,000&#43;</span>`, apikit.Shards-1))
}

// With nothing wrong the page says so, and when that was judged. What is paused and frozen is shown with who and why.
func TestNow_IsCalm(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	w.boardOf(func(*readmodel.NodeAnswer) {})
	w.Bind("user:bob", "operator", "prod") // the cluster of the test has no leader; bob does not see this
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

// The page and the screen of carillon top list the same problems, whatever is on the board: the same kinds, subjects and
// totals. The verdict counts them, except for what somebody has done on purpose.
func TestNow_ListsTheProblemsOfTop(t *testing.T) {
	w := newWorld(t)
	var board task.Board
	w.answerBoard(&board)
	ann := w.as("user:ann")

	for seed := range uint64(60) {
		board = overviewtest.Board(rand.New(rand.NewPCG(seed, 1)))
		w.Clock.Advance(2 * countsEvery) // older counts of the navigation are not used
		page := ann.page("/ui")

		want, got := problemsOfTop(t, board), problemsOfPage(t, page)
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d: the page lists\n%v\nwant\n%v\n%s", seed, got, want, page)
		}

		n := 0
		for problem, count := range want {
			if strings.HasPrefix(problem, "total ") && problem != "total draining" && problem != "total cordoned" {
				n += count
			}
		}
		counted := fmt.Sprintf(`<span class="count">%d</span><span class="dot"`, n)
		if n == 0 {
			counted = "Nothing needs you"
		}
		if !strings.Contains(page, counted) {
			t.Fatalf("seed %d: it does not say that %d things need people:\n%s", seed, n, page)
		}
	}
}

// answerBoard makes the API of a world answer with a board.
func (w *world) answerBoard(board *task.Board) {
	others := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/board" {
			others.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(board)
	})
}

// Who may end a freeze can do so on the page.
func TestNow_EndsFreezes(t *testing.T) {
	w := newWorld(t)
	w.answerBoard(&task.Board{Freezes: []task.Freeze{{By: task.NewActor("user:ann"), Reason: "a move"}, {Namespace: "prod", Reason: "INC-42"}}})
	w.Bind("user:bob", "operator", "prod")
	w.Bind("user:eve", "viewer", "prod")

	for subject, buttons := range map[string]int{"user:ann": 2, "user:bob": 1, "user:eve": 0} {
		page := w.as(subject).page("/ui")
		want(t, page, "2 frozen", "the cluster is frozen by user:ann: a move", "namespace prod", "frozen: INC-42")
		if got := strings.Count(page, "End the freeze</button>"); got != buttons {
			t.Errorf("%s has %d buttons, want %d:\n%s", subject, got, buttons, page)
		}
	}
	want(t, w.as("user:bob").page("/ui"), `name="namespace" value="prod"><button>End the freeze`)
}

// problemsOfTop returns how often top lists each problem, by its kind and subject, and the totals of the kinds.
func problemsOfTop(t *testing.T, b task.Board) map[string]int {
	t.Helper()
	_, text, _ := strings.Cut(top.New(top.Config{Namespace: "default"}).Once(top.BoardUpdate{Board: b}, 0).Text(), "\nPROBLEMS")
	text, _, found := strings.Cut(text, "\n\nNEXT")
	if !found {
		t.Fatal("the screen has no problems")
	}

	all := map[string]int{}
	lines := strings.Split(text, "\n")[1:] // without the title
	for _, line := range lines {
		fields := regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(line), -1)

		switch {
		case fields[0] == "PROBLEM", strings.Contains(line, "no problems"):
		case strings.HasPrefix(fields[0], "… "):
			rest := regexp.MustCompile(`^… (?:and (\d+) more ([a-z ]+)|(\d+) ([a-z ]+), not listed)$`).FindStringSubmatch(fields[0])
			if rest == nil {
				t.Fatalf("unknown line %q", line)
			}
			n, err := strconv.Atoi(rest[1] + rest[3])
			must(t, err)
			all["total "+rest[2]+rest[4]] += n
		default:
			kind, subject := fields[1], fields[2]
			if subject == "cluster" && kind != "frozen" {
				subject = fields[len(fields)-1]
			}
			all["total "+kind]++
			all[kind+": "+subject]++
		}
	}

	return all
}

// problemsOfPage returns the same of the start page.
func problemsOfPage(t *testing.T, page string) map[string]int {
	t.Helper()
	heading := regexp.MustCompile(`<h2><span class="state \w+"><span class="sign" aria-hidden="true">[^<]+</span> ([^<]+)</span>(?: <span class="count">(\d+)(?: tasks?)?</span>)?`)
	item := regexp.MustCompile(`<li>(?:<div class="break">)?(?:<a href="[^"]+">([^<]+)</a>)?(?: <span>([^<]+)</span>)?`)

	all := map[string]int{}
	for _, section := range strings.Split(page, `<section class="trouble">`)[1:] {
		section, _, _ = strings.Cut(section, "</section>")
		h := heading.FindStringSubmatch(section)
		if h == nil {
			t.Fatalf("no heading in %s", section)
		}
		kind, total := strings.ToLower(h[1]), 1
		if strings.Contains(h[0], " task") { // failures have their causes as headings
			kind = "failing"
		}
		if h[2] != "" {
			total, _ = strconv.Atoi(h[2])
		}
		all["total "+kind] += total

		for _, m := range item.FindAllStringSubmatch(section, -1) {
			subject := html.UnescapeString(m[1] + m[2])
			if strings.HasPrefix(subject, "the cluster is frozen") {
				subject = "cluster"
			}
			all[kind+": "+subject]++
		}
	}

	if m := regexp.MustCompile(`(\d+) more failing tasks?`).FindStringSubmatch(page); m != nil {
		n, _ := strconv.Atoi(m[1])
		all["total failing"] += n
	}

	return all
}
