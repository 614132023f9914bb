package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// registerRoutes adds all routes to the mux. The OpenAPI document is not generated here, because that takes longer
// than the rest of a start.
func (s *server) registerRoutes() {
	for _, rt := range s.documentedRoutes() {
		pattern := rt.Method + " " + rt.Path
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serveRoute(w, r, rt) })
		s.public[pattern] = rt.Public
		s.takesLink[pattern] = rt.TakesLink
	}
}

// documentedRoutes returns the operations of the OpenAPI document, in its order.
func (s *server) documentedRoutes() []*httpapi.Operation {
	return slices.Concat(s.tasks.Routes(), s.runs.Routes(), s.logs.Routes(), s.events.Routes(), s.attempts.Routes(), s.board.Routes(), s.asker.Routes(), s.load.Routes(),
		s.nodes.Routes(), s.cluster.Routes(), s.secrets.Routes(), s.control.Routes(), s.signIn.Routes(), s.nodeRoutes())
}

// serveRoute serves a request of one operation. The caller is already authenticated, unless the operation is
// public.
func (s *server) serveRoute(w http.ResponseWriter, r *http.Request, rt *httpapi.Operation) {
	// Another node may only use operations that are marked as Forwarded. So a node whose key is stolen cannot
	// change anything on behalf of a caller.
	if by := httpapi.CallerOf(r.Context()).Forwarder; by != "" && !rt.Forwarded {
		s.problems.Write(w, r, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "node %s may not request this on behalf of a caller", by))
		return
	}

	if !rt.Streams {
		ctx, cancel := context.WithTimeout(r.Context(), httpapi.RequestTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}

	if !rt.Public {
		rights := s.judge.RightsOf(httpapi.CallerOf(r.Context()), rt.ID)
		r = r.WithContext(httpapi.WithRights(r.Context(), rights))

		if err := s.admitCaller(r, rt, rights); err != nil {
			s.logins.reportRefusal(r, httpapi.CallerOf(r.Context()), httpapi.AsFailure(err))
			if r.Body != http.NoBody {
				endConnection(w)
			}
			s.problems.Write(w, r, err)

			return
		}
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
				WithHint("to continue with the current contents of etcd: carillon cluster recover"))
			return
		}
	}

	a, err := c.Serve()
	if rt.Writes {
		s.asker.NoteWrite(httpapi.CallerOf(r.Context()), httpapi.RightsOf(r.Context()).Written()) // also if it has failed: the outcome may be unknown
	}
	if err != nil {
		// What the change needs is known only to the handler.
		if f := httpapi.AsFailure(err); f.Status == http.StatusForbidden && !rt.Public {
			s.logins.reportRefusal(r, httpapi.CallerOf(r.Context()), f)
		}
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

// admitCaller refuses a request whose caller lacks the least that its operation needs. The handler asks for more when it
// knows what the request changes.
func (s *server) admitCaller(r *http.Request, rt *httpapi.Operation, rights *httpapi.Rights) error {
	if !rt.Writes {
		if err := rights.CheckReader(r.Context(), httpapi.CallerOf(r.Context())); err != nil {
			return err
		}
	}

	if rt.Verb == 0 {
		return nil
	}

	need := access.Need{Verb: rt.Verb, Kind: rt.Kind}
	if !rt.Kind.OfCluster() {
		need.Namespace = r.PathValue("ns")
	}

	// Only tasks and runs have labels, and everything in a namespace can be read by whoever can read any of it.
	if rt.Kind.Labelled() && rt.Verb != access.Read {
		return rights.RequireSomewhere(need)
	}

	return rights.Require(need)
}
