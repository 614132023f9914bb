package accesscontrol

import (
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// tokenHandlers serve tokens, except for sessions and login links.
type tokenHandlers struct {
	*records
	guard *tokenGuard
	node  string // the name of this node
}

const (
	newTokenAbout = "For tokens of your own subject you need no right, but your own token must have no scope and be no session. Tokens of other subjects require grant on access or, for service:NAME, grant on the bindings of the namespaces in the scope and of all others in which the service has rights. " +
		"You must hold the whole scope of such a token until it ends. Only this answer contains the secret."
	delTokenAbout = "No change that its holder has requested is made afterwards. This works while etcd is full. The sessions of the token end with it. Of its own subject's tokens, a session or a token with a scope can delete only itself, and a session also the other sessions and login links of the same login or token."
)

// Routes returns the operations on tokens.
func (h *tokenHandlers) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "list-tokens", Method: http.MethodGet, Path: "/v1/tokens", Tag: "access", Summary: "List the tokens that you may see, without their secrets",
			Description: "Lists the tokens of your own subject, and those whose scope lies in namespaces whose bindings you may read. If you may read access, lists all tokens. Sessions and login links are listed with sessions=true.",
			Status:      200, Answer: reflect.TypeFor[client.List[task.Token]](), Handler: httpapi.Query(h.listTokens)},
		{ID: "create-token", Method: http.MethodPost, Path: "/v1/tokens", Tag: "access", Summary: "Create a token", Description: newTokenAbout,
			Body: jsonBody(reflect.TypeFor[client.TokenRequest]()), Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{404, 409}, Handler: httpapi.NoQuery(h.createToken)},
		{ID: "get-token", Method: http.MethodGet, Path: "/v1/tokens/{token}", Tag: "access", Summary: "Read a token, without its secret",
			Description: "You see your own tokens. To see those of others, you need read on access.",
			Status:      200, Answer: reflect.TypeFor[task.Token](), Handler: httpapi.NoQuery(h.getToken)},
		{ID: "delete-token", Method: http.MethodDelete, Path: "/v1/tokens/{token}", Tag: "access", Summary: "Delete a token", Description: delTokenAbout,
			Writes: true, Status: 204, Errors: []int{409}, Handler: httpapi.NoQuery(h.deleteToken)},
	}
}

// maxTokenAge is how long the token of a person may last at most.
const maxTokenAge = 90 * 24 * time.Hour

// tokenQuery are the parameters of the list of tokens.
type tokenQuery struct {
	Subject  string `query:"subject" doc:"Only tokens that act as this subject."`
	Sessions bool   `query:"sessions" default:"false" doc:"Also sessions and login links that have not ended."`
	httpapi.PageQuery
}

// scopeNamespaces are the namespaces in which a token can do something at most; none if that is the whole cluster.
func scopeNamespaces(t *task.Token) []string {
	if t.Scope == nil {
		return nil
	}
	return t.Scope.Namespaces
}

// isOwn reports whether a token acts as the caller's subject.
func isOwn(c *httpapi.Call, t *task.Token) bool {
	return t.Subject == httpapi.CallerOf(c.Context()).Who
}

// isLimited reports whether the caller uses a session or a token with a scope. Such a token neither creates nor deletes
// other tokens of its subject without the right to do so: a token that leaks must not outlive its own deletion.
func isLimited(c *httpapi.Call, v *authority.View) bool {
	t, ok := v.Token(httpapi.CallerOf(c.Context()).Token)
	return ok && (t.Scope != nil || t.Kind != task.TokenKindToken)
}

// isSibling reports whether the caller uses a session, and t is a session or a login link of the same subject with the same
// origin: the same token, or a login with an identity provider. So people without a token can end sessions that they have
// forgotten elsewhere. A session of a token with a scope cannot end sessions of other tokens.
func isSibling(c *httpapi.Call, v *authority.View, t *task.Token) bool {
	used, ok := v.Token(httpapi.CallerOf(c.Context()).Token)
	return ok && t.ID != "" && isOwn(c, t) && used.Kind == task.TokenKindSession && t.Kind != task.TokenKindToken && t.Parent == used.Parent
}

// canSeeToken reports whether the caller may read a token's record. A token whose scope is some namespaces shows
// none of the other tokens of its subject without the right to read them: what the subject does elsewhere is not
// its holder's business.
func (h *tokenHandlers) canSeeToken(c *httpapi.Call, v *authority.View, t *task.Token) bool {
	used, _ := v.Token(httpapi.CallerOf(c.Context()).Token)
	if isOwn(c, t) && (len(scopeNamespaces(&used)) == 0 || t.ID == used.ID) {
		return true
	}

	return h.callerMay(c, v, access.Read, access.Access, "") || h.callerMayInEach(c, v, access.Read, scopeNamespaces(t))
}

// requireToken refuses to create or delete a token unless the caller may.
//
// A token of somebody else gives the caller's deeds another name. So grant on bindings in namespaces is enough only
// for services, which are not people: their tokens are the business of the namespaces that they work in. It is not
// enough for a new token of a service that also has rights elsewhere: the administrators there have not agreed.
func (h *tokenHandlers) requireToken(c *httpapi.Call, rights *httpapi.Rights, t *task.Token) error {
	return rights.Check(func(v *authority.View) error {
		switch {
		case isOwn(c, t) && (!isLimited(c, v) || t.ID != "" && t.ID == httpapi.CallerOf(c.Context()).Token):
			return nil
		case isSibling(c, v, t):
			return nil
		case h.callerMay(c, v, access.Grant, access.Access, ""):
			return nil
		case len(scopeNamespaces(t)) > 0 && strings.HasPrefix(t.Subject, access.KindService+":"):
			if err := rights.Refusal(v, needsOfBinding(access.Grant, &task.Binding{Namespaces: scopeNamespaces(t)})...); err != nil {
				return err
			}
			if t.ID == "" && !isOwn(c, t) && v.HoldsOutsideGrant(caller(c), t.Subject, h.now()) {
				return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "%s may not create a token for %s, which has rights where %s may not grant bindings",
					httpapi.CallerOf(c.Context()).Name(), t.Subject, httpapi.CallerOf(c.Context()).Name()).
					WithHint("use a service that has rights only in these namespaces; a caller with grant on access may create the token")
			}
			return nil
		case isOwn(c, t):
			return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "a session or a token with a scope can neither create tokens nor delete other tokens of its subject").
				WithHint("use a token without a scope")
		}

		return rights.Refusal(v, access.Need{Verb: access.Grant, Kind: access.Access})
	})
}

// listTokens serves the tokens that the caller may see.
func (h *tokenHandlers) listTokens(c *httpapi.Call, q tokenQuery) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	var list []task.Token
	for _, t := range v.Tokens() {
		isListed := t.Kind == task.TokenKindToken || q.Sessions && v.TokenProblem(access.Caller{Subject: t.Subject, Token: t.ID}, h.now()) == ""
		if isListed && (q.Subject == "" || t.Subject == q.Subject) && h.canSeeToken(c, v, &t) {
			list = append(list, t)
		}
	}

	return pageOf(c, q.PageQuery, list, func(t task.Token) string { return t.ID })
}

// getToken serves the record of one token.
func (h *tokenHandlers) getToken(c *httpapi.Call) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	id := c.Request.PathValue("token")
	t, ok := v.Token(id)
	if !ok || !h.canSeeToken(c, v, &t) {
		return httpapi.Answer{}, notFound("token", task.Quote(id))
	}

	return httpapi.Answer{Status: http.StatusOK, Body: t}, nil
}

// createToken serves the creation of a token.
func (h *tokenHandlers) createToken(c *httpapi.Call) (httpapi.Answer, error) {
	var ask client.TokenRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	if ask.Subject == "" {
		ask.Subject = httpapi.CallerOf(c.Context()).Who
	}

	secret, t := authority.NewSecret()
	t.Subject, t.Scope, t.Until, t.Reason, t.CreatedAt, t.CreatedBy = ask.Subject, ask.Scope, ask.Until, ask.Reason, h.now.Stamp(), c.Actor()

	var err error
	if t.CIDRs, err = parseCIDRs(ask.CIDRs); err != nil {
		return httpapi.Answer{}, err
	}
	if err := h.checkToken(&t.Token); err != nil {
		return httpapi.Answer{}, err
	}

	uid := ""
	if t.Scope != nil {
		uid = t.Scope.RoleUID
	}

	// The record has no id yet for those who judge it: it is nobody's own token.
	asked := t.Token
	asked.ID = ""

	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := h.requireToken(c, rights, &asked); err != nil {
			return err
		}

		if t.Scope != nil {
			scope := *t.Scope
			var err error
			if scope.RoleUID, err = roleUID(v, "scope.role", scope.Role, uid); err != nil {
				return err
			}
			t.Scope = &scope
		}

		if err := h.checkTokenCount(c, v, t.Subject); err != nil {
			return err
		}

		if err := rights.Check(func(v *authority.View) error {
			if v.Disabled(t.Subject) {
				return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s is disabled", t.Subject)
			}
			excess, err := v.CoversToken(caller(c), t.Token, h.now())
			return refuseExcess(c, excess, err)
		}); err != nil {
			return err
		}

		if err := h.guard.countTokenChange(c, v); err != nil {
			return err
		}

		rights.Because(t.Reason)
		rights.Describe(store.DescribeToken(nil, &t.Token))

		return httpapi.About(t.ID, h.store.As(rights).CreateToken(c.Context(), t))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(t.ID) > 0 })

	return httpapi.Answer{Status: http.StatusCreated, Body: client.NewToken{Token: t.Token, Secret: secret}}, nil
}

// checkToken checks a token that somebody wants to create.
func (h *tokenHandlers) checkToken(t *task.Token) error {
	if strings.HasPrefix(t.Subject, access.KindUnix+":") {
		return task.Invalid(task.CodeRequired, "subject", "is required: users of the host need no token")
	}
	if err := access.CheckActor("subject", t.Subject); err != nil {
		return err
	}
	if strings.HasPrefix(t.Subject, access.KindCert+":") {
		return task.Invalid(task.CodeBadValue, "subject", "%s: a token must act as user:NAME or service:NAME; holders of a certificate need no token", task.Quote(t.Subject))
	}

	if t.Scope != nil {
		if err := access.CheckScope("scope", t.Scope); err != nil {
			return err
		}
	}

	if len(t.Reason) > task.MaxReason {
		return task.Invalid(task.CodeTooLong, "reason", "is %d bytes long; at most %d are allowed", len(t.Reason), task.MaxReason)
	}
	if err := task.CheckDescription("reason", t.Reason); err != nil {
		return err
	}

	if err := access.CheckEnd("until", t.Until, h.now()); err != nil {
		return err
	}

	isPerson := strings.HasPrefix(t.Subject, access.KindUser+":")
	switch {
	case t.Until.IsZero() && (t.Scope == nil || t.Scope.Role != access.RoleViewer):
		return task.Invalid(task.CodeRequired, "until", "is required unless the role of the scope is viewer: a token that can change something must expire")
	case isPerson && !t.Until.IsZero() && t.Until.Sub(h.now()) > maxTokenAge:
		return task.Invalid(task.CodeOutOfRange, "until", "%s is more than 90 days ahead, the maximum for people", t.Until.Format(time.RFC3339))
	}

	// The node compares ends with its own clock.
	if !t.Until.IsZero() {
		return h.guard.requireClock()
	}

	return nil
}

// parseCIDRs checks networks, and returns them in their usual form.
func parseCIDRs(cidrs []string) ([]string, error) {
	if len(cidrs) > task.MaxCIDRs {
		return nil, task.Invalid(task.CodeTooMany, "cidrs", "has %d networks; at most %d are allowed", len(cidrs), task.MaxCIDRs)
	}

	var list []string
	for i, s := range cidrs {
		field := fmt.Sprintf("cidrs[%d]", i)
		prefix, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			return nil, task.Invalid(task.CodeBadValue, field, "%s is not a network, such as 10.0.0.0/8, 192.0.2.7/32 or 2001:db8::/32", task.Quote(s))
		case prefix.Addr().Is4In6():
			return nil, task.Invalid(task.CodeBadValue, field, "%s: use IPv4 notation for an IPv4 network", task.Quote(s))
		case prefix != prefix.Masked():
			return nil, task.Invalid(task.CodeBadValue, field, "%s has bits after its prefix; write %s", task.Quote(s), prefix.Masked())
		}

		list = append(list, prefix.String())
	}

	return list, nil
}

// deleteToken serves the deletion of a token.
func (h *tokenHandlers) deleteToken(c *httpapi.Call) (httpapi.Answer, error) {
	id := c.Request.PathValue("token")

	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		t, ok := v.Token(id)
		if !ok || !h.canSeeToken(c, v, &t) {
			return notFound("token", task.Quote(id))
		}
		if err := h.requireToken(c, rights, &t); err != nil {
			return err
		}

		dropped := func(what, dropped string) bool { return what == "token" && dropped == id }
		if err := h.keepAdmin(rights, func(v *authority.View) bool { return v.LastAdmin(h.now(), dropped) }); err != nil {
			return err
		}

		if err := h.guard.countTokenChange(c, v); err != nil {
			return err
		}

		rights.Describe(store.DescribeToken(&t, nil))

		return httpapi.About(id, h.store.As(rights).DeleteToken(c.Context(), id, v.Created(id)))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(id) == 0 })

	return httpapi.Answer{Status: http.StatusNoContent}, nil
}

// Limits of tokens. Every node that serves the API has all of them in memory.
const (
	// maxTokens is the maximum number of tokens of one subject that have not expired.
	maxTokens = 64
	// maxCreatedTokens is the maximum number of tokens that were created by one subject that does not administer the
	// cluster. Expired ones make room for a new one: they are deleted then, the longest expired first.
	maxCreatedTokens = 500
	// maxMadeRoom is how many expired tokens a request deletes at most to make room for a new one.
	maxMadeRoom = 50
	// maxTokenChanges is how many tokens one subject that does not administer the cluster may create or delete within a
	// second on this node.
	maxTokenChanges = 5
)

// tokenGuard decides whether this node may create and delete tokens now. The handlers of tokens and of sessions share one.
type tokenGuard struct {
	now        httpapi.Clock
	clockFault func() error
	changes    httpapi.SubjectRate // creations and deletions of tokens
}

// countTokenChange refuses to create or delete a token if the caller has changed too many within the last second.
// Administrators are not limited, so that they can revoke many tokens at once.
func (g *tokenGuard) countTokenChange(c *httpapi.Call, v *authority.View) error {
	subject := caller(c)
	if v.Administers(subject, g.now()) || g.changes.Allow(subject.Subject, maxTokenChanges, g.now()) {
		return nil
	}

	return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "%s has created or deleted %d tokens within the last second, the maximum",
		httpapi.CallerOf(c.Context()).Name(), maxTokenChanges).WithHint("try again in a second")
}

// requireClock refuses to create a token that expires while this node's clock is not trusted: a node compares ends with
// its own clock.
func (g *tokenGuard) requireClock() error {
	err := g.clockFault()
	if err == nil {
		return nil
	}

	return httpapi.Fail(http.StatusServiceUnavailable, client.CodeClock, "this node's clock is not trusted: %s", err).
		WithHint("use another node, or correct this node's clock")
}

// checkTokenCount refuses a new token of a subject if there are too many of the subject, or by the caller. It deletes
// expired tokens that the caller has created if they would leave no room for the new one: they count for nothing, but
// a caller that creates tokens with a lifetime of a second must not fill the memory of all nodes with them.
func (h *tokenHandlers) checkTokenCount(c *httpapi.Call, v *authority.View, subject string) error {
	who, now := httpapi.CallerOf(c.Context()), h.now()

	live, created := 0, 0
	var expired []task.Token // created by the caller
	for t := range v.EachToken() {
		if t.Kind != task.TokenKindToken {
			continue // a token's sessions have a limit of their own
		}

		isLive := t.Until.IsZero() || now.Before(t.Until.Time)
		if t.Subject == subject && isLive {
			live++
		}

		switch {
		case !t.CreatedBy.Is(who.Who):
		case isLive:
			created++
		default:
			expired = append(expired, *t)
		}
	}

	if live >= maxTokens {
		return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s has %d tokens; at most %d are allowed", task.Quote(subject), live, maxTokens).
			WithHint("delete tokens that are no longer used")
	}
	if v.Administers(caller(c), now) {
		return nil
	}
	if created >= maxCreatedTokens {
		return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s has created %d tokens that are still valid; at most %d are allowed", who.Name(), created, maxCreatedTokens).
			WithHint("delete tokens that are no longer used")
	}

	return h.makeRoom(c, v, expired, created+len(expired)-(maxCreatedTokens-1))
}

// makeRoom deletes some of the expired tokens, the longest expired first. Without a trusted clock, this node cannot
// know that they have expired.
func (h *tokenHandlers) makeRoom(c *httpapi.Call, v *authority.View, expired []task.Token, excess int) error {
	if excess <= 0 {
		return nil
	}
	if err := h.guard.requireClock(); err != nil {
		return err
	}

	slices.SortFunc(expired, func(a, b task.Token) int { return a.Until.Compare(b.Until.Time) })

	var room []store.ExpiredToken
	for _, t := range expired[:min(excess, maxMadeRoom)] {
		room = append(room, store.ExpiredToken{Token: t, Mod: v.Mod(h.store.Keys().Token(t.ID))})
	}

	_, err := h.store.DeleteExpiredTokens(c.Context(), h.node, room, h.now())

	return err
}
