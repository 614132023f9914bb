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

// serveReady serves /readyz. It checks that the node can do its work.
func (s *server) serveReady(c *httpapi.Call) (httpapi.Answer, error) {
	if err := s.Ready(); err != nil {
		return httpapi.Answer{}, httpapi.Fail(http.StatusServiceUnavailable, client.CodeNotReady, "not ready: %s", err)
	}
	return answerText(c, "ready\n")
}

// answerText answers with a text.
func answerText(c *httpapi.Call, text string) (httpapi.Answer, error) {
	c.Writer.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(c.Writer, text) // an error means that the caller has gone
	return httpapi.Answer{}, nil
}

// registerPlain registers the routes that are not part of the OpenAPI document.
func (s *server) registerPlain() {
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{}))
	// Generating the document takes longer than the rest of a start, so this happens at the first request.
	document := sync.OnceValues(func() (written [2][]byte, err error) {
		written[0], written[1], err = s.describeAPI()
		return written, err
	})

	for i, format := range []string{"json", "yaml"} {
		s.mux.HandleFunc("GET /openapi."+format, func(w http.ResponseWriter, r *http.Request) {
			written, err := document()
			if err != nil {
				s.problems.Write(w, r, err)
				return
			}

			w.Header().Set("Content-Type", "application/openapi+"+format)
			_, _ = w.Write(written[i]) // an error means that the caller has gone
		})
	}
}
