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

// RoleAdmin may do everything. It is the one role so far.
const RoleAdmin = "admin"

const (
	tokenMark   = "carillon"
	tokenRandom = 20 // bytes: 160 bits, 32 letters and digits
	idLetters   = 16
)

var tokenEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewToken makes a token of the admin role that does not expire. secret is what
// its holder sends; id and token are for Store.CreateToken, once the caller has
// filled in Who and CreatedAt (and Until, if it shall expire).
func NewToken() (secret, id string, token record.Token) {
	var b [tokenRandom]byte
	rand.Read(b[:]) // never fails: crypto/rand
	id, part := task.NewUID(), tokenEncoding.EncodeToString(b[:])
	return tokenMark + "_" + id + "_" + part, id, record.Token{Hash: hashOf(part), Role: RoleAdmin}
}

// TokenOf is what NewToken returned with a secret: its id and its record. false
// if it is not the secret of a token.
func TokenOf(secret string) (id string, token record.Token, ok bool) {
	id, part, ok := parseToken(secret)
	if !ok {
		return "", record.Token{}, false
	}
	return id, record.Token{Hash: hashOf(part), Role: RoleAdmin}, true
}

func hashOf(part string) string {
	sum := sha256.Sum256([]byte(part))
	return hex.EncodeToString(sum[:])
}

// parseToken takes a token apart. What it accepts cannot leave the prefix of
// tokens in etcd.
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

type trustedUserKey struct{}

// WithTrustedUser returns the context of a connection over a unix socket that was opened
// by a user of this host who may do everything without a token: root, the daemon's own
// user, or an administrator. Requests without a token are that user's.
func WithTrustedUser(ctx context.Context, uid uint32) context.Context {
	return context.WithValue(ctx, trustedUserKey{}, uid)
}

// authenticate finds the holder of a request's token.
func (s *server) authenticate(ctx context.Context, r *http.Request) (httpapi.Caller, error) {
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

	t, err := s.token(ctx, r, id, sha256.Sum256([]byte(part)))
	switch {
	case errors.Is(err, errToken), errors.Is(err, task.ErrInvalid):
		return httpapi.Caller{}, none("the token is not known")
	case err != nil:
		return httpapi.Caller{}, err
	case !t.Until.IsZero() && !s.Now().Before(t.Until.Time):
		return httpapi.Caller{}, none("the token has expired")
	case t.Role != RoleAdmin:
		return httpapi.Caller{}, forbidden(t.Role)
	}

	who := t.Who
	if who == "" {
		who = httpapi.TokenName(id)
	}

	return httpapi.Caller{Who: who, Role: t.Role, Token: id, Certificate: certificateOf(r)}, nil
}

func forbidden(role string) error {
	return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "the token's role %s may not do this", task.Quote(role))
}

// certificateOf is the common name of the certificate that the caller proved to have,
// "" if it showed none that was verified.
func certificateOf(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}
	return r.TLS.VerifiedChains[0][0].Subject.CommonName
}

var errToken = errors.New("no such token")

// token is the record of a token whose secret has this sum. A client that has tried
// many wrong ones has to wait, unless this very token was valid before: whoever shares
// its address must not be able to lock its holder out.
func (s *server) token(ctx context.Context, r *http.Request, id string, sum [sha256.Size]byte) (record.Token, error) {
	t, fresh, known := s.tokens.get(id, sum)
	if fresh {
		return t, nil
	}

	from := clientOf(r)
	if !known && !s.logins.mayTry(from) {
		return record.Token{}, errTooManyLogins()
	}

	t, err := s.reader.find(ctx, id)
	if errors.Is(err, task.ErrNotFound) {
		return t, errToken
	}

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

	s.tokens.put(id, sum, t)

	if !known {
		s.logins.giveBack(from)
	}

	return t, nil
}

// tokenCache remembers which tokens were good: for tokenAge so that not every request
// reads one, and for longer as a hint. A token that is deleted is refused within tokenAge.
type tokenCache struct {
	mu   sync.Mutex
	good map[string]goodToken
}

type goodToken struct {
	sum   [sha256.Size]byte
	token record.Token
	at    time.Time
}

const (
	tokenAge  = 3 * time.Second
	maxTokens = 1024
)

func newTokenCache() *tokenCache { return &tokenCache{good: map[string]goodToken{}} }

// get reports whether a token was good: known if ever, fresh if so lately that it still is.
func (c *tokenCache) get(id string, sum [sha256.Size]byte) (t record.Token, fresh, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	g, ok := c.good[id]
	if !ok || subtle.ConstantTimeCompare(g.sum[:], sum[:]) != 1 {
		return record.Token{}, false, false
	}

	return g.token, time.Since(g.at) <= tokenAge, true
}

func (c *tokenCache) put(id string, sum [sha256.Size]byte, t record.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if _, known := c.good[id]; !known && len(c.good) >= maxTokens {
		clear(c.good)
	}

	c.good[id] = goodToken{sum: sum, token: t, at: time.Now()}
}

// callerFrom finds the caller in the statement of another node.
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
		return httpapi.Caller{}, forbidden(st.Caller.Role)
	}

	return httpapi.Caller{Who: st.Caller.Who, Role: st.Caller.Role, Token: st.Caller.Token, Certificate: st.Caller.Certificate, Forwarder: st.From}, nil
}

// refused reports whether the caller of a request that goes on is not let in any more.
// A request that another node forwarded ends when that node ends it.
func (s *server) refused(ctx context.Context, r *http.Request) bool {
	if httpapi.CallerOf(r.Context()).Forwarder != "" {
		return false
	}

	ctx, cancel := context.WithTimeout(ctx, httpapi.RequestTimeout)
	defer cancel()

	_, err := s.authenticate(ctx, r)

	return err != nil && httpapi.AsFailure(err).Status < http.StatusInternalServerError
}
