package oidclogin

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

const (
	grantDevice = "urn:ietf:params:oauth:grant-type:device_code"

	// pollEvery is the pause between two polls if the provider does not name one (RFC 8628, section 3.2), and what is added to
	// it if the provider asks for longer pauses (section 3.5).
	pollEvery = 5 * time.Second
	// maxPollEvery limits the pause that a provider can ask for.
	maxPollEvery = time.Minute
	// maxDeviceLogin limits how long a login in the device flow can take. Somebody may be persuaded to confirm the login of
	// another person, and a longer time helps only the latter.
	maxDeviceLogin = loginTimeout
)

// DeviceLogin is a login that has begun in the device flow.
type DeviceLogin struct {
	Seal        string        // what PollDevice needs
	Code        string        // what the person enters at Page
	Page        string        // the URL at which the person confirms the login
	PageForCode string        // Page with the code in it; "" if the provider has none
	Every       time.Duration // the pause between two polls
	Ends        time.Time
}

// deviceState is what is sealed in DeviceLogin.Seal.
type deviceState struct {
	Provider string    `json:"p"`
	ClientID string    `json:"c"`
	Device   string    `json:"d"` // the device code
	Verifier string    `json:"v"` // of PKCE
	Ends     time.Time `json:"e"`
}

// Pending means that the person has not confirmed the login yet.
type Pending struct{ Slower bool } // the next pauses must be longer by five seconds

// Error implements error.
func (p *Pending) Error() string { return "the login is not confirmed yet" }

// BeginDevice begins a login in the device flow.
func (l *Logins) BeginDevice(ctx context.Context, name string) (DeviceLogin, error) {
	p, err := l.findProvider(name)
	if err != nil {
		return DeviceLogin{}, err
	}

	m, err := p.discoverMetadata(ctx)
	if err != nil {
		return DeviceLogin{}, err
	}
	if m.device.url == "" {
		return DeviceLogin{}, &Refusal{
			Kind: Misconfigured, Text: "login with " + p.Display + ": the provider does not support logins from the command line (the device flow)",
			Hint: "sign in to the Web UI, or use a token",
		}
	}

	sealer, err := l.sealerOf(ctx)
	if err != nil {
		return DeviceLogin{}, err
	}

	verifier := oauth2.GenerateVerifier()
	answer, err := p.postForm(ctx, m.device, url.Values{
		"scope": {strings.Join(p.requestedScopes(), " ")}, "code_challenge": {oauth2.S256ChallengeFromVerifier(verifier)}, "code_challenge_method": {"S256"},
	})
	if err != nil {
		return DeviceLogin{}, err
	}

	page := pageURL(cmp.Or(answer.VerificationURI, answer.VerificationURL)) // the second name is that of early drafts
	if answer.DeviceCode == "" || answer.UserCode == "" || page == "" {
		return DeviceLogin{}, p.refuseMisconfigured("the provider's answer has no device code, no code for the person, or no page with https to enter it")
	}

	login := DeviceLogin{Code: shownText(answer.UserCode), Page: page, PageForCode: pageURL(answer.VerificationURIComplete), Every: pollEvery, Ends: l.now().Add(loginTimeout)}
	if every := time.Duration(answer.Interval) * time.Second; every > 0 {
		login.Every = min(every, maxPollEvery)
	}
	if within := time.Duration(answer.ExpiresIn) * time.Second; within > 0 {
		login.Ends = l.now().Add(min(within, maxDeviceLogin))
	}

	login.Seal = sealer.seal(purposeDevice, deviceState{
		Provider: p.Name, ClientID: p.ClientID, Device: answer.DeviceCode, Verifier: verifier, Ends: login.Ends,
	})

	return login, nil
}

// pageURL returns a URL that people are sent to; "" if it is not one, or has characters that could confuse a terminal.
func pageURL(s string) string {
	if checkURL(s) != nil || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return s
}

// PollDevice asks the provider once whether the person has confirmed a login. The error is a *Pending until then.
func (l *Logins) PollDevice(ctx context.Context, sealed string) (Identity, error) {
	if l == nil {
		_, err := l.findProvider("")
		return Identity{}, err
	}

	sealer, err := l.sealerOf(ctx)
	if err != nil {
		return Identity{}, err
	}

	var state deviceState
	if err := sealer.open(purposeDevice, sealed, &state); err != nil {
		return Identity{}, refuse("the handle of the login is not valid: it was changed, or belongs to another cluster")
	}

	p, err := l.findProvider(state.Provider)
	switch {
	case err != nil:
		return Identity{}, err
	case !l.now().Before(state.Ends):
		return Identity{}, p.refuseLogin("nobody has confirmed it in time")
	case state.ClientID != p.ClientID:
		return Identity{}, p.refuseLogin("the settings of this cluster have changed meanwhile")
	}

	m, err := p.discoverMetadata(ctx)
	if err != nil {
		return Identity{}, err
	}

	tokens, err := p.exchangeForm(ctx, m, url.Values{"grant_type": {grantDevice}, "device_code": {state.Device}, "code_verifier": {state.Verifier}})
	if err != nil {
		return Identity{}, err
	}

	return p.verifyIDToken(ctx, m, tokens.IDToken, "")
}

// pendingOf returns the Pending for an answer of the token endpoint; nil if the login is not pending.
func pendingOf(err error) *Pending {
	var answer *answerError
	if !errors.As(err, &answer) {
		return nil
	}

	switch answer.code {
	case "authorization_pending":
		return &Pending{}
	case "slow_down":
		return &Pending{Slower: true}
	}

	return nil
}
