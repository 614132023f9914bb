package ui

import (
	"context"
	"errors"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Problem is why something failed, as the API says it.
type Problem struct {
	Status  int
	Code    string
	Field   string // the field of the form that it is about, if any
	Message string
	Hint    string
}

// problemOf converts an error of package client.
func problemOf(err error) *Problem {
	var e *client.Error
	if errors.As(err, &e) {
		p := &Problem{Status: e.Status, Code: e.Code, Field: e.Field, Message: e.Message, Hint: e.Hint}
		if e.Status == 0 && errors.Is(err, context.DeadlineExceeded) {
			p.Message, p.Hint = "the API did not answer in time", ""
		}
		return p
	}

	var field *task.Error
	if errors.As(err, &field) {
		return &Problem{Status: http.StatusUnprocessableEntity, Code: field.Code, Field: field.Field, Message: field.Message}
	}

	return &Problem{Status: http.StatusInternalServerError, Code: client.CodeInternal, Message: err.Error()}
}

// status is the status of a page that shows the problem.
func (p *Problem) status() int {
	if p.Status < http.StatusBadRequest {
		return http.StatusServiceUnavailable
	}
	return p.Status
}

// Heading says in a few words what kind of problem it is.
func (p *Problem) Heading() string {
	switch p.Code {
	case client.CodeProviderAway:
		return "The login provider does not answer"
	case client.CodeProviderSetup:
		return "Logins with this provider are not set up"
	}

	switch status := p.status(); {
	case status == http.StatusForbidden:
		return "You may not do this"
	case status == http.StatusNotFound:
		return "Not found"
	case status == http.StatusTooManyRequests:
		return "Too many requests at the moment"
	case status == http.StatusConflict || status == http.StatusPreconditionFailed:
		return "It has changed meanwhile"
	case p.away():
		return "The cluster does not answer at the moment"
	case status >= http.StatusInternalServerError:
		return "Something went wrong"
	}

	return "That was not possible"
}

// away reports whether the same request may succeed later, without any change.
func (p *Problem) away() bool {
	if p.Code == client.CodeProviderSetup {
		return false
	}

	switch p.status() {
	case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return true
	}
	return false
}
