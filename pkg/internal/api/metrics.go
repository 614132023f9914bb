package api

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillonhq/carillon/pkg/internal/api/events"
)

// metrics are the request metrics of the API.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// newMetrics creates the metrics, and registers them unless reg is nil.
func newMetrics(reg prometheus.Registerer) (metrics, error) {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_api_requests_total", Help: "Requests that the HTTP API answered.",
		}, []string{"route", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "carillon_api_request_duration_seconds", Help: "Time from the start of a request to the end of its response.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20},
		}, []string{"route", "method"}),
	}

	if reg == nil {
		return m, nil
	}

	for _, c := range []prometheus.Collector{m.requests, m.seconds} {
		if err := reg.Register(c); err != nil {
			return m, err
		}
	}

	return m, nil
}

// registerCounter registers a counter of another part of the API.
func (m metrics) registerCounter(reg prometheus.Registerer, c prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	return reg.Register(c)
}

// registerGauge registers a metric whose value is read at each scrape.
func (m metrics) registerGauge(reg prometheus.Registerer, name, help string, read func() float64) error {
	if reg == nil {
		return nil
	}
	return reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
}

// registerEvents registers the metrics of the readers of events.
func (m metrics) registerEvents(reg prometheus.Registerer, figures func() events.Figures) error {
	if reg == nil {
		return nil
	}

	gauge := func(name, help string, read func(events.Figures) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(read(figures())) })
	}

	for _, c := range []prometheus.Collector{
		gauge("carillon_event_readers", "Clients that read events on this node.", func(f events.Figures) int { return f.Readers }),
		gauge("carillon_event_own_watches", "Clients that read events that are no longer in memory, each with its own watch of etcd.", func(f events.Figures) int { return f.OwnWatches }),
		gauge("carillon_event_ring_events", "Events in memory, which all clients share.", func(f events.Figures) int { return f.RingEvents }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "carillon_event_readers_behind_total", Help: "How often a client read so slowly that its next events were no longer in memory.",
		}, func() float64 { return float64(figures().Behind) }),
	} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}

	return nil
}

// observeRequest records one request. pattern is the mux's "METHOD /path". Requests without a route share one label,
// and so do unusual methods, so that callers cannot create new label values.
func (m metrics) observeRequest(pattern, method string, status int, took time.Duration) {
	_, route, _ := strings.Cut(pattern, " ")
	if route == "" {
		route = "none"
	}

	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
	default:
		method = "other"
	}

	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route, method).Observe(took.Seconds())
}
