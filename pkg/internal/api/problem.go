package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// failure is a problem on its way to the caller.
type failure struct {
	client.Problem
	cause error // for the log
}

func (f *failure) Error() string { return f.Detail }
func (f *failure) Unwrap() error { return f.cause }

func fail(status int, code, format string, args ...any) *failure {
	return &failure{Problem: client.Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Code: code, Detail: fmt.Sprintf(format, args...),
	}}
}

func (f *failure) withHint(hint string) *failure  { f.Hint = hint; return f }
func (f *failure) withField(name string) *failure { f.Field = name; return f }
func (f *failure) because(err error) *failure     { f.cause = err; return f }

// named is an error about something that has a name or an id: with an unknown
// outcome, what may have been written.
type named struct {
	id string
	error
}

func (n named) Unwrap() error { return n.error }

// about says what err is about; nil stays nil.
func about(id string, err error) error {
	if err == nil {
		return nil
	}
	return named{id, err}
}

// asFailure finds the problem that an error is. The order matters: an outcome
// that is unknown is that first, whatever made it so.
func asFailure(err error) *failure {
	var f *failure
	var field *task.Error
	var n named
	errors.As(err, &n)
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &field):
		status := http.StatusUnprocessableEntity
		if field.Code == task.CodeBadJSON {
			status = http.StatusBadRequest
		}
		return fail(status, field.Code, "%s", field.Message).withField(short(field.Field))
	case store.NoSpace(err):
		f = fail(http.StatusInsufficientStorage, client.CodeNoSpace,
			"etcd is full: its space quota is used up, and it takes no writes; the change may have been made all the same").
			withHint("make space, as carillon cluster status says; then look before you try again")
	case errors.Is(err, task.ErrUnknown):
		f = fail(http.StatusGatewayTimeout, client.CodeUnknown,
			"etcd did not say what became of the change: it may have been made, or may yet be").
			withHint("look before you try again")
	case errors.Is(err, task.ErrNotFound):
		return fail(http.StatusNotFound, client.CodeNotFound, "%s", err)
	case errors.Is(err, task.ErrExists):
		return fail(http.StatusConflict, client.CodeExists, "%s", err)
	case errors.Is(err, task.ErrStale):
		return fail(http.StatusPreconditionFailed, client.CodeStale, "%s", err).withField("If-Match").
			withHint("read it again, and decide again")
	case errors.Is(err, task.ErrConflict):
		return fail(http.StatusConflict, client.CodeConflict, "%s", err).withHint("try again")
	case errors.Is(err, task.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fail(http.StatusServiceUnavailable, client.CodeUnavailable, "etcd did not answer").because(err)
	case errors.Is(err, task.ErrInvalid):
		return fail(http.StatusInternalServerError, client.CodeUnreadable, "%s", err).because(err).
			withHint("the record in etcd is damaged: delete the task and create it again")
	default:
		return fail(http.StatusInternalServerError, client.CodeInternal, "the server failed; its log says more").because(err)
	}
	f.ID = n.id
	return f.because(err)
}

// problemWriter answers with problems, and logs those that are not the caller's.
type problemWriter struct{ log *zap.Logger }

// write answers with the problem that err is, and logs it if it is not the
// caller's.
func (p problemWriter) write(w http.ResponseWriter, r *http.Request, err error) {
	f := asFailure(err)
	p.logFailure(r, f)
	h := w.Header()
	switch f.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="carillon"`)
	case http.StatusTooManyRequests:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", "1")
		}
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "2")
	}
	h.Del("ETag")
	h.Set("Content-Type", "application/problem+json")
	w.WriteHeader(f.Status)
	_ = encodeTo(w, f.Problem) // the caller is gone
}

// logFailure logs a failure that is not the caller's.
func (p problemWriter) logFailure(r *http.Request, f *failure) {
	if f.Status < http.StatusInternalServerError || f.cause == nil {
		return
	}
	log := p.log.Warn
	if f.Status == http.StatusInternalServerError {
		log = p.log.Error
	}
	log("request failed", zap.String("method", r.Method), zap.String("path", short(r.URL.Path)),
		zap.Int("status", f.Status), zap.Error(f.cause))
}

func encodeTo(w http.ResponseWriter, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// short cuts what a caller wrote, so that it cannot flood an answer or a log.
func short(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
