package daemon

import (
	"io"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/connlimit"
	"github.com/carillonhq/carillon/pkg/wake"
)

// metricsServer serves /metrics and /healthz at metrics_listen, without a token. Prometheus reads them there also while
// etcd does not answer, when the API cannot tell whether a token is still valid, and on nodes without the role api.
type metricsServer struct {
	*httpServer
	endpoint *endpoint
	limiter  *connlimit.Limiter
}

// startMetrics listens at metrics_listen, or returns nil if it is not set. A port that is taken is tried again, and does
// not make the node unready.
func startMetrics(cfg Config, env Environment, tls nodeTLS, log *zap.Logger) *metricsServer {
	if cfg.MetricsListen == "" {
		return nil
	}

	descriptors := maxDescriptors()
	total := min(maxScrapers, max(descriptors/16, 4))
	limiter := connlimit.New(connlimit.Config{Name: "metrics", Total: total, PerClient: max(total/2, 1), MaxDescriptor: descriptors / 5 * 4, Logger: log})
	e := &endpoint{
		address: cfg.MetricsListen, serves: "metrics", log: log, announce: wake.NewSignal(),
		listener: &metricsOpener{address: cfg.MetricsListen, env: env, limiter: limiter, tls: tls},
	}

	server := &http.Server{
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readHeaderTimeout, WriteTimeout: answerWriteTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ConnContext: connlimit.Context, ErrorLog: httpLog(log),
	}

	return &metricsServer{httpServer: startHTTP(server, noReporter{}, nil, e), endpoint: e, limiter: limiter}
}

// serveRegistry begins to serve the node's metrics.
func (m *metricsServer) serveRegistry(registry *prometheus.Registry) {
	if m == nil {
		return
	}

	m.limiter.Register(registry)

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n") // an error means that the caller has gone
	})
	m.setHandler(mux)
}

// noReporter reports nothing: what a starting node waits for is the business of the API's server.
type noReporter struct{}

func (noReporter) SetStartupStatus(string) {}

// metricsOpener opens the listener of the metrics.
type metricsOpener struct {
	address string
	env     Environment
	limiter *connlimit.Limiter
	tls     nodeTLS
}

// openListener listens at the address: on loopback without TLS, so that a scraper of the host needs no CA, and elsewhere
// with the API's certificate and its rule for client certificates.
func (o *metricsOpener) openListener() (net.Listener, error) {
	l, err := o.env.Listen("tcp", o.address)
	if err != nil {
		return nil, err
	}

	limited := o.limiter.Listener(l)
	if host, _, err := net.SplitHostPort(o.address); err == nil && isLoopback(host) {
		return limited, nil
	}

	return o.tls.wrapListener(limited), nil
}
