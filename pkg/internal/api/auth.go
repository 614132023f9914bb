package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// RoleAdmin permits every operation. It is the only role so far.
const RoleAdmin = "admin"

// A token has the form carillon_ID_SECRET. The id is stored in clear text, to find the record. The secret part
// is stored only as a SHA-256 hash, which is safe without salt or stretching, because the secret is random with
// 160 bits.
const (
	tokenMark   = "carillon"
	tokenRandom = 20 // bytes: 160 bits, 32 letters and digits
	idLetters   = 16
)

// tokenEncoding uses lower-case letters and digits only, so that a token can be selected by a double click and
// is a valid part of an etcd key.
var tokenEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewToken returns a token of the admin role that does not expire. secret is what its holder sends. id and
// token are for Store.CreateToken, after the caller has set Who and CreatedAt, and Until if the token is to
// expire.
func NewToken() (secret, id string, token record.Token) {
	var b [tokenRandom]byte
	rand.Read(b[:]) // crypto/rand never returns an error
	id, part := task.NewUID(), tokenEncoding.EncodeToString(b[:])
	return tokenMark + "_" + id + "_" + part, id, record.Token{Hash: hashOf(part), Role: RoleAdmin}
}

// TokenOf returns the id and the record that NewToken returned together with a secret. ok is false if the text
// is not the secret of a token.
func TokenOf(secret string) (id string, token record.Token, ok bool) {
	id, part, ok := parseToken(secret)
	if !ok {
		return "", record.Token{}, false
	}
	return id, record.Token{Hash: hashOf(part), Role: RoleAdmin}, true
}

// hashOf returns the hash under which the secret part of a token is stored.
func hashOf(part string) string {
	sum := sha256.Sum256([]byte(part))
	return hex.EncodeToString(sum[:])
}

// parseToken splits a token into its id and its secret part. It accepts only characters of tokenEncoding, so
// the id cannot lead to a key outside the prefix of tokens in etcd.
func parseToken(s string) (id, part string, ok bool) {
	parts := strings.Split(s, "_")
	if len(parts) != 3 || parts[0] != tokenMark || len(parts[1]) != idLetters || len(parts[2]) < idLetters || len(s) > 256 {
		return "", "", false
	}

	for _, p := range parts[1:] {
		if strings.ContainsFunc(p, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '2' || r > '7') }) {
			return "", "", false
		}
	}

	return parts[1], parts[2], true
}

// trustedUserKey is the context key for a user that was authenticated without a token.
type trustedUserKey struct{}

// WithTrustedUser returns the context of a connection over the unix socket whose peer may do everything without
// a token: root, the daemon's user, or an administrator of this host. Requests on it without a token are
// attributed to that user. A request with a token is judged by its token.
func WithTrustedUser(ctx context.Context, uid uint32) context.Context {
	return context.WithValue(ctx, trustedUserKey{}, uid)
}

// findCaller returns the caller of a request, from its statement, its unix socket, or its token. An error is
// a *httpapi.Failure with status 401, 403 or 429, or an error of etcd, which becomes 503.
func (s *server) findCaller(ctx context.Context, r *http.Request) (httpapi.Caller, error) {
	none := func(why string) error {
		return httpapi.Fail(http.StatusUnauthorized, client.CodeUnauthorized, "%s", why).
			WithHint("send Authorization: Bearer TOKEN; the cluster's first node wrote one to its data directory")
	}

	if len(r.Header.Values(statement.Header)) > 0 {
		return s.callerFrom(r)
	}

	values := r.Header.Values("Authorization")
	if uid, trusted := r.Context().Value(trustedUserKey{}).(uint32); trusted && len(values) == 0 {
		return httpapi.Caller{Who: fmt.Sprintf("unix:uid=%d", uid), Role: RoleAdmin}, nil
	}
	if len(values) == 0 {
		return httpapi.Caller{}, none("a token is required")
	}

	scheme, secret, _ := strings.Cut(values[0], " ")
	id, part, ok := parseToken(strings.TrimSpace(secret))
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || !ok {
		return httpapi.Caller{}, none("the Authorization header is not: Bearer carillon_ID_SECRET")
	}

	// Before this point, nothing has been read from etcd, so malformed tokens cost the cluster nothing.
	t, err := s.verifyToken(ctx, r, id, sha256.Sum256([]byte(part)))
	switch {
	case errors.Is(err, errToken), errors.Is(err, task.ErrInvalid):
		return httpapi.Caller{}, none("the token is not known")
	case err != nil:
		return httpapi.Caller{}, err
	case !t.Until.IsZero() && !s.Now().Before(t.Until.Time):
		return httpapi.Caller{}, none("the token has expired")
	case t.Role != RoleAdmin:
		return httpapi.Caller{}, forbiddenError(t.Role)
	}

	who := t.Who
	if who == "" {
		who = httpapi.TokenName(id)
	}

	return httpapi.Caller{Who: who, Role: t.Role, Token: id, Certificate: certificateOf(r)}, nil
}

// forbiddenError returns the failure for a caller whose role does not permit the operation.
func forbiddenError(role string) error {
	return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "the token's role %s may not do this", task.Quote(role))
}

// certificateOf returns the common name of the client certificate, or "" if the client sent none that was
// verified.
func certificateOf(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}
	return r.TLS.VerifiedChains[0][0].Subject.CommonName
}

// errToken means that no token has this id and secret. Callers cannot tell whether the id exists.
var errToken = errors.New("no such token")

// verifyToken returns the record of the token with an id, if sum is the hash of its secret. A client that has tried
// many wrong tokens must wait, unless this token was valid before. Otherwise anybody who shares an address with
// the holder of a valid token could lock that holder out.
func (s *server) verifyToken(ctx context.Context, r *http.Request, id string, sum [sha256.Size]byte) (record.Token, error) {
	t, fresh, known := s.tokens.lookUp(id, sum)
	if fresh {
		return t, nil
	}

	from := clientOf(r)
	if !known && !s.logins.mayTry(from) {
		return record.Token{}, errTooManyLogins()
	}

	t, err := s.reader.findToken(ctx, id)
	if errors.Is(err, task.ErrNotFound) {
		return t, errToken
	}

	// The attempt is returned to the client's budget, because etcd failed and not the token.
	if err != nil {
		if !known {
			s.logins.giveBack(from) // that was not the token's fault
		}
		return t, err
	}

	want, err := hex.DecodeString(t.Hash)
	if err != nil || subtle.ConstantTimeCompare(want, sum[:]) != 1 {
		return record.Token{}, errToken
	}

	s.tokens.addToken(id, sum, t)

	if !known {
		s.logins.giveBack(from)
	}

	return t, nil
}

// tokenCache stores tokens that were valid. For tokenAge, they are accepted without a read of etcd, so a
// deleted token is refused within tokenAge. Older entries only show that a token was valid once.
type tokenCache struct {
	mu   sync.Mutex
	good map[string]goodToken
}

// goodToken is a token that was valid at a time.
type goodToken struct {
	sum   [sha256.Size]byte
	token record.Token
	at    time.Time
}

// tokenAge is how long a deleted token may remain accepted. maxTokens bounds the memory of the cache.
const (
	tokenAge  = 3 * time.Second
	maxTokens = 1024
)

// newTokenCache returns an empty cache.
func newTokenCache() *tokenCache { return &tokenCache{good: map[string]goodToken{}} }

// lookUp looks up a token with this hash. known means that it was valid at some time, fresh that it was checked no
// longer than tokenAge ago.
func (c *tokenCache) lookUp(id string, sum [sha256.Size]byte) (t record.Token, fresh, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	g, ok := c.good[id]
	if !ok || subtle.ConstantTimeCompare(g.sum[:], sum[:]) != 1 {
		return record.Token{}, false, false
	}

	return g.token, time.Since(g.at) <= tokenAge, true
}

// addToken stores a token that is valid now. A full cache is emptied, which only costs reads.
func (c *tokenCache) addToken(id string, sum [sha256.Size]byte, t record.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if _, known := c.good[id]; !known && len(c.good) >= maxTokens {
		clear(c.good)
	}

	c.good[id] = goodToken{sum: sum, token: t, at: time.Now()}
}

// callerFrom returns the caller that another node names in a signed statement. A statement is valid for one
// request, once, and only from a node that is present. The request must have neither a body nor other
// credentials, because the statement does not cover them.
func (s *server) callerFrom(r *http.Request) (httpapi.Caller, error) {
	refuse := func(why string) error {
		return httpapi.Fail(http.StatusUnauthorized, client.CodeUnauthorized, "%s", why)
	}

	values := r.Header.Values(statement.Header)
	if len(values) > 1 || len(r.Header.Values("Authorization")) > 0 {
		return httpapi.Caller{}, refuse("send one statement, and no Authorization header beside it")
	}
	if r.Body != nil && r.Body != http.NoBody {
		return httpapi.Caller{}, refuse("a request with a statement has no body")
	}

	known := func(node string) (statement.Issuer, bool) {
		n, ok := s.Peer(node)
		key, err := base64.StdEncoding.DecodeString(n.PublicKey)
		return statement.Issuer{Instance: n.Instance, Key: key}, ok && err == nil
	}

	st, err := s.statements.Verify(values[0], statement.Request{Method: r.Method, Path: r.RequestURI}, known, s.Now())
	if err != nil {
		s.log.Warn("refused a request from another node", zap.String("path", httpapi.Shorten(r.URL.Path)), zap.String("from", r.RemoteAddr), zap.Error(err))
		return httpapi.Caller{}, refuse(err.Error())
	}

	if st.Caller.Role != RoleAdmin {
		return httpapi.Caller{}, forbiddenError(st.Caller.Role)
	}

	return httpapi.Caller{Who: st.Caller.Who, Role: st.Caller.Role, Token: st.Caller.Token, Certificate: st.Caller.Certificate, Forwarder: st.From}, nil
}

// callerRevoked reports whether the caller of a running stream has lost its access, for example because its token was
// deleted. An error of etcd does not end a stream. A stream that another node has forwarded ends when that node
// ends it.
func (s *server) callerRevoked(ctx context.Context, r *http.Request) bool {
	if httpapi.CallerOf(r.Context()).Forwarder != "" {
		return false
	}

	ctx, cancel := context.WithTimeout(ctx, httpapi.RequestTimeout)
	defer cancel()

	_, err := s.findCaller(ctx, r)

	return err != nil && httpapi.AsFailure(err).Status < http.StatusInternalServerError
}
