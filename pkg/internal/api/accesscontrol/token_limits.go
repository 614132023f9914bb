package accesscontrol

import (
	"net/http"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

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
		case !wasWrittenBy(t.CreatedBy, who.Who):
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
