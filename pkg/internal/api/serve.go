package api

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// ServeHTTP answers one request: finds its route, checks its token, and writes
// a problem for whatever goes wrong on the way.
func (s *server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &recorder{ResponseWriter: rw}
	began := time.Now()
	pattern := s.pattern(r)
	defer func() {
		if p := recover(); p != nil {
			s.recovered(w, r, p)
		}
		s.metrics.observe(pattern, r.Method, w.status, time.Since(began))
	}()

	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Carillon-Node", s.Node)

	if s.Instance != "" {
		h.Set(InstanceHeader, s.Instance)
	}

	if r.URL.Path == "/v1" || strings.HasPrefix(r.URL.Path, "/v1/") {
		h.Set("Cache-Control", "no-store")

		if r.Method != http.MethodOptions {
			ctx, cancel := context.WithTimeout(r.Context(), httpapi.RequestTimeout)
			who, err := s.authenticate(ctx, r)
			cancel()
			if err != nil {
				s.logins.report(r, httpapi.AsFailure(err))
				endConnection(w)
				s.problems.Write(w, r, err)

				return
			}

			s.Authenticated(r.Context())
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

// unreadGrace is how long the rest of a request that is refused may still arrive. Some
// time is needed: a client that is still sending when the connection is closed may not
// see the answer.
const unreadGrace = 500 * time.Millisecond

// endConnection has the server close the connection after the answer, without waiting
// for a body that nobody wants. The caller must not have written the header yet.
func endConnection(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadGrace)) // not every writer has one
}

// pattern is the route that a request matches, "" if none. A path that is not
// clean matches none: a redirect would turn one name into another.
func (s *server) pattern(r *http.Request) string {
	if p := r.URL.Path; p == "" || p[0] != '/' || path.Clean(p) != p {
		return ""
	}
	_, pattern := s.mux.Handler(r)
	return pattern
}

// noRoute answers 404, or 405 with the methods that the path has; OPTIONS gets
// these as its answer.
func (s *server) noRoute(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		if s.pattern(probe) != "" {
			allowed = append(allowed, m)
		}
	}

	if len(allowed) == 0 {
		s.problems.Write(w, r, httpapi.Fail(http.StatusNotFound, client.CodeNoRoute, "there is nothing at %s", quotePath(r)).
			WithHint("GET /openapi.json lists what there is"))
		return
	}

	w.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))

	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}

	s.problems.Write(w, r, httpapi.Fail(http.StatusMethodNotAllowed, client.CodeMethod, "%s does not take the method %s, only %s",
		quotePath(r), httpapi.Shorten(r.Method), strings.Join(allowed, ", ")))
}

// recovered answers 500 after a panic, if nothing was answered yet.
func (s *server) recovered(w *recorder, r *http.Request, p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}

	s.log.Error("panic while serving a request", zap.String("method", r.Method), zap.String("path", r.URL.Path),
		zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))

	if w.status != 0 {
		panic(http.ErrAbortHandler) // the answer is cut: the caller must not take it for whole
	}

	s.problems.Write(w, r, httpapi.Fail(http.StatusInternalServerError, client.CodeInternal, "the server failed; its log says more"))
}

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find deadlines and Flush.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func quotePath(r *http.Request) string { return fmt.Sprintf("%q", httpapi.Shorten(r.URL.Path)) }
