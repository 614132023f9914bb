package access

import (
	"crypto/sha256"
	"hash/maphash"
	"iter"
	"maps"
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

	if isOfRoot := token.Subject == RootSubject; isOfRoot != (token.Node != "") || isOfRoot && (token.Kind == task.TokenKindToken || token.Parent != "") {
		return task.Invalid(task.CodeBadValue, "node", "a session or a login link of root names its node and has no parent, and no other token has a node")
	}

	if len(token.Groups) > 0 && (token.Kind != task.TokenKindSession || token.Parent != "") {
		return task.Invalid(task.CodeBadValue, "groups", "only the session of a login with an identity provider has groups")
	}

	return nil
}

// TokenProblem returns why the token of a caller is not accepted now; "" if it is. A session and a login link are accepted
// only while their parent is, by the same records: a token of the same subject that is not a session itself, and that existed
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

// compiledToken is a token with data that is derived from its record, the roles and the bindings, but from no other token. So a
// change of one token does not affect the others.
type compiledToken struct {
	task.Token
	created int64             // the create revision of its key
	hash    [sha256.Size]byte // of its secret
	scope   []grant           // nil if the token has no scope, or an invalid one, with which it may do nothing
	// held contains the grants of a session's subject and its groups. It is nil if the session has no groups; then only the
	// grants of the subject apply.
	held []grant
}

// tokenBuckets is the number of maps of a tokenSet. A change copies one of them, and the list of them.
const tokenBuckets = 256

var tokenSeed = maphash.MakeSeed()

// tokenSet is an immutable set of tokens by id. The method with returns a modified set that shares all unchanged maps. So with
// 100,000 tokens, a change copies about 400 entries. A nil set is empty.
type tokenSet struct {
	buckets [tokenBuckets]map[string]*compiledToken
	size    int
}

func tokenBucket(id string) int { return int(maphash.String(tokenSeed, id) % tokenBuckets) }

// get returns a token; nil if there is none.
func (s *tokenSet) get(id string) *compiledToken {
	if s == nil {
		return nil
	}

	return s.buckets[tokenBucket(id)][id]
}

// len returns the number of tokens.
func (s *tokenSet) len() int {
	if s == nil {
		return 0
	}

	return s.size
}

// all returns all tokens, in no particular order.
func (s *tokenSet) all() iter.Seq[*compiledToken] {
	return func(yield func(*compiledToken) bool) {
		if s == nil {
			return
		}

		for _, bucket := range s.buckets {
			for _, token := range bucket {
				if !yield(token) {
					return
				}
			}
		}
	}
}

// with returns a set that differs in some tokens. nil removes a token.
func (s *tokenSet) with(changes map[string]*compiledToken) *tokenSet {
	next := &tokenSet{}
	if s != nil {
		*next = *s
	}

	var copied [tokenBuckets]bool
	for id, token := range changes {
		i := tokenBucket(id)
		if !copied[i] {
			copied[i], next.buckets[i] = true, maps.Clone(next.buckets[i])
		}

		bucket := next.buckets[i]
		next.size -= len(bucket)

		switch {
		case token == nil:
			delete(bucket, id)
		case bucket == nil:
			bucket = map[string]*compiledToken{id: token}
		default:
			bucket[id] = token
		}

		if len(bucket) == 0 {
			bucket = nil
		}

		next.buckets[i] = bucket
		next.size += len(bucket)
	}

	return next
}

// TokenChange is a token that was created, changed or deleted.
type TokenChange struct {
	ID      string
	Token   *task.Token       // nil: it was deleted
	Created int64             // the create revision of its key
	Hash    [sha256.Size]byte // of its secret
}

// WithTokens returns the table of the same records except for some tokens: what Compile returns for them. Its cost depends
// on the number of changes, and hardly on that of all tokens. problems are those of the changed tokens.
func (t *Table) WithTokens(changes []TokenChange) (next *Table, problems []error) {
	after := *t
	compiled := make(map[string]*compiledToken, len(changes))
	faults := make([]error, len(changes))
	for i := range changes {
		compiled[changes[i].ID], faults[i] = t.compileToken(&changes[i])
	}

	after.tokens = t.tokens.with(compiled)

	for i, err := range faults {
		// A session whose parent was deleted may do nothing, and its role may have been deleted, too.
		if token := after.tokens.get(changes[i].ID); err != nil && (token == nil || after.hasParent(token)) {
			problems = append(problems, task.Under("token "+task.Quote(changes[i].ID), err))
		}
	}

	return &after, problems
}

// compileToken returns nil for a token that was deleted or has an invalid kind. If only its scope is invalid, it returns the
// token and an error: the token is known, but may do nothing.
func (t *Table) compileToken(c *TokenChange) (*compiledToken, error) {
	if c.Token == nil {
		return nil, nil
	}
	if err := checkTokenKind(c.Token); err != nil {
		return nil, err
	}

	token := &compiledToken{Token: *c.Token, created: c.Created, hash: c.Hash, held: t.grantsOfGroups(c.Token)}
	if token.Scope == nil {
		return token, nil
	}

	var err error
	token.scope, err = t.scopeOf(token.Scope)

	return token, err
}

// hasParent reports whether a token has no parent, or its parent is known.
func (t *Table) hasParent(token *compiledToken) bool {
	return token.Parent == "" || t.tokens.get(token.Parent) != nil
}

// scopeGrants returns what the scope of a known token allows at most. It must have a scope.
func (t *Table) scopeGrants(token *compiledToken) []grant {
	if !t.hasParent(token) {
		return nil
	}

	return token.scope
}

// TokenHash returns the hash of a token's secret. It reports false if there is no such token.
func (t *Table) TokenHash(id string) (hash [sha256.Size]byte, ok bool) {
	token := t.tokens.get(id)
	if token == nil {
		return hash, false
	}

	return token.hash, true
}
