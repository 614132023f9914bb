package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/task"
)

// etcdAccess describes how to connect to an etcd that is not embedded. The guardian needs it
// to write when its daemon is dead. It receives it on its standard input, because other users can read command
// lines, and environments are inherited.
type etcdAccess struct {
	Endpoints    []string    `json:"endpoints"`
	User         string      `json:"user"`
	Password     string      `json:"password"`
	PasswordFile string      `json:"password_file"`
	Files        certs.Files `json:"files"`
	Prefix       string      `json:"prefix"`
}

// etcdAccess returns the access from the settings.
func (c *Config) etcdAccess() etcdAccess {
	return etcdAccess{
		Endpoints: c.EtcdEndpoints, User: c.EtcdUser, Password: c.EtcdPassword, PasswordFile: c.EtcdPasswordFile,
		Files: certs.Files{Cert: c.EtcdCert, Key: c.EtcdKey, CA: c.EtcdCA}, Prefix: c.Prefix,
	}
}

// etcdAccessJSON returns the access as JSON, or nil with an embedded etcd. That dies with the daemon, and other
// members have no port for clients.
func (c *Config) etcdAccessJSON() json.RawMessage {
	if c.Embedded {
		return nil
	}

	b, err := json.Marshal(c.etcdAccess())
	if err != nil {
		panic(fmt.Sprintf("daemon: encode the access to etcd: %v", err))
	}

	return b
}

// clientConfig returns the configuration of a client. files are the TLS files, already opened; nil means none.
func (a etcdAccess) clientConfig(files *certs.Source, log *zap.Logger) kv.Config {
	c := kv.Config{Endpoints: a.Endpoints, Username: a.User, Password: a.Password, PasswordFile: a.PasswordFile, Logger: log}
	if files != nil {
		c.TLS = files.Client
	}
	return c
}

// dialEtcd connects to etcd with the current contents of the TLS files.
func (a etcdAccess) dialEtcd(ctx context.Context, log *zap.Logger) (*kv.Client, error) {
	if a.Files == (certs.Files{}) {
		return kv.Dial(ctx, a.clientConfig(nil, log))
	}

	files, err := certs.Open(a.Files)
	if err != nil {
		return nil, err
	}

	return kv.Dial(ctx, a.clientConfig(files, log))
}

// secretVariables are environment variables with secrets that the guardian does not need.
var secretVariables = []string{"CARILLON_ETCD_PASSWORD", "CARILLON_TOKEN"}

// withoutSecrets returns an environment without secretVariables.
func withoutSecrets(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(secretVariables, name)
	})
}

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

// memberMonitor reads the state of the embedded etcd at intervals. The node announces it, because the embedded
// etcd has no port on which other hosts could read it.
type memberMonitor struct {
	server *embedded.Server // nil: no etcd runs in this process
	store  *store.Store
	last   atomic.Pointer[task.Member] // the last state that was read; nil: none
}

// currentMember returns the state of the embedded etcd as it was last read, or nil if there is none.
func (m *memberMonitor) currentMember() *task.Member { return m.last.Load() }

// run reads the state every announceEvery until ctx ends.
func (m *memberMonitor) run(ctx context.Context) error {
	if m.server == nil {
		<-ctx.Done()
		return ctx.Err()
	}

	tick := time.NewTicker(announceEvery)
	defer tick.Stop()

	for {
		m.checkMember(ctx)

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// checkMember reads the state once. If that fails, the last state remains.
func (m *memberMonitor) checkMember(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, announceEvery)
	defer cancel()
	if member := m.store.OwnMember(ctx); member != nil {
		member.Socket = m.server.Endpoint()
		m.last.Store(member)
	}
}
