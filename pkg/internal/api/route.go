package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// registerRoutes adds all routes to the mux. The OpenAPI document is not generated here, because that takes longer
// than the rest of a start.
func (s *server) registerRoutes() {
	for _, rt := range s.documentedRoutes() {
		s.mux.HandleFunc(rt.Method+" "+rt.Path, func(w http.ResponseWriter, r *http.Request) { s.serveRoute(w, r, rt) })
	}
	s.registerPlain()
}

// documentedRoutes returns the operations of the OpenAPI document, in its order.
func (s *server) documentedRoutes() []*httpapi.Operation {
	return slices.Concat(s.tasks.Routes(), s.runs.Routes(), s.logs.Routes(), s.events.Routes(), s.attempts.Routes(), s.board.Routes(),
		s.nodes.Routes(), s.cluster.Routes(), s.secrets.Routes(), s.healthRoutes())
}

// serveRoute serves a request of one operation. The caller is already authenticated, unless the operation is
// public.
func (s *server) serveRoute(w http.ResponseWriter, r *http.Request, rt *httpapi.Operation) {
	// Another node may only use operations that are marked as Forwarded. So a node whose key is stolen cannot
	// change anything on behalf of a caller.
	if by := httpapi.CallerOf(r.Context()).Forwarder; by != "" && !rt.Forwarded {
		s.problems.Write(w, r, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "node %s may not ask for this on behalf of a caller", by))
		return
	}

	if !rt.Streams {
		ctx, cancel := context.WithTimeout(r.Context(), httpapi.RequestTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}

	c, err := s.reading.Read(w, r, rt)
	if err != nil {
		if r.Body != http.NoBody {
			endConnection(w) // the rest of its body may not have been read
		}
		s.problems.Write(w, r, err)
		return
	}

	// Streaming operations set a deadline for each part that they write. The server's own deadlines cover whole
	// requests and answers. They stay in force for callers without a token, so that these cannot hold
	// connections.
	if rt.Streams && !rt.Public {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // errors are ignored: not every http.ResponseWriter supports deadlines
		patience := httpapi.WriteLimit
		if rt.Body != nil && rt.Body.Streamed {
			patience = rt.Body.Idle
		}

		out := httpapi.NewPatientWriter(w, patience)
		out.Extend()
		defer out.Extend() // net/http flushes its buffers after the handler returns

		c.Writer, w = out, out
	}

	// A node that must not write, for example after etcd was restored from a backup, still serves reads and the
	// command that recovers the cluster.
	if rt.Writes && !rt.Recovers {
		if err := s.Writable(); err != nil {
			s.problems.Write(w, r, httpapi.Fail(http.StatusServiceUnavailable, client.CodeRestored, "nothing can be changed: %s", err).
				WithHint("if what etcd holds now is to be gone on with: carillon cluster recover"))
			return
		}
	}

	a, err := c.Serve()
	if err != nil {
		s.problems.Write(w, r, err)
		return
	}

	if a.Status == 0 {
		return // the handler has written the answer itself
	}

	for name, values := range a.Header {
		w.Header()[name] = values
	}

	if a.Body == nil {
		w.WriteHeader(a.Status)
		return
	}

	w.Header().Set("Content-Type", httpapi.TypeJSON)
	w.WriteHeader(a.Status)
	_ = httpapi.WriteJSON(w, a.Body) // an error means that the caller has gone
}
