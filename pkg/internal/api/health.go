package api

import (
	"io"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carillonhq/carillon/pkg/client"
)

// health serves whether the process answers: if this does, it does.
func (s *server) health(c *call) (answer, error) { return plain(c, "ok\n") }

// ready serves whether the node does its work.
func (s *server) ready(c *call) (answer, error) {
	if err := s.Ready(); err != nil {
		return answer{}, fail(http.StatusServiceUnavailable, client.CodeNotReady, "not ready: %s", err)
	}
	return plain(c, "ready\n")
}

func plain(c *call, text string) (answer, error) {
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(c.w, text) // the caller is gone
	return answer{}, nil
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
				s.problems.write(w, r, err)
				return
			}
			w.Header().Set("Content-Type", "application/openapi+"+format)
			_, _ = w.Write(written[i]) // the caller is gone
		})
	}
}
