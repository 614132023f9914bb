package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Failure is an error that is answered with a problem.
type Failure struct {
	client.Problem
	cause error // logged, and never sent to the caller
}

// Error implements error.
func (f *Failure) Error() string { return f.Detail }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.cause }

// Fail returns a failure with a status, a code and a formatted detail.
func Fail(status int, code, format string, args ...any) *Failure {
	return &Failure{Problem: client.Problem{
		Type: client.ProblemType(code), Title: http.StatusText(status), Status: status,
		Code: code, Detail: fmt.Sprintf(format, args...),
	}}
}

// WithHint adds what the caller can do about the problem.
func (f *Failure) WithHint(hint string) *Failure { f.Hint = hint; return f }

// WithField adds the name of the field, parameter or header that is wrong.
func (f *Failure) WithField(name string) *Failure { f.Field = name; return f }

// Because adds the cause for the log.
func (f *Failure) Because(err error) *Failure { f.cause = err; return f }

// named is an error with the name or id of the object that it concerns. If the outcome of a write is unknown,
// the answer contains this id.
type named struct {
	id string
	error
}

// Unwrap returns the error without the name.
func (n named) Unwrap() error { return n.error }

// About adds the name of the object that err concerns. It returns nil if err is nil.
func About(id string, err error) error {
	if err == nil {
		return nil
	}
	return named{id, err}
}

// AsFailure converts an error to a failure. The order of the cases matters: an error with an unknown outcome
// may also wrap other errors, but must be reported as unknown (G13).
func AsFailure(err error) *Failure {
	var f *Failure
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
		f = Fail(status, field.Code, "%s", field.Message).WithField(Shorten(field.Field))
		f.Hint = field.Hint
		f.Errors = fieldProblems(err)

		return f
	case store.NoSpace(err):
		f = Fail(http.StatusInsufficientStorage, client.CodeNoSpace,
			"etcd is full: its space quota is used up, and it accepts no writes; the change may have been made nevertheless").
			WithHint("make space as carillon cluster status describes; then check the current state before you retry")
	case errors.Is(err, task.ErrUnknown):
		f = Fail(http.StatusGatewayTimeout, client.CodeUnknown,
			"the outcome of the change is unknown: it may have been made, or may still be made").
			WithHint("check the current state before you retry")
	case errors.Is(err, task.ErrNotFound):
		return Fail(http.StatusNotFound, client.CodeNotFound, "%s", err)
	case errors.Is(err, task.ErrExists):
		return Fail(http.StatusConflict, client.CodeExists, "%s", err)
	case errors.Is(err, task.ErrStale):
		return Fail(http.StatusPreconditionFailed, client.CodeStale, "%s", err).WithField("If-Match").
			WithHint("read the current state, and decide again")
	case errors.Is(err, task.ErrConflict):
		return Fail(http.StatusConflict, client.CodeConflict, "%s", err).WithHint("try again")
	case errors.Is(err, task.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Fail(http.StatusServiceUnavailable, client.CodeUnavailable, "etcd did not answer").Because(err)
	case errors.Is(err, task.ErrInvalid):
		return Fail(http.StatusInternalServerError, client.CodeUnreadable, "%s", err).Because(err).
			WithHint("the record in etcd is damaged: delete the task and create it again")
	default:
		return Fail(http.StatusInternalServerError, client.CodeInternal, "internal error; see the node's log").Because(err)
	}

	f.ID = n.id

	return f.Because(err)
}

// fieldProblems returns all invalid fields of a body, or nil if there is only one.
func fieldProblems(err error) (list []client.FieldProblem) {
	all := task.Problems(err)
	if len(all) < 2 {
		return nil
	}

	of := reflect.TypeFor[task.Spec]() // only tasks have problems that are not found by Call.Decode
	var body bodyError
	if errors.As(err, &body) {
		of = body.of
	}

	for _, p := range all {
		field := Shorten(p.Field) // first, because a pointer takes time for each part of the path
		pointer := task.JSONPointer(of, field)
		list = append(list, client.FieldProblem{Pointer: Shorten(pointer), Detail: p.Message, Code: p.Code, Field: field})
	}

	return list
}

// ProblemWriter answers with problems and logs those that the caller has not caused.
type ProblemWriter struct{ log *zap.Logger }

// NewProblemWriter returns a ProblemWriter.
func NewProblemWriter(log *zap.Logger) ProblemWriter { return ProblemWriter{log} }

// Write answers with the problem for err. It must be called before anything was written.
func (p ProblemWriter) Write(w http.ResponseWriter, r *http.Request, err error) {
	f := AsFailure(err)
	p.LogFailure(r, f)
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
	_ = WriteJSON(w, f.Problem) // an error means that the caller has gone
}

// LogFailure logs a failure if the caller has not caused it.
func (p ProblemWriter) LogFailure(r *http.Request, f *Failure) {
	if f.Status < http.StatusInternalServerError || f.cause == nil {
		return
	}

	// A client that leaves ends the context of its request, and with it what the request waits for. That is not a failure.
	if errors.Is(f.cause, context.Canceled) && r.Context().Err() != nil {
		return
	}

	log := p.log.Warn
	if f.Status == http.StatusInternalServerError {
		log = p.log.Error
	}

	log("request failed", zap.String("method", r.Method), zap.String("path", Shorten(r.URL.Path)),
		zap.Int("status", f.Status), zap.Error(f.cause))
}

// WriteJSON writes a value as JSON without escaping HTML characters.
func WriteJSON(w http.ResponseWriter, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Shorten limits the length of a caller's text, so that it cannot flood an answer or a log.
func Shorten(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// PatientWriter is a writer that fails if the caller does not read for a while. Streams use it instead of the
// server's write deadline, which covers a whole answer.
type PatientWriter struct {
	http.ResponseWriter
	limit time.Duration
}

// NewPatientWriter returns a writer whose caller may take up to limit to read what each write sends.
func NewPatientWriter(w http.ResponseWriter, limit time.Duration) PatientWriter {
	return PatientWriter{w, limit}
}

// Write sets a new deadline and writes b.
func (p PatientWriter) Write(b []byte) (int, error) {
	p.Extend()
	return p.ResponseWriter.Write(b)
}

// Extend sets a new deadline.
func (p PatientWriter) Extend() {
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.limit)) // errors are ignored: not every http.ResponseWriter supports deadlines
}

// Unwrap gives http.ResponseController access to Flush.
func (p PatientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// WriteLimit is the usual limit of a PatientWriter for streams.
const WriteLimit = 30 * time.Second
