package accesscontrol

import (
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Limits of access records. Every node that serves the API has all of them in memory, and compiles them again after
// each change.
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
	// maxBindings is the maximum number of bindings in the cluster.
	maxBindings = 2000
	// reservedBindings is how many of them only administrators of the cluster can create. Whoever may grant rights can
	// create further subjects, each with its own maxCreated, and they must not keep an administrator from granting.
	reservedBindings = 200
	// maxCreated is the maximum number of bindings, and of roles, that were created by one subject that does not
	// administer the cluster.
	maxCreated = 500
)

// countTokenChange refuses to create or delete a token if the caller has changed too many within the last second.
// Administrators are not limited, so that they can revoke many tokens at once.
func (h *Handlers) countTokenChange(c *httpapi.Call, v *authority.View) error {
	subject := caller(c)
	if v.Administers(subject, h.Now()) || h.tokenChanges.Allow(subject.Subject, maxTokenChanges, h.Now()) {
		return nil
	}

	return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "%s has created or deleted %d tokens within the last second, the maximum",
		httpapi.CallerOf(c.Context()).Name(), maxTokenChanges).WithHint("try again in a second")
}

// checkTokenCount refuses a new token of a subject if there are too many of the subject, or by the caller. It deletes
// expired tokens that the caller has created if they would leave no room for the new one: they count for nothing, but
// a caller that creates tokens with a lifetime of a second must not fill the memory of all nodes with them.
func (h *Handlers) checkTokenCount(c *httpapi.Call, v *authority.View, subject string) error {
	who, now := httpapi.CallerOf(c.Context()), h.Now()

	live, created := 0, 0
	var expired []task.Token // created by the caller
	for _, t := range v.Tokens() {
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
			expired = append(expired, t)
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

// checkBindingCount refuses a new binding if the cluster has too many.
func (h *Handlers) checkBindingCount(c *httpapi.Call, v *authority.View) error {
	n, rule := len(v.Bindings()), ""

	switch unreserved := maxBindings - reservedBindings; {
	case n >= maxBindings:
		rule = fmt.Sprintf("at most %d are allowed", maxBindings)
	case n >= unreserved && !v.Administers(caller(c), h.Now()):
		rule = fmt.Sprintf("after %d, only an administrator of the cluster can create more", unreserved)
	default:
		return nil
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "the cluster has %d bindings; %s", n, rule).
		WithHint("delete bindings that are no longer used")
}

// checkCreated refuses a new record if the caller has created too many of its kind. createdBy has the creators of those
// that exist.
func (h *Handlers) checkCreated(c *httpapi.Call, v *authority.View, kind string, createdBy iter.Seq[string]) error {
	if v.Administers(caller(c), h.Now()) {
		return nil
	}

	who, created := httpapi.CallerOf(c.Context()), 0
	for by := range createdBy {
		if wasWrittenBy(by, who.Who) {
			created++
		}
	}
	if created < maxCreated {
		return nil
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s has created %d %s that still exist; at most %d are allowed", who.Name(), created, kind, maxCreated).
		WithHint("delete those that are no longer used")
}

// creators yields who has created each record of a list.
func creators[T any](list []T, createdBy func(T) string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, r := range list {
			if !yield(createdBy(r)) {
				return
			}
		}
	}
}

// makeRoom deletes some of the expired tokens, the longest expired first. Without a trusted clock, this node cannot
// know that they have expired.
func (h *Handlers) makeRoom(c *httpapi.Call, v *authority.View, expired []task.Token, excess int) error {
	if excess <= 0 {
		return nil
	}
	if err := h.requireClock(); err != nil {
		return err
	}

	slices.SortFunc(expired, func(a, b task.Token) int { return a.Until.Compare(b.Until.Time) })

	var room []store.ExpiredToken
	for _, t := range expired[:min(excess, maxMadeRoom)] {
		room = append(room, store.ExpiredToken{ID: t.ID, Mod: v.Mod(h.Store.Keys().Token(t.ID))})
	}

	_, err := h.Store.DeleteExpiredTokens(c.Context(), h.Node, room, h.Now())

	return err
}

// wasWrittenBy reports whether a record says that a subject wrote it. Records have the format of
// httpapi.Caller.Actor: the subject, and then its token.
func wasWrittenBy(by, subject string) bool {
	name := httpapi.Caller{Who: subject}.Name()
	return by == name || strings.HasPrefix(by, name+" (")
}
