package executor

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// metrics are the executor's metrics. The loop updates them.
type metrics struct {
	ended      *prometheus.CounterVec
	endedAs    map[endLabels]prometheus.Counter // the same, by its labels
	unsent     prometheus.Counter
	targets    [targetStates]prometheus.Gauge // targets by the state of their circuit
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

// newMetrics creates the metrics and registers them, unless r is nil. The counters of all kinds and final states exist from the
// start, so that rates can be computed from the first event on.
func newMetrics(e *Executor, r prometheus.Registerer) metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}

	m := metrics{
		endedAs: map[endLabels]prometheus.Counter{},
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_attempts_total", Help: "Attempts that ended on this node, by the kind of their action and their final state."}, []string{"kind", "state"}),
		unsent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_attempts_unsent_total", Help: "Attempts whose HTTP request was not sent, or whose target asked to wait. They use up no attempt of the retry policy."}),
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
	for _, kind := range []string{task.KindProcess, task.KindHTTP, task.KindNoop, kindUnknown} {
		for _, s := range []task.State{task.Succeeded, task.Failed, task.TimedOut, task.Cancelled, task.Lost, task.Missed} {
			m.endedAs[endLabels{kind, s}] = m.ended.WithLabelValues(kind, string(s))
		}
	}

	targets := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carillon_http_targets",
		Help: "Targets of HTTP requests that are in use or were not reachable lately. open: the target counts as down; half_open: an attempt tries whether it is up."}, []string{"state"})
	for s := range targetStates {
		m.targets[s] = targets.WithLabelValues(s.String())
	}

	if r != nil {
		r.MustRegister(m.ended, m.unsent, m.lateness, m.waiting, m.paused, m.unrecorded, m.unreadable, m.adopted, m.late, m.kills, m.repairs, targets)
		registerSlots(e, r)
	}

	return m
}

// kindUnknown is the label of actions that this version does not know.
const kindUnknown = "unknown"

// endLabels are the labels of carillon_attempts_total.
type endLabels struct {
	kind  string
	state task.State
}

// countEnd counts the end of an attempt.
func (m *metrics) countEnd(kind string, s task.State) {
	m.endedAs[endLabels{cmp.Or(kind, kindUnknown), s}].Inc()
}

// registerSlots registers the slots and their use, for each kind of action that has slots.
func registerSlots(e *Executor, r prometheus.Registerer) {
	slots := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "carillon_slots", Help: "Maximum number of attempts that this node runs at the same time, by the kind of their action."}, []string{"kind"})
	slots.WithLabelValues(task.KindProcess).Set(float64(e.cfg.Slots))
	slots.WithLabelValues(task.KindHTTP).Set(task.HTTPSlots)
	r.MustRegister(slots)

	for kind, inUse := range map[string]func() int64{
		task.KindProcess: func() int64 { return e.running.Load() - e.runningHTTP.Load() },
		task.KindHTTP:    e.runningHTTP.Load,
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "carillon_attempts_running", Help: "Attempts that run now, by the kind of their action. Each has a slot.", ConstLabels: prometheus.Labels{"kind": kind}},
			func() float64 { return float64(inUse()) }))
	}
}
