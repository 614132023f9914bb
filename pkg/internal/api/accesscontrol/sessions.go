package accesscontrol

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// sessionHandlers serve sessions and login links, which are tokens for a browser.
type sessionHandlers struct {
	*records
	guard   *tokenGuard
	node    string        // the name of this node
	address func() string // the URL of its API; "" while it does not listen
}

const (
	newSessionAbout = "A session is a token for a browser. It may do what your token may, ends after eight hours or when your token does, and is not accepted after your token was deleted. " +
		"A token has at most 20 sessions; another one ends the oldest. A session cannot create sessions. Only this answer contains the secret."
	newLinkAbout = "A login link is a token that can only become a session of your token, once, within ten minutes. path is what to open in a browser. A token has at most 20 login links; another one replaces the oldest. " +
		"Root on the node's host needs no token, over the node's unix socket. That link and its session belong to unix:root, only this node accepts them, and the session ends after an hour."
	useLinkAbout = "The credential of the request must be the secret of the login link. It is deleted in the transaction that creates the session."
)

// Routes returns the operations on sessions and login links.
func (h *sessionHandlers) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "create-session", Method: http.MethodPost, Path: "/v1/sessions", Tag: "access", Summary: "Create a session of your token", Description: newSessionAbout,
			Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.createSession)},
		{ID: "delete-session", Method: http.MethodDelete, Path: "/v1/sessions/current", Tag: "access", Summary: "End the session of this request: log out",
			Description: "No change that the session has requested is made afterwards. This works while etcd is full.",
			Writes:      true, Status: 204, Errors: []int{409}, Handler: httpapi.NoQuery(h.deleteSession)},
		{ID: "create-login-link", Method: http.MethodPost, Path: "/v1/login-links", Tag: "access", Summary: "Create a login link of your token, or of root on the node's host", Description: newLinkAbout,
			Writes: true, Status: 201, Answer: reflect.TypeFor[client.LoginLink](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.createLink)},
		{ID: "use-login-link", Method: http.MethodPost, Path: "/v1/login-links:use", Tag: "access", Summary: "Turn a login link into a session", Description: useLinkAbout,
			TakesLink: true, Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.useLink)},
	}
}

const (
	// sessionAge is how long a session lasts at most, and linkAge how long a login link does.
	sessionAge = 8 * time.Hour
	linkAge    = 10 * time.Minute
	// rootSessionAge is how long a session of root lasts at most. There is no token whose deletion would end it.
	rootSessionAge = time.Hour
	// maxSessions is the maximum number of sessions that one token has, and of login links. One more ends the oldest. The
	// limit is for each token, so that the holder of a token with a scope cannot end the sessions of its subject's others.
	// That of root is for each node, so that root of one host cannot end the sessions of root of another.
	maxSessions = 20
	// maxRemovedSessions is how many sessions that have ended one transaction deletes at most.
	maxRemovedSessions = 40
)

// createSession serves POST /v1/sessions: a session of the caller's token.
func (h *sessionHandlers) createSession(c *httpapi.Call) (httpapi.Answer, error) {
	secret, t, err := h.createOfToken(c, task.TokenKindSession, sessionAge)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusCreated, Body: client.NewToken{Token: t, Secret: secret}}, nil
}

// createLink serves POST /v1/login-links: a login link of the caller's token, or of root on this node's host.
func (h *sessionHandlers) createLink(c *httpapi.Call) (httpapi.Answer, error) {
	create := func() (string, task.Token, error) { return h.createOfToken(c, task.TokenKindLink, linkAge) }
	if httpapi.CallerOf(c.Context()).IsHostRoot() {
		create = func() (string, task.Token, error) { return h.createOfRoot(c) }
	}

	secret, t, err := create()
	if err != nil {
		return httpapi.Answer{}, err
	}

	link := client.LoginLink{NewToken: client.NewToken{Token: t, Secret: secret}, Path: client.LoginLinkPath + "#" + secret}
	if address := h.address(); address != "" {
		link.URL = address + link.Path
	}

	return httpapi.Answer{Status: http.StatusCreated, Body: link}, nil
}

// createOfToken creates a session or a login link whose parent is the caller's token. Everybody who has a token may, also
// if the token has a scope: the session has the same scope, and ends with the token.
func (h *sessionHandlers) createOfToken(c *httpapi.Call, kind string, age time.Duration) (secret string, t task.Token, err error) {
	if err := h.guard.requireClock(); err != nil {
		return "", t, err
	}

	secret, made := authority.NewSecret()
	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Check(func(v *authority.View) error { return parentFault(c, v) }); err != nil {
			return err
		}
		if err := h.guard.countTokenChange(c, v); err != nil {
			return err
		}

		parent, _ := v.Token(httpapi.CallerOf(c.Context()).Token)
		h.inheritFromParent(c, &made, parent, kind, age)
		rights.Describe(store.DescribeToken(nil, &made.Token))

		return httpapi.About(made.ID, h.store.As(rights).CreateSession(c.Context(), store.NewSession{Token: made, Remove: h.sessionsToRemove(v, made)}))
	})
	if err != nil {
		return "", t, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(made.ID) > 0 })

	return secret, made.Token, nil
}

// createOfRoot creates a login link of root on this node's host, who has no token that could be its parent. A browser cannot
// open the unix socket, so the link stands for what the socket shows: that the caller is root here. Therefore only this node
// accepts it and its session, for a short time. The session does what root may do, except what needs the socket itself,
// such as resetting access.
func (h *sessionHandlers) createOfRoot(c *httpapi.Call) (secret string, t task.Token, err error) {
	if err := h.guard.requireClock(); err != nil {
		return "", t, err
	}

	secret, made := authority.NewSecret()
	made.Kind, made.Subject, made.Node = task.TokenKindLink, access.RootSubject, h.node
	made.CreatedAt, made.CreatedBy, made.Until = h.now.Stamp(), c.Actor(), task.At(h.now().Add(linkAge))

	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
			return err
		}

		rights.Describe(store.DescribeToken(nil, &made.Token))
		n := store.NewSession{Token: made, Remove: h.sessionsToRemove(v, made)}

		return httpapi.About(made.ID, h.store.As(rights).CreateSession(c.Context(), n))
	})
	if err != nil {
		return "", t, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(made.ID) > 0 })

	return secret, made.Token, nil
}

// useLink serves POST /v1/login-links:use: the link, which is the credential of the request, becomes a session.
func (h *sessionHandlers) useLink(c *httpapi.Call) (httpapi.Answer, error) {
	if err := h.guard.requireClock(); err != nil {
		return httpapi.Answer{}, err
	}

	id := httpapi.CallerOf(c.Context()).Token
	secret, made := authority.NewSecret()
	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Check(func(v *authority.View) error { return requireKind(c, v, task.TokenKindLink) }); err != nil {
			return err
		}

		link, _ := v.Token(id)
		if link.Subject == access.RootSubject { // without a parent
			made.Kind, made.Subject, made.Node = task.TokenKindSession, link.Subject, link.Node
			made.CreatedAt, made.CreatedBy, made.Until = h.now.Stamp(), c.Actor(), task.At(h.now().Add(rootSessionAge))
		} else {
			parent, _ := v.Token(link.Parent)
			h.inheritFromParent(c, &made, parent, task.TokenKindSession, sessionAge)
		}

		rights.Describe(store.DescribeToken(nil, &made.Token))
		n := store.NewSession{Token: made, Remove: h.sessionsToRemove(v, made)}

		return httpapi.About(made.ID, h.store.As(rights).UseLink(c.Context(), id, v.Created(id), n))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(made.ID) > 0 })

	return httpapi.Answer{Status: http.StatusCreated, Body: client.NewToken{Token: made.Token, Secret: secret}}, nil
}

// deleteSession serves DELETE /v1/sessions/current: the caller's session ends.
func (h *sessionHandlers) deleteSession(c *httpapi.Call) (httpapi.Answer, error) {
	id := httpapi.CallerOf(c.Context()).Token
	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Check(func(v *authority.View) error { return requireKind(c, v, task.TokenKindSession) }); err != nil {
			return err
		}

		if t, ok := v.Token(id); ok {
			rights.Describe(store.DescribeToken(&t, nil))
		}

		return httpapi.About(id, h.store.As(rights).DeleteToken(c.Context(), id, v.Created(id)))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(id) == 0 })

	return httpapi.Answer{Status: http.StatusNoContent}, nil
}

// inheritFromParent completes the record of a session or a link: it may do what its parent may, from where its parent may,
// and ends when its parent does, or earlier.
func (h *sessionHandlers) inheritFromParent(c *httpapi.Call, made *record.Token, parent task.Token, kind string, age time.Duration) {
	now := h.now()
	made.Kind, made.Parent, made.Subject, made.Scope, made.CIDRs = kind, parent.ID, parent.Subject, parent.Scope, parent.CIDRs
	made.CreatedAt, made.CreatedBy, made.Until = h.now.Stamp(), c.Actor(), task.At(now.Add(age))
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
			WithHint("use a token: carillon token create --for user:NAME. Root on the host of a node needs none for: sudo carillon ui")
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
// of the others if there are too many. Without a parent, they are the sessions of a subject that have none; those of root are
// counted for each node.
func (h *sessionHandlers) sessionsToRemove(v *authority.View, made record.Token) []string {
	var live, remove []string
	for t := range v.EachToken() {
		if t.Subject != made.Subject || t.Parent != made.Parent || t.Kind != made.Kind || t.Node != made.Node {
			continue
		}

		if v.TokenProblem(access.Caller{Subject: t.Subject, Token: t.ID}, h.now()) == "" {
			live = append(live, t.ID)
		} else if len(remove) < maxRemovedSessions {
			remove = append(remove, t.ID)
		}
	}

	slices.SortFunc(live, func(a, b string) int { return int(v.Created(a) - v.Created(b)) })

	return append(remove, live[:max(0, len(live)-(maxSessions-1))]...)
}

// startSession creates the session of a person whom an OpenID Connect provider has identified. The session has no parent: it
// may do what the bindings of the person and of the person's groups at this login allow, for at most eight hours.
//
// The call must be one of that person (see httpapi.Call.Become). It has no credential that its transaction could compare.
// The transaction compares the fence, so that the session is created only while the person is not disabled, and the person or
// one of the groups has a binding.
func (h *sessionHandlers) startSession(c *httpapi.Call, id oidclogin.Identity) (client.NewToken, error) {
	if err := h.guard.requireClock(); err != nil {
		return client.NewToken{}, err
	}

	secret, made := authority.NewSecret()
	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		made.Groups = chooseGroups(v, id.Groups)
		err := rights.Check(func(v *authority.View) error {
			if !v.HoldsSomething(id.Subject, made.Groups, h.now()) {
				return noAccess(id)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := h.guard.countTokenChange(c, v); err != nil {
			return err
		}

		made.Kind, made.Subject, made.Name, made.Mail = task.TokenKindSession, id.Subject, id.Name, id.Mail
		made.CreatedAt, made.CreatedBy, made.Until = h.now.Stamp(), c.Actor(), task.At(h.now().Add(sessionAge))
		rights.Describe(store.DescribeToken(nil, &made.Token))
		n := store.NewSession{Token: made, Remove: h.sessionsToRemove(v, made)}

		return httpapi.About(made.ID, h.store.As(rights).CreateSession(c.Context(), n))
	})
	if err != nil {
		return client.NewToken{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(made.ID) > 0 })

	return client.NewToken{Token: made.Token, Secret: secret}, nil
}

// chooseGroups returns the groups that the record of a session keeps. If a person is in very many groups, those that have
// a binding are chosen first.
func chooseGroups(v *authority.View, groups []string) []string {
	if len(groups) <= task.MaxLoginGroups {
		return groups
	}

	bound := map[string]bool{}
	for _, b := range v.Bindings() {
		for _, s := range b.Subjects {
			bound[s] = true
		}
	}

	list := slices.Clone(groups)
	slices.SortStableFunc(list, func(a, b string) int {
		switch {
		case bound[a] && !bound[b]:
			return -1
		case bound[b] && !bound[a]:
			return 1
		}
		return 0
	})
	list = list[:task.MaxLoginGroups]
	slices.Sort(list)

	return list
}

// noAccess returns the failure for a person who has signed in and has no binding.
func noAccess(id oidclogin.Identity) *httpapi.Failure {
	who := id.Subject
	if shown := strings.TrimSpace(id.Name + " " + id.Mail); shown != "" {
		who += " (" + shown + ")"
	}

	groups := "this login has no groups"
	if len(id.Groups) > 0 {
		const most = 10
		groups = "the groups of this login are " + strings.Join(id.Groups[:min(most, len(id.Groups))], ", ")
		if more := len(id.Groups) - most; more > 0 {
			groups += fmt.Sprintf(" and %d more", more)
		}
	}

	return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "you are signed in as %s, but have no access to this cluster: no binding names you or your groups; %s", who, groups).
		WithHint("ask an administrator of the cluster to give you a role with carillon access grant, and then sign in again")
}
