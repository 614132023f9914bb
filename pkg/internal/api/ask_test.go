package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/internal/test/owners"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// owning answers for some shards, as the owner that wrote its key at a revision.
func (w *world) owning(node string, revision int64, owned ...int) ask {
	all := owners.Owner{Node: node, Store: w.store, Shards: shards, Ref: ref, Now: w.clock.now}

	return func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		for shard := range shards {
			if !slices.Contains(owned, shard) {
				without = append(without, shard)
			}
		}

		a, err := all.Ask(ctx, q, without)
		for i := range a.Shards {
			a.Shards[i].Owner = revision
		}

		return a, err
	}
}

// fleet serves node-a and the nodes of w.owners, and makes them present. It returns their addresses.
func (w *world) fleet() map[string]string {
	w.t.Helper()
	urls := map[string]string{}
	for name := range w.owners {
		urls[name] = w.serve(name)
		w.present(name, urls[name])
	}

	w.url = urls["node-a"]
	w.Client = w.client(w.url)

	return urls
}

// tasksPage reads a page of tasks.
func (w *world) tasksPage(query string) (client.QueryList[client.Task], response) {
	w.t.Helper()
	res := w.do(request{method: "GET", path: "/v1/tasks?" + query})
	var l client.QueryList[client.Task]
	if res.status == 200 {
		must(w.t, json.Unmarshal([]byte(res.body), &l))
	}

	return l, res
}

// namesOf are the names of tasks.
func namesOf(list []client.Task) string {
	var names []string
	for _, t := range list {
		names = append(names, t.Name)
	}
	return strings.Join(names, " ")
}

// labelled creates n tasks with the label team=data, named t0 to t(n-1).
func (w *world) labelled(n int) {
	w.t.Helper()
	for i := range n {
		w.make(fmt.Sprint("t", i), "@daily", func(s *task.Spec) { s.Labels = map[string]string{"team": "data"} })
	}
}

// evenShards and oddShards are all shards.
var evenShards, oddShards = []int{0, 2, 4, 6}, []int{1, 3, 5, 7}

func TestAsk_AnyNodeMergesTheAnswersOfAll(t *testing.T) {
	w := newWorld(t)
	w.labelled(12)
	w.owners = map[string]ask{"node-a": nil, "node-b": w.owning("node-b", 5, evenShards...), "node-c": w.owning("node-c", 6, oddShards...)}

	for name, at := range w.fleet() {
		w.url = at
		l, res := w.tasksPage("q=selector:team%3Ddata")
		if got := namesOf(l.Items); got != "t0 t1 t10 t11 t2 t3 t4 t5 t6 t7 t8 t9" || l.Count == nil || *l.Count != 12 || len(l.Missing) > 0 || l.Shards != shards || l.Collecting != nil {
			t.Errorf("by %s: %s", name, res.body)
		}
		if !l.AsOf.Equal(w.clock.now()) {
			t.Errorf("by %s: as of %s", name, l.AsOf)
		}

		var all []string
		for page := ""; ; page = "&page=" + l.Next {
			if l, res = w.tasksPage("q=selector:team%3Ddata&sort=next&limit=5" + page); res.status != 200 {
				t.Fatal(res.body)
			}
			for _, one := range l.Items {
				all = append(all, one.Name)
			}
			if l.Next == "" {
				break
			}
		}
		if len(all) != 12 || len(slices.Compact(slices.Sorted(slices.Values(all)))) != 12 {
			t.Errorf("by %s, in pages: %v", name, all)
		}
	}
}

// A question that is as long as it may be reaches the other nodes. A longer one is refused, also by a node that need not
// ask others.
func TestAsk_LongQuestionsReachOtherNodes(t *testing.T) {
	w := newWorld(t)
	w.labelled(12)
	w.owners = map[string]ask{"node-a": w.owning("node-a", 5, evenShards...), "node-b": w.owning("node-b", 6, oddShards...)}
	w.fleet()

	namespaces := []string{"default"}
	for i := range 800 {
		namespaces = append(namespaces, fmt.Sprintf("customer-team-%05d", i))
	}
	for some := range slices.Chunk(namespaces, 64) {
		w.bind("user:vic", "viewer", some...)
	}

	names := "t*"
	for i := range 999 {
		names += fmt.Sprintf(",nightly-backup-%05d", i)
	}
	question := "/v1/tasks?limit=500&q=label:team+name:" + names

	var l client.QueryList[client.Task]
	r := w.as(w.token("user:vic"), "GET", question, "")
	if decode(t, r.body, &l); len(l.Items) != 12 || len(l.Missing) > 0 {
		t.Errorf("%d: %d tasks, missing %v", r.status, len(l.Items), l.Missing)
	}

	single := newWorld(t)
	single.owners = map[string]ask{"node-a": single.owning("node-a", 5, slices.Concat(evenShards, oddShards)...)}
	single.fleet()

	for nodes, w := range map[int]*world{1: single, 2: w} {
		r := w.do(request{method: "GET", path: question + "+name~" + strings.Repeat("x", 40_000)})
		if r.status != 422 || r.Code != task.CodeTooLong {
			t.Errorf("%d nodes: %d %s", nodes, r.status, r.body)
		}
	}
}

// While a shard moves, two nodes answer for it. The rows of the former owner may be old, and may fill its page.
func TestAsk_AMovingShardCountsOnce(t *testing.T) {
	w := newWorld(t)
	w.labelled(12)
	all := make([]int, shards)
	for i := range all {
		all[i] = i
	}

	var asked atomic.Int32
	old := w.owning("node-b", 5, all...)
	w.owners = map[string]ask{
		"node-a": nil,
		"node-b": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
			if asked.Add(1); len(without) > 0 && !slices.Equal(without, oddShards) {
				t.Errorf("asked without %v", without)
			}
			return old(ctx, q, without)
		},
		"node-c": w.owning("node-c", 6, oddShards...),
	}
	w.fleet()

	if l, res := w.tasksPage("q=selector:team&limit=3"); namesOf(l.Items) != "t0 t1 t10" || *l.Count != 12 || len(l.Missing) > 0 || asked.Load() != 2 {
		t.Errorf("asked %d times: %s", asked.Load(), res.body)
	}

	// If the former owner does not answer again, nothing of its first answer counts.
	asked.Store(0)
	w.owners["node-b"] = func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		if asked.Add(1) > 1 {
			return readmodel.NodeAnswer{}, errors.New("gone")
		}
		return old(ctx, q, without)
	}
	w.fleet()

	if l, res := w.tasksPage("q=selector:team"); !slices.Equal(l.Missing, evenShards) || *l.Count != len(l.Items) || len(l.Items) == 0 || len(l.Items) == 12 {
		t.Errorf("the former owner is gone: %s", res.body)
	}
}

func TestAsk_NamesWhatIsMissing(t *testing.T) {
	w := newWorld(t)
	w.labelled(12)
	w.owners = map[string]ask{"node-a": w.owning("node-a", 5, evenShards...)}
	w.fleet()
	w.present("node-b", "http://127.0.0.1:1")

	l, res := w.tasksPage("q=selector:team")
	if !slices.Equal(l.Missing, oddShards) || *l.Count != len(l.Items) || len(l.Items) == 0 || len(l.Items) == 12 {
		t.Errorf("%s", res.body)
	}
	for _, item := range l.Items {
		if ref("default", item.Name).Shard%2 != 0 {
			t.Errorf("%s is of a shard that is missing", item.Name)
		}
	}

	wantStatus(t, "what must be complete", w.do(request{method: "GET", path: "/v1/tasks?q=selector:team&complete=true"}), 503, client.CodeIncomplete)
	_, err := w.Tasks.List(t.Context(), client.TaskListOptions{Query: "selector:team", Complete: true})
	wantError(t, err, task.ErrUnavailable, client.CodeIncomplete)

	// Runs that are selected by labels must not be few because an owner is away.
	wantStatus(t, "runs by label", w.do(request{method: "GET", path: "/v1/runs?selector=team"}), 503, client.CodeIncomplete)

	wantStatus(t, "waiting and active runs by label", w.do(request{method: "GET", path: "/v1/runs?selector=team&state=queued,running"}), 200, "")

	// A list by name needs no owners.
	for _, query := range []string{"", "q=name:default/t*", "q=name:default/t3,default/t4", "complete=true"} {
		if l, res := w.tasksPage(query); res.status != 200 || len(l.Items) < 2 || l.Count != nil || l.Missing != nil {
			t.Errorf("%q: %s", query, res.body)
		}
	}

	var info client.ListInfo
	_, err = w.Tasks.List(t.Context(), client.TaskListOptions{Query: "selector:team", Limit: 2, Info: info.Include})
	must(t, err)
	if !slices.Equal(info.Missing, oddShards) || info.Shards != shards {
		t.Errorf("the client says %+v", info)
	}

	r := w.do(request{method: "GET", path: "/v1/next?q=label:team"})
	var next client.QueryList[client.Coming]
	must(t, json.Unmarshal([]byte(r.body), &next))
	if !slices.Equal(next.Missing, oddShards) || next.Count != nil {
		t.Errorf("ticks: %s", r.body)
	}
}

// After a takeover, an owner does not know yet how the runs of its tasks ended.
func TestAsk_SaysHowMuchIsCollected(t *testing.T) {
	w := newWorld(t)
	w.labelled(10)
	w.owners = map[string]ask{"node-a": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		a, err := w.owning("node-a", 5, slices.Concat(evenShards, oddShards)...)(ctx, q, without)
		for i := range a.Shards {
			a.Shards[i].Unread, a.Shards[i].AgeMS = a.Shards[i].Rows, int64(i)*100
			if i%2 == 0 {
				a.Shards[i].Unread = 0
			}
		}
		return a, err
	}}
	w.fleet()

	even := 0
	for i := range 10 {
		if ref("default", fmt.Sprint("t", i)).Shard%2 == 0 {
			even++
		}
	}

	for _, query := range []string{"q=state:failing", "sort=last", "q=last:none"} {
		l, res := w.tasksPage(query)
		if l.Collecting == nil || *l.Collecting != 10*even || l.AgeMS != 700 || !l.AsOf.Equal(w.clock.now().Add(-700*time.Millisecond)) {
			t.Errorf("%s: %s", query, res.body)
		}
		wantStatus(t, query, w.do(request{method: "GET", path: "/v1/tasks?complete=true&" + query}), 503, client.CodeIncomplete)
	}

	// What does not depend on how runs ended is complete.
	for _, query := range []string{"q=selector:team", "q=label:team", "q=-state:paused", "q=state:idle+name~t"} {
		if l, res := w.tasksPage("complete=true&" + query); res.status != 200 || l.Collecting != nil || len(l.Items) != 10 {
			t.Errorf("%s: %s", query, res.body)
		}
	}
}

// flaky is an owner of all shards that can become busy or go away.
type flaky struct {
	ask
	err   atomic.Pointer[error]
	asked atomic.Int32
}

func (f *flaky) fail(err error) { f.err.Store(&err) }

func (f *flaky) answer(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	f.asked.Add(1)
	if err := f.err.Load(); err != nil && *err != nil {
		return readmodel.NodeAnswer{}, *err
	}
	return f.ask(ctx, q, without)
}

// flakyWorld has one node that owns all shards, and ten labelled tasks.
func flakyWorld(t *testing.T) (*world, *flaky) {
	w := newWorld(t)
	w.labelled(10)
	f := &flaky{ask: w.owning("node-a", 5, slices.Concat(evenShards, oddShards)...)}
	w.owners = map[string]ask{"node-a": f.answer}
	w.fleet()

	return w, f
}

// outdate makes the node ask the owners again: a caller gets no answer from before its own writes.
func (w *world) outdate() {
	w.t.Helper()
	wantStatus(w.t, "a write", w.do(request{method: "DELETE", path: "/v1/namespaces/default/tasks/nope"}), 404, "")
}

func TestAsk_BusyOwnersLeaveTheLastAnswer(t *testing.T) {
	w, f := flakyWorld(t)
	before, _ := w.tasksPage("q=selector:team")
	began := w.clock.now()
	f.fail(&readmodel.Busy{Node: "node-a", RetryAfter: 3500 * time.Millisecond})
	w.outdate()
	w.clock.advance(7 * time.Second)

	// A list that was read before gets older. What was never asked is refused, with the time to wait.
	if l, res := w.tasksPage("q=selector:team"); namesOf(l.Items) != namesOf(before.Items) || l.AgeMS != 7000 || !l.AsOf.Equal(began) {
		t.Errorf("again: %s", res.body)
	}

	_, res := w.tasksPage("q=selector:team&limit=3")
	if wantStatus(t, "the first time", res, 429, client.CodeBusy); res.header.Get("Retry-After") != "4" || !strings.Contains(res.Detail, "node-a is busy") {
		t.Errorf("%v %s", res.header, res.body)
	}
	wantStatus(t, "what must be complete", w.do(request{method: "GET", path: "/v1/tasks?q=selector:team&complete=true"}), 429, client.CodeBusy)

	// Other nodes hear the same.
	w.owners["node-b"] = nil
	w.url = w.serve("node-b")
	_, res = w.tasksPage("q=selector:team")
	if wantStatus(t, "by another node", res, 429, client.CodeBusy); res.header.Get("Retry-After") != "4" {
		t.Errorf("%v %s", res.header, res.body)
	}
}

// A list of many pages takes longer if owners are busy. It does not fail, and the owners that have answered are not asked
// again.
func TestAsk_WaitsForBusyOwners(t *testing.T) {
	w := newWorld(t)
	w.labelled(10)
	odd := &flaky{ask: w.owning("node-c", 6, oddShards...)}
	even := &flaky{ask: w.owning("node-b", 5, evenShards...)}
	w.owners = map[string]ask{"node-a": nil, "node-b": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		even.fail(&readmodel.Busy{Node: "node-b", RetryAfter: 60 * time.Millisecond})
		if even.asked.Load()%3 == 2 { // the third time
			even.fail(nil)
		}
		return even.answer(ctx, q, without)
	}, "node-c": odd.answer}
	w.fleet()

	for _, query := range []string{"q=selector:team", "q=selector:team&complete=true"} {
		even.asked.Store(0)
		odd.asked.Store(0)
		if l, res := w.tasksPage(query); len(l.Items) != 10 || even.asked.Load() != 3 || odd.asked.Load() != 1 {
			t.Errorf("%s: asked %d and %d times: %s", query, even.asked.Load(), odd.asked.Load(), res.body)
		}
	}
}

func TestAsk_WithoutOwnersTheLastAnswerStays(t *testing.T) {
	w, f := flakyWorld(t)
	before, _ := w.tasksPage("sort=next")
	f.fail(errors.New("the worker has stopped"))
	w.outdate()
	w.clock.advance(90 * time.Second)

	if l, res := w.tasksPage("sort=next"); namesOf(l.Items) != namesOf(before.Items) || l.AgeMS != 90_000 {
		t.Errorf("again: %s", res.body)
	}

	// It is away since it was first noticed.
	since := w.clock.now().Format(time.RFC3339)
	w.clock.advance(time.Minute)
	_, res := w.tasksPage("sort=last")
	if wantStatus(t, "the first time", res, 503, client.CodeUnavailable); !strings.Contains(res.Detail, "since "+since) || !strings.Contains(res.Detail, "the worker has stopped") {
		t.Error(res.Detail)
	}

	f.fail(nil)
	if l, res := w.tasksPage("sort=last"); len(l.Items) != 10 {
		t.Errorf("the owner is back: %s", res.body)
	}
}

// While etcd is away, a list that the same caller has seen is shown again, with its age. Only the users of the host can be
// sure of their rights then.
func TestAsk_WithoutEtcdTheLastRowsStay(t *testing.T) {
	var away atomic.Bool
	etcd := kvtest.Memory(t)
	etcd.KV = etcdhook.KV(etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if away.Load() {
			return clientv3.OpResponse{}, errors.New("etcd is away")
		}
		return next(ctx, op)
	})

	w := newWorldOn(t, etcd)
	w.labelled(10)
	var answer readmodel.NodeAnswer
	ask3 := func() {
		var err error
		answer, err = w.owning("node-a", 5, slices.Concat(evenShards, oddShards)...)(t.Context(), &readmodel.Query{Order: readmodel.ByName, Limit: 3}, nil)
		must(t, err)
	}

	ask3()
	w.owners = map[string]ask{"node-a": func(context.Context, *readmodel.Query, []int) (readmodel.NodeAnswer, error) { return answer, nil }}
	w.serveAnew(func(s *http.Server) {
		s.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return api.WithTrustedUser(ctx, 0) }
	})

	list := func(query string) (client.QueryList[client.Task], response) {
		res := w.do(request{method: "GET", path: "/v1/tasks?" + query, noToken: true})
		var l client.QueryList[client.Task]
		must(t, json.Unmarshal([]byte(res.body), &l))

		return l, res
	}

	before, _ := list("q=selector:team&limit=3")

	// Another task is created, so the next page of a list that is read now begins earlier.
	res := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks", body: `{"name": "t00", "labels": {"team": "data"}, "schedule": "@manual", "action": {"noop": {}}}`, noToken: true})
	wantStatus(t, "create", res, 201, "")
	ask3()
	away.Store(true)
	w.clock.advance(20 * time.Second)

	if l, res := list("q=selector:team&limit=3"); res.status != 200 || namesOf(l.Items) != "t0 t1 t2" || l.Next != before.Next || l.AgeMS != 20_000 || l.Items[0].Next.IsZero() {
		t.Errorf("again: %s", res.body)
	}
	for _, query := range []string{"q=selector:team&limit=2", "q=selector:team&limit=3&recent=1", "limit=3"} {
		if _, res := list(query); res.status != 503 || res.Code != client.CodeUnavailable {
			t.Errorf("%s: %s", query, res.body)
		}
	}
}

func TestAsk_EqualQuestionsShareAnAnswer(t *testing.T) {
	w, f := flakyWorld(t)
	w.bind("user:vic", "viewer", "default")
	w.bind("user:val", "viewer", "default")
	w.bind("user:olga", "viewer", "other")
	f.asked.Store(0)

	// Those who may read the same share the scan, unless it takes more than a second to ask twice.
	began := time.Now()
	for _, who := range []string{"user:vic", "user:val", "user:vic"} {
		r := w.as(w.token(who), "GET", "/v1/tasks?q=selector:team&brief=true", "")
		wantStatus(t, who, r, 200, "")
	}
	if n := f.asked.Load(); n != 1 && time.Since(began) < time.Second {
		t.Errorf("asked %d times", n)
	}

	// Others do not.
	f.asked.Store(0)
	r := w.as(w.token("user:olga"), "GET", "/v1/tasks?q=selector:team&brief=true", "")
	var l client.QueryList[client.Task]
	decode(t, r.body, &l)
	if len(l.Items) != 0 || *l.Count != 0 || f.asked.Load() != 1 {
		t.Errorf("who may read another namespace: %s", r.body)
	}

	// A caller who has written something sees it.
	if l, res := w.tasksPage("q=selector:team"); *l.Count != 10 {
		t.Errorf("before: %s", res.body)
	}
	w.make("new", "@daily", func(s *task.Spec) { s.Labels = map[string]string{"team": "data"} })
	if l, res := w.tasksPage("q=selector:team"); *l.Count != 11 {
		t.Errorf("after a write: %s", res.body)
	}
}

// Nothing that a caller can ask tells what other namespaces contain: neither rows nor counts, pages or terms of a query.
func TestAsk_ATeamLearnsNothingOfTheOther(t *testing.T) {
	w := newWorld(t)
	w.owners = map[string]ask{"node-a": w.owning("node-a", 5, evenShards...), "node-b": w.owning("node-b", 6, oddShards...)}
	w.fleet()
	w.bind("user:ina", "viewer", "default")
	ina := w.token("user:ina")

	create := func(ns, name, team string) {
		w.make(name, "*/5 * * * *", func(s *task.Spec) { s.Namespace, s.Labels = ns, map[string]string{"team": team} })
	}
	for i := range 6 {
		create("default", fmt.Sprint("a", i), "own")
	}

	queries := []string{
		"", "q=selector:team", "q=selector:team%3Dsecret", "q=name:*1*", "q=name:other/*", "q=name:other/x*", "q=name:other/x1", "q=state:failing", "q=state:paused", "sort=next", "sort=last",
		"sort=lateness", "sort=duration", "sort=failures", "q=namespace:other", "q=-namespace:default", "q=-name:other/*", "q=x1", "q=label:team%3Dsecret", "q=state:failed",
		"q=last:<1d", "q=next:<1h", "q=failures:>=1", "sort=next&limit=2", "q=selector:team&limit=2",
	}
	paths := []string{"/v1/next?until=2026-11-21T00:00:00Z&limit=10", "/v1/next?q=namespace:other", "/v1/next?q=name:other/*", "/v1/runs?selector=team"}
	for _, q := range queries {
		paths = append(paths, "/v1/tasks?"+q)
	}

	see := func() map[string]string {
		seen := map[string]string{}
		for _, path := range paths {
			for page := ""; ; {
				r := w.as(ina, "GET", path+page, "")
				seen[path] += fmt.Sprint(r.status, r.body)
				var l client.QueryList[json.RawMessage]
				decode(t, r.body, &l)
				if l.Next == "" {
					break
				}
				page = "&page=" + l.Next
			}
		}

		return seen
	}

	before := see()

	for i := range 5 {
		create("other", fmt.Sprint("x", i), "secret")
		w.runOf("other", fmt.Sprint("x", i), task.Failed)
	}
	time.Sleep(1100 * time.Millisecond) // answers are shared for a second

	after := see()
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if after[path] != before[path] {
			t.Errorf("%s was\n%s, and is\n%s", path, before[path], after[path])
		}
	}

	// An administrator sees both.
	if l, res := w.tasksPage("q=state:failed"); *l.Count != 5 {
		t.Errorf("of all: %s", res.body)
	}
}

// runOf records a run of a task that has ended.
func (w *world) runOf(ns, name string, s task.State) {
	w.t.Helper()
	r := task.Run{Namespace: ns, Task: name, ID: w.runID(ns, name, 1), State: s, ScheduledTime: task.At(w.clock.now()), StartedAt: task.At(w.clock.now()), EndedAt: task.At(w.clock.now())}
	w.put(w.store.Keys().Ended(ref(ns, name), r.ID), r)
}

// A role may let its subjects read tasks, but not runs.
func TestAsk_HowRunsEndedNeedsReadOnRuns(t *testing.T) {
	w := newWorld(t)
	w.labelled(3)
	_, err := w.Roles.Put(t.Context(), task.Role{Name: "planner", Rules: []task.Rule{{Verbs: []string{"read"}, Objects: []string{"tasks"}}}}, client.Writing{})
	must(t, err)
	_, err = w.Bindings.Put(t.Context(), task.Binding{Name: "p", Role: "planner", Subjects: []string{"user:pia"}, Namespaces: []string{"default"}}, client.Writing{})
	must(t, err)
	pia := w.token("user:pia")

	for _, query := range []string{"sort=last", "sort=duration", "sort=failures", "q=state:failed", "q=-last:none", "q=failures:0"} {
		r := w.as(pia, "GET", "/v1/namespaces/default/tasks?"+query, "")
		wantStatus(t, query, r, 403, client.CodeForbidden)

		var l client.QueryList[client.Task]
		decode(t, w.as(pia, "GET", "/v1/tasks?"+query, "").body, &l)
		if len(l.Items) > 0 || *l.Count != 0 {
			t.Errorf("%s of all: %d, count %d", query, len(l.Items), *l.Count)
		}
	}

	for _, query := range []string{"sort=next", "q=label:team", "q=next:<2d", "q=state:failing", "q=state:paused", "q=selector:team"} {
		wantStatus(t, query, w.as(pia, "GET", "/v1/namespaces/default/tasks?"+query, ""), 200, "")
	}
}

// A node answers another one only about what its own access records let the caller read.
func TestAsk_ANodeChecksWhatAnotherAsks(t *testing.T) {
	w := newWorld(t)
	w.labelled(3)
	w.owners = map[string]ask{"node-b": w.owning("node-b", 6, slices.Concat(evenShards, oddShards)...)}
	b := w.serve("node-b")
	w.bind("user:vic", "viewer", "default")
	w.token("user:vic")

	from := func(who, question string) *http.Response {
		uri := "/v1/tasks:ask?question=" + url.QueryEscape(question)
		st := statement.Statement{From: "node-a", FromInstance: "i-node-a", To: "node-b", ToInstance: "i-node-b", Caller: statement.Caller{Who: who}}
		req, err := http.NewRequestWithContext(t.Context(), "GET", b+uri, nil)
		must(t, err)
		req.Header.Set(statement.Header, st.Sign(keyOf("node-a"), statement.Request{Method: "GET", Path: req.URL.RequestURI()}, w.clock.now()))
		res, err := http.DefaultTransport.RoundTrip(req)
		must(t, err)
		t.Cleanup(func() { res.Body.Close() })

		return res
	}

	for _, c := range []struct {
		who, question string
		status        int
	}{
		{"user:vic", `{"limit": 5, "within": ["default"]}`, 200},
		{"user:vic", `{"limit": 5, "namespace": "default"}`, 200},
		{"user:vic", `{"limit": 5, "within": ["default"], "order": "last"}`, 200},
		{"user:vic", `{"limit": 5}`, 403},
		{"user:vic", `{"limit": 5, "within": null}`, 403},
		{"user:vic", `{"limit": 5, "within": ["default", "other"]}`, 403},
		{"user:vic", `{"limit": 5, "namespace": "other"}`, 403},
		{"user:nobody", `{"limit": 5, "within": ["default"]}`, 403},
		{"user:nobody", `{"limit": 5, "within": []}`, 200},
		{"user:ann", `{"limit": 5}`, 200},
		{"unix:uid=0", `{"limit": 5}`, 200},
		{"user:ann", `{"limit": 5, "within": ["default"], "query": "nosuch:x"}`, 422},
		{"user:ann", `{"limit": 20001}`, 422},
		{"user:ann", `{"after": "x"}`, 422},
		{"user:ann", `{"without": ["x"]}`, 422},
		{"user:ann", `{"limit": 5, "only_new": true}`, 422},
		{"user:ann", ``, 400},
	} {
		res := from(c.who, c.question)
		if res.StatusCode != c.status {
			t.Errorf("%s asks %s: %s", c.who, c.question, res.Status)
			continue
		}

		var a readmodel.NodeAnswer
		if c.status == 200 {
			must(t, json.NewDecoder(res.Body).Decode(&a))
			want := 3
			if strings.Contains(c.question, "[]") {
				want = 0
			}
			if a.Node != "node-b" || len(a.Shards) != shards || len(a.Places) != want {
				t.Errorf("%s asks %s: %+v", c.who, c.question, a)
			}
		}
	}

	var a readmodel.NodeAnswer
	q := fmt.Sprintf(`{"limit": 5, "without": [0, 1, 2, 3, 4, 5, 6], "now": %d}`, w.clock.now().UnixMilli())
	must(t, json.NewDecoder(from("user:ann", q).Body).Decode(&a))
	if len(a.Shards) != 1 || a.Shards[0].Shard != 7 {
		t.Errorf("without seven shards: %+v", a)
	}
}
