package api

import (
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2/negotiation"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/events"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// serveHealth serves /healthz. It checks only that the process can answer. Its headers say which history of the cluster the node
// follows, so that nodes of another one notice it.
func (s *server) serveHealth(c *httpapi.Call) (httpapi.Answer, error) {
	if s.History != nil {
		s.History().WriteTo(c.Writer.Header())
	}

	return answerText(c, "ok\n")
}

// serveReady serves /readyz. It checks that the node can do its work. The reason for a failure names shards, members and
// errors of etcd, so only callers with a valid credential get it. A health check needs only the status.
func (s *server) serveReady(c *httpapi.Call) (httpapi.Answer, error) {
	err := s.Ready()
	if err == nil {
		return answerText(c, "ready\n")
	}

	if _, unknown := s.findCaller(c.Request, false); unknown != nil {
		return httpapi.Answer{}, httpapi.Fail(http.StatusServiceUnavailable, client.CodeNotReady, "not ready").
			WithHint("send a token to get the reason, or see the node's log")
	}

	return httpapi.Answer{}, httpapi.Fail(http.StatusServiceUnavailable, client.CodeNotReady, "not ready: %s", err)
}

// answerText answers with a text.
func answerText(c *httpapi.Call, text string) (httpapi.Answer, error) {
	c.Writer.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(c.Writer, text) // an error means that the caller has gone
	return httpapi.Answer{}, nil
}

// serveMetrics serves the node's metrics in the format that Prometheus reads.
func (s *server) serveMetrics(c *httpapi.Call) (httpapi.Answer, error) {
	promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{}).ServeHTTP(c.Writer, c.Request)
	return httpapi.Answer{}, nil
}

// serveOpenAPI returns the handler of the OpenAPI document in a format: json or yaml. Tools that generate clients get it
// without a token: it is the same for everybody, and says nothing about the cluster.
func (s *server) serveOpenAPI(format string) func(*httpapi.Call) (httpapi.Answer, error) {
	return func(c *httpapi.Call) (httpapi.Answer, error) {
		if s.ForwardedOnly {
			return httpapi.Answer{}, s.checkServing()
		}

		d, err := openAPIOf(s.Version)
		if err != nil {
			return httpapi.Answer{}, err
		}

		h := c.Writer.Header()
		h.Set("Cache-Control", "no-cache") // it may be kept, and is compared with If-None-Match
		h.Set("Vary", "Accept-Encoding")
		if tag := httpapi.MatchETag(c.Request, d.tag); tag != "" {
			h.Set("ETag", tag)
			return httpapi.Answer{Status: http.StatusNotModified}, nil
		}

		// The document is the same for all callers, so it is not compressed again for each of them.
		text, tag := d.text[format], d.tag
		if acceptsGzip(c.Request) {
			text, tag = d.packed[format], httpapi.GzipETag(d.tag)
			h.Set("Content-Encoding", "gzip")
		}
		h.Set("ETag", tag)
		h.Set("Content-Type", "application/openapi+"+format)
		h.Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = c.Writer.Write(text) // an error means that the caller has gone

		return httpapi.Answer{}, nil
	}
}

// acceptsGzip reports whether a client prefers an answer that is compressed with gzip.
func acceptsGzip(r *http.Request) bool {
	// identity is the first, because the function returns the first one also for a weight of 0.
	return negotiation.SelectQValue(r.Header.Get("Accept-Encoding"), []string{"identity", "gzip"}) == "gzip"
}

const openAPIAbout = "It needs no token. The document describes the version of Carillon that the node runs."

// nodeRoutes returns the operations on this node itself: health checks, metrics, and the description of its API. Health
// checks and the description need no token. Metrics do, because they show how many tasks and runs other teams have.
func (s *server) nodeRoutes() []*httpapi.Operation {
	const get = http.MethodGet
	document, text := reflect.TypeFor[map[string]any](), reflect.TypeFor[string]()

	return []*httpapi.Operation{
		{ID: "healthz", Method: get, Path: "/healthz", Tag: "health", Summary: "Check that the process responds",
			Description: "It answers 200 as long as the process can answer, whatever the state of etcd and of the cluster. Use it for liveness checks.", Public: true, Status: 200, Streams: true, Handler: httpapi.NoQuery(s.serveHealth)},
		{ID: "readyz", Method: get, Path: "/readyz", Tag: "health", Summary: "Check that the node is ready to work", Description: "With a valid token, the answer 503 contains the reason.", Public: true, Status: 200, Streams: true, Errors: []int{503}, Handler: httpapi.NoQuery(s.serveReady)},
		{ID: "get-metrics", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/metrics", Tag: "health", Summary: "Read the node's Prometheus metrics",
			Description: "A node with the setting metrics_listen also serves them without a token, at that address.",
			Status:      200, Answer: text, AnswerType: "text/plain", Handler: httpapi.NoQuery(s.serveMetrics)},
		{ID: "get-openapi-json", Method: get, Path: "/openapi.json", Tag: "health", Summary: "Read the OpenAPI document as JSON", Description: openAPIAbout,
			Public: true, Revalidated: true, Tagged: true, Status: 200, Errors: []int{304, 404, 500}, Answer: document, AnswerType: "application/openapi+json", Handler: httpapi.NoQuery(s.serveOpenAPI("json"))},
		{ID: "get-openapi-yaml", Method: get, Path: "/openapi.yaml", Tag: "health", Summary: "Read the OpenAPI document as YAML", Description: openAPIAbout,
			Public: true, Revalidated: true, Tagged: true, Status: 200, Errors: []int{304, 404, 500}, Answer: text, AnswerType: "application/openapi+yaml", Handler: httpapi.NoQuery(s.serveOpenAPI("yaml"))},
	}
}

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
		gauge("carillon_run_waiters", "Requests that wait for the end of a run on this node.", func(f events.Figures) int { return f.Waiters }),
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
