// Package oidcprovider is an OpenID Connect provider for tests: discovery, keys, the authorization code flow with PKCE, and the
// device flow, over HTTP on loopback.
//
// It signs ID tokens without the library that the product verifies them with, and is strict: a code is accepted once, from the
// client and with the redirect URL and the PKCE verifier that it was issued for. A test can damage what it answers.
package oidcprovider

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Client is an application that is registered with the provider.
type Client struct {
	ID        string
	Secret    string   // "": a public client
	Redirects []string // the URLs that a login may return to
}

// User is a person whom the provider knows.
type User struct {
	Subject string
	Name    string
	Mail    string
	Groups  []string
}

// Provider is the provider. A test may set its fields while no request is under way.
type Provider struct {
	*httptest.Server

	// Now is the provider's clock; nil means time.Now.
	Now func() time.Time
	// Algorithm signs ID tokens: RS256, ES256, HS256 (with the client's secret) or none.
	Algorithm string
	// InBody has clients send their secret in the body, and not as HTTP Basic.
	InBody bool
	// DeviceInBody announces both ways to send the secret, but reads it at the device authorization endpoint only from the
	// body, as Dex does.
	DeviceInBody bool
	// NoDevice has the provider announce no device flow.
	NoDevice bool
	// Metadata, if set, changes what discovery answers.
	Metadata func(map[string]any)
	// Claims, if set, changes the claims of ID tokens before they are signed.
	Claims func(map[string]any)
	// Confirms, if set, is a person who confirms each login in the device flow after PendingPolls polls.
	Confirms     *User
	PendingPolls int
	// Interval is the pause between polls that the provider asks for, in seconds; 0 means 2.
	Interval int
	// Intercept, if set, may answer a request itself, and then returns true.
	Intercept func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	keys     func() *keys
	clients  map[string]Client
	codes    map[string]grant // by code
	devices  map[string]*device
	requests map[string]int // by path
}

// grant is what a code was issued for.
type grant struct {
	client, redirect, nonce, challenge string
	user                               User
}

// device is a login in the device flow.
type device struct {
	client, challenge, userCode string
	user                        *User // nil: not confirmed
	denied                      bool
	polls                       int
	ends                        time.Time
}

const (
	codeLasts  = 10 * time.Minute
	tokenLasts = 5 * time.Minute
)

// New starts a provider that ends with the test.
func New(t testing.TB, clients ...Client) *Provider {
	p := &Provider{
		Algorithm: "RS256", keys: sharedKeys, clients: map[string]Client{}, codes: map[string]grant{}, devices: map[string]*device{}, requests: map[string]int{},
	}
	for _, c := range clients {
		p.clients[c.ID] = c
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.serveMetadata)
	mux.HandleFunc("GET /keys", p.serveKeys)
	mux.HandleFunc("POST /token", p.serveToken)
	mux.HandleFunc("POST /device", p.serveDevice)

	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.requests[r.URL.Path]++
		p.mu.Unlock()

		if p.Intercept == nil || !p.Intercept(w, r) {
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(p.Close)

	return p
}

// Register adds or replaces an application.
func (p *Provider) Register(c Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients[c.ID] = c
}

// Requests returns how many requests a path has received.
func (p *Provider) Requests(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[path]
}

func (p *Provider) now() time.Time {
	if p.Now != nil {
		return p.Now()
	}
	return time.Now()
}

// RotateKeys replaces the keys that sign ID tokens.
func (p *Provider) RotateKeys() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = sync.OnceValue(newKeys)
}

// SignIn does what the browser of a person does who signs in: it opens the authorization URL, and returns the URL to which
// the provider sends the browser back. It fails the test if the provider shows an error instead.
func (p *Provider) SignIn(t testing.TB, authorize string, user User) *url.URL {
	t.Helper()

	u, err := url.Parse(authorize)
	if err != nil || !strings.HasPrefix(authorize, p.URL+"/authorize?") {
		t.Fatalf("the browser is sent to %s, which is not the provider", authorize)
	}

	q := u.Query()
	p.mu.Lock()
	client, known := p.clients[q.Get("client_id")]
	p.mu.Unlock()
	if !known || !slices.Contains(client.Redirects, q.Get("redirect_uri")) {
		t.Fatalf("the provider does not know the client %s with the redirect URL %s", q.Get("client_id"), q.Get("redirect_uri"))
	}

	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil {
		t.Fatal(err)
	}

	answer := url.Values{"state": {q.Get("state")}, "iss": {p.URL}}
	switch {
	case q.Get("response_type") != "code" || !slices.Contains(strings.Fields(q.Get("scope")), "openid"):
		answer.Set("error", "invalid_request")
	case q.Get("code_challenge") == "" || q.Get("code_challenge_method") != "S256":
		answer.Set("error", "invalid_request")
		answer.Set("error_description", "PKCE is required")
	default:
		answer.Set("code", p.issueCode(grant{client: client.ID, redirect: q.Get("redirect_uri"), nonce: q.Get("nonce"), challenge: q.Get("code_challenge"), user: user}))
	}
	back.RawQuery = answer.Encode()

	return back
}

func (p *Provider) issueCode(g grant) string {
	p.mu.Lock()
	defer p.mu.Unlock()

	code := rand.Text()
	p.codes[code] = g

	return code
}

// Confirm does what a person does who enters the code of a device and confirms the login.
func (p *Provider) Confirm(t testing.TB, userCode string, user User) {
	t.Helper()
	p.withDevice(t, userCode, func(d *device) { d.user = &user })
}

// Deny does what a person does who enters the code of a device and denies the login.
func (p *Provider) Deny(t testing.TB, userCode string) {
	t.Helper()
	p.withDevice(t, userCode, func(d *device) { d.denied = true })
}

func (p *Provider) withDevice(t testing.TB, userCode string, f func(*device)) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, d := range p.devices {
		if d.userCode == userCode {
			f(d)
			return
		}
	}

	t.Fatalf("the provider has issued no code %s to a device", userCode)
}

func (p *Provider) serveMetadata(w http.ResponseWriter, _ *http.Request) {
	methods := []string{"client_secret_basic"}
	switch {
	case p.InBody:
		methods = []string{"client_secret_post"}
	case p.DeviceInBody:
		methods = append(methods, "client_secret_post")
	}

	m := map[string]any{
		"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
		"device_authorization_endpoint": p.URL + "/device", "token_endpoint_auth_methods_supported": methods,
		"id_token_signing_alg_values_supported": []string{"RS256", "ES256"}, "authorization_response_iss_parameter_supported": true,
	}
	if p.NoDevice {
		delete(m, "device_authorization_endpoint")
	}
	if p.Metadata != nil {
		p.Metadata(m)
	}

	answerJSON(w, http.StatusOK, m)
}

func (p *Provider) serveKeys(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answerJSON(w, http.StatusOK, map[string]any{"keys": p.keys().publicKeySet()})
}

// clientOf returns the client of a request, whose secret it checks. inBody says where the secret must be.
func (p *Provider) clientOf(r *http.Request, inBody bool) (Client, bool) {
	id, secret := r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	if user, password, ok := r.BasicAuth(); ok {
		if inBody || secret != "" {
			return Client{}, false
		}

		var err1, err2 error
		id, err1 = url.QueryUnescape(user)
		secret, err2 = url.QueryUnescape(password)
		if err1 != nil || err2 != nil {
			return Client{}, false
		}
	} else if secret != "" && !inBody {
		return Client{}, false
	}

	p.mu.Lock()
	client, known := p.clients[id]
	p.mu.Unlock()

	return client, known && subtle.ConstantTimeCompare([]byte(client.Secret), []byte(secret)) == 1
}

func (p *Provider) serveDevice(w http.ResponseWriter, r *http.Request) {
	client, ok := p.clientOf(r, p.InBody || p.DeviceInBody)
	if !ok {
		answerError(w, http.StatusUnauthorized, "invalid_client", "")
		return
	}

	code, d := rand.Text(), &device{client: client.ID, challenge: r.PostFormValue("code_challenge"), userCode: rand.Text()[:8], ends: p.now().Add(codeLasts)}
	p.mu.Lock()
	p.devices[code] = d
	p.mu.Unlock()

	answerJSON(w, http.StatusOK, map[string]any{
		"device_code": code, "user_code": d.userCode, "verification_uri": p.URL + "/activate", "verification_uri_complete": p.URL + "/activate?code=" + d.userCode,
		"expires_in": int(codeLasts.Seconds()), "interval": cmp.Or(p.Interval, 2),
	})
}

func (p *Provider) serveToken(w http.ResponseWriter, r *http.Request) {
	client, ok := p.clientOf(r, p.InBody)
	if !ok {
		answerError(w, http.StatusUnauthorized, "invalid_client", "the client or its secret is wrong")
		return
	}

	var g grant
	code := ""
	switch r.PostFormValue("grant_type") {
	case "authorization_code":
		g, code = p.redeemCode(client, r)
	case "urn:ietf:params:oauth:grant-type:device_code":
		g, code = p.redeemDevice(client, r)
	default:
		code = "unsupported_grant_type"
	}

	if code != "" {
		answerError(w, http.StatusBadRequest, code, "")
		return
	}

	answerJSON(w, http.StatusOK, map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "id_token": p.IDToken(client, g.user, g.nonce)})
}

// redeemCode returns the grant of a code, which is used up by the first attempt, or the error.
func (p *Provider) redeemCode(client Client, r *http.Request) (grant, string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	code := r.PostFormValue("code")
	g, ok := p.codes[code]
	delete(p.codes, code)

	if !ok || g.client != client.ID || g.redirect != r.PostFormValue("redirect_uri") || !provesKey(g.challenge, r) {
		return grant{}, "invalid_grant"
	}

	return g, ""
}

// redeemDevice returns the grant of a device code, or the error.
func (p *Provider) redeemDevice(client Client, r *http.Request) (grant, string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	code := r.PostFormValue("device_code")
	d := p.devices[code]

	switch {
	case d == nil || d.client != client.ID || !provesKey(d.challenge, r):
		return grant{}, "invalid_grant"
	case !p.now().Before(d.ends):
		return grant{}, "expired_token"
	case d.denied:
		return grant{}, "access_denied"
	case d.user == nil && (p.Confirms == nil || d.polls < p.PendingPolls):
		d.polls++
		return grant{}, "authorization_pending"
	case d.user == nil:
		d.user = p.Confirms
	}

	delete(p.devices, code)

	return grant{client: client.ID, user: *d.user}, ""
}

// provesKey reports whether a request has the PKCE verifier of a challenge.
func provesKey(challenge string, r *http.Request) bool {
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	return base64.RawURLEncoding.EncodeToString(sum[:]) == challenge
}

// IDToken returns a signed ID token.
func (p *Provider) IDToken(client Client, user User, nonce string) string {
	now := p.now()
	claims := map[string]any{
		"iss": p.URL, "sub": user.Subject, "aud": client.ID, "exp": now.Add(tokenLasts).Unix(), "iat": now.Unix(),
	}
	optional := map[string]string{"nonce": nonce, "name": user.Name, "email": user.Mail}
	maps.DeleteFunc(optional, func(_, v string) bool { return v == "" })
	for k, v := range optional {
		claims[k] = v
	}
	if user.Groups != nil {
		claims["groups"] = user.Groups
	}
	if p.Claims != nil {
		p.Claims(claims)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	return p.keys().sign(p.Algorithm, client.Secret, claims)
}

func answerError(w http.ResponseWriter, status int, code, description string) {
	body := map[string]any{"error": code}
	if description != "" {
		body["error_description"] = description
	}
	answerJSON(w, status, body)
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has gone
}
