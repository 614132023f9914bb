package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
)

const (
	etcdEvery   = 15 * time.Second // interval at which the members are checked
	etcdTimeout = 5 * time.Second  // time limit for one check
)

// memberLister reads the state of the etcd members.
type memberLister interface {
	Members(ctx context.Context, timeout time.Duration) []etcdadmin.Member
}

// etcdMonitor reports how full etcd is, early enough for an operator to act: in
// metrics, and in the log whenever the state of a member changes.
type etcdMonitor struct {
	members memberLister
	log     *zap.Logger
	told    map[string]etcdState // the last state that was logged, by endpoint

	size, inUse, quota, alarm *prometheus.GaugeVec
}

// etcdState is how full a member is.
type etcdState int

const (
	etcdFine etcdState = iota
	etcdFillingUp
	etcdNearlyFull
	etcdFull    // the member is full, or was and still has the alarm
	etcdCorrupt // the member has detected damaged data
)

// stateOf returns the state of a member.
func stateOf(m etcdadmin.Member) etcdState {
	switch used := m.Used(); {
	case slices.Contains(m.Alarms, etcdadmin.AlarmCorrupt):
		return etcdCorrupt
	case slices.Contains(m.Alarms, etcdadmin.AlarmNoSpace):
		return etcdFull
	case used >= etcdadmin.NearlyFull:
		return etcdNearlyFull
	case used >= etcdadmin.FillingUp:
		return etcdFillingUp
	}

	return etcdFine
}

// newEtcdMonitor returns a monitor and registers its metrics.
func newEtcdMonitor(members memberLister, r prometheus.Registerer, log *zap.Logger) *etcdMonitor {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carillon_etcd_" + name, Help: help}, append([]string{"endpoint"}, labels...))
	}

	e := &etcdMonitor{
		members: members, log: log.Named("etcd"), told: map[string]etcdState{},
		size:  gauge("db_bytes", "Size of a member's database file, which counts against its quota."),
		inUse: gauge("db_in_use_bytes", "Bytes of a member's database file that are in use."),
		quota: gauge("quota_bytes", "Size of the database file at which a member stops accepting writes."),
		alarm: gauge("alarm", "Whether a member has raised this alarm: 1 if so, else 0.", "alarm"),
	}
	r.MustRegister(e.size, e.inUse, e.quota, e.alarm)

	return e
}

// run checks the members every etcdEvery until ctx ends.
func (e *etcdMonitor) run(ctx context.Context) error {
	tick := time.NewTicker(etcdEvery)
	defer tick.Stop()
	for {
		e.checkMember(ctx)

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// checkMember checks all members once. The metrics of a member that does not answer are removed, because the last
// values prove nothing. The state that was logged for it remains.
func (e *etcdMonitor) checkMember(ctx context.Context) {
	for _, m := range e.members.Members(ctx, etcdTimeout) {
		if m.Err != nil {
			of := prometheus.Labels{"endpoint": m.Endpoint}
			for _, g := range []*prometheus.GaugeVec{e.size, e.inUse, e.quota, e.alarm} {
				g.DeletePartialMatch(of)
			}
			continue
		}

		e.size.WithLabelValues(m.Endpoint).Set(float64(m.Size))
		e.inUse.WithLabelValues(m.Endpoint).Set(float64(m.InUse))
		e.quota.WithLabelValues(m.Endpoint).Set(float64(m.Quota))

		for _, a := range []string{etcdadmin.AlarmNoSpace, etcdadmin.AlarmCorrupt} {
			raised := 0.0
			if slices.Contains(m.Alarms, a) {
				raised = 1
			}
			e.alarm.WithLabelValues(m.Endpoint, a).Set(raised)
		}

		e.logState(m)
	}
}

// logState logs the state of a member if it has changed.
func (e *etcdMonitor) logState(m etcdadmin.Member) {
	state := stateOf(m)
	if state == e.told[m.Endpoint] {
		return
	}

	e.told[m.Endpoint] = state
	log := e.log.With(zap.String("endpoint", m.Endpoint), zap.Int64("bytes", m.Size), zap.Int64("in_use", m.InUse), zap.Int64("quota", m.Quota))

	switch state {
	case etcdFine:
		log.Info("etcd is healthy again")
	case etcdFillingUp:
		log.Warn("etcd is filling up: see carillon cluster status")
	case etcdNearlyFull:
		log.Warn("etcd is nearly full; firing stops when it is full: see carillon cluster status")
	case etcdFull:
		log.Error("etcd accepts no writes, so nothing fires: see carillon cluster status")
	case etcdCorrupt:
		log.Error("etcd reports corrupt data and serves no requests")
	}
}
