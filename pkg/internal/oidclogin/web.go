package oidclogin

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net/url"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// maxCookie is the maximum length of a sealed state. Browsers accept 4096 bytes for a cookie with its name.
const maxCookie = 3800

// WebLogin is a login on the web that has begun.
type WebLogin struct {
	URL  string    // where the browser goes
	Seal string    // what the browser keeps in a cookie
	Ends time.Time // when the login must be finished
}

// webState is what is sealed in WebLogin.Seal.
type webState struct {
	Provider string    `json:"p"`
	ClientID string    `json:"c"`
	State    string    `json:"s"`
	Nonce    string    `json:"n"`
	Verifier string    `json:"v"` // of PKCE
	Redirect string    `json:"r"`
	ReturnTo string    `json:"t"`
	Ends     time.Time `json:"e"`
}

// BeginWeb begins a login on the web. redirect is the URL at which the provider's answer arrives, and returnTo the path to
// which the browser goes afterwards; a path that is too long is left out.
func (l *Logins) BeginWeb(ctx context.Context, name, redirect, returnTo string) (WebLogin, error) {
	p, err := l.findProvider(name)
	if err != nil {
		return WebLogin{}, err
	}

	m, err := p.discoverMetadata(ctx)
	if err != nil {
		return WebLogin{}, err
	}

	sealer, err := l.sealerOf(ctx)
	if err != nil {
		return WebLogin{}, err
	}

	state := webState{
		Provider: p.Name, ClientID: p.ClientID, State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(),
		Redirect: redirect, ReturnTo: returnTo, Ends: l.now().Add(loginTimeout),
	}

	client := oauth2.Config{
		ClientID: p.ClientID, RedirectURL: redirect, Scopes: p.requestedScopes(), Endpoint: oauth2.Endpoint{AuthURL: m.authorize},
	}
	at := client.AuthCodeURL(state.State, oidc.Nonce(state.Nonce), oauth2.S256ChallengeOption(state.Verifier))

	seal := sealer.seal(purposeWeb, state)
	if len(seal) > maxCookie {
		state.ReturnTo = ""
		seal = sealer.seal(purposeWeb, state)
	}

	return WebLogin{URL: at, Seal: seal, Ends: state.Ends}, nil
}

// requestedScopes returns the scopes that are requested.
func (p *provider) requestedScopes() []string { return append([]string{oidc.ScopeOpenID}, p.Scopes...) }

// FinishWeb finishes a login on the web. name is the provider in whose path the answer has arrived, sealed is the text
// from the browser's cookie, and answer the query with which the provider has sent the browser back. It also returns the
// path to which the browser wanted to go.
func (l *Logins) FinishWeb(ctx context.Context, name, sealed string, answer url.Values) (Identity, string, error) {
	if l == nil {
		_, err := l.findProvider("")
		return Identity{}, "", err
	}
	if sealed == "" {
		return Identity{}, "", refuse("no login is under way in this browser: it took longer than %d minutes, was finished before, or began in another browser", int(loginTimeout.Minutes()))
	}

	sealer, err := l.sealerOf(ctx)
	if err != nil {
		return Identity{}, "", err
	}

	var state webState
	if err := sealer.open(purposeWeb, sealed, &state); err != nil {
		return Identity{}, "", refuse("the cookie of the login is not valid: it was changed, or belongs to another cluster")
	}

	p, err := l.findProvider(state.Provider)
	if err != nil {
		return Identity{}, "", err
	}

	// A provider that lets people sign in with another one in its place (a mix-up attack) can only send them to its own path.
	switch {
	case name != state.Provider:
		return Identity{}, "", p.refuseLogin("the answer arrived at the address of another provider, %s", quote(name))
	case !l.now().Before(state.Ends):
		return Identity{}, "", p.refuseLogin("it took longer than %d minutes", int(loginTimeout.Minutes()))
	case state.ClientID != p.ClientID:
		return Identity{}, "", p.refuseLogin("the settings of this cluster have changed meanwhile")
	case subtle.ConstantTimeCompare([]byte(answer.Get("state")), []byte(state.State)) != 1:
		return Identity{}, "", p.refuseLogin("the provider's answer belongs to another login, for example to one in another tab")
	case !l.finishOnce(state.State, state.Ends):
		return Identity{}, "", p.refuseLogin("the provider's answer was used before")
	}

	m, err := p.discoverMetadata(ctx)
	if err != nil {
		return Identity{}, "", err
	}
	if err := p.checkAnswer(m, answer); err != nil {
		return Identity{}, "", err
	}

	tokens, err := p.exchangeForm(ctx, m, url.Values{
		"grant_type": {"authorization_code"}, "code": {answer.Get("code")}, "redirect_uri": {state.Redirect}, "code_verifier": {state.Verifier},
	})
	if err != nil {
		return Identity{}, "", err
	}

	id, err := p.verifyIDToken(ctx, m, tokens.IDToken, state.Nonce)

	return id, state.ReturnTo, err
}

// checkAnswer checks the parameters of the provider's answer that do not depend on the login.
func (p *provider) checkAnswer(m *metadata, answer url.Values) error {
	// With several providers, one of them could otherwise make a browser hand it the code of another one (RFC 9207).
	issuer := answer.Get("iss")
	if issuer != p.Issuer && (issuer != "" || m.namesIssuer) {
		return p.refuseLogin("the answer comes from another provider, %s", quote(issuer))
	}

	if code := answer.Get("error"); code != "" {
		return p.refuseAnswer(&answerError{code: code, description: answer.Get("error_description")})
	}
	if answer.Get("code") == "" {
		return p.refuseLogin("the provider's answer has no code")
	}

	return nil
}
