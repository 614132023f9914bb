package kv

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// RepairsMetric is the name, and repairsHelp the help text, of a counter that every component has which reads again
// what it follows by a watch. The constant label "who" names the component. A healthy cluster has no repairs.
const (
	RepairsMetric = "carillon_reconcile_repairs_total"
	repairsHelp   = "Differences that a watch should have reported, but that a later read found and repaired."
)

// NewRepairs returns the counter RepairsMetric for the component who.
func NewRepairs(who string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: RepairsMetric, Help: repairsHelp, ConstLabels: prometheus.Labels{"who": who}})
}

// watchHealth counts the failures of the ranges that are followed through one client.
type watchHealth struct {
	resumptions prometheus.Counter
	stalls      prometheus.Counter
	relists     *prometheus.CounterVec
	repairs     prometheus.Counter // of mirrors

	mu   sync.Mutex
	lost int // ranges whose watch is lost at present
	gone int // losses since the last moment at which no range was lost
}

// The reasons for listing a range again instead of resuming its watch. They are values of the label "why".
const (
	whyCompacted = "compacted" // etcd has compacted the revision from which the watch had to resume
	whyBack      = "gone_back" // the revision of the store is lower than one that was delivered
	whySilent    = "silent"    // three resumed watches in a row received nothing
	whyBroken    = "broken"    // the previous list failed before it was complete
)

// newWatchHealth returns a watchHealth with new counters.
func newWatchHealth() watchHealth {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}

	return watchHealth{
		resumptions: counter("carillon_watch_resumptions_total", "Watches that were lost and resumed from the last revision that they had delivered."),
		stalls:      counter("carillon_watch_stalls_total", "Watches that were given up because they were silent for too long."),
		relists: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_watch_relists_total",
			Help: "Watched ranges that were listed again because their watch could not be resumed, by reason: compacted, gone_back, silent, broken."}, []string{"why"}),
		repairs: NewRepairs("mirror"),
	}
}

// Register adds the counters of the ranges that are followed through the client to r. They count from the creation of
// the client. Register panics if r already has counters with these names.
func (c *Client) Register(r prometheus.Registerer) {
	r.MustRegister(c.health.resumptions, c.health.stalls, c.health.relists, c.health.repairs)
}

// markLost records that the watch of a range is lost. A failure of etcd affects all ranges at once, and there
// may be hundreds, so only the first loss is logged as a warning.
func (s *watchHealth) markLost(log *zap.Logger, fields ...zap.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()

	level := zapcore.DebugLevel
	if s.lost++; s.gone == 0 {
		level = zapcore.WarnLevel
	}

	s.gone++
	log.Log(level, "lost contact with the store", fields...)
}

// markFound records that a lost range has been recovered, or is no longer followed. It logs the recovery when no
// range is lost any more.
func (s *watchHealth) markFound(log *zap.Logger, fields ...zap.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.lost--; s.lost > 0 {
		return
	}

	log.Info("the watch of etcd recovered", append(fields, zap.Int("losses", s.gone))...)
	s.gone = 0
}
