package daemon

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// expiryEvery is the interval at which certificate files are checked, in addition to each handshake.
	expiryEvery = 10 * time.Second
	// A certificate that expires within expirySoon is announced and logged. Within
	// expiryUrgent it is logged again, as an error.
	expirySoon, expiryUrgent = 30 * 24 * time.Hour, 7 * 24 * time.Hour
)

// certExpiryMonitor loads certificate files that were replaced, and reports when certificates expire: in a
// metric, in the log, and in the node's record.
type certExpiryMonitor struct {
	sources map[string]*certs.Source // by the prefix of their settings' names
	env     Environment
	log     *zap.Logger
	ends    *prometheus.GaugeVec
	told    map[string]loggedExpiry // what was logged, by setting
}

// loggedExpiry is an expiry time that was logged, and its level.
type loggedExpiry struct {
	end   time.Time
	level int // 0: not soon; 1: soon; 2: urgent; 3: expired
}

// newCertExpiryMonitor returns a monitor of all certificates that the node has.
func newCertExpiryMonitor(s certSources, env Environment, r prometheus.Registerer, log *zap.Logger) *certExpiryMonitor {
	e := &certExpiryMonitor{sources: map[string]*certs.Source{}, env: env, log: log.Named("tls"), told: map[string]loggedExpiry{},
		ends: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carillon_tls_expiry_timestamp_seconds",
			Help: "Expiry time of a certificate in seconds since 1970, by the setting that names its file."}, []string{"setting"})}
	for prefix, source := range map[string]*certs.Source{"tls_": s.api, "etcd_": s.etcd, "etcd_peer_": s.peer} {
		if source != nil {
			e.sources[prefix] = source
		}
	}

	r.MustRegister(e.ends)

	return e
}

// run checks the files every expiryEvery until ctx ends. It starts with a check.
func (e *certExpiryMonitor) run(ctx context.Context) error {
	for {
		e.checkFiles()
		if !clock.Sleep(ctx, expiryEvery) {
			return ctx.Err()
		}
	}
}

// checkFiles loads changed files and reports the expiry times once.
func (e *certExpiryMonitor) checkFiles() {
	for prefix, s := range e.sources {
		for _, n := range s.Look() {
			setting := zap.String("setting", prefix+n.Part)

			if n.Err != nil {
				e.log.Warn("cannot load a changed TLS file; keeping the previous one", setting, zap.Error(n.Err))
			} else {
				e.log.Info("loaded a changed TLS file", setting)
			}
		}

		for _, end := range s.Ends() {
			e.ends.WithLabelValues(prefix + end.Part).Set(float64(end.At.Unix()))
			e.logExpiry(prefix+end.Part, end.At)
		}
	}
}

// logExpiry logs an expiry time if its level has risen since it was last logged.
func (e *certExpiryMonitor) logExpiry(setting string, end time.Time) {
	left, level := end.Sub(e.env.Now()), 0
	for _, within := range []time.Duration{expirySoon, expiryUrgent, 0} {
		if left <= within {
			level++
		}
	}

	before := e.told[setting]
	if e.told[setting] = (loggedExpiry{end, level}); level == 0 || before.end.Equal(end) && before.level >= level {
		return
	}

	log, at := e.log.With(zap.String("setting", setting)), zap.Time("ends", end)

	switch level {
	case 1:
		log.Warn("a certificate expires soon", at)
	case 2:
		log.Error("a certificate expires within a week", at)
	default:
		log.Error("a certificate has expired: peers and clients that check it refuse this node", at)
	}
}

// expiringSoon returns the certificates that expire within expirySoon, for the node's record.
func (e *certExpiryMonitor) expiringSoon() (list []task.Expiry) {
	for _, prefix := range []string{"tls_", "etcd_", "etcd_peer_"} {
		if s := e.sources[prefix]; s != nil {
			for _, end := range s.Ends() {
				if end.At.Sub(e.env.Now()) <= expirySoon {
					list = append(list, task.Expiry{Setting: prefix + end.Part, At: task.At(end.At)})
				}
			}
		}
	}

	return list
}
