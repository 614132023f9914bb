package api

import (
	"io"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// health serves whether the process answers: if this does, it does.
func (s *server) health(c *httpapi.Call) (httpapi.Answer, error) { return plain(c, "ok\n") }

// ready serves whether the node does its work.
func (s *server) ready(c *httpapi.Call) (httpapi.Answer, error) {
	if err := s.Ready(); err != nil {
		return httpapi.Answer{}, httpapi.Fail(http.StatusServiceUnavailable, client.CodeNotReady, "not ready: %s", err)
	}
	return plain(c, "ready\n")
}

func plain(c *httpapi.Call, text string) (httpapi.Answer, error) {
	c.Writer.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(c.Writer, text) // the caller is gone
	return httpapi.Answer{}, nil
}

// registerPlain adds what is not part of the document.
func (s *server) registerPlain() {
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{}))
	document := sync.OnceValues(func() (written [2][]byte, err error) {
		written[0], written[1], err = s.document()
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
			_, _ = w.Write(written[i]) // the caller is gone
		})
	}
}
