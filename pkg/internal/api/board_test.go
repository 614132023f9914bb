package api_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// partOf returns what a node answers for its shard about the board: a tick, a run and a failing task, one second apart from
// node to node.
func partOf(node string, n int, asked *atomic.Int32) ask {
	return func(_ context.Context, q *readmodel.Query, _ []int) (readmodel.NodeAnswer, error) {
		a := readmodel.NodeAnswer{Node: node, Shards: []readmodel.ShardAnswer{{Shard: n, Owner: int64(n)}}}
		if q.Board == nil {
			return a, nil
		}

		asked.Add(1)
		at := func(s int) task.Time { return task.At(time.Date(2026, 11, 20, 22, 5, 10*s+n, 0, time.UTC)) }
		late := make([]int64, 4)
		late[n] = 50
		a.Board = &readmodel.BoardAnswer{
			Counts: task.BoardCounts{Tasks: 10 * n, Paused: n, FailingCount: 1, ActiveCount: 1, WaitingCount: 2, Waiting: map[string]int{task.ReasonRetry: 2}, AlertingCount: 1, Alerts: map[string]int{"error": n}},
			Tally:  task.Tally{Late: late, MaxMS: int64(n), Failed: 1, Rate: []int64{1, int64(n)}},
		}

		l := &a.Board.Lists
		for i := range q.Board.Limit {
			l.Next = append(l.Next, task.BoardTick{Namespace: "default", Task: fmt.Sprint(node, i), Time: at(i)})
		}
		l.Failing = []task.BoardFailing{{Namespace: "default", Task: node, EndedAt: at(0), State: task.Failed}}
		l.Alerting = []task.BoardAlerting{{Namespace: "default", Task: node, Kinds: []task.AlertKind{task.AlertSuccessBy}, Severity: "error"}}
		l.Active = []task.BoardRun{{Namespace: "default", Task: node, Since: at(1)}}
		l.Waits = []task.BoardWait{{Task: node, Run: fmt.Sprint(n), Reason: []string{"", task.ReasonRetry, task.ReasonNoNode}[n]}}

		return a, nil
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
	w.owners = map[string]ask{"node-b": func(context.Context, *readmodel.Query, []int) (readmodel.NodeAnswer, error) {
		if panics.Load() {
			panic("on purpose")
		}
		return readmodel.NodeAnswer{Node: "node-b"}, nil
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
	w.owners = map[string]ask{"node-a": nil, "node-b": partOf("node-b", 1, &asked), "node-c": partOf("node-c", 2, &asked)}

	urls := w.fleet()
	for name, url := range urls {
		b := w.boardWhen(w.client(url), client.BoardOptions{Limit: 3}, nobodySilent)
		if b.Node != name || b.Tasks != 30 || b.Paused != 3 || b.FailingCount != 2 || b.Waiting[task.ReasonRetry] != 4 || b.AlertingCount != 2 || b.OpenAlerts() != 3 || len(b.Silent) != 0 || b.ShardCount != shards || b.Serving != 2 || len(b.Missing) != shards-2 {
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

		if n := b.Nodes[2]; len(b.Nodes) != 3 || n.Name != "node-c" || n.Serving != 1 || n.Recent.Fired != 50 || n.Slots != 4 {
			t.Errorf("by %s: %+v", name, b.Nodes)
		}
	}
}

// While a shard moves, two nodes serve it. It is counted and shown once, as the newer owner has it, and the other shards of
// the former owner are complete.
func TestBoard_CountsAMovingShardOnce(t *testing.T) {
	w := newWorld(t)
	moving := ref("default", "a").Shard
	kept := (moving + 1) % shards

	// Each task is one of its shard. The former owner shows only as many as the board has room for.
	partOf := func(node string, owners map[int]int64) ask {
		return func(_ context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
			a := readmodel.NodeAnswer{Node: node, Board: &readmodel.BoardAnswer{}}
			l := &a.Board.Lists

			for _, shard := range slices.Sorted(maps.Keys(owners)) {
				if slices.Contains(without, shard) {
					continue
				}

				a.Shards = append(a.Shards, readmodel.ShardAnswer{Shard: shard, Owner: owners[shard]})
				a.Board.Counts.Add(task.BoardCounts{Tasks: 10, ActiveCount: 1})
				name := fmt.Sprint("in-", shard)
				if len(l.Next) < q.Board.Limit {
					l.Next = append(l.Next, task.BoardTick{Namespace: "default", Task: name, Time: task.At(w.clock.now())})
				}
				l.Failing = append(l.Failing, task.BoardFailing{Namespace: "default", Task: name, Node: node})
				l.Stuck = append(l.Stuck, task.BoardShard{ID: shard, Node: node})
			}

			return a, nil
		}
	}
	w.owners = map[string]ask{"node-a": nil, "node-b": partOf("node-b", map[int]int64{moving: 5, kept: 6}), "node-c": partOf("node-c", map[int]int64{moving: 7})}
	w.fleet()

	b := w.boardWhen(w.Client, client.BoardOptions{Limit: 2}, nobodySilent)
	if b.Tasks != 20 || b.ActiveCount != 2 || len(b.Missing) != shards-2 || slices.Contains(b.Missing, moving) || slices.Contains(b.Missing, kept) || b.Serving != 2 {
		t.Errorf("%d tasks, %d active, missing %v", b.Tasks, b.ActiveCount, b.Missing)
	}

	var shown []string
	for _, tick := range b.Next {
		shown = append(shown, tick.Task)
	}
	for _, f := range b.Failing {
		shown = append(shown, f.Task+" by "+f.Node)
	}
	for _, s := range b.Stuck {
		shown = append(shown, fmt.Sprint(s.ID, " by ", s.Node))
	}
	slices.Sort(shown)

	in := func(shard int) string { return fmt.Sprint("in-", shard) }
	want := []string{in(moving), in(kept), in(moving) + " by node-c", in(kept) + " by node-b", fmt.Sprint(moving, " by node-c"), fmt.Sprint(kept, " by node-b")}
	slices.Sort(want)
	if !slices.Equal(shown, want) {
		t.Errorf("it shows %v, want %v", shown, want)
	}
}

func TestBoard_IsMadeOnceHoweverManyLook(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	var asked atomic.Int32
	w.owners = map[string]ask{"node-a": nil, "node-b": partOf("node-b", 1, &asked)}
	w.fleet()
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
	w.owners = map[string]ask{"node-a": nil, "node-b": partOf("node-b", 1, &asked)}
	b := w.fleet()["node-b"]
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
	w.present("node-c", hangs.URL)
	w.present("node-d", "http://127.0.0.1:1")
	w.present("node-e", b) // another node answers there
	w.present("node-f", old.URL)
	w.put(w.store.Keys().Node("runner"), task.Node{Name: "runner", Address: "http://127.0.0.1:1", Roles: []string{task.RoleExecutor}})
	want := []string{"node-c: no answer from", "node-d: 127.0.0.1:1: ", `the statement is for another node: it is for "node-e"`, "node-f: 127.0.0.1:"}
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

	for query, field := range map[string]string{"span=soon": "span", "span=-1m": "span", "span=25h": "span", "span=1ns": "span", "span=999us": "span", "limit=0": "limit", "limit=501": "limit", "part=true": "part", "within=default": "within", "x=1": "x"} {
		if r := w.do(request{method: "GET", path: "/v1/board?" + query}); r.status != http.StatusUnprocessableEntity && r.status != http.StatusBadRequest || r.Field != field {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}

	if r := w.do(request{method: "GET", path: "/v1/board", noToken: true}); r.status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", r.status)
	}
}

// While nodes are busy with other queries, the board is the last one, and says when it was made.
func TestBoard_IsTheLastOneWhileOwnersAreBusy(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	var busy atomic.Bool
	answer := partOf("node-b", 1, &asked)
	w.owners = map[string]ask{"node-a": nil, "node-b": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		if busy.Load() {
			return readmodel.NodeAnswer{}, &readmodel.Busy{Node: "node-b", RetryAfter: time.Minute}
		}
		return answer(ctx, q, without)
	}}
	w.fleet()
	first := w.boardWhen(w.Client, client.BoardOptions{}, nobodySilent)

	busy.Store(true)
	w.outdate()
	w.clock.advance(7 * time.Second)

	b, err := w.Board.Get(t.Context(), client.BoardOptions{})
	must(t, err)
	if b.Tasks != 10 || !b.At.Equal(first.At.Time) || len(b.Silent) != 0 {
		t.Errorf("at %s: %d tasks, silent %v", b.At, b.Tasks, b.Silent)
	}

	// Nobody has asked for this one before.
	_, err = w.Board.Get(t.Context(), client.BoardOptions{Limit: 7})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusTooManyRequests {
		t.Errorf("without a former board: %v", err)
	}
}

// If no scheduling node answers, the board says so, and shows the nodes.
func TestBoard_WithoutAnyAnswerNamesAllShards(t *testing.T) {
	w := newWorld(t)
	w.owners = map[string]ask{"node-a": nil}
	w.fleet()
	w.present("node-d", "http://127.0.0.1:1")

	b := w.boardWhen(w.Client, client.BoardOptions{}, func(b task.Board) bool { return len(b.Silent) == 1 })
	if len(b.Missing) != shards || b.Serving != 0 || b.Tasks != 0 || len(b.Nodes) != 2 || !b.Nodes[1].Silent || b.Next == nil {
		t.Errorf("%+v", b)
	}
}

// A caller who may read some namespaces gets exact counts of these, and nothing of the rest.
func TestBoard_CountsWhatTheCallerMayRead(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		w.create(fmt.Sprint("a", i), "@daily")
	}
	w.owners = map[string]ask{"node-a": w.owning("node-a", 5, slices.Concat(evenShards, oddShards)...)}
	w.fleet()
	w.bind("user:dev", "viewer", "dev")
	w.bind("user:default", "viewer", "default")

	for who, want := range map[string]int{"user:dev": 0, "user:default": 3} {
		w.secret = w.token(who)
		b := w.boardWhen(w.client(w.url), client.BoardOptions{Span: 24 * time.Hour}, nobodySilent)
		if b.Tasks != want || len(b.Next) != want || len(b.Missing) != 0 || b.Recent.Fired != 0 {
			t.Errorf("%s gets %d tasks, %d next, missing %v", who, b.Tasks, len(b.Next), b.Missing)
		}
	}
}

// A caller who may read tasks but not runs sees no runs, but how many there are, and which tasks are failing.
func TestBoard_ShowsRunsToWhoMayReadThem(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	w.owners = map[string]ask{"node-a": partOf("node-a", 1, &asked)}
	w.fleet()
	all := w.boardWhen(w.Client, client.BoardOptions{Limit: 3}, nobodySilent)

	_, err := w.Roles.Put(t.Context(), task.Role{Name: "planner", Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}}, client.Writing{})
	must(t, err)
	_, err = w.Bindings.Put(t.Context(), task.Binding{Name: "p", Role: "planner", Subjects: []string{"user:pia"}, Namespaces: []string{"default"}}, client.Writing{})
	must(t, err)
	w.secret = w.token("user:pia")

	b := w.boardWhen(w.client(w.url), client.BoardOptions{Limit: 3}, nobodySilent)
	if want := []task.BoardFailing{{Namespace: "default", Task: "node-a"}}; !slices.Equal(b.Failing, want) {
		t.Errorf("failing are %+v", b.Failing)
	}
	if len(b.Active)+len(b.Away)+len(b.Waits)+len(b.Alerting) != 0 || b.FailingCount != 1 || b.ActiveCount != 1 || b.WaitingCount != 2 || len(b.Next) != 3 {
		t.Errorf("%+v, %+v", b.BoardLists, b.BoardCounts)
	}
	if len(all.Failing) != 1 || len(all.Alerting) != 1 || all.Failing[0].State != task.Failed || len(all.Active) != 1 || len(all.Waits) != 1 {
		t.Errorf("who may read runs gets %+v", all.BoardLists)
	}
}
