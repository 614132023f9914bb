package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/pkg/task"
)

// taskSeries returns the series that a scrape of an engine has about tasks, without the prefix carillon_.
func taskSeries(t *testing.T, e *Engine) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newTaskCollector(e))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}

	series := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			name := strings.TrimPrefix(family.GetName(), "carillon_")
			for _, label := range m.Label {
				name += " " + label.GetValue()
			}
			series[name] = m.GetGauge().GetValue()
		}
	}

	return series
}

// metricNamespaces are records of namespaces whose tasks have metrics of their own, or do not.
type metricNamespaces bool

func (m metricNamespaces) Namespace(name string) *task.Namespace {
	n := *OpenNamespaces{}.Namespace(name)
	n.TaskMetrics = bool(m)

	return &n
}

// A scrape counts the tasks by state, and has metrics of the tasks that ask for it or whose namespace does.
func TestTaskCollector_ReportsTasks(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		r := w.run("n1")
		metrics := func(has bool) option { return func(t *task.Task) { t.Metrics = &has } }
		w.create("asks", cronned("@manual"), metrics(true))
		w.create("refuses", cronned("@manual"), metrics(false))
		w.create("silent", cronned("@manual"))
		w.create("paused", cronned("@hourly"), func(t *task.Task) { t.Paused = true })

		run := func(name string, state task.State) time.Time {
			w.setClockToNow()
			w.trigger(name)
			w.eventually(name+" runs", func() bool { return len(w.active(name)) == 1 })
			attempt := w.active(name)[0]
			attempt.StartedAt = task.At(time.Now())
			time.Sleep(1500 * time.Millisecond)
			w.setClockToNow()
			ended := w.clock()
			w.end(attempt, state)
			time.Sleep(figuresFor)

			return ended
		}

		succeeded := run("asks", task.Succeeded)
		run("asks", task.Failed)
		failed := run("asks", task.Failed)
		run("silent", task.Failed)
		run("silent", task.Succeeded)

		counts := map[string]float64{
			"tasks default ok": 2, "tasks default failing": 1, "tasks default paused": 1, "tasks default unreadable": 0,
			"dead_runs default": 2, "task_metrics_omitted": 0,
		}
		want := maps.Clone(counts)
		want["task_last_success_timestamp_seconds default asks"] = float64(succeeded.Unix())
		want["task_last_end_timestamp_seconds default asks"] = float64(failed.UnixMilli()) / 1000
		want["task_last_duration_seconds default asks"] = 1.5
		want["task_consecutive_failures default asks"] = 2
		if got := taskSeries(t, r.Engine); !maps.Equal(got, want) {
			t.Errorf("got %v\nwant %v", got, want)
		}

		r.cfg.Namespaces = func() Namespaces { return metricNamespaces(true) }
		var named []string
		for series := range taskSeries(t, r.Engine) {
			if name, isSuccess := strings.CutPrefix(series, "task_last_success_timestamp_seconds default "); isSuccess {
				named = append(named, name)
			}
		}
		if slices.Sort(named); fmt.Sprint(named) != "[asks paused silent]" {
			t.Errorf("in a namespace with metrics of tasks: %v", named)
		}

		// What a node does not own any more, another one reports.
		r.stop()
		<-r.work
		if got := taskSeries(t, r.Engine); !maps.Equal(got, map[string]float64{"task_metrics_omitted": 0}) {
			t.Errorf("without shards: %v", got)
		}
	})
}

// Scrapes share figures that are a few seconds old. A node that is too busy reports older ones, but not for ever.
func TestTaskCollector_ReusesFigures(t *testing.T) {
	t.Parallel()

	inVirtualTime(t, func(t *testing.T) {
		w := newWorld(t, "n1").judged()
		w.setClockToNow()
		r := w.run("n1")
		c := newTaskCollector(r.Engine)
		w.eventually("the shard is open", func() bool { return len(r.ask("name").Shards) == 1 })

		first := c.current()
		time.Sleep(figuresFor - time.Millisecond)
		if c.current() != first {
			t.Error("figures are computed again at once")
		}
		time.Sleep(time.Millisecond)
		second := c.current()
		if second == nil || second == first {
			t.Error("figures are not computed again")
		}

		// Somebody else scans all the time.
		for {
			end := r.scanLimit.BeginWithin(time.Millisecond, "user:ann")
			if end == nil {
				break
			}
			defer end()
		}

		time.Sleep(maxFiguresAge / 2)
		if c.current() != second {
			t.Error("a busy node forgets figures at once")
		}
		time.Sleep(maxFiguresAge)
		if c.current() != nil {
			t.Error("a busy node reports figures that are too old")
		}
	})
}
