package ui

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxSession is how long a browser keeps the cookie of a session at most.
const maxSession = 8 * time.Hour

const (
	// maxIdle is how long a session lasts without a request that a person has made: for a page or a file, or with a form.
	// Streams do not count, so a page that is left open does not prolong its session.
	maxIdle = time.Hour
	// renewAfter is how old the time in a cookie is before a request of a person renews it.
	renewAfter = time.Minute
)

// session is what a request shows of its viewer: the secret in its cookie, and whose it is.
type session struct {
	secret string
	caller access.Caller
	token  task.Token
	cookie string    // the name of the cookie
	used   time.Time // when a person last used the session, as the cookie says
}

// securePrefix is the prefix of cookies that browsers accept only from the host itself and with the attribute Secure.
const securePrefix = "__Host-"

// cookieNames returns the names under which the session of a request may be. The first one is that of new cookies. Over
// TLS there is only the secure name, so that nobody on the network can plant a session.
func (s *Server) cookieNames(r *http.Request) []string {
	plain := "carillon-" + s.Cluster
	switch {
	case s.encrypted(r):
		return []string{securePrefix + plain}
	case isLoopback(r.Host):
		return []string{securePrefix + plain, plain}
	}

	return []string{plain}
}

// encrypted reports whether the browser's connection is encrypted: to this node, or to the proxy of the setting ui_origin.
func (s *Server) encrypted(r *http.Request) bool {
	return r.TLS != nil || s.isSecureOrigin(r)
}

// isLoopback reports whether a host as browsers name it is this machine. Browsers treat it like an encrypted connection.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")

	ip := net.ParseIP(host)

	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// sessionOf returns the session of a request. It reports false if there is none, or none that this node accepts from the
// address of the request; the API may still refuse it. It does not count as use by a person.
func (s *Server) sessionOf(r *http.Request) (session, bool) {
	return s.findSession(r, func(found session) bool { return !s.isIdle(found) })
}

// findSession returns the first session of a request, also an idle one, for which is returns true.
func (s *Server) findSession(r *http.Request, is func(session) bool) (session, bool) {
	for _, name := range s.cookieNames(r) {
		for _, c := range r.CookiesNamed(name) {
			secret, used, ok := s.cookies.open(c.Value)
			if !ok {
				continue
			}

			found, ok := s.sessionWith(secret)
			found.cookie, found.used = name, used
			if ok && access.AcceptsAddress(&found.token, addressOf(r)) && is(found) {
				return found, true
			}
		}
	}

	return session{}, false
}

// anySession returns the session of a request, also an idle one: only to end it.
func (s *Server) anySession(r *http.Request) (session, bool) {
	return s.findSession(r, func(session) bool { return true })
}

// isIdle reports whether no person has used a session for too long. Idle sessions open nothing.
func (s *Server) isIdle(who session) bool { return s.Now().Sub(who.used) >= maxIdle }

// useSession returns the session of a request that a person has made, and notes the time in the cookie. The session may belong
// to any node next, so the browser keeps the time, and nothing is written to etcd.
func (s *Server) useSession(w http.ResponseWriter, r *http.Request) (session, bool) {
	who, ok := s.sessionOf(r)
	if ok && s.Now().Sub(who.used) >= renewAfter {
		s.setCookie(w, who.cookie, who.secret)
	}

	return who, ok
}

// addressOf returns the address that a request came from, without the port; "" over the unix socket.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// awaitTimeout limits how long a node waits until it knows a session that another node has created.
const awaitTimeout = 2 * time.Second

// awaitSession waits until this node knows the session of a request: behind a load balancer, another node may have created it
// just now. It reads nothing from etcd, and returns in any case.
func (s *Server) awaitSession(r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), awaitTimeout)
	defer cancel()

	for _, name := range s.cookieNames(r) {
		for _, c := range r.CookiesNamed(name) {
			secret, _, _ := s.cookies.open(c.Value)
			if id, _, ok := authority.ParseSecret(secret); ok {
				_, _ = s.Access.Await(ctx, func(v *authority.View) bool { return v.Created(id) > 0 })
				return
			}
		}
	}
}

// sessionWith returns the session with a secret.
func (s *Server) sessionWith(secret string) (session, bool) {
	id, hash, ok := authority.ParseSecret(secret)
	if !ok {
		return session{}, false
	}

	view := s.Access.View()
	token, ok := view.Verify(id, hash)
	caller := access.Caller{Subject: token.Subject, Token: id}
	if !ok || token.Kind != task.TokenKindSession || s.rightsOf(view, caller) == (access.Digest{}) {
		return session{}, false
	}

	return session{secret: secret, caller: caller, token: token}, true
}

// rightsOf returns the digest of what a caller may do now; zero if its credential is no longer accepted.
func (s *Server) rightsOf(v *authority.View, c access.Caller) access.Digest {
	return v.Digest(c, s.Now())
}

// beginSession gives the browser a new session. plain asks for a cookie without Secure on loopback, for browsers that take no
// secure cookie there.
func (s *Server) beginSession(w http.ResponseWriter, r *http.Request, secret string, plain bool) {
	names := s.cookieNames(r)
	name := names[0]
	if plain {
		name = names[len(names)-1]
	}

	s.setCookie(w, name, secret)
}

// setCookie gives the browser the cookie of a session that a person uses now.
func (s *Server) setCookie(w http.ResponseWriter, name, secret string) {
	http.SetCookie(w, &http.Cookie{
		Name: name, Value: s.cookies.seal(secret, s.Now()), Path: "/", MaxAge: int(maxSession / time.Second),
		HttpOnly: true, Secure: strings.HasPrefix(name, securePrefix), SameSite: http.SameSiteLaxMode,
	})
}

// clearCookies ends the session of a browser on its side.
func (s *Server) clearCookies(w http.ResponseWriter, r *http.Request) {
	for _, name := range s.cookieNames(r) {
		http.SetCookie(w, &http.Cookie{
			Name: name, Path: "/", MaxAge: -1, HttpOnly: true, Secure: strings.HasPrefix(name, securePrefix), SameSite: http.SameSiteLaxMode,
		})
	}
}

// localTarget returns a path and query below /ui that a request names, to go back to. Anything else becomes the start
// page, so that a link cannot lead to another site through the login page.
func localTarget(target string) string {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "" || u.Host != "" || u.Opaque != "" || u.User != nil {
		return home
	}
	if u.Path != home && !strings.HasPrefix(u.Path, home+"/") || strings.Contains(target, "\\") || path.Clean(u.Path) != u.Path {
		return home // also /ui/../other
	}

	u.Fragment = ""

	return u.RequestURI()
}

// KeyBytes is the length of the key that Config.Key returns.
const KeyBytes = 32

const (
	// readKeyTimeout limits how long a request waits for the key.
	readKeyTimeout = 2 * time.Second
	// maxCookie is the maximum length of a cookie that is opened.
	maxCookie = 1 << 10
	// cookiePurpose separates the key of cookies from other uses of the cluster's key, and cookies of another format.
	cookiePurpose = "carillon session cookie 1"
)

// cookieSealer encrypts and authenticates the cookies of sessions. A cookie has the secret of the session and the time at which
// a person last used it. So each node with the same key knows whether the session is idle, and nobody else can change the
// time, or take the secret out and use it elsewhere.
type cookieSealer struct {
	readKey func(ctx context.Context) ([KeyBytes]byte, error)
	reading chan struct{} // has one value while somebody reads the key: a mutex would not end with a context
	aead    atomic.Pointer[cipher.AEAD]
}

func newCookieSealer(readKey func(ctx context.Context) ([KeyBytes]byte, error)) *cookieSealer {
	return &cookieSealer{readKey: readKey, reading: make(chan struct{}, 1)}
}

// prepare reads the key, until that has succeeded once.
func (c *cookieSealer) prepare(ctx context.Context) error {
	if c.aead.Load() != nil {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, readKeyTimeout)
	defer cancel()
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}

	if c.aead.Load() != nil {
		return nil
	}

	key, err := c.readKey(ctx)
	if err != nil {
		return err
	}

	aead, err := cookieCipher(key)
	if err != nil {
		return err
	}
	c.aead.Store(&aead)

	return nil
}

// cookieCipher returns the cipher of cookies for a cluster's key.
func cookieCipher(key [KeyBytes]byte) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, key[:], nil, cookiePurpose, KeyBytes)
	if err != nil {
		return nil, fmt.Errorf("derive the key of cookies: %w", err)
	}

	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("the key of cookies: %w", err)
	}

	return cipher.NewGCMWithRandomNonce(block)
}

// seal returns the cookie of a session that a person used at a time. prepare must have succeeded.
func (c *cookieSealer) seal(secret string, used time.Time) string {
	plain := binary.BigEndian.AppendUint64(nil, uint64(used.UnixMilli()))
	plain = append(plain, secret...)

	return base64.RawURLEncoding.EncodeToString((*c.aead.Load()).Seal(nil, nil, plain, nil))
}

// open returns what seal was called with. It reports false if the cookie was not sealed with this cluster's key.
func (c *cookieSealer) open(cookie string) (secret string, used time.Time, ok bool) {
	aead := c.aead.Load()
	if aead == nil || len(cookie) > maxCookie {
		return "", time.Time{}, false
	}

	sealed, err := base64.RawURLEncoding.DecodeString(cookie)
	if err != nil {
		return "", time.Time{}, false
	}

	plain, err := (*aead).Open(nil, nil, sealed, nil)
	if err != nil || len(plain) < 8 {
		return "", time.Time{}, false
	}

	return string(plain[8:]), time.UnixMilli(int64(binary.BigEndian.Uint64(plain))), true
}
