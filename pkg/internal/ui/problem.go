package ui

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

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
	Faults  []Fault // all that is wrong with a form, if that is more than one thing; the first one is Field and Message
}

// Fault is something that is wrong with a form.
type Fault struct{ Field, Message string }

// problemOf converts an error of package client.
func problemOf(err error) *Problem {
	var all formErrors
	if errors.As(err, &all) {
		return all.problem()
	}

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

// formErrors is all that is wrong with a form: at least two errors, none of which is a joined one.
type formErrors []error

func (e formErrors) Error() string   { return errors.Join(e...).Error() }
func (e formErrors) Unwrap() []error { return e }

// formOrder is the order of the fields of a task in its form.
var formOrder = []string{"name", "namespace", "description", "labels", "schedule", "timezone", "jitter", "overlap", "missed", "action", "timeout", "target", "retry", "pause_after_failures", "history"}

// joinFormErrors returns all errors as one, in the order of the form; nil if there are none. Errors may be nil, or joined by
// errors.Join. Of several about the same field, the first one is kept. That a field is missing is left out if something
// within it is wrong.
func joinFormErrors(errs ...error) error {
	var all formErrors
	var fields []string
	var add func(err error)
	add = func(err error) {
		if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // wrapped errors are single ones
			for _, one := range joined.Unwrap() {
				add(one)
			}
			return
		}
		if err == nil {
			return
		}
		field := problemOf(err).Field
		if field == "" || !slices.ContainsFunc(fields, func(known string) bool { return known == field || strings.HasPrefix(known, field+".") }) {
			all, fields = append(all, err), append(fields, field)
		}
	}
	for _, err := range errs {
		add(err)
	}

	place := func(err error) int {
		top, _, _ := strings.Cut(problemOf(err).Field, ".")
		top, _, _ = strings.Cut(top, "[")
		if i := slices.Index(formOrder, top); i >= 0 {
			return i
		}
		return len(formOrder)
	}
	slices.SortStableFunc(all, func(a, b error) int { return place(a) - place(b) })

	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}

	return all
}

// problem converts the errors.
func (e formErrors) problem() *Problem {
	first := problemOf(e[0])
	for _, err := range e {
		p := problemOf(err)
		first.Faults = append(first.Faults, Fault{p.Field, p.Message})
	}

	return first
}

// messageAbout returns what is wrong with a field, or with something within it: "schedule" is the field of a fault of
// "schedule[1]". It returns "" if nothing is.
func (p *Problem) messageAbout(field string) string {
	for _, f := range slices.Concat(p.Faults, []Fault{{p.Field, p.Message}}) {
		if rest, ok := strings.CutPrefix(f.Field, field); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return f.Message
		}
	}
	return ""
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
