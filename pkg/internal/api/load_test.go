package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestLoad_CountsWhatFallsDue(t *testing.T) {
	w := newWorld(t)
	for i := range 25 {
		w.create(fmt.Sprintf("midnight-%02d", i), "0 0 * * *")
	}
	w.create("hourly", "0 * * * *")
	w.create("by-hand", "@manual")
	w.create("after", "@every 1h after completion")

	l, err := w.Load.Get(t.Context(), client.LoadOptions{Namespace: "default", Peaks: 2})
	if err != nil {
		t.Fatal(err)
	}

	sum := 0.0
	for _, runs := range l.Runs {
		sum += runs
	}
	if len(l.Runs) != 24*60 || l.Step.Std() != time.Minute || sum != 25+24 || l.Tasks != 26 || l.AfterCompletion != 1 || len(l.Missing) != 0 || l.Shards != shards {
		t.Errorf("%d steps of %s, %v runs of %d tasks, %d after completion, missing %v", len(l.Runs), l.Step, sum, l.Tasks, l.AfterCompletion, l.Missing)
	}

	peak := l.Peaks[0]
	if len(l.Peaks) != 2 || peak.Runs != 26 || peak.At.Hour() != 0 || peak.At.Minute() != 0 || l.Peaks[1].Runs != 1 {
		t.Fatalf("peaks %+v", l.Peaks)
	}
	if m := peak.Makers[0]; len(peak.Makers) != 2 || m.Schedule != "0 0 * * *" || m.Tasks != 25 || m.Runs != 25 ||
		!slices.Equal(m.Names, []string{"default/midnight-00", "default/midnight-01", "default/midnight-02"}) {
		t.Errorf("makers %+v", peak.Makers)
	}
	if len(l.Advice) != 1 || !l.Advice[0].At.Equal(peak.At.Time) || l.Advice[0].Text != "spread with jitter: 25 tasks with the schedule 0 0 * * *" {
		t.Errorf("advice %+v", l.Advice)
	}

	if fmt.Sprint(peak.Seconds) != "[{0 26}]" {
		t.Errorf("seconds %v", peak.Seconds)
	}

	some, err := w.Load.Get(t.Context(), client.LoadOptions{Query: "name:hourly", Span: 2 * time.Hour, Step: time.Hour})
	if err != nil || fmt.Sprint(some.Runs) != "[1 1]" || some.Tasks != 1 {
		t.Errorf("of one task: %v, %v", some.Runs, err)
	}
}

// A minute that the caller asks for is described as a peak is, whether it is one or not.
func TestLoad_DescribesAChosenMinute(t *testing.T) {
	w := newWorld(t)
	w.create("often", "*/20 * * * * *")
	w.create("twice", "10,40 30 * * * *")
	l, err := w.Load.Get(t.Context(), client.LoadOptions{Peaks: 1})
	if err != nil || l.Minute != nil {
		t.Fatalf("without a minute: %+v, %v", l.Minute, err)
	}

	half := l.From.Truncate(time.Hour).Add(90 * time.Minute)
	for at, want := range map[time.Time]string{
		half: "5 [{0 1} {10 1} {20 1} {40 2}]", half.Add(-time.Minute): "3 [{0 1} {20 1} {40 1}]",
	} {
		l, err := w.Load.Get(t.Context(), client.LoadOptions{Peaks: 1, Minute: at})
		if err != nil || l.Minute == nil || !l.Minute.At.Equal(at) || len(l.Peaks) != 1 {
			t.Fatalf("%s: %+v, %v", at, l.Minute, err)
		}
		slices.SortFunc(l.Minute.Seconds, func(a, b client.LoadSecond) int { return a.Second - b.Second })
		if got := fmt.Sprint(l.Minute.Runs, l.Minute.Seconds); got != want || len(l.Minute.Makers) == 0 {
			t.Errorf("%s: %s, want %s; makers %v", at, got, want, l.Minute.Makers)
		}
	}
}

func TestLoad_RefusesWrongSteps(t *testing.T) {
	w := newWorld(t)
	for query, field := range map[string]string{
		"span=25h": "span", "span=30s": "span", "span=2d": "span", "span=soon": "span", "step=90s": "step", "span=10m&step=3m": "step", "peaks=21": "peaks", "q=state:faild": "q",
		"minute=soon": "minute", "minute=2001-01-01T00:00:00Z": "minute", "minute=2001-01-01T00:00:30Z": "minute",
	} {
		if res := w.do(request{method: "GET", path: "/v1/load?" + query}); res.status != 422 || res.Problem.Field != field {
			t.Errorf("%s: %d %s", query, res.status, res.body)
		}
	}
}

// A caller learns nothing of tasks that it may not read: neither that they exist, nor when they run.
func TestLoad_ContainsOnlyWhatTheCallerMayRead(t *testing.T) {
	w := newWorld(t)
	w.namespace(task.Namespace{Name: "theirs", RunAs: []string{"*"}})
	w.create("mine", "0 * * * *")
	s := task.Defaults()
	s.Name, s.Schedule, s.Action.Noop = "secret", task.Schedules{"30 * * * *"}, &task.Noop{}
	if _, err := w.Tasks.Create(t.Context(), "theirs", s); err != nil {
		t.Fatal(err)
	}

	w.bind("user:vic", "viewer", "default")
	vic := w.token("user:vic")

	var l client.TaskLoad
	if res := w.as(vic, "GET", "/v1/load?span=1h&step=30m", ""); res.status != 200 || json.Unmarshal([]byte(res.body), &l) != nil || l.Tasks != 1 || len(l.Peaks) != 1 || l.Peaks[0].Makers[0].Names[0] != "default/mine" {
		t.Errorf("all namespaces: %d %s", res.status, res.body)
	}
	if res := w.as(vic, "GET", "/v1/namespaces/theirs/load", ""); res.status != 404 {
		t.Errorf("another namespace: %d %s", res.status, res.body)
	}
}

// A shard that nobody answers for is named.
func TestLoad_NamesMissingShards(t *testing.T) {
	w := newWorld(t)
	w.create("hourly", "0 * * * *")
	own := w.ownerOf("node-a")
	w.owners = map[string]ask{"node-a": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		return own(ctx, q, append([]int{3}, without...))
	}}
	c := w.client(w.serve("node-a"))

	l, err := c.Load.Get(t.Context(), client.LoadOptions{})
	if err != nil || !slices.Equal(l.Missing, []int{3}) {
		t.Errorf("missing %v, %v", l.Missing, err)
	}
}

// The owners are asked once if the peaks are those of the last load, and again if they are not.
func TestLoad_AsksForThePeaksThatItKnows(t *testing.T) {
	w := newWorld(t)
	w.create("midnight", "0 0 * * *")
	w.create("midnight-too", "0 0 * * *")
	own, asked := w.ownerOf("node-a"), 0
	w.owners = map[string]ask{"node-a": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		asked++
		return own(ctx, q, without)
	}}
	c := w.client(w.serve("node-a"))

	for i, step := range []struct {
		options client.LoadOptions
		hour    int // of the first peak
		asks    int
	}{
		{client.LoadOptions{Peaks: 1}, 0, 2},
		{client.LoadOptions{Peaks: 1, Span: 20 * time.Hour}, 0, 1},
		{client.LoadOptions{Query: "name:midnight", Peaks: 1}, 0, 2}, // another question
		{client.LoadOptions{Peaks: 1, Span: 21 * time.Hour, Minute: time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)}, 0, 1},
	} {
		before := asked
		l, err := c.Load.Get(t.Context(), step.options)
		if err != nil || len(l.Peaks) != 1 || l.Peaks[0].At.Hour() != step.hour || len(l.Peaks[0].Makers) != 1 || len(l.Peaks[0].Seconds) != 1 {
			t.Fatalf("%d: peaks %+v, %v", i, l.Peaks, err)
		}
		if asked-before != step.asks {
			t.Errorf("%d: the owner was asked %d times, want %d", i, asked-before, step.asks)
		}
		if !step.options.Minute.IsZero() && (l.Minute == nil || l.Minute.Runs != 0 || !l.Minute.At.Equal(step.options.Minute)) {
			t.Errorf("%d: minute %+v", i, l.Minute)
		}
	}

	for _, name := range []string{"noon-a", "noon-b", "noon-c"} {
		w.create(name, "0 12 * * *")
	}
	before := asked
	l, err := c.Load.Get(t.Context(), client.LoadOptions{Peaks: 1, Span: 23 * time.Hour})
	if err != nil || len(l.Peaks) != 1 || l.Peaks[0].At.Hour() != 12 || len(l.Peaks[0].Makers) != 1 || asked-before != 2 {
		t.Errorf("after a change: peaks %+v, asked %d times, %v", l.Peaks, asked-before, err)
	}
}

// Callers who may read the same share an answer for ten seconds, with its age. Nobody gets one from before what they have
// written.
func TestLoad_IsCountedOnceForAll(t *testing.T) {
	w := newWorld(t)
	w.create("midnight", "0 0 * * *")
	w.bind("user:bob", "viewer")
	own, asked := w.ownerOf("node-a"), 0
	w.owners = map[string]ask{"node-a": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		asked++
		return own(ctx, q, without)
	}}
	w.url = w.serve("node-a")
	ann := w.client(w.url)
	w.secret = w.token("user:bob")
	bob := w.client(w.url)

	if _, err := ann.Load.Get(t.Context(), client.LoadOptions{Peaks: 5}); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(3 * time.Second)
	before := asked
	l, err := bob.Load.Get(t.Context(), client.LoadOptions{Peaks: 1})
	if err != nil || len(l.Peaks) != 1 || len(l.Peaks[0].Makers) != 1 || asked != before || l.AgeMS != 3000 {
		t.Errorf("bob: %d ms old, peaks %+v, asked %d times, %v", l.AgeMS, l.Peaks, asked-before, err)
	}

	if _, err := ann.Tasks.Create(t.Context(), "default", spec("also", "0 0 * * *")); err != nil {
		t.Fatal(err)
	}
	if l, err = ann.Load.Get(t.Context(), client.LoadOptions{Peaks: 5}); err != nil || l.Tasks != 2 || asked == before {
		t.Errorf("ann: %d tasks, asked %d times, %v", l.Tasks, asked-before, err)
	}
}

// A shard is also named if its owner has answered how many runs fall due, but not what makes the peaks.
func TestLoad_NamesShardsWhoseMakersAreMissing(t *testing.T) {
	w := newWorld(t)
	w.create("midnight", "0 0 * * *")
	shard := ref("default", "midnight").Shard
	own, asked := w.ownerOf("node-a"), 0
	w.owners = map[string]ask{"node-a": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		if asked++; asked == 2 {
			without = append(without, shard)
		}
		return own(ctx, q, without)
	}}
	c := w.client(w.serve("node-a"))

	l, err := c.Load.Get(t.Context(), client.LoadOptions{Peaks: 1})
	if err != nil || asked != 2 || len(l.Peaks) != 1 || len(l.Peaks[0].Makers) != 0 || !slices.Equal(l.Missing, []int{shard}) {
		t.Errorf("asked %d times, peaks %+v, missing %v, %v", asked, l.Peaks, l.Missing, err)
	}
}

// Any node adds up what the owners count. A shard whose owner changes counts once.
func TestLoad_AnyNodeAddsUpTheAnswersOfAll(t *testing.T) {
	w := newWorld(t)
	w.labelled(12)
	w.owners = map[string]ask{
		"node-a": nil, "node-b": w.owning("node-b", 5, append([]int{1, 3}, evenShards...)...), "node-c": w.owning("node-c", 6, oddShards...),
	}

	for name, at := range w.fleet() {
		l, err := w.client(at).Load.Get(t.Context(), client.LoadOptions{Query: "selector:team=data", Peaks: 1})
		if err != nil || l.Tasks != 12 || len(l.Missing) > 0 || l.Peaks[0].Runs != 12 {
			t.Fatalf("by %s: %d tasks, missing %v, peaks %+v, %v", name, l.Tasks, l.Missing, l.Peaks, err)
		}
		if m := l.Peaks[0].Makers; len(m) != 1 || m[0].Tasks != 12 || m[0].Schedule != "@daily" || !slices.Equal(m[0].Names, []string{"default/t0", "default/t1", "default/t10"}) {
			t.Errorf("by %s: makers %+v", name, m)
		}
	}
}
