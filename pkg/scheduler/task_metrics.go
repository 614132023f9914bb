package scheduler

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

const (
	// maxMetricNamespaces is how many namespaces have metrics of their own on a node.
	maxMetricNamespaces = 1000
	// maxMetricTasks is how many tasks have metrics of their own on a node.
	maxMetricTasks = 10_000

	// figuresFor is for how long figures are used again, so that several scrapers cost no more than one.
	figuresFor = 5 * time.Second
	// maxFiguresAge is how old figures may be if the node is too busy for newer ones.
	maxFiguresAge = time.Minute
	// figuresTimeout is how long a scrape waits for other scans of the node.
	figuresTimeout = 2 * time.Second
	// figuresSubject stands for all scrapers in the limit of scans.
	figuresSubject = "metrics"
)

// taskCollector reports metrics about the tasks of the shards that a node owns. It computes them from the rows of the tasks when
// somebody scrapes, so that they cost nothing while tasks fire. A shard that is being opened is left out, as in lists.
type taskCollector struct {
	e *Engine

	tasks, deadRuns, omitted                 *prometheus.Desc
	lastSuccess, lastEnd, duration, failures *prometheus.Desc

	mu      sync.Mutex
	figures *readmodel.Figures // the latest
	at      time.Time          // when they were collected
}

// newTaskCollector returns a taskCollector.
func newTaskCollector(e *Engine) *taskCollector {
	of := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("carillon_"+name, help, labels, nil)
	}

	return &taskCollector{
		e: e,
		tasks: of("tasks", "Tasks of the shards of this node, by namespace and state: unreadable, failing, paused, or ok. A task has the first of these that applies. "+
			"Namespaces beyond 1,000 are counted together as ~more.", "namespace", "state"),
		deadRuns: of("dead_runs", "Dead-letter runs of the failing tasks of the shards of this node: those after which no run of the task has succeeded.", "namespace"),
		omitted:  of("task_metrics_omitted", "Tasks of the shards of this node that should have metrics of their own and have none, because the node reports 10,000 tasks at most: the first ones by namespace and name."),
		lastSuccess: of("task_last_success_timestamp_seconds",
			"When the last successful run of a task with metrics ended, in Unix time; 0 if no success is on record.", "namespace", "task"),
		lastEnd:  of("task_last_end_timestamp_seconds", "When the last run of a task with metrics ended, in Unix time; 0 if no run is on record.", "namespace", "task"),
		duration: of("task_last_duration_seconds", "How long the last run of a task with metrics took, from the start of its last attempt.", "namespace", "task"),
		failures: of("task_consecutive_failures", "Runs in a row of a task with metrics that failed, timed out or were lost.", "namespace", "task"),
	}
}

// Describe implements prometheus.Collector.
func (c *taskCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.tasks, c.deadRuns, c.omitted, c.lastSuccess, c.lastEnd, c.duration, c.failures} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *taskCollector) Collect(ch chan<- prometheus.Metric) {
	f := c.current()
	if f == nil {
		return
	}

	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}

	for _, n := range f.Namespaces() {
		for state, tasks := range n.Tasks {
			gauge(c.tasks, float64(tasks), n.Name, readmodel.FigureState(state).String())
		}
		gauge(c.deadRuns, float64(n.DeadRuns), n.Name)
	}

	gauge(c.omitted, float64(f.Omitted()))
	for _, t := range f.Tasks() {
		gauge(c.lastSuccess, float64(t.LastSuccess), t.Namespace, t.Task)
		gauge(c.lastEnd, float64(t.LastEnd)/1000, t.Namespace, t.Task)
		gauge(c.duration, float64(t.Duration)/1000, t.Namespace, t.Task)
		gauge(c.failures, float64(t.Failures), t.Namespace, t.Task)
	}
}

// current returns figures that are some seconds old at most or, if the node is too busy, some older ones. It returns nil if there are
// none.
func (c *taskCollector) current() *readmodel.Figures {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := time.Now()
	if c.figures != nil && now.Sub(c.at) < figuresFor {
		return c.figures
	}

	if f := c.collect(); f != nil {
		c.figures, c.at = f, now
	} else if now.Sub(c.at) > maxFiguresAge {
		c.figures = nil
	}

	return c.figures
}

// collect computes the figures. It returns nil if queries take as much of the processors as they may.
func (c *taskCollector) collect() *readmodel.Figures {
	end := c.e.scanLimit.BeginWithin(figuresTimeout, figuresSubject)
	if end == nil {
		return nil
	}
	defer end()

	namespaces := c.e.cfg.Namespaces()
	hasTaskMetrics := func(name string) bool {
		if namespaces == nil {
			return false
		}
		n := namespaces.Namespace(name)

		return n != nil && n.TaskMetrics
	}

	f := readmodel.NewFigures(readmodel.FigureLimits{Namespaces: maxMetricNamespaces, Tasks: maxMetricTasks})
	now := c.e.cfg.Now().UnixMilli()
	_ = c.e.eachServed(func() error { return nil }, nil, true, func(_ readmodel.ShardAnswer, x *readmodel.Index) bool { // nothing ends it early
		f.Add(x, now, hasTaskMetrics)
		return true
	})

	return f
}
