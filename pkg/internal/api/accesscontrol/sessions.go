package accesscontrol

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// sessionAge is how long a session lasts at most, and linkAge how long a login link does.
	sessionAge = 8 * time.Hour
	linkAge    = 10 * time.Minute
	// maxSessions is the maximum number of sessions that one token has, and of login links. One more ends the oldest. The
	// limit is for each token, so that the holder of a token with a scope cannot end the sessions of its subject's others.
	maxSessions = 20
	// maxRemovedSessions is how many sessions that have ended one transaction deletes at most.
	maxRemovedSessions = 40
)

// createSession serves POST /v1/sessions: a session of the caller's token.
func (h *Handlers) createSession(c *httpapi.Call) (httpapi.Answer, error) {
	secret, t, err := h.createOfToken(c, task.TokenKindSession, sessionAge)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusCreated, Body: client.NewToken{Token: t, Secret: secret}}, nil
}

// createLink serves POST /v1/login-links: a login link of the caller's token.
func (h *Handlers) createLink(c *httpapi.Call) (httpapi.Answer, error) {
	secret, t, err := h.createOfToken(c, task.TokenKindLink, linkAge)
	if err != nil {
		return httpapi.Answer{}, err
	}

	link := client.LoginLink{NewToken: client.NewToken{Token: t, Secret: secret}, Path: client.LoginPath + "?" + url.Values{"link": {secret}}.Encode()}

	return httpapi.Answer{Status: http.StatusCreated, Body: link}, nil
}

// createOfToken creates a session or a login link whose parent is the caller's token. Everybody who has a token may, also
// if the token has a scope: the session has the same scope, and ends with the token.
func (h *Handlers) createOfToken(c *httpapi.Call, kind string, age time.Duration) (secret string, t task.Token, err error) {
	if err := h.requireClock(); err != nil {
		return "", t, err
	}

	secret, made := authority.NewSecret()
	err = h.change(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Check(func(v *authority.View) error { return parentFault(c, v) }); err != nil {
			return err
		}
		if err := h.countTokenChange(c, v); err != nil {
			return err
		}

		parent, _ := v.Token(httpapi.CallerOf(c.Context()).Token)
		h.inherit(c, &made, parent, kind, age)

		return httpapi.About(made.ID, h.Store.As(rights).CreateSession(c.Context(), store.NewSession{Token: made, Remove: h.sessionsToRemove(v, parent.Subject, parent.ID, kind)}))
	})
	if err != nil {
		return "", t, err
	}

	h.settle(c, func(v *authority.View) bool { return v.Created(made.ID) > 0 })

	return secret, made.Token, nil
}

// useLink serves POST /v1/login-links:use: the link, which is the credential of the request, becomes a session.
func (h *Handlers) useLink(c *httpapi.Call) (httpapi.Answer, error) {
	if err := h.requireClock(); err != nil {
		return httpapi.Answer{}, err
	}

	id := httpapi.CallerOf(c.Context()).Token
	secret, made := authority.NewSecret()
	err := h.change(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Check(func(v *authority.View) error { return requireKind(c, v, task.TokenKindLink) }); err != nil {
			return err
		}

		link, _ := v.Token(id)
		parent, _ := v.Token(link.Parent)
		h.inherit(c, &made, parent, task.TokenKindSession, sessionAge)
		n := store.NewSession{Token: made, Remove: h.sessionsToRemove(v, parent.Subject, parent.ID, task.TokenKindSession)}

		return httpapi.About(made.ID, h.Store.As(rights).UseLink(c.Context(), id, v.Created(id), n))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.settle(c, func(v *authority.View) bool { return v.Created(made.ID) > 0 })

	return httpapi.Answer{Status: http.StatusCreated, Body: client.NewToken{Token: made.Token, Secret: secret}}, nil
}

// deleteSession serves DELETE /v1/sessions/current: the caller's session ends.
func (h *Handlers) deleteSession(c *httpapi.Call) (httpapi.Answer, error) {
	id := httpapi.CallerOf(c.Context()).Token
	err := h.change(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Check(func(v *authority.View) error { return requireKind(c, v, task.TokenKindSession) }); err != nil {
			return err
		}

		return httpapi.About(id, h.Store.As(rights).DeleteToken(c.Context(), id, v.Created(id)))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.settle(c, func(v *authority.View) bool { return v.Created(id) == 0 })

	return httpapi.Answer{Status: http.StatusNoContent}, nil
}

// inherit completes the record of a session or a link: it may do what its parent may, from where its parent may, and ends
// when its parent does, or earlier.
func (h *Handlers) inherit(c *httpapi.Call, made *record.Token, parent task.Token, kind string, age time.Duration) {
	now := h.Now()
	made.Kind, made.Parent, made.Subject, made.Scope, made.CIDRs = kind, parent.ID, parent.Subject, parent.Scope, parent.CIDRs
	made.CreatedAt, made.CreatedBy, made.Until = h.Now.Stamp(), c.Actor(), task.At(now.Add(age))
	if !parent.Until.IsZero() && parent.Until.Before(made.Until.Time) {
		made.Until = parent.Until
	}
}

// parentFault returns why the caller's credential cannot be the parent of a session.
func parentFault(c *httpapi.Call, v *authority.View) error {
	who := httpapi.CallerOf(c.Context())
	t, ok := v.Token(who.Token)

	switch {
	case who.Token == "":
		return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "%s has no token, so that it can have neither a session nor a login link", who.Name()).
			WithHint("use a token: carillon token create --for user:NAME")
	case !ok || t.Kind != task.TokenKindToken:
		return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "a session cannot create sessions and login links").
			WithHint("use the token with which you have logged in")
	}

	return nil
}

// requireKind refuses a request whose credential is of another kind.
func requireKind(c *httpapi.Call, v *authority.View, kind string) error {
	id := httpapi.CallerOf(c.Context()).Token
	what := map[string]string{task.TokenKindSession: "session", task.TokenKindLink: "login link"}[kind]

	t, ok := v.Token(id)
	switch {
	case ok && t.Kind == kind:
		return nil
	case !ok && id != "": // deleted since the caller was authenticated
		return httpapi.Fail(http.StatusUnauthorized, client.CodeUnauthorized, "the %s has ended, or was used already", what)
	}

	return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "the credential of the request is not a %s", what)
}

// sessionsToRemove returns the sessions or links of a token that a new one replaces: those that have ended, and the oldest
// of the others if there are too many. Without a parent, they are the sessions of a subject that have none.
func (h *Handlers) sessionsToRemove(v *authority.View, subject, parent, kind string) []string {
	var live, remove []string
	for _, t := range v.Tokens() {
		if t.Subject != subject || t.Parent != parent || t.Kind != kind {
			continue
		}

		if v.TokenProblem(access.Caller{Subject: t.Subject, Token: t.ID}, h.Now()) == "" {
			live = append(live, t.ID)
		} else if len(remove) < maxRemovedSessions {
			remove = append(remove, t.ID)
		}
	}

	slices.SortFunc(live, func(a, b string) int { return int(v.Created(a) - v.Created(b)) })

	return append(remove, live[:max(0, len(live)-(maxSessions-1))]...)
}

// requireClock refuses to create a token that expires while this node's clock is not trusted: a node compares ends with
// its own clock.
func (h *Handlers) requireClock() error {
	err := h.ClockFault()
	if err == nil {
		return nil
	}

	return httpapi.Fail(http.StatusServiceUnavailable, client.CodeClock, "this node's clock is not trusted: %s", err).
		WithHint("use another node, or correct this node's clock")
}
