package executor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// metrics are the executor's metrics. The loop updates them.
type metrics struct {
	ended      *prometheus.CounterVec
	endedAs    map[task.State]prometheus.Counter // the same, by state
	lateness   prometheus.Histogram
	waiting    prometheus.Gauge
	paused     prometheus.Gauge
	unrecorded prometheus.Gauge
	unreadable prometheus.Gauge
	adopted    prometheus.Counter
	late       prometheus.Counter
	kills      *prometheus.CounterVec
	repairs    prometheus.Counter
}

// newMetrics creates the metrics and registers them, unless r is nil. The counters of all final states exist from the
// start, so that rates can be computed from the first event on.
func newMetrics(e *Executor, r prometheus.Registerer) metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}

	m := metrics{
		endedAs: map[task.State]prometheus.Counter{},
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_attempts_total", Help: "Attempts that ended on this node, by their final state."}, []string{"state"}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "carillon_start_lateness_seconds", Help: "Time from when a tick is due until its first attempt starts, without catch-up runs.",
			Buckets: []float64{.001, .002, .004, .008, .015, .03, .06, .125, .25, .5, 1, 2, 5, 10, 30, 60, 300}}),
		waiting:    gauge("carillon_attempts_waiting", "Attempts in this node's inbox that have not started."),
		paused:     gauge("carillon_attempts_paused", "Attempts whose process is paused."),
		unrecorded: gauge("carillon_attempts_unrecorded", "Attempts that ended but whose end is not recorded yet."),
		unreadable: gauge("carillon_inbox_unreadable", "Records in this node's inbox that cannot be read."),
		adopted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_attempts_adopted_total", Help: "Attempts that the node adopted after it rejoined the cluster."}),
		late: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_attempts_late_total", Help: "Results that arrived after their attempt had been declared lost."}),
		kills: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_attempts_killed_total",
			Help: "Attempts that were killed, by reason: cancel, shutdown, silent (the node had no contact with etcd for too long), guardian (the daemon was frozen for too long), gone (another node had already decided its outcome)."}, []string{"why"}),
		repairs: kv.NewRepairs("executor"),
	}
	for _, s := range []task.State{task.Succeeded, task.Failed, task.TimedOut, task.Cancelled, task.Lost, task.Missed} {
		m.endedAs[s] = m.ended.WithLabelValues(string(s))
	}

	if r != nil {
		slots := gauge("carillon_slots", "Maximum number of processes that this node runs at the same time.")
		slots.Set(float64(e.cfg.Slots))
		r.MustRegister(m.ended, m.lateness, m.waiting, m.paused, m.unrecorded, m.unreadable, m.adopted, m.late, m.kills, m.repairs, slots, prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "carillon_attempts_running", Help: "Attempts that have a process now."},
			func() float64 { return float64(e.Running()) }))
	}

	return m
}
