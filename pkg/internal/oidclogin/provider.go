package oidclogin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// MaxProviders is how many providers a node can have.
	MaxProviders = 16
	// maxProviderName is the maximum length of a provider's name, which is in each of its subjects.
	maxProviderName = 32

	// keepMetadata is how long a provider's metadata and signing keys are used before they are read again. So it also limits
	// how long a key is accepted that the provider has withdrawn.
	keepMetadata = 5 * time.Minute
	// retryAfter is how long a provider is left alone after its metadata could not be read.
	retryAfter = 10 * time.Second
)

// Provider is the setting of one OpenID Connect provider. The JSON names are those of the setting.
type Provider struct {
	// Name is in the subjects and the groups of the provider: user:NAME/… and group:NAME/….
	Name string `json:"name"`
	// Display is the name that people see; "": Name.
	Display  string `json:"display"`
	Issuer   string `json:"issuer"`
	ClientID string `json:"client_id"`
	// ClientSecretFile is the file with the secret of the client; "": a public client, which has none.
	ClientSecretFile string `json:"client_secret_file"`
	// Scopes are requested in addition to openid; nil: profile and email.
	Scopes []string `json:"scopes"`
	// GroupsClaim is the claim of the ID token with the names of the groups; "": groups.
	GroupsClaim string `json:"groups_claim"`
}

// ValidateProviders checks the providers of a setting, and completes what they leave out. It reads no files.
func ValidateProviders(field string, list []Provider) error {
	if len(list) > MaxProviders {
		return task.Invalid(task.CodeTooMany, field, "has %d providers; at most %d are allowed", len(list), MaxProviders)
	}

	for i := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := list[i].validate(at); err != nil {
			return err
		}

		same := func(other Provider) bool { return other.Name == list[i].Name }
		if slices.IndexFunc(list, same) < i {
			return task.Invalid(task.CodeDuplicate, at+".name", "%s is the name of two providers", task.Quote(list[i].Name))
		}

		// Otherwise, an ID token for one of them is also valid for the other, and each person has two subjects.
		client := func(other Provider) bool { return other.Issuer == list[i].Issuer && other.ClientID == list[i].ClientID }
		if first := slices.IndexFunc(list, client); first < i {
			return task.Invalid(task.CodeDuplicate, at+".client_id", "%s has the same issuer and client_id; register a client for each provider", task.Quote(list[first].Name))
		}
	}

	return nil
}

func (p *Provider) validate(field string) error {
	if err := task.CheckName(field+".name", p.Name); err != nil {
		return err
	}
	if len(p.Name) > maxProviderName {
		return task.Invalid(task.CodeTooLong, field+".name", "%s is longer than %d bytes", task.Quote(p.Name), maxProviderName)
	}

	p.Display = cmp.Or(p.Display, p.Name)
	if err := task.CheckDescription(field+".display", p.Display); err != nil {
		return err
	}

	switch {
	case p.Issuer == "":
		return task.Invalid(task.CodeRequired, field+".issuer", "is required: the URL of the provider, as it names itself")
	case p.ClientID == "":
		return task.Invalid(task.CodeRequired, field+".client_id", "is required")
	}
	if err := checkURL(p.Issuer); err != nil {
		return task.Invalid(task.CodeBadValue, field+".issuer", "%s %v", task.Quote(p.Issuer), err)
	}

	if p.Scopes == nil {
		p.Scopes = []string{oidc.ScopeProfile, oidc.ScopeEmail}
	}
	for _, scope := range p.Scopes {
		if scope == "" || strings.ContainsAny(scope, " \t\n\"\\") {
			return task.Invalid(task.CodeBadValue, field+".scopes", "%s is not a scope", task.Quote(scope))
		}
	}

	p.GroupsClaim = cmp.Or(p.GroupsClaim, "groups")

	return nil
}

// ReadSecret returns the secret of the client; "" for a public client.
func (p *Provider) ReadSecret() (string, error) {
	if p.ClientSecretFile == "" {
		return "", nil
	}

	b, err := filetrust.ReadSecret(p.ClientSecretFile, uint32(os.Geteuid()))
	if err != nil {
		return "", err
	}

	secret := strings.TrimSpace(string(b))
	if secret == "" {
		return "", fmt.Errorf("%s is empty", p.ClientSecretFile)
	}

	return secret, nil
}

// checkURL checks the issuer or an endpoint: https, or http on this host.
func checkURL(s string) error {
	u, err := url.Parse(s)

	switch {
	case err != nil, u.Host == "", u.User != nil, u.Fragment != "":
		return errors.New("is not a URL such as https://login.example.com")
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}

	return errors.New("does not use https, which only a provider on this host may do without")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// provider is a Provider and what this node knows about it.
type provider struct {
	Provider
	http *http.Client
	now  func() time.Time
	log  *zap.Logger

	// discovering has one value while somebody reads or changes the fields below: a mutex would not end with a context.
	discovering chan struct{}
	known       *metadata
	failed      *Refusal // why the last discovery failed
	failedAt    time.Time
}

// endpoint is an endpoint of a provider to which the client sends its credentials.
type endpoint struct {
	url string
	// inHeader means that the client sends its id and secret as HTTP Basic, and not in the body.
	inHeader bool
}

// metadata is what a provider says about itself.
type metadata struct {
	readAt    time.Time
	verifier  *oidc.IDTokenVerifier
	authorize string // the URL of the authorization endpoint
	token     endpoint
	device    endpoint // without a URL: the provider does not support the device flow
	// namesIssuer means that each answer of the authorization endpoint has the parameter iss (RFC 9207).
	namesIssuer bool
}

// discoverMetadata returns the provider's metadata. It reads them if they are unknown or old. If they cannot be read now,
// the ones that were read before are used.
func (p *provider) discoverMetadata(ctx context.Context) (*metadata, error) {
	select {
	case p.discovering <- struct{}{}:
		defer func() { <-p.discovering }()
	case <-ctx.Done():
		return nil, p.refuseFailedRequest(ctx.Err())
	}

	now := p.now()
	if p.known != nil && now.Sub(p.known.readAt) < keepMetadata {
		return p.known, nil
	}

	if p.failed == nil || now.Sub(p.failedAt) >= retryAfter {
		// A caller who goes away must not make the provider look unreachable for others.
		known, err := p.readMetadata(context.WithoutCancel(ctx))
		if err == nil {
			p.known, p.failed = known, nil
			return known, nil
		}

		p.failed, p.failedAt = err, now
		p.log.Warn("cannot read the metadata of an OpenID Connect provider", zap.String("provider", p.Name), zap.Error(err))
	}

	if p.known != nil {
		return p.known, nil
	}

	return nil, p.failed
}

// readMetadata reads the provider's metadata and checks its endpoints.
func (p *provider) readMetadata(ctx context.Context) (*metadata, *Refusal) {
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, p.http), p.Issuer)
	var mismatch *oidc.IssuerMismatchError
	switch {
	case errors.As(err, &mismatch):
		return nil, p.refuseMisconfigured("the provider names itself %s, but the setting issuer is %s", quote(mismatch.Discovered), quote(p.Issuer))
	case err != nil:
		return nil, p.refuseFailedRequest(err)
	}

	var more struct {
		KeySet      string   `json:"jwks_uri"`
		AuthMethods []string `json:"token_endpoint_auth_methods_supported"`
		NamesIssuer bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := found.Claims(&more); err != nil {
		return nil, p.refuseFailedRequest(err)
	}

	// Without a list, providers support HTTP Basic (OpenID Connect Discovery, section 3).
	basic := len(more.AuthMethods) == 0 || slices.Contains(more.AuthMethods, "client_secret_basic")
	inBody := slices.Contains(more.AuthMethods, "client_secret_post")

	urls := found.Endpoint()
	m := &metadata{
		readAt: p.now(), authorize: urls.AuthURL, namesIssuer: more.NamesIssuer,
		token: endpoint{url: urls.TokenURL, inHeader: basic},
		// The list is that of the token endpoint. Dex supports both ways there, but reads the secret of a device only from the
		// body, and refuses the person who confirms the login if it was in the header.
		device: endpoint{url: urls.DeviceAuthURL, inHeader: basic && !inBody},
	}

	for name, at := range map[string]string{"authorization_endpoint": m.authorize, "token_endpoint": m.token.url, "jwks_uri": more.KeySet} {
		if err := checkURL(at); err != nil {
			return nil, p.refuseMisconfigured("the provider's %s, %s, %v", name, quote(at), err)
		}
	}
	if m.device.url != "" {
		if err := checkURL(m.device.url); err != nil {
			return nil, p.refuseMisconfigured("the provider's device_authorization_endpoint, %s, %v", quote(m.device.url), err)
		}
	}

	// An ID token that has just expired is accepted for maxSkew, because the clocks of the provider and the node differ.
	m.verifier = found.Verifier(&oidc.Config{ClientID: p.ClientID, Now: func() time.Time { return p.now().Add(-maxSkew) }})

	return m, nil
}

// providerAnswer is an answer of the token endpoint or of the device authorization endpoint.
type providerAnswer struct {
	IDToken string `json:"id_token"`

	DeviceCode              string `json:"device_code"`
	UserCode                string `json:"user_code"`
	VerificationURI         string `json:"verification_uri"`
	VerificationURL         string `json:"verification_url"`
	VerificationURIComplete string `json:"verification_uri_complete"`
	ExpiresIn               int64  `json:"expires_in"`
	Interval                int64  `json:"interval"`

	Error            string `json:"error"`
	ErrorDescription string `json:"error_description"`
}

// answerError is an error that a provider has answered with.
type answerError struct{ code, description string }

// Error implements error.
func (e *answerError) Error() string {
	if e.description == "" {
		return shorten(e.code)
	}
	return shorten(e.code) + ": " + shorten(e.description)
}

// exchangeForm sends a form to the token endpoint. The error is a *Pending or a *Refusal.
func (p *provider) exchangeForm(ctx context.Context, m *metadata, form url.Values) (providerAnswer, error) {
	answer, err := p.postForm(ctx, m.token, form)
	if pending := pendingOf(err); pending != nil {
		return answer, pending
	}

	return answer, err
}

// postForm sends a form to an endpoint, with the credentials of the client. It is used instead of oauth2.Config, which
// polls the device flow until it ends, sends no credentials to the device authorization endpoint, and sends the form twice
// to find out how the provider wants the credentials. A code is accepted only once.
func (p *provider) postForm(ctx context.Context, to endpoint, form url.Values) (providerAnswer, error) {
	var answer providerAnswer

	secret, err := p.ReadSecret()
	if err != nil {
		p.log.Error("cannot read the client secret of an OpenID Connect provider", zap.String("provider", p.Name), zap.Error(err))
		return answer, p.refuseMisconfigured("this node cannot read the client's secret")
	}

	form.Set("client_id", p.ClientID)
	if secret != "" && !to.inHeader {
		form.Set("client_secret", secret)
	}

	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url, strings.NewReader(form.Encode()))
	if err != nil {
		return answer, p.refuseFailedRequest(err)
	}

	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	if secret != "" && to.inHeader {
		r.SetBasicAuth(url.QueryEscape(p.ClientID), url.QueryEscape(secret)) // encoded as RFC 6749, section 2.3.1, says
	}

	res, err := p.http.Do(r)
	if err != nil {
		return answer, p.refuseFailedRequest(err)
	}

	defer res.Body.Close()

	body, err := io.ReadAll(res.Body)
	if err != nil {
		return answer, p.refuseFailedRequest(err)
	}

	err = json.Unmarshal(body, &answer)
	switch {
	case err == nil && answer.Error != "" && res.StatusCode < http.StatusInternalServerError:
		return answer, p.refuseAnswer(&answerError{code: answer.Error, description: answer.ErrorDescription})
	case err != nil || res.StatusCode != http.StatusOK:
		return answer, p.refuseFailedRequest(fmt.Errorf("status %s", res.Status))
	}

	return answer, nil
}

// refuseAnswer returns the refusal for an error that the provider has answered with.
func (p *provider) refuseAnswer(answer *answerError) error {
	var r *Refusal

	switch answer.code {
	case "access_denied":
		r = p.refuseLogin("it was denied, by you or by the provider (%s)", answer)
	case "expired_token":
		r = p.refuseLogin("nobody has confirmed it in time")
	case "invalid_grant":
		r = p.refuseLogin("the provider does not accept the code: it was used before, is too old, or was issued to another client (%s)", answer)
	case "invalid_client", "unauthorized_client", "invalid_scope", "unsupported_grant_type", "unsupported_response_type", "invalid_request":
		r = p.refuseMisconfigured("the provider does not accept the client of this cluster (%s)", answer)
	case "server_error", "temporarily_unavailable":
		r = p.refuseFailedRequest(errors.New(answer.Error()))
	default:
		r = p.refuseLogin("the provider answers: %s", answer)
	}

	r.cause = answer

	return r
}
