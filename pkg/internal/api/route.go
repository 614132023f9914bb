package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
)

// register puts all routes into the mux. The document of them is written when
// somebody asks for it: that takes longer than all else of a start.
func (s *server) register() {
	for _, rt := range s.all() {
		s.mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, rt) })
	}
	s.registerPlain()
}

// all are the routes that the document describes, in its order.
func (s *server) all() []*route {
	return slices.Concat(s.tasks.Routes(), s.runs.Routes(), s.logs.Routes(), s.events.Routes(), s.talks.Routes(), s.board.Routes(),
		s.nodes.Routes(), s.cluster.Routes(), s.secrets.Routes(), s.healthRoutes())
}

// handle serves a route.
func (s *server) handle(w http.ResponseWriter, r *http.Request, rt *route) {
	if by := callerOf(r.Context()).from; by != "" && !rt.forwarded {
		s.problems.write(w, r, fail(http.StatusForbidden, client.CodeForbidden, "node %s may not ask for this on behalf of a caller", by))
		return
	}
	if !rt.stream {
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	c, err := s.reading.read(w, r, rt)
	if err != nil {
		endConnection(w)
		s.problems.write(w, r, err)
		return
	}
	// Routes that stream set deadlines for each part. The server's own deadlines, which are
	// for whole requests and answers, stay in force for callers without a token.
	if rt.stream && !rt.open {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // not every writer has one
		patience := writeLimit
		if rt.body != nil && rt.body.streamed {
			patience = rt.body.idle
		}
		out := patient{w, patience}
		out.extend()
		defer out.extend() // what is left in buffers is written after this returns
		c.w, w = out, out
	}
	if rt.writes && !rt.mends {
		if err := s.Writable(); err != nil {
			s.problems.write(w, r, fail(http.StatusServiceUnavailable, client.CodeRestored, "nothing can be changed: %s", err).
				withHint("if what etcd holds now is to be gone on with: carillon cluster recover"))
			return
		}
	}
	a, err := c.serve(c)
	if err != nil {
		s.problems.write(w, r, err)
		return
	}
	if a.status == 0 {
		return // it wrote by itself
	}
	for name, values := range a.header {
		w.Header()[name] = values
	}
	if a.body == nil {
		w.WriteHeader(a.status)
		return
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(a.status)
	_ = encodeTo(w, a.body) // the caller is gone
}
