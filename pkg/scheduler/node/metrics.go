package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Metrics are the metrics of all workers of a node. New's help texts say what each of them counts.
type Metrics struct {
	Ticks           *prometheus.CounterVec
	Lateness        prometheus.Histogram
	Commits         *prometheus.CounterVec
	CommitSeconds   prometheus.Histogram
	Opens           prometheus.Counter
	Preloads        *prometheus.CounterVec
	Shards          prometheus.Gauge
	WaitingRuns     prometheus.Gauge
	TriggersWaiting prometheus.Gauge
	TriggersSent    prometheus.Counter
	TriggersTaken   *prometheus.CounterVec
	ResolvedCommits *prometheus.CounterVec
	SetAside        prometheus.Counter
	TasksAside      prometheus.Gauge
	TasksFailing    prometheus.Gauge
	Paused          prometheus.Counter
	Expired         prometheus.Counter
	// Repairs counts the differences between a worker and etcd that the watch should have reported.
	Repairs prometheus.Counter
	// Unreadable is how many entries of the node's shards cannot be read.
	Unreadable atomic.Int64

	lost   prometheus.Counter
	run    prometheus.Counter
	notRun map[tickLabels]prometheus.Counter // the ticks with other outcomes
}

// Outcomes counts ticks by outcome, and attempts that were declared lost.
type Outcomes struct {
	Run, Lost int64
	NotRun    []TickCount
}

// TickCount is how many ticks have been queued, skipped or missed for a reason.
type TickCount struct {
	Outcome task.State
	Reason  string
	Ticks   int64
}

// tickLabels are the labels of the ticks that do not run, or not yet.
type tickLabels struct {
	outcome task.State
	reason  string
}

// otherReason is the label of a reason that this version does not know, so that records cannot create any number of labels.
const otherReason = "other"

// NewMetrics creates the metrics and registers them with r, unless r is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		Ticks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_ticks_total",
			Help: "Ticks that were decided, by outcome: run, queued, skipped, missed. The reason says why a tick was not run, or had to wait."}, []string{"outcome", "reason"}),
		Lateness: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "carillon_tick_lateness_seconds",
			Help:    "Time from a tick to the commit that decided to run it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}}),
		Commits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_commits_total",
			Help: "Commits of shards, by result: ok, conflict, fenced, moved, error."}, []string{"result"}),
		CommitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "carillon_commit_seconds",
			Help: "Duration of a commit, including the time to resolve an unknown outcome.", Buckets: prometheus.ExponentialBuckets(.0005, 2, 15)}),
		Opens: prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_shard_opens_total",
			Help: "Times that a shard was opened and loaded."}),
		Preloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_shard_preloads_total",
			Help: "Shards that this node preloaded, by result: used, dropped (the node did not become the owner)."}, []string{"result"}),
		Shards:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "carillon_shards_owned", Help: "Shards that this node owns."}),
		WaitingRuns: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carillon_waiting_runs", Help: "Runs in the queues of the shards of this node."}),
		TriggersWaiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carillon_triggers_waiting",
			Help: "Ended runs of sources that wait in the shards of this node until they start a run of a dependent."}),
		TriggersSent: prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_triggers_sent_total",
			Help: "Triggers that this node sent to dependents because a run of their source had ended."}),
		TriggersTaken: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_triggers_taken_total",
			Help: "Triggers that got their outcome, by outcome: run, skipped, missed, deleted (the dependent does not exist any more)."}, []string{"outcome"}),
		ResolvedCommits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_commits_settled_total",
			Help: "Commits whose outcome was unknown at first, by the outcome that was found: ours (an earlier copy had been applied), not_ours (it had not been applied)."}, []string{"as"}),
		SetAside: prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_tasks_set_aside_total",
			Help: "Times that a task was set aside because commits for it failed repeatedly. Its ticks wait until a commit succeeds."}),
		TasksAside: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carillon_tasks_set_aside",
			Help: "Tasks of the shards of this node that are set aside now."}),
		TasksFailing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carillon_tasks_failing",
			Help: "Tasks of the shards of this node that are failing: a run failed, timed out or was lost, no later one has succeeded, and nobody has dismissed it or started it again."}),
		Paused:  prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_tasks_paused_total", Help: "Tasks that were paused because too many consecutive runs failed."}),
		Expired: prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_tasks_expired_total", Help: "Tasks that were deleted because their schedule had ended and their ttl had expired."}),
		Repairs: store.NewRepairs("worker"),
		lost:    prometheus.NewCounter(prometheus.CounterOpts{Name: "carillon_lost_attempts_total", Help: "Attempts that this node declared lost."}),
	}
	unreadable := prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "carillon_unreadable_entries", Help: "Task entries that have no ticks because they cannot be read."},
		func() float64 { return float64(m.Unreadable.Load()) })

	m.run, m.notRun = m.Ticks.WithLabelValues("run", ""), map[tickLabels]prometheus.Counter{}
	for _, outcome := range []task.State{task.Queued, task.Skipped, task.Missed} {
		for _, reason := range task.Reasons() {
			if reason.Explains(outcome) {
				m.notRun[tickLabels{outcome, reason.Name}] = m.Ticks.WithLabelValues(string(outcome), reason.Name)
			}
		}
		m.notRun[tickLabels{outcome, otherReason}] = m.Ticks.WithLabelValues(string(outcome), otherReason)
	}

	for _, outcome := range []string{"run", "skipped", "missed", "deleted"} {
		m.TriggersTaken.WithLabelValues(outcome)
	}

	m.Preloads.WithLabelValues("used")
	m.Preloads.WithLabelValues("dropped")
	m.ResolvedCommits.WithLabelValues(store.OutcomeApplied)
	m.ResolvedCommits.WithLabelValues(store.OutcomeNotFound)

	if r != nil {
		r.MustRegister(m.Ticks, m.Lateness, m.Commits, m.CommitSeconds, m.Opens, m.Preloads, m.Shards, unreadable, m.WaitingRuns, m.TriggersWaiting, m.TriggersSent, m.TriggersTaken, m.lost,
			m.ResolvedCommits, m.SetAside, m.TasksAside, m.TasksFailing, m.Paused, m.Expired, m.Repairs)
	}

	return m
}

// RegisterNotEvaluated registers with r, unless r is nil, the metric of the tasks whose alerts are not evaluated. count returns how
// many there are.
func RegisterNotEvaluated(r prometheus.Registerer, count func() int) {
	if r == nil {
		return
	}

	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "carillon_tasks_not_evaluated",
		Help: "Tasks of the shards of this node whose alerts have not been evaluated for five minutes, or whose records have not told for fifteen minutes whether they should alert."},
		func() float64 { return float64(count()) }))
}

// RegisterShards registers with r, unless r is nil, the metric of the number of shards. count returns it.
func RegisterShards(r prometheus.Registerer, count func() int) {
	if r == nil {
		return
	}

	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "carillon_shards",
		Help: "Shards of the cluster. Each of them should be owned by a node: see carillon_shards_owned."},
		func() float64 { return float64(count()) }))
}

// CountOutcomes adds the decided ticks and lost attempts of one commit.
func (m *Metrics) CountOutcomes(o Outcomes) {
	m.run.Add(float64(o.Run))

	for _, c := range o.NotRun {
		counter, isKnown := m.notRun[tickLabels{c.Outcome, c.Reason}]
		if !isKnown {
			counter = m.notRun[tickLabels{c.Outcome, otherReason}]
		}
		counter.Add(float64(c.Ticks))
	}

	m.lost.Add(float64(o.Lost))
}

const (
	// recentSlot is the length of each part of the last minute.
	recentSlot = 5 * time.Second
	// recentSlots are the parts of a minute, and the one that is being filled.
	recentSlots = 13
)

// Recent counts what a node has decided in the last minute, and how runs ended. The zero value is empty. It
// is safe for concurrent use.
type Recent struct {
	mu    sync.Mutex
	slots [recentSlots]recentCounts
}

// recentCounts are the counts of one slot of time.
type recentCounts struct {
	number  int64                    // of the slot, counted from 1970
	skipped int64                    // ticks that did not run
	ok      int64                    // runs that succeeded
	failed  int64                    // runs that failed
	maxMS   int64                    // the greatest lateness, in ms
	late    [task.LateBuckets]uint32 // ticks that run, by lateness
}

// slotAt returns the slot of an instant, and clears it first if it holds an older one. The caller holds the
// lock.
func (r *Recent) slotAt(now time.Time) *recentCounts {
	number := now.UnixMilli() / recentSlot.Milliseconds()
	s := &r.slots[number%recentSlots]
	if s.number != number {
		*s = recentCounts{number: number}
	}

	return s
}

// AddDecided adds what one commit has decided: how many ticks do not run, and how late each tick is that starts at
// once.
func (r *Recent) AddDecided(now time.Time, skipped int64, lateness []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()

	s := r.slotAt(now)
	s.skipped += skipped

	for _, late := range lateness {
		ms := late.Milliseconds()
		s.late[task.LateBucket(ms)]++
		s.maxMS = max(s.maxMS, ms)
	}
}

// AddEnded counts the end of a run.
func (r *Recent) AddEnded(now time.Time, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	s := r.slotAt(now)
	if failed {
		s.failed++
	} else {
		s.ok++
	}
}

// Tally returns the counts of the last minute before now.
func (r *Recent) Tally(now time.Time) task.Tally {
	r.mu.Lock()
	defer r.mu.Unlock()

	// A slot counts only if it belongs to the last minute. Others hold counts of an earlier one.
	newest := now.UnixMilli() / recentSlot.Milliseconds()
	t := task.Tally{Late: make([]int64, task.LateBuckets), Rate: make([]int64, 0, recentSlots-1)}

	for number := newest - recentSlots + 1; number <= newest; number++ {
		s, fired := &r.slots[number%recentSlots], int64(0)
		if s.number == number {
			t.Skipped += s.skipped
			t.Succeeded += s.ok
			t.Failed += s.failed
			t.MaxMS = max(t.MaxMS, s.maxMS)

			for i, n := range s.late {
				t.Late[i] += int64(n)
				fired += int64(n)
			}
		}

		if number < newest { // the last is not full yet
			t.Rate = append(t.Rate, fired)
		}
	}

	return t
}
