package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// register puts all routes into the mux. The document of them is written when
// somebody asks for it: that takes longer than all else of a start.
func (s *server) register() {
	for _, rt := range s.all() {
		s.mux.HandleFunc(rt.Method+" "+rt.Path, func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, rt) })
	}
	s.registerPlain()
}

// all are the routes that the document describes, in its order.
func (s *server) all() []*httpapi.Operation {
	return slices.Concat(s.tasks.Routes(), s.runs.Routes(), s.logs.Routes(), s.events.Routes(), s.attempts.Routes(), s.board.Routes(),
		s.nodes.Routes(), s.cluster.Routes(), s.secrets.Routes(), s.healthRoutes())
}

// handle serves a route.
func (s *server) handle(w http.ResponseWriter, r *http.Request, rt *httpapi.Operation) {
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
			endConnection(w) // its body may not have been read
		}
		s.problems.Write(w, r, err)
		return
	}

	// Routes that stream set deadlines for each part. The server's own deadlines, which are
	// for whole requests and answers, stay in force for callers without a token.
	if rt.Streams && !rt.Public {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // not every writer has one
		patience := httpapi.WriteLimit
		if rt.Body != nil && rt.Body.Streamed {
			patience = rt.Body.Idle
		}

		out := httpapi.NewPatientWriter(w, patience)
		out.Extend()
		defer out.Extend() // what is left in buffers is written after this returns

		c.Writer, w = out, out
	}

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
		return // it wrote by itself
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
	_ = httpapi.WriteJSON(w, a.Body) // the caller is gone
}
