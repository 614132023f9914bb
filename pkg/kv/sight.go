package kv

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// RepairsMetric is the name, and repairsHelp the help, of what everybody counts, with a constant label "who", who reads
// again what a watch tells. A healthy cluster counts none.
const (
	RepairsMetric = "carillon_reconcile_repairs_total"
	repairsHelp   = "Differences that a watch should have reported, but that a later read found and repaired."
)

// NewRepairs makes that counter.
func NewRepairs(who string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: RepairsMetric, Help: repairsHelp, ConstLabels: prometheus.Labels{"who": who}})
}

// watchHealth is how the ranges fare that are followed through one client.
type watchHealth struct {
	resumptions prometheus.Counter
	stalls      prometheus.Counter
	relists     *prometheus.CounterVec
	repairs     prometheus.Counter // of mirrors

	mu   sync.Mutex
	lost int // ranges out of sight at present
	gone int // ranges that have been, since the last time that none was
}

// Why a range was listed again.
const (
	whyCompacted = "compacted" // the revision told
	whyBack      = "gone_back" // the store had
	whySilent    = "silent"    // resumed watches heard nothing
	whyBroken    = "broken"    // the list before broke off
)

func newSight() watchHealth {
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

// Register has what is followed through the client counted in r, from the client's beginning. It panics if r has such
// counters already.
func (c *Client) Register(r prometheus.Registerer) {
	r.MustRegister(c.sight.resumptions, c.sight.stalls, c.sight.relists, c.sight.repairs)
}

// markLost notes that a range is out of sight. Ranges are lost together, and there may be hundreds: only the first is logged.
func (s *watchHealth) markLost(log *zap.Logger, fields ...zap.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()

	level := zapcore.DebugLevel
	if s.lost++; s.gone == 0 {
		level = zapcore.WarnLevel
	}

	s.gone++
	log.Log(level, "lost sight of the store", fields...)
}

// markFound notes that it is in sight again, or that nobody looks any more. The last one is logged.
func (s *watchHealth) markFound(log *zap.Logger, fields ...zap.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.lost--; s.lost > 0 {
		return
	}

	log.Info("the watch of etcd recovered", append(fields, zap.Int("losses", s.gone))...)
	s.gone = 0
}
