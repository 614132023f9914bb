package authority_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var (
	simSessions    = []string{"s0", "s1", "s2", "s3"}
	simLinks       = []string{"l0", "l1"}
	simCredentials = slices.Concat(simTokens, simSessions, simSessions, simLinks)
)

// requestSession makes a request about sessions, as the handlers of the API do: tokens create sessions and links, links
// become sessions, and sessions end.
func (n *apiNode) requestSession(ctx context.Context, r *rand.Rand, caller httpapi.Caller) (string, error) {
	t, ok := n.keeper.View().Token(caller.Token)
	if !ok {
		return "nothing", nil
	}

	operation := pick(r, []string{"create-session", "create-login-link"})
	switch t.Kind {
	case task.TokenKindSession:
		operation = "delete-session"
	case task.TokenKindLink:
		operation = "use-login-link"
	}

	// A session inherits what the token had when the rights were judged, and must not be written if they are judged again with
	// another token of the same id. Ids of tokens are random, so only this test creates one again.
	var created int64
	var parent task.Token
	rights := n.judge(time.Now).RightsOf(caller, operation)
	err := rights.Check(func(v *authority.View) error {
		from := caller.Token
		if t.Kind == task.TokenKindLink {
			from = t.Parent
		}

		now := v.Created(from)
		if created != 0 && now != created {
			return task.ErrConflict
		}

		created = now
		parent, _ = v.Token(from)

		return nil
	})
	if err != nil {
		return operation, err
	}
	s := n.store.As(rights)
	callerCreated := n.keeper.View().Created(caller.Token)

	switch operation {
	case "delete-session":
		return operation, s.DeleteToken(ctx, caller.Token, callerCreated)
	case "use-login-link":
		return operation, s.UseLink(ctx, caller.Token, callerCreated, store.NewSession{Token: n.sessionOf(r, parent, task.TokenKindSession, pick(r, simSessions))})
	case "create-login-link":
		return operation, s.CreateSession(ctx, store.NewSession{Token: n.sessionOf(r, parent, task.TokenKindLink, pick(r, simLinks))})
	}

	// Now and then, a session replaces another one. The sessions of other tokens stay.
	made := store.NewSession{Token: n.sessionOf(r, parent, task.TokenKindSession, pick(r, simSessions))}
	if other := pick(r, simSessions); other != made.Token.ID && r.IntN(3) == 0 {
		if old, ok := n.keeper.View().Token(other); ok && old.Parent == t.ID {
			made.Remove = []string{other}
		}
	}

	return operation, s.CreateSession(ctx, made)
}

// sessionOf returns the record of a new session or link of a token.
func (n *apiNode) sessionOf(r *rand.Rand, parent task.Token, kind, id string) record.Token {
	made := n.token(id, parent.Subject)
	made.Kind, made.Parent, made.Scope, made.CIDRs = kind, parent.ID, parent.Scope, parent.CIDRs
	made.Until = task.At(time.Now().Add(between(r, 500*time.Millisecond, 10*time.Second)))
	if !parent.Until.IsZero() && parent.Until.Before(made.Until.Time) {
		made.Until = parent.Until
	}

	return made
}
