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

// Error is what went wrong with a call. errors.Is tells whether it is one of
// task.ErrNotFound, ErrExists, ErrConflict, ErrStale, ErrInvalid,
// ErrUnavailable or ErrUnknown. It is none of them if the token was not
// accepted (Status 401 or 403) or the server failed (500).
type Error struct {
	Status  int    // of the answer; 0 if there was none
	Code    string // see the Code constants here and in package task
	Field   string // the field that is at fault, if one is
	Message string
	Hint    string // what to do about it, if that is known
	ID      string // with ErrUnknown: what may have been written

	cause error // what the network or the context said, if there was no answer
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Unwrap is the error of the network or of the context, nil if the server answered.
func (e *Error) Unwrap() error { return e.cause }

// Is makes an Error one of package task's, by its code and status.
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

// errorFromBody makes an Error of an answer's body.
func (c *connection) errorFromBody(res *http.Response, body []byte, writes bool) *Error {
	var p Problem
	isProblem := strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json")
	if isProblem && json.Unmarshal(body, &p) == nil && p.Code != "" {
		return &Error{Status: res.StatusCode, Code: p.Code, Field: p.Field, Message: p.Detail, Hint: p.Hint, ID: p.ID}
	}

	e := c.notCarillon(res)
	if c.wantsTLS(e, res, body) {
		return e
	}

	switch res.StatusCode { // a proxy's, on the way
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.Code = CodeUnavailable
		if writes {
			e.Code = CodeUnknown
		}
	}

	return e
}

func (c *connection) notCarillon(res *http.Response) *Error {
	what := res.Header.Get("Content-Type")
	if what == "" {
		what = "nothing"
	}

	return &Error{
		Status: res.StatusCode, Code: CodeNotCarillon,
		Message: fmt.Sprintf("%s does not answer like Carillon's API: status %d with %s", c.base, res.StatusCode, what),
		Hint:    "check --server, and what listens there",
	}
}

// errorWithoutAnswer makes an Error of a call that got no answer. Once a write may have
// been sent, nobody knows what became of it.
func (c *connection) errorWithoutAnswer(err error, writes bool) *Error {
	e := &Error{Code: CodeUnavailable, cause: err}
	if c.failedTrust(e, err) || c.failedTLS(e, err) {
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
		e.Message = fmt.Sprintf("%s did not answer, and the change may have been made: %v", c.base, why)
		e.Hint = "look before you try again"
	case errors.Is(err, context.DeadlineExceeded):
		e.Message = fmt.Sprintf("%s did not answer in time", c.base)
	case errors.Is(err, context.Canceled):
		e.Message = "interrupted"
	default:
		e.Message = fmt.Sprintf("cannot reach %s: %v", c.base, why)
		e.Hint = "is the daemon running? carillon agent, or carillon dev; --server and CARILLON_SERVER say where"
	}

	return e
}
