package api

import (
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// ServeHTTP serves one request. It finds the route and authenticates the caller, and answers every error with a
// problem.
func (s *server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &recorder{ResponseWriter: rw}
	began := time.Now()
	pattern := s.matchPattern(r)
	defer func() { s.metrics.observeRequest(pattern, r.Method, w.status, time.Since(began)) }() // also if the answer is cut off
	defer func() {
		if p := recover(); p != nil {
			s.answerPanic(w, r, p)
		}
	}()

	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	// An answer that a browser shows as a page loads nothing, and appears in no other page.
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Carillon-Node", s.Node)

	if s.Instance != "" {
		h.Set(InstanceHeader, s.Instance)
	}

	if s.needsCaller(r, pattern) {
		h.Set("Cache-Control", "no-store")

		// OPTIONS only lists the methods of a path, so it needs no token.
		if r.Method != http.MethodOptions {
			who, err := s.findCaller(r, s.takesLink[pattern])
			if err != nil {
				s.logins.reportRefusal(r, who, httpapi.AsFailure(err))
				// The connection of a refused caller is closed, so that its body need not be read.
				endConnection(w)
				s.problems.Write(w, r, err)

				return
			}

			s.Authenticated(r.Context(), connectionOwner(who))
			r = r.WithContext(httpapi.WithCaller(r.Context(), who))
		}
	}

	if pattern == "" {
		endConnection(w)
		s.noRoute(w, r)
		return
	}

	s.mux.ServeHTTP(w, r)
}

// connectionOwner returns whose connection a request came over: its subject, or the node that has forwarded it.
func connectionOwner(who httpapi.Caller) string {
	if who.Forwarder != "" {
		return "node:" + who.Forwarder
	}
	return who.Who
}

// needsCaller reports whether a request must show who sends it: each one that is for an operation that is not public, or
// for no operation below /v1. pattern is its route, or "".
func (s *server) needsCaller(r *http.Request, pattern string) bool {
	if pattern != "" {
		return !s.public[pattern]
	}
	return r.URL.Path == "/v1" || strings.HasPrefix(r.URL.Path, "/v1/")
}

// unreadGrace is how long the rest of a refused request may still arrive. If the connection were closed while
// the client is sending, the client might not see the answer.
const unreadGrace = 500 * time.Millisecond

// endConnection makes the server close the connection after the answer, without reading the rest of the body.
// It must be called before the header is written.
func endConnection(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadGrace)) // errors are ignored: not every http.ResponseWriter supports deadlines
}

// matchPattern returns the route of a request, or "" if none matches. A path that is not clean has no route. The mux
// would redirect it, and so turn one task name into another.
func (s *server) matchPattern(r *http.Request) string {
	if p := r.URL.Path; p == "" || p[0] != '/' || path.Clean(p) != p {
		return ""
	}
	_, pattern := s.mux.Handler(r)
	return pattern
}

// noRoute answers 404, or 405 with the methods that the path supports. OPTIONS gets these methods as its
// answer.
func (s *server) noRoute(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		if s.matchPattern(probe) != "" {
			allowed = append(allowed, m)
		}
	}

	if len(allowed) == 0 {
		s.problems.Write(w, r, httpapi.Fail(http.StatusNotFound, client.CodeNoRoute, "no such path: %s", quotePath(r)).
			WithHint("GET /openapi.json lists all paths"))
		return
	}

	w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))

	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}

	s.problems.Write(w, r, httpapi.Fail(http.StatusMethodNotAllowed, client.CodeMethod, "%s does not support the method %s, only %s",
		quotePath(r), httpapi.Shorten(r.Method), strings.Join(allowed, ", ")))
}

// answerPanic handles a panic of a handler. It answers 500 if nothing has been written yet, and otherwise aborts
// the connection.
func (s *server) answerPanic(w *recorder, r *http.Request, recovered any) {
	p, stack := callgroup.Origin(recovered)

	// net/http handles this value itself: a handler uses it to cut off an answer on purpose.
	if p == http.ErrAbortHandler {
		panic(p)
	}

	s.log.Error("panic while serving a request", zap.String("method", r.Method), zap.String("path", r.URL.Path),
		zap.Any("panic", p), zap.ByteString("stack", stack))

	if w.status != 0 {
		panic(http.ErrAbortHandler) // cut the answer off, so that the caller cannot take it for complete
	}

	s.problems.Write(w, r, httpapi.Fail(http.StatusInternalServerError, client.CodeInternal, "internal error; see the node's log"))
}

// recorder records the status of an answer, for metrics and to handle panics.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	// Statuses below 200 are interim responses.
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap gives http.ResponseController access to deadlines and Flush.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// quotePath returns the path of a request, shortened and quoted for a message.
func quotePath(r *http.Request) string { return fmt.Sprintf("%q", httpapi.Shorten(r.URL.Path)) }

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
	return slices.Concat(s.tasks.Routes(), s.runs.Routes(), s.logs.Routes(), s.events.Routes(), s.attempts.Routes(), s.board.Routes(), s.asker.Routes(), s.load.Routes(), s.alerts.Routes(),
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
		ctx, cancel := context.WithTimeout(r.Context(), rt.TimeLimit(r))
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

	// Streaming operations set a deadline for each part that they write, and those that wait may answer late. The server's own
	// deadlines cover whole requests and answers. They stay in force for callers without a token, so that these cannot hold
	// connections.
	if rt.Waits && !rt.Public {
		deadlines := http.NewResponseController(w) // errors are ignored: not every http.ResponseWriter supports deadlines
		_ = deadlines.SetReadDeadline(time.Time{})
		_ = deadlines.SetWriteDeadline(time.Now().Add(httpapi.RequestTimeout + httpapi.MaxWait + httpapi.WriteLimit))
	}
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
		// Only the handler knows which rights the change needs.
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

	s.compressed(w, r, rt, func(w http.ResponseWriter) {
		if tag := httpapi.MatchETag(r, w.Header().Get("ETag")); rt.Revalidated && tag != "" {
			w.Header().Set("ETag", tag)
			w.WriteHeader(http.StatusNotModified)
			return
		}

		w.Header().Set("Content-Type", httpapi.TypeJSON)
		w.WriteHeader(a.Status)
		_ = httpapi.WriteJSON(w, a.Body) // an error means that the caller has gone
	})
}

// minCompressed is the minimum size of an answer that is compressed. A smaller one fits into one packet anyway.
const minCompressed = 1400

// newCompressor returns the wrapper that compresses answers with gzip if the client accepts that. JSON becomes five times smaller
// at the lowest level, and only a little smaller at higher ones, which cost more time.
func newCompressor() func(http.Handler) http.HandlerFunc {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(minCompressed), gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false),
		gzhttp.SuffixETag(httpapi.GzipSuffix))
	if err != nil {
		panic(err) // the options are constant
	}

	return wrap
}

// compressed writes an answer, and compresses it if the client accepts that. Streams are never compressed, because each
// message must leave at once; nor are answers about secrets, nor those of logins, which are all answers to POST, because the
// size of a compressed answer can betray what it contains. Requests of other nodes come over a fast network, so compressing would cost more time than it saves.
func (s *server) compressed(w http.ResponseWriter, r *http.Request, rt *httpapi.Operation, write func(http.ResponseWriter)) {
	if r.Method != http.MethodGet || rt.Streams || rt.Kind == access.Secrets || httpapi.CallerOf(r.Context()).Forwarder != "" {
		write(w)
		return
	}

	s.compress(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w) })).ServeHTTP(w, r)
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

	// Only tasks and runs have labels, and everything in a namespace can be read by a caller who can read any of it.
	if rt.Kind.Labelled() && rt.Verb != access.Read {
		return rights.RequireSomewhere(need)
	}

	if err := rights.Require(need); err != nil {
		return err
	}

	// Only callers who may read the namespace get here, so the answer tells nobody else whether it exists. Writes are
	// refused by their handlers, which judge this again when they write.
	if need.Namespace == "" || rt.Writes || task.CheckName("namespace", need.Namespace) != nil {
		return nil // handlers report an invalid name as such
	}

	return rights.RequireNamespaceNow(r.Context(), need.Namespace)
}
