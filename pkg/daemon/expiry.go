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
	// expiryEvery is how often certificates are looked at, beside each handshake.
	expiryEvery = 10 * time.Second
	// A certificate that ends within the first is announced, and logged; within the
	// second it is logged again, as an error.
	expirySoon, expiryUrgent = 30 * 24 * time.Hour, 7 * 24 * time.Hour
)

// certExpiryMonitor takes certificates that were replaced, and tells when one ends: in a
// metric, in the log, and to the other nodes.
type certExpiryMonitor struct {
	sources map[string]*certs.Source // by the beginning of their settings' names
	env     Environment
	log     *zap.Logger
	ends    *prometheus.GaugeVec
	told    map[string]toldEnd
}

// toldEnd is of which end the log has told, and how urgent it was.
type toldEnd struct {
	end   time.Time
	level int
}

func newCertExpiryMonitor(s secured, env Environment, r prometheus.Registerer, log *zap.Logger) *certExpiryMonitor {
	e := &certExpiryMonitor{sources: map[string]*certs.Source{}, env: env, log: log.Named("tls"), told: map[string]toldEnd{},
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

func (e *certExpiryMonitor) run(ctx context.Context) error {
	for {
		e.checkFiles()
		if !clock.Sleep(ctx, expiryEvery) {
			return ctx.Err()
		}
	}
}

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

func (e *certExpiryMonitor) logExpiry(setting string, end time.Time) {
	left, level := end.Sub(e.env.Now()), 0
	for _, within := range []time.Duration{expirySoon, expiryUrgent, 0} {
		if left <= within {
			level++
		}
	}

	before := e.told[setting]
	if e.told[setting] = (toldEnd{end, level}); level == 0 || before.end.Equal(end) && before.level >= level {
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

// expiringSoon are the certificates that end soon, for everybody to see.
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
