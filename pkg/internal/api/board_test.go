package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// part is a node's part of the board.
type part = func(ctx context.Context, q task.BoardQuery) task.BoardPart

// partOf returns a part with a tick, a run and a failing task, one second apart from node to node.
func partOf(node string, n int, asked *atomic.Int32) part {
	return func(_ context.Context, q task.BoardQuery) task.BoardPart {
		asked.Add(1)
		at := func(s int) task.Time { return task.At(time.Date(2026, 11, 20, 22, 5, 10*s+n, 0, time.UTC)) }
		late := make([]int64, 4)
		late[n] = 50
		p := task.BoardPart{
			Node: node, At: at(0),
			Shards: []task.BoardShardCounts{{Shard: n, Owner: int64(n), BoardCounts: task.BoardCounts{Serving: n, Tasks: 10 * n, Paused: n, FailingCount: 1, ActiveCount: 1, WaitingCount: 2, Waiting: map[string]int{task.ReasonRetry: 2}}}},
			Tally:  task.Tally{Late: late, MaxMS: int64(n), Failed: 1, Rate: []int64{1, int64(n)}},
		}
		for i := range q.Limit {
			p.Next = append(p.Next, task.BoardTick{Namespace: "default", Task: fmt.Sprint(node, i), Time: at(i)})
		}

		p.Failing = []task.BoardFailing{{Namespace: "default", Task: node, EndedAt: at(0), State: task.Failed}}
		p.Active = []task.BoardRun{{Namespace: "default", Task: node, Since: at(1)}}
		p.Waits = []task.BoardWait{{Task: node, Run: fmt.Sprint(n), Reason: []string{"", task.ReasonRetry, task.ReasonNoNode}[n]}}

		return p
	}
}

// boardWhen reads the board until it is as expected, for at most a minute. A node that takes more than a second
// to answer counts as silent, and data that etcd does not return soon after is missing.
func (w *world) boardWhen(c *client.Client, o client.BoardOptions, is func(task.Board) bool) task.Board {
	w.t.Helper()

	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		b, err := c.Board.Get(w.t.Context(), o)
		if err == nil && is(b) || time.Now().After(end) {
			must(w.t, err)
			return b
		}

		if err != nil && !errors.Is(err, task.ErrUnavailable) {
			w.t.Fatal(err)
		}
	}
}

func nobodySilent(b task.Board) bool { return len(b.Silent) == 0 }

// A panic in a goroutine that a request has started ends this request, and not the node.
func TestBoard_PanicInAPartIs500(t *testing.T) {
	var panics atomic.Bool
	panics.Store(true)
	w := newWorld(t)
	w.parts = map[string]part{"node-b": func(context.Context, task.BoardQuery) task.BoardPart {
		if panics.Load() {
			panic("on purpose")
		}
		return task.BoardPart{Node: "node-b"}
	}}

	api := w.client(w.serve("node-b"))
	_, err := api.Board.Get(t.Context(), client.BoardOptions{})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 500 || strings.Contains(e.Error(), "on purpose") {
		t.Errorf("got %v", err)
	}

	panics.Store(false)
	if _, err := api.Board.Get(t.Context(), client.BoardOptions{}); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

func TestBoard_IsPutTogetherByWhateverNode(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	w.parts = map[string]part{"node-b": partOf("node-b", 1, &asked), "node-c": partOf("node-c", 2, &asked)}

	urls := map[string]string{"node-a": w.url, "node-b": w.serve("node-b"), "node-c": w.serve("node-c")}
	for name, url := range urls {
		w.present(name, url)
	}

	for name, url := range urls {
		b := w.boardWhen(w.client(url), client.BoardOptions{Limit: 3}, nobodySilent)
		if b.Node != name || b.Tasks != 30 || b.Paused != 3 || b.FailingCount != 2 || b.Waiting[task.ReasonRetry] != 4 || len(b.Silent) != 0 || b.ShardCount != shards {
			t.Errorf("by %s: %+v", name, b)
		}

		var next []string
		for _, tick := range b.Next {
			next = append(next, tick.Task)
		}

		if got := strings.Join(next, " "); got != "node-b0 node-c0 node-b1" {
			t.Errorf("by %s: next are %s", name, got)
		}

		if len(b.Failing) != 2 || b.Failing[0].Task != "node-c" || b.Active[0].Task != "node-b" || b.Waits[0].Task != "node-c" {
			t.Errorf("by %s: the order: %+v %+v %+v", name, b.Failing, b.Active, b.Waits)
		}

		if r := b.Recent; r.Fired != 100 || r.P50MS != 1 || r.P99MS != 2 || r.Failed != 2 || len(r.Rate) != 2 || r.Rate[1] != 3 {
			t.Errorf("by %s: the last minute: %+v", name, r)
		}

		if n := b.Nodes[2]; len(b.Nodes) != 3 || n.Name != "node-c" || n.Serving != 2 || n.Recent.Fired != 50 || n.Slots != 4 {
			t.Errorf("by %s: %+v", name, b.Nodes)
		}
	}

	r := w.do(request{method: "GET", path: "/v1/board?part=true"})
	var p task.BoardPart
	if must(t, json.Unmarshal([]byte(r.body), &p)); p.Node != "node-a" || p.Counts().Tasks != 0 {
		t.Errorf("its own part: %s", r.body)
	}
}

// While a shard moves, two nodes serve it. It is counted and shown once, as the newer owner has it.
func TestBoard_CountsAMovingShardOnce(t *testing.T) {
	w := newWorld(t)
	moving := ref("default", "a").Shard
	kept := (moving + 1) % shards
	w.create("a", "@daily")
	if ref("default", "b").Shard == moving {
		t.Fatal("both tasks are in one shard")
	}

	partOf := func(node string, owners map[int]int64) part {
		return func(context.Context, task.BoardQuery) task.BoardPart {
			p := task.BoardPart{Node: node, BoardLists: task.BoardLists{
				Next:    []task.BoardTick{{Namespace: "default", Task: "a", Time: task.At(w.clock.now())}, {Namespace: "default", Task: "b", Time: task.At(w.clock.now())}},
				Failing: []task.BoardFailing{{Namespace: "default", Task: "a", Node: node}},
				Stuck:   []task.BoardShard{{ID: moving, Node: node}},
			}}
			for shard, owner := range owners {
				p.Shards = append(p.Shards, task.BoardShardCounts{Shard: shard, Owner: owner, BoardCounts: task.BoardCounts{Serving: 1, Tasks: 10, ActiveCount: 1}})
			}
			p.Shards = append(p.Shards, task.BoardShardCounts{Shard: (moving + 2) % shards, Owner: 9, Unknown: true, BoardCounts: task.BoardCounts{Serving: 1}})

			return p
		}
	}
	w.parts = map[string]part{"node-b": partOf("node-b", map[int]int64{moving: 5, kept: 6}), "node-c": partOf("node-c", map[int]int64{moving: 7})}
	for name := range w.parts {
		w.present(name, w.serve(name))
	}

	b := w.boardWhen(w.Client, client.BoardOptions{}, nobodySilent)
	if b.Tasks != 20 || b.ActiveCount != 2 || len(b.Missing) != shards-2 || slices.Contains(b.Missing, moving) || slices.Contains(b.Missing, kept) {
		t.Errorf("%d tasks, %d active, missing %v", b.Tasks, b.ActiveCount, b.Missing)
	}

	var next []string
	for _, tick := range b.Next {
		next = append(next, tick.Task)
	}
	if strings.Join(next, " ") != "a b b" || len(b.Failing) != 1 || b.Failing[0].Node != "node-c" || len(b.Stuck) != 1 || b.Stuck[0].Node != "node-c" {
		t.Errorf("next %v, failing %+v, stuck %+v", next, b.Failing, b.Stuck)
	}
}

func TestBoard_IsMadeOnceHoweverManyLook(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	var asked atomic.Int32
	w.parts = map[string]part{"node-b": partOf("node-b", 1, &asked)}
	w.present("node-b", w.serve("node-b"))
	before := time.Now()
	w.boardWhen(w.Client, client.BoardOptions{}, nobodySilent) // from then on, etcd may be unavailable

	for range 20 {
		_, err := w.Board.Get(ctx, client.BoardOptions{})
		must(t, err)
	}

	if most := 1 + int32(time.Since(before)/(500*time.Millisecond)); asked.Load() > most {
		t.Errorf("the node was asked %d times for these boards in %s", asked.Load(), time.Since(before))
	}
}

func TestBoard_NamesNodesThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var asked atomic.Int32
	w.parts = map[string]part{"node-b": partOf("node-b", 1, &asked)}
	b := w.serve("node-b")
	over := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))

	t.Cleanup(func() { close(over); hangs.Close() })
	old := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(old.Close)
	w.present("node-a", w.url)
	w.present("node-b", b)
	w.present("node-c", hangs.URL)
	w.present("node-d", "http://127.0.0.1:1")
	w.present("node-e", b) // another node answers there
	w.present("node-f", old.URL)
	w.put(w.store.Keys().Node("runner"), task.Node{Name: "runner", Address: "http://127.0.0.1:1", Roles: []string{task.RoleExecutor}})
	want := []string{"node-c: no answer from", "node-d: at 127.0.0.1:1", `the statement is for another node: it is for "node-e"`, "node-f: version"}
	told := func(board task.Board) string {
		var silent []string
		for _, s := range board.Silent {
			silent = append(silent, s.Node+": "+s.Reason)
		}
		return strings.Join(silent, "\n")
	}

	board := w.boardWhen(w.Client, client.BoardOptions{}, func(board task.Board) bool {
		all := told(board)
		return len(board.Silent) == len(want) && !slices.ContainsFunc(want, func(words string) bool { return !strings.Contains(all, words) })
	})

	all := told(board)

	for _, words := range want {
		if !strings.Contains(all, words) {
			t.Errorf("no %q among the silent:\n%s", words, all)
		}
	}

	if len(board.Silent) != 4 || board.Tasks != 10 {
		t.Errorf("%d tasks, silent are\n%s", board.Tasks, all)
	}

	for _, n := range board.Nodes {
		if want := strings.Contains("node-c node-d node-e node-f", n.Name); n.Silent != want {
			t.Errorf("%s is silent: %t", n.Name, n.Silent)
		}
	}
}

func TestBoard_TellsFreezesAndWarnings(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	must(t, second(w.Freezes.Begin(ctx, "prod", "INC-42")))

	b := w.boardWhen(w.Client, client.BoardOptions{}, func(b task.Board) bool { return len(b.Freezes) > 0 && len(b.Warnings) > 0 })
	if len(b.Freezes) != 1 || b.Freezes[0].Namespace != "prod" {
		t.Errorf("the freezes are %+v", b.Freezes)
	}

	if all := strings.Join(b.Warnings, "\n"); !strings.Contains(all, "no node is ready") {
		t.Errorf("the warnings are %s", all)
	}
}

func TestBoard_RefusesWhatItCannotShow(t *testing.T) {
	w := newWorld(t)

	for query, field := range map[string]string{"span=soon": "span", "span=-1m": "span", "span=25h": "span", "limit=0": "limit", "limit=501": "limit", "part=1": "part", "within=default": "within", "x=1": "x"} {
		if r := w.do(request{method: "GET", path: "/v1/board?" + query}); r.status != http.StatusUnprocessableEntity && r.status != http.StatusBadRequest || r.Field != field {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}

	if r := w.do(request{method: "GET", path: "/v1/board", noToken: true}); r.status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", r.status)
	}
}
