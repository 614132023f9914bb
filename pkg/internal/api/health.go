package api

import (
	"io"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// serveHealth serves /healthz. It checks only that the process can answer.
func (s *server) serveHealth(c *httpapi.Call) (httpapi.Answer, error) { return answerText(c, "ok\n") }

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

// openAPIDocument is the OpenAPI document in both formats. Generating it takes longer than the rest of a start, so this
// happens at the first request.
type openAPIDocument struct {
	once           sync.Once
	asJSON, asYAML []byte
	err            error
}

// serveOpenAPI returns the handler of the OpenAPI document in a format: json or yaml.
func (s *server) serveOpenAPI(format string) func(*httpapi.Call) (httpapi.Answer, error) {
	return func(c *httpapi.Call) (httpapi.Answer, error) {
		d := &s.openAPI
		d.once.Do(func() { d.asJSON, d.asYAML, d.err = s.describeAPI() })
		if d.err != nil {
			return httpapi.Answer{}, d.err
		}

		text := d.asJSON
		if format == "yaml" {
			text = d.asYAML
		}

		c.Writer.Header().Set("Content-Type", "application/openapi+"+format)
		_, _ = c.Writer.Write(text) // an error means that the caller has gone

		return httpapi.Answer{}, nil
	}
}
