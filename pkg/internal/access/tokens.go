package access

import (
	"net/netip"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// What TokenProblem returns. The texts are for people.
const (
	problemTokenUnknown  = "the token is not known"
	problemTokenExpired  = "the token has expired"
	problemSessionEnded  = "the session has ended"
	problemLinkExpired   = "the login link has expired"
	problemParentDeleted = "the token with which the session was created has been deleted"
	problemParentExpired = "the token with which the session was created has expired"
)

// checkTokenKind checks the kind of a token's record, and that it has a parent only if its kind can have one.
func checkTokenKind(token *task.Token) error {
	switch token.Kind {
	case task.TokenKindToken:
		if token.Parent != "" {
			return task.Invalid(task.CodeBadValue, "parent", "only sessions and login links have a parent")
		}
	case task.TokenKindSession, task.TokenKindLink:
		if token.Until.IsZero() {
			return task.Invalid(task.CodeRequired, "until", "is required for a session or a login link")
		}
	default:
		return task.Invalid(task.CodeBadValue, "kind", "%s is not a kind of token", task.Quote(token.Kind))
	}

	if len(token.Groups) > 0 && (token.Kind != task.TokenKindSession || token.Parent != "") {
		return task.Invalid(task.CodeBadValue, "groups", "only the session of a login with an identity provider has groups")
	}

	return nil
}

// TokenProblem returns why the token of a caller is not accepted now; "" if it is. A session and a login link are accepted
// only while their parent is, by the same records: a token of the same subject that is no session itself, and that existed
// when they were created. The subject of the token may be disabled all the same.
func (t *Table) TokenProblem(c Caller, now time.Time) string {
	token := t.tokens.get(c.Token)
	switch {
	case token == nil || token.Subject != c.Subject:
		return problemTokenUnknown
	case hasEnded(&token.Token, now) && token.Kind == task.TokenKindSession:
		return problemSessionEnded
	case hasEnded(&token.Token, now) && token.Kind == task.TokenKindLink:
		return problemLinkExpired
	case hasEnded(&token.Token, now):
		return problemTokenExpired
	case token.Parent == "":
		return ""
	}

	// A parent with a later create revision is another token with the same id.
	parent := t.tokens.get(token.Parent)
	switch {
	case parent == nil || parent.Subject != token.Subject || parent.Kind != task.TokenKindToken || parent.created >= token.created:
		return problemParentDeleted
	case hasEnded(&parent.Token, now):
		return problemParentExpired
	}

	return ""
}

func hasEnded(token *task.Token, now time.Time) bool {
	return !token.Until.IsZero() && !now.Before(token.Until.Time)
}

// TokenCreated is the create revision of a token's key; 0 if there is no such token.
func (t *Table) TokenCreated(id string) int64 {
	token := t.tokens.get(id)
	if token == nil {
		return 0
	}

	return token.created
}

// AcceptsAddress reports whether a token may be used from an address, by its networks. An address is "" on the unix socket,
// on which a token that is bound to networks is not accepted.
func AcceptsAddress(token *task.Token, address string) bool {
	if len(token.CIDRs) == 0 {
		return true
	}

	ip, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}

	return slices.ContainsFunc(token.CIDRs, func(s string) bool {
		prefix, err := netip.ParsePrefix(s)
		return err == nil && prefix.Contains(ip.Unmap())
	})
}
