package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// names lists tasks in pages of a size, and returns their names.
func (w *world) names(o client.TaskListOptions, size int) string {
	w.t.Helper()
	path := "/v1/tasks"
	if o.Namespace != "" {
		path = "/v1/namespaces/" + o.Namespace + "/tasks"
	}

	query := fmt.Sprintf("limit=%d&q=%s", size, url.QueryEscape(o.Query))
	if o.Sort != "" {
		query += "&sort=" + o.Sort
	}

	var all []string
	for page := ""; ; {
		res := w.do(request{method: "GET", path: path + "?" + query + page})
		if res.status != 200 {
			w.t.Fatalf("%s: %s", query, res.body)
		}

		var l client.List[client.Task]
		must(w.t, json.Unmarshal([]byte(res.body), &l))

		if len(l.Items) > size {
			w.t.Fatalf("%s: a page of %d", query, len(l.Items))
		}

		for _, t := range l.Items {
			name := t.Name
			if t.Namespace != "default" {
				name = t.Namespace + "/" + name
			}
			all = append(all, name)
		}

		if l.Next == "" {
			return strings.Join(all, " ")
		}

		page = "&page=" + l.Next
	}
}

func (w *world) make(name, schedule string, edit func(*task.Spec)) {
	w.t.Helper()
	s := spec(name, schedule)
	s.Namespace = "default"

	if edit != nil {
		edit(&s)
	}

	_, err := w.Tasks.Create(w.t.Context(), s.Namespace, s)
	must(w.t, err)
}

// population creates a few tasks of all kinds. It is 22:05.
func population(t *testing.T) *world {
	w := newWorld(t)
	label := func(team string) func(*task.Spec) {
		return func(s *task.Spec) { s.Labels = map[string]string{"team": team} }
	}

	w.make("web-1", "10 * * * *", label("web")) // 22:10
	w.make("web-2", "6 * * * *", label("web"))  // 22:06
	w.make("web-10", "@manual", label("web"))
	w.make("db", "30 22 * * *", label("data"))
	w.make("resting", "7 * * * *", func(s *task.Spec) { s.Paused = true })
	w.make("web-1", "0 23 * * *", func(s *task.Spec) { s.Namespace = "prod" })
	// db failed, succeeded, failed; web-1 failed and then succeeded; web-2's failure was dismissed.
	w.ended("db", w.dead(ref("default", "db"), "", 1), task.Failed, nil)
	w.ended("db", w.runID("default", "db", 2), task.Succeeded, nil)
	w.ended("db", w.dead(ref("default", "db"), "", 3), task.TimedOut, func(r *task.Run) { r.LatenessMS = new(int64); *r.LatenessMS = 5 })
	w.ended("db", w.runID("default", "db", 4), task.Skipped, nil)
	w.ended("web-1", w.dead(ref("default", "web-1"), "", 1), task.Failed, nil)
	w.ended("web-1", w.runID("default", "web-1", 5), task.Succeeded, func(r *task.Run) { r.LatenessMS = new(int64); *r.LatenessMS = 9 })
	w.ended("web-2", w.runID("default", "web-2", 1), task.Failed, nil)

	return w
}

func TestTasks_FiltersAndOrders(t *testing.T) {
	w := population(t)

	for _, c := range []struct {
		o    client.TaskListOptions
		want string
	}{
		{client.TaskListOptions{}, "db resting web-1 web-10 web-2 prod/web-1"},
		{client.TaskListOptions{Query: "name:web-*"}, "web-1 web-10 web-2 prod/web-1"},
		{client.TaskListOptions{Query: "name:web-?,d*", Namespace: "default"}, "db web-1 web-2"},
		{client.TaskListOptions{Query: "name:web-2,db,db,gone", Namespace: "default"}, "db web-2"},
		{client.TaskListOptions{Query: "name:prod/web-1,db"}, "db prod/web-1"},
		{client.TaskListOptions{Query: "name:default/web-*"}, "web-1 web-10 web-2"},
		{client.TaskListOptions{Query: "name:web-1"}, "web-1 prod/web-1"},
		{client.TaskListOptions{Query: "selector:team=web"}, "web-1 web-10 web-2"},
		{client.TaskListOptions{Query: "name:*1* selector:team=web"}, "web-1 web-10"},
		{client.TaskListOptions{Query: "state:paused"}, "resting"},
		{client.TaskListOptions{Query: "selector:team state:paused"}, ""},
		{client.TaskListOptions{Query: "state:failing"}, "db"},
		{client.TaskListOptions{Query: "name:w* state:failing"}, ""},
		{client.TaskListOptions{Query: "selector:team=data state:failing", Namespace: "default"}, "db"},
		{client.TaskListOptions{Query: "state:failing", Namespace: "prod"}, ""},
		{client.TaskListOptions{Sort: client.SortNext}, "web-2 web-1 db prod/web-1 resting web-10"},
		{client.TaskListOptions{Query: "name:w*", Sort: client.SortNext}, "web-2 web-1 prod/web-1 web-10"},
		{client.TaskListOptions{Query: "selector:team=web", Sort: client.SortNext}, "web-2 web-1 web-10"},
		{client.TaskListOptions{Query: "state:paused", Sort: client.SortNext}, "resting"},
		{client.TaskListOptions{Query: "name:db,web-2", Sort: client.SortNext, Namespace: "default"}, "web-2 db"},
		{client.TaskListOptions{Sort: client.SortLast}, "web-1 db web-2 resting web-10 prod/web-1"},
		{client.TaskListOptions{Query: "state:failing", Sort: client.SortLast}, "db"},
		{client.TaskListOptions{Sort: client.SortLateness, Namespace: "default"}, "web-1 db web-2 resting web-10"},
		{client.TaskListOptions{Sort: client.SortFailures, Namespace: "default"}, "db web-2 resting web-1 web-10"},
		{client.TaskListOptions{Query: "state:failing,paused"}, "db resting"},
		{client.TaskListOptions{Query: "label:team=web -name:*10"}, "web-1 web-2"},
		{client.TaskListOptions{Query: "next:<20m", Sort: client.SortNext}, "web-2 web-1"},
		{client.TaskListOptions{Query: "name:prod/* WEB-1"}, "prod/web-1"},
	} {
		for _, size := range []int{1, 2, 100} {
			if got := w.names(c.o, size); got != c.want {
				t.Errorf("%+v, pages of %d: %q, want %q", c.o, size, got, c.want)
			}
		}

		o := c.o
		o.Limit = 2
		if list, err := w.Tasks.List(t.Context(), o); err != nil || len(list) != min(2, len(strings.Fields(c.want))) {
			t.Errorf("%+v: %d, %v", o, len(list), err)
		}
	}
}

func TestTasks_RefusesWhatIsNoFilter(t *testing.T) {
	w := newWorld(t)

	for query, field := range map[string]string{
		"q=name:[z": "q", "q=name:a/b/c": "q", "q=name:a,,b": "q", "sort=size": "sort", "failing=true": "failing", "paused=true": "paused", "name=a": "name", "selector=a": "selector", "q=selector:a~b": "q", "recent=101": "recent", "q=state:x": "q", "q=nosuch:x": "q",
	} {
		if res := w.do(request{method: "GET", path: "/v1/tasks?" + query}); res.status != 422 || res.Field != field {
			t.Errorf("%s: %d, %+v", query, res.status, res.Problem)
		}
	}

	// A cursor is valid only with the same filters.
	w.create("a", "@daily")
	w.create("b", "@daily")
	res := w.do(request{method: "GET", path: "/v1/tasks?limit=1&sort=next"})
	var l client.List[client.Task]
	must(t, json.Unmarshal([]byte(res.body), &l))

	if res := w.do(request{method: "GET", path: "/v1/tasks?limit=1&page=" + l.Next}); res.Code != client.CodeBadPage {
		t.Errorf("a page of another list: %d %s", res.status, res.body)
	}
}

func TestTasks_SayHowTheyStand(t *testing.T) {
	w, ctx := population(t), t.Context()
	w.waiting("web-2", w.runID("default", "web-2", 6), nil)
	w.active("node-a", "web-10", w.runID("default", "web-10", 6))
	w.make("over", "@at 2026-11-20T22:06:00Z", nil)
	w.clock.advance(2 * time.Minute)
	w.put(w.store.Keys().Spec(ref("default", "broken")), spec("broken", "@daily"))
	states := func() map[string]string {
		list, err := w.Tasks.List(ctx, client.TaskListOptions{Namespace: "default", Recent: 3})
		must(t, err)

		got := map[string]string{}
		for _, v := range list {
			got[v.Name] = v.State
			var past []string
			for _, r := range v.Recent {
				past = append(past, string(r.State))
			}

			if v.Name == "db" && !slices.Equal(past, []string{"skipped", "timed_out", "succeeded"}) {
				t.Errorf("recent: %v", past)
			}
		}

		return got
	}

	want := map[string]string{"db": "failing", "web-1": "ok", "web-2": "waiting", "web-10": "running", "resting": "paused", "over": "ended", "broken": "unreadable"}
	if got := states(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}

	brief, err := w.Tasks.List(ctx, client.TaskListOptions{Query: "name:db", Brief: true})
	must(t, err)

	if len(brief) != 1 || brief[0].State != "" || brief[0].LastRun != nil || brief[0].Labels["team"] != "data" {
		t.Errorf("brief: %+v", brief)
	}
}

func TestComing_IsMergedAndPaged(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.make("a", "*/10 * * * *", nil)
	w.make("b", "5,10 * * * *", nil)
	w.make("c", "@every 7m", nil) // 22:12, 22:19
	w.make("bounded", "6 * * * *", func(s *task.Spec) { s.MaxRuns = 1 })
	w.make("resting", "* * * * *", func(s *task.Spec) { s.Paused = true })
	w.make("back", "*/5 * * * *", func(s *task.Spec) {
		s.Paused, s.PausedUntil = true, task.At(w.clock.now().Add(13*time.Minute))
	})

	w.make("a", "H 23 * * *", func(s *task.Spec) { s.Namespace, s.Timezone = "prod", "Europe/Berlin" })
	spell := func(o client.ComingOptions) string {
		var out []string
		for tick, err := range w.Ticks.All(ctx, o) {
			must(t, err)
			out = append(out, tick.Time.Format("15:04")+" "+tick.Task)
		}

		return strings.Join(out, ", ")
	}

	from := w.clock.now()
	until := from.Add(15 * time.Minute)
	const all = "22:06 bounded, 22:10 a, 22:10 b, 22:12 c, 22:19 c, 22:20 a, 22:20 back"
	for want, o := range map[string]client.ComingOptions{
		all:                         {Until: until, Namespace: "default"},
		"22:06 bounded, 22:10 a":    {Limit: 2, Namespace: "default"},
		"22:06 bounded":             {Until: from.Add(5 * time.Hour), Query: "name:bounded"},
		"22:12 c, 22:19 c":          {Until: until, Query: "name:c"},
		"22:10 b, 23:05 b, 23:10 b": {Until: from.Add(70 * time.Minute), Query: "name:b selector:!x", From: from.Add(time.Minute).Add(time.Nanosecond), Limit: 3, Namespace: "default"},
		"":                          {Until: until, Query: "label:team=none"},
	} {
		if got := spell(o); got != want {
			t.Errorf("%+v:\n%s, want\n%s", o, got, want)
		}
	}

	// The list is the same in pages.
	var paged []string
	for page := ""; ; {
		res := w.do(request{method: "GET", path: "/v1/namespaces/default/next?limit=1&until=" + until.Format(time.RFC3339) + page})
		var l client.List[client.Coming]
		must(t, json.Unmarshal([]byte(res.body), &l))

		for _, tick := range l.Items {
			paged = append(paged, tick.Time.Format("15:04")+" "+tick.Task)
		}

		if l.Next == "" {
			break
		}

		page = "&page=" + l.Next
	}

	if got := strings.Join(paged, ", "); got != all {
		t.Errorf("page by page %s, want %s", got, all)
	}

	for tick, err := range w.Ticks.All(ctx, client.ComingOptions{Namespace: "prod", Limit: 1}) {
		must(t, err)
		if tick.Timezone != "Europe/Berlin" || len(tick.Schedule) != 1 || strings.Contains(tick.Schedule[0], "H") || !strings.HasSuffix(tick.Local, "+01:00") {
			t.Errorf("%+v", tick)
		}
	}

	if res := w.do(request{method: "GET", path: "/v1/next?until=2026-11-20T22:00:00Z"}); res.status != 422 || res.Field != "until" {
		t.Errorf("until before now: %d %s", res.status, res.body)
	}
}

func TestRuns_OfTasksWhoseLabelsMatch(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.maxScanned = 4 // fewer than there are runs of other tasks
	w.url = w.serve("node-a")
	create := func(name, team string) {
		s := spec(name, "@daily")
		s.Labels = map[string]string{"team": team}
		_, err := w.Tasks.Create(ctx, "default", s)
		must(t, err)
	}

	create("a", "data")
	create("b", "data")
	create("other", "web")
	w.ended("a", id(1, "aaaa"), task.Failed, nil)
	w.ended("b", id(2, "bbbb"), task.Succeeded, nil)
	w.waiting("a", id(3, "aaaa"), nil)
	w.active("node-b", "other", id(4, "cccc"))

	for minute := 5; minute < 15; minute++ {
		w.ended("other", id(minute, "cccc"), task.Succeeded, nil)
	}

	const at = "2026-11-20T20:00:00Z"
	for query, want := range map[string]string{
		"selector=team%3Ddata":                           "03:queued 02:succeeded 01:failed",
		"selector=team%3Ddata&since=" + at:               "03:queued 02:succeeded 01:failed",
		"selector=team%3Ddata&state=succeeded,failed":    "02:succeeded 01:failed",
		"selector=team%3Ddata&state=failed&since=" + at:  "01:failed",
		"selector=team%3Ddata&state=queued,running":      "03:queued",
		"selector=team+in+(web,data)&state=running":      "04:running",
		"selector=team%3Dnone":                           "",
		"selector=team%3Ddata&node=node-b&state=running": "",
	} {
		for _, prefix := range []string{"/v1/runs?", "/v1/namespaces/default/runs?"} {
			for _, limit := range []int{1, 2, 100} {
				got, page := "", ""
				for range 8 {
					res := w.do(request{method: "GET", path: fmt.Sprintf("%s%s&limit=%d%s", prefix, query, limit, page)})
					var l client.List[task.Run]
					must(t, json.Unmarshal([]byte(res.body), &l))

					if got += told(l.Items) + " "; l.Next == "" {
						break
					}

					page = "&page=" + l.Next
				}

				if got = strings.TrimSpace(got); got != want {
					t.Errorf("%s%s, %d a page: %q, want %q", prefix, query, limit, got, want)
				}
			}
		}
	}

	runs, err := w.Runs.List(ctx, client.RunListOptions{Selector: "team = data", State: task.Failed})
	if err != nil || told(runs) != "01:failed" {
		t.Errorf("by the client: %s, %v", told(runs), err)
	}

	for _, query := range []string{"selector=team~data", "selector=team%3Ddata&task=a"} {
		if res := w.do(request{method: "GET", path: "/v1/namespaces/default/runs?" + query}); res.status != 422 || res.Field != "selector" {
			t.Errorf("%s: %d %s", query, res.status, res.body)
		}
	}
}

func TestRuns_OfATimeAndInStates(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.create("b", "@daily")
	w.ended("a", id(1, "aaaa"), task.Failed, nil)
	w.ended("b", id(2, "bbbb"), task.Succeeded, nil)
	w.ended("a", id(3, "aaaa"), task.TimedOut, func(r *task.Run) { r.Node = "node-b" })
	w.ended("b", id(4, "bbbb"), task.Failed, nil)
	w.waiting("a", id(5, "aaaa"), nil)
	w.active("node-b", "b", id(6, "bbbb"))

	at := func(minute int) time.Time { return time.Date(2026, 11, 20, 20, minute, 0, 0, time.UTC) }
	for want, f := range map[string]client.RunListOptions{
		"06:running 05:queued 04:failed 03:timed_out 02:succeeded 01:failed": {},
		"06:running 05:queued 04:failed":                                     {Since: at(4)},
		"03:timed_out 02:succeeded":                                          {Since: at(2), Until: at(4)},
		"04:failed 03:timed_out 01:failed":                                   {States: []task.State{task.Failed, task.TimedOut}},
		"04:failed 03:timed_out":                                             {States: []task.State{task.Failed, task.TimedOut}, Since: at(2)},
		"03:timed_out":                                                       {Node: "node-b", Until: at(6), Since: at(0)},
		"05:queued":                                                          {State: task.Queued},
		"06:running 05:queued":                                               {States: []task.State{task.Queued, task.Running}},
		"03:timed_out 01:failed":                                             {Namespace: "default", Task: "a", Until: at(5)},
		"":                                                                   {Since: at(7)},
	} {
		for _, limit := range []int{0, 1, 2} {
			f.Limit = limit
			runs, err := w.Runs.List(ctx, f)

			part := strings.Fields(want)
			if limit > 0 {
				part = part[:min(limit, len(part))]
			}

			if err != nil || told(runs) != strings.Join(part, " ") {
				t.Errorf("%+v: %s, want %s, %v", f, told(runs), strings.Join(part, " "), err)
			}
		}

		// The same in pages.
		got, page := "", ""
		for range 8 {
			q := fmt.Sprintf("/v1/runs?limit=1&node=%s", f.Node)
			for name, v := range map[string]time.Time{"since": f.Since, "until": f.Until} {
				if !v.IsZero() {
					q += "&" + name + "=" + v.Format(time.RFC3339)
				}
			}

			if f.Task != "" {
				break
			}

			var states []string
			for _, s := range append(f.States, f.State) {
				if s != "" {
					states = append(states, string(s))
				}
			}

			if len(states) > 0 {
				q += "&state=" + strings.Join(states, ",")
			}

			res := w.do(request{method: "GET", path: q + page})
			var l client.List[task.Run]
			must(t, json.Unmarshal([]byte(res.body), &l))

			if got += told(l.Items) + " "; l.Next == "" {
				break
			}

			page = "&page=" + l.Next
		}

		if strings.TrimSpace(got) != want && f.Task == "" {
			t.Errorf("%+v page by page: %s, want %s", f, got, want)
		}
	}

	if res := w.do(request{method: "GET", path: "/v1/events?task=a"}); res.status != 422 || res.Field != "task" || !strings.Contains(res.Detail, "/v1/namespaces/") {
		t.Errorf("events of a task of all namespaces: %d %s", res.status, res.body)
	}
}

// A page shows the active runs of its tasks, and does not read those of all others.
func TestTasks_APageReadsOnlyItsOwnRuns(t *testing.T) {
	etcd := kvtest.Memory(t)
	w := newWorldOn(t, etcd)
	for _, name := range []string{"a", "b", "c"} {
		w.make(name, "@manual", nil)
	}

	keys := w.store.Keys()
	w.put(keys.Node("busy"), task.Node{Name: "busy", Running: 300})
	for i := range 300 {
		w.put(keys.Run("busy", ref("other", fmt.Sprint("t", i)), id(1, "aaaa")), task.Assigned{})
	}
	for i, node := range []string{"busy", "absent"} {
		w.put(keys.Run(node, ref("default", "b"), w.runID("default", "b", 2+i)), task.Assigned{Run: task.Run{State: task.Running}})
	}

	var returned atomic.Int64 // keys
	w.hookEtcd(func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		if err == nil && op.IsTxn() {
			for _, r := range res.Txn().Responses {
				returned.Add(int64(len(r.GetResponseRange().GetKvs())))
			}
		}
		if err == nil && op.IsGet() {
			returned.Add(int64(len(res.Get().Kvs)))
		}

		return res, err
	})

	// The owner of this test reads everything. The last list does not ask it: it has just been asked.
	for i, query := range []string{"limit=10", "sort=next", "limit=11"} {
		returned.Store(0)
		l, res := w.tasksPage(query)
		if len(l.Items) != 3 || l.Items[1].Active != 2 || l.Items[0].Active+l.Items[2].Active != 0 || l.Items[1].State != client.TaskRunning {
			t.Errorf("%q: %s", query, res.body)
		}
		if i == 2 && returned.Load() > 50 {
			t.Errorf("etcd returned %d keys", returned.Load())
		}
	}
}
