package oidclogin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Kind says whose fault it is that a login did not succeed.
type Kind int

// The kinds of refusals.
const (
	// Refused means that the login is not valid: it was refused by the provider or by the person, took too long, or is not
	// what this cluster began.
	Refused Kind = iota
	// Away means that the provider does not answer, or not as a provider should.
	Away
	// Misconfigured means that the settings of the node and those of the provider do not fit together.
	Misconfigured
	// Unknown means that there is no such provider.
	Unknown
	// Busy means that too many logins are under way.
	Busy
)

// Refusal is why a login did not succeed, in words for the person who tries.
type Refusal struct {
	Kind  Kind
	Text  string
	Hint  string // what to do about it; may be ""
	cause error  // for the log
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.cause }

const beginAgain = "begin the login again"

func refuse(format string, args ...any) *Refusal {
	return &Refusal{Kind: Refused, Text: fmt.Sprintf(format, args...), Hint: beginAgain}
}

func (p *provider) refuseLogin(format string, args ...any) *Refusal {
	return refuse("login with %s: %s", p.Display, fmt.Sprintf(format, args...))
}

func (p *provider) refuseMisconfigured(format string, args ...any) *Refusal {
	return &Refusal{
		Kind: Misconfigured, Text: fmt.Sprintf("login with %s: %s", p.Display, fmt.Sprintf(format, args...)),
		Hint: "ask an administrator of the cluster to compare the setting oidc with the provider",
	}
}

// refuseFailedRequest returns the refusal for a request to the provider that failed.
func (p *provider) refuseFailedRequest(err error) *Refusal {
	r := &Refusal{Kind: Away, Text: fmt.Sprintf("login with %s: the provider does not answer: %s", p.Display, shorten(err.Error())), Hint: "try again later, or use a token", cause: err}

	switch {
	case errors.Is(err, errBusy):
		r.Kind, r.Text, r.Hint = Busy, fmt.Sprintf("login with %s: too many logins are under way", p.Display), "try again in a moment"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		r.Text = fmt.Sprintf("login with %s: the provider does not answer in time", p.Display)
	}

	return r
}

// maxQuoted is how much of a provider's text is in a message.
const maxQuoted = 200

// shorten returns a provider's text in the form of messages: one line of limited length.
func shorten(s string) string {
	quoted := quote(s)

	// Only text in quotes needs its own quotes escaped.
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// quote is shorten in quotes.
func quote(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "…"
	}
	return strconv.Quote(s)
}
