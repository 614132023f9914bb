// Package logins contains the API handlers with which people sign in with OpenID Connect providers (see package oidclogin).
//
// The requests need no token, so each of them is counted for the address that it comes from, before it does anything. A
// login that is refused reads and writes nothing in etcd; it is counted, logged and recorded like a wrong token. The
// only write of a login is that of its session, after the provider has confirmed who the person is. It commits only while
// that person, or one of the person's groups, has a binding.
package logins

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve logins. They are safe for concurrent use.
type Handlers struct {
	Logins *oidclogin.Logins // nil: there are no providers
	// Redirect returns the URL at which the answers of providers arrive.
	Redirect func(provider string) (string, error)
	// Ready returns why this node serves no caller now.
	Ready func() error
	// Judge says what people may do who have signed in, and CallerFor returns such a person as the caller of a request.
	Judge     *httpapi.Judge
	CallerFor func(r *http.Request, subject string) httpapi.Caller
	// StartSession creates the session of a person, who must be the caller of the call.
	StartSession func(c *httpapi.Call, id oidclogin.Identity) (client.NewToken, error)
	// MayTry counts a request of a client, and reports whether the client may send another one now.
	MayTry func(r *http.Request) bool
	// ReportRefusal counts, logs and records a login that was refused.
	ReportRefusal func(r *http.Request, who httpapi.Caller, f *httpapi.Failure)
}

const (
	beginWebAbout = "Answers with the URL of the provider to which the browser goes, and with the state of the login. The provider sends the browser back to the Web UI of the cluster. The login must be finished within ten minutes."
	finishAbout   = "The session ends after eight hours. It may do what the bindings of user:PROVIDER/SUB and those of the groups group:PROVIDER/NAME allow, where SUB and the names are those in the provider's ID token. Without any binding, the login is refused. Only this answer contains the secret of the session."
	beginDevAbout = "The person opens the page, enters the code, and confirms the login there. Meanwhile, poll with the handle."
	pollAbout     = "While nobody has confirmed the login, the answer has pending: true. " + finishAbout
)

// Routes returns the operations with their handlers.
func (h *Handlers) Routes() []*httpapi.Operation {
	body := func(t reflect.Type) *httpapi.Body {
		return &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: t}
	}
	begins, finishes := []int{400, 401, 404, 413, 415, 422, 429, 500, 503}, []int{400, 401, 403, 404, 413, 415, 422, 429, 500, 503, 504, 507}

	return []*httpapi.Operation{
		{ID: "list-login-providers", Public: true, Method: http.MethodGet, Path: "/v1/login/providers", Tag: "access", Summary: "List the OpenID Connect providers with which people can sign in",
			Description: "It needs no token. The list is empty if the nodes have no setting oidc.",
			Status:      200, Answer: reflect.TypeFor[client.List[client.LoginProvider]](), Errors: []int{400, 422, 500, 503}, Handler: httpapi.NoQuery(h.listProviders)},
		{ID: "begin-web-login", Public: true, Method: http.MethodPost, Path: "/v1/login/web", Tag: "access", Summary: "Begin a login in a browser", Description: beginWebAbout,
			Body: body(reflect.TypeFor[client.WebLoginRequest]()), Status: 200, Answer: reflect.TypeFor[client.WebLogin](), Errors: begins, Handler: httpapi.NoQuery(h.beginWeb)},
		{ID: "finish-web-login", Public: true, Method: http.MethodPost, Path: "/v1/login/web:finish", Tag: "access", Summary: "Finish a login in a browser: create a session", Description: finishAbout,
			Body: body(reflect.TypeFor[client.WebLoginAnswer]()), Writes: true, Status: 201, Answer: reflect.TypeFor[client.WebSession](), Errors: finishes, Handler: httpapi.NoQuery(h.finishWeb)},
		{ID: "begin-device-login", Public: true, Method: http.MethodPost, Path: "/v1/login/device", Tag: "access", Summary: "Begin a login from the command line", Description: beginDevAbout,
			Body: body(reflect.TypeFor[client.DeviceLoginRequest]()), Status: 200, Answer: reflect.TypeFor[client.DeviceLogin](), Errors: begins, Handler: httpapi.NoQuery(h.beginDevice)},
		{ID: "poll-device-login", Public: true, Method: http.MethodPost, Path: "/v1/login/device:poll", Tag: "access", Summary: "Create the session of a login from the command line, once it is confirmed", Description: pollAbout,
			Body: body(reflect.TypeFor[client.DevicePoll]()), Writes: true, Status: 200, Answer: reflect.TypeFor[client.DeviceSession](), Errors: finishes, Handler: httpapi.NoQuery(h.pollDevice)},
	}
}

// checkAdmission refuses a request of a client that has sent too many, and any request to a node that serves no callers.
func (h *Handlers) checkAdmission(c *httpapi.Call) error {
	c.Writer.Header().Set("Cache-Control", "no-store")

	if err := h.Ready(); err != nil {
		return err
	}
	if h.MayTry(c.Request) {
		return nil
	}

	return h.reportRefused(c, httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "too many logins have come from this address").WithHint("try again in a few seconds"))
}

// reportRefused reports a refused login, and returns its failure.
func (h *Handlers) reportRefused(c *httpapi.Call, err error) error {
	var r *oidclogin.Refusal
	if errors.As(err, &r) {
		err = failureOf(r)
	}

	f := httpapi.AsFailure(err)
	h.ReportRefusal(c.Request, httpapi.CallerOf(c.Context()), f)

	return f
}

// failureOf returns how the API answers a refusal.
func failureOf(r *oidclogin.Refusal) *httpapi.Failure {
	status, code := http.StatusUnauthorized, client.CodeUnauthorized
	switch r.Kind {
	case oidclogin.Away:
		status, code = http.StatusServiceUnavailable, client.CodeProviderAway
	case oidclogin.Misconfigured:
		status, code = http.StatusServiceUnavailable, client.CodeProviderSetup
	case oidclogin.Unknown:
		status, code = http.StatusNotFound, client.CodeNotFound
	case oidclogin.Busy:
		status, code = http.StatusServiceUnavailable, client.CodeBusy
	case oidclogin.Refused:
	}

	return httpapi.Fail(status, code, "%s", r.Text).WithHint(r.Hint).Because(r)
}

// providersTimeout limits how long the list of providers waits for those that are not known yet.
const providersTimeout = 3 * time.Second

// listProviders serves the list of providers.
func (h *Handlers) listProviders(c *httpapi.Call) (httpapi.Answer, error) {
	c.Writer.Header().Set("Cache-Control", "no-store")
	if err := h.Ready(); err != nil {
		return httpapi.Answer{}, err
	}

	ctx, cancel := context.WithTimeout(c.Context(), providersTimeout)
	defer cancel()

	var list []client.LoginProvider
	for _, p := range h.Logins.Providers(ctx) {
		list = append(list, client.LoginProvider{Name: p.Name, Display: p.Display, Device: p.Device, Problem: p.Problem})
	}

	return httpapi.All(list)
}

// beginWeb serves POST /v1/login/web.
func (h *Handlers) beginWeb(c *httpapi.Call) (httpapi.Answer, error) {
	if err := h.checkAdmission(c); err != nil {
		return httpapi.Answer{}, err
	}

	var ask client.WebLoginRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	redirect, err := h.Redirect(ask.Provider)
	if err != nil {
		return httpapi.Answer{}, httpapi.Fail(http.StatusServiceUnavailable, client.CodeProviderSetup, "this node cannot be the target of logins: %s", err)
	}

	login, err := h.Logins.BeginWeb(c.Context(), ask.Provider, redirect, ask.ReturnTo)
	if err != nil {
		return httpapi.Answer{}, h.reportRefused(c, err)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: client.WebLogin{URL: login.URL, State: login.Seal, Ends: task.At(login.Ends)}}, nil
}

// finishWeb serves POST /v1/login/web:finish.
func (h *Handlers) finishWeb(c *httpapi.Call) (httpapi.Answer, error) {
	if err := h.checkAdmission(c); err != nil {
		return httpapi.Answer{}, err
	}

	var ask client.WebLoginAnswer
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	answer, err := url.ParseQuery(ask.Answer)
	if err != nil {
		return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "answer", "%s is not a query", task.Quote(ask.Answer))
	}

	id, returnTo, err := h.Logins.FinishWeb(c.Context(), ask.Provider, ask.State, answer)
	if err != nil {
		return httpapi.Answer{}, h.reportRefused(c, err)
	}

	session, err := h.startSession(c, id)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusCreated, Body: client.WebSession{NewToken: session, ReturnTo: returnTo}}, nil
}

// beginDevice serves POST /v1/login/device.
func (h *Handlers) beginDevice(c *httpapi.Call) (httpapi.Answer, error) {
	if err := h.checkAdmission(c); err != nil {
		return httpapi.Answer{}, err
	}

	var ask client.DeviceLoginRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	login, err := h.Logins.BeginDevice(c.Context(), ask.Provider)
	if err != nil {
		return httpapi.Answer{}, h.reportRefused(c, err)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: client.DeviceLogin{
		Handle: login.Seal, Code: login.Code, Page: login.Page, PageForCode: login.PageForCode, Interval: int(login.Every.Seconds()), Ends: task.At(login.Ends),
	}}, nil
}

// pollDevice serves POST /v1/login/device:poll.
func (h *Handlers) pollDevice(c *httpapi.Call) (httpapi.Answer, error) {
	if err := h.checkAdmission(c); err != nil {
		return httpapi.Answer{}, err
	}

	var ask client.DevicePoll
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	id, err := h.Logins.PollDevice(c.Context(), ask.Handle)
	var pending *oidclogin.Pending
	switch {
	case errors.As(err, &pending):
		return httpapi.Answer{Status: http.StatusOK, Body: client.DeviceSession{Pending: true, Slower: pending.Slower}}, nil
	case err != nil:
		return httpapi.Answer{}, h.reportRefused(c, err)
	}

	session, err := h.startSession(c, id)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusOK, Body: client.DeviceSession{Session: &session}}, nil
}

// startSession creates the session of a person who has signed in. A person who has no access counts as a refused login.
func (h *Handlers) startSession(c *httpapi.Call, id oidclogin.Identity) (client.NewToken, error) {
	c.Become(h.CallerFor(c.Request, id.Subject), h.Judge)

	session, err := h.StartSession(c, id)
	if f := httpapi.AsFailure(err); err != nil && (f.Status == http.StatusForbidden || f.Status == http.StatusUnauthorized) {
		return session, h.reportRefused(c, f)
	}

	return session, err
}
