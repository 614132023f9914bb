package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Error is a failed call. errors.Is reports whether it is one of task.ErrNotFound, ErrExists, ErrConflict,
// ErrStale, ErrInvalid, ErrUnavailable or ErrUnknown. It is a different error if the token was rejected (Status 401
// or 403) or the server failed (500).
type Error struct {
	Status  int    // of the answer; 0 if there was no answer
	Code    string // one of the Code constants here or in package task
	Field   string // the path of the invalid field, if any
	Message string
	Hint    string // what to do about it, if known
	ID      string // with ErrUnknown: what may have been written

	// Errors has each invalid field, if there are several. The first of them is also in Code, Field and Message.
	Errors []FieldProblem

	cause error // the error of the network or the context, if there was no answer
}

// Error implements error.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Unwrap returns the error of the network or of the context. It is nil if the server answered.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether e is an error of package task, according to its code and status.
func (e *Error) Is(target error) bool {
	switch target {
	case task.ErrNotFound:
		return e.Status == http.StatusNotFound
	case task.ErrExists:
		return e.Code == CodeExists
	case task.ErrConflict:
		return e.Status == http.StatusConflict && e.Code != CodeExists
	case task.ErrStale:
		return e.Status == http.StatusPreconditionFailed
	case task.ErrInvalid:
		switch e.Status {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
			return true
		}
	case task.ErrUnavailable:
		return e.Code == CodeUnavailable || e.Code == CodeTLS || e.Code == CodeNoSpace || e.Code == CodeNotConfirmed ||
			e.Status == http.StatusServiceUnavailable || e.Status == http.StatusBadGateway || e.Status == http.StatusTooManyRequests
	case task.ErrUnknown:
		return e.Code == CodeUnknown
	}

	return false
}

// errorFromBody converts an answer with an error status to an Error. writes states whether the call may have
// changed something.
func (s *server) errorFromBody(res *http.Response, body []byte, writes bool) *Error {
	var p Problem
	isProblem := strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json")
	if isProblem && json.Unmarshal(body, &p) == nil && p.Code != "" {
		return &Error{Status: res.StatusCode, Code: p.Code, Field: p.Field, Message: p.Detail, Hint: p.Hint, ID: p.ID, Errors: p.Errors}
	}

	e := s.notCarillon(res)
	if s.wantsTLS(e, res, body) {
		return e
	}

	switch res.StatusCode { // the answer of a proxy between client and server
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.Code = CodeUnavailable
		if writes {
			e.Code = CodeUnknown
		}
	}

	return e
}

// notCarillon returns the Error for an answer that does not come from Carillon's API.
func (s *server) notCarillon(res *http.Response) *Error {
	what := res.Header.Get("Content-Type")
	if what == "" {
		what = "nothing"
	}

	return &Error{
		Status: res.StatusCode, Code: CodeNotCarillon,
		Message: fmt.Sprintf("%s is not a Carillon server: status %d with %s", s.base, res.StatusCode, what),
	}
}

// errorWithoutAnswer returns the Error of a call without an answer. If the call may write and may have been
// sent, its outcome is unknown. Only an error while connecting or resolving the name shows that it was not
// sent.
func (s *server) errorWithoutAnswer(err error, writes bool) *Error {
	e := &Error{Code: CodeUnavailable, cause: err}
	// Errors about the server's identity or about TLS occur before the request is sent.
	if s.failedTrust(e, err) || s.failedTLS(e, err) {
		return e
	}

	var dial *net.OpError
	sent := !errors.As(err, &dial) || dial.Op != "dial"
	var name *net.DNSError
	if errors.As(err, &name) {
		sent = false
	}

	var u *url.Error
	why := err
	if errors.As(err, &u) {
		why = u.Err
	}

	switch {
	case writes && sent:
		e.Code = CodeUnknown
		e.Message = fmt.Sprintf("%s did not respond; the change may have been made: %v", s.base, why)
		e.Hint = "check whether the change was made before you try again"
	case errors.Is(err, context.DeadlineExceeded):
		e.Message = fmt.Sprintf("%s did not respond in time", s.base)
	case errors.Is(err, context.Canceled):
		e.Message = "interrupted"
	default:
		e.Message = fmt.Sprintf("cannot reach %s: %v", s.base, why)
	}

	return e
}
