package oidclogin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"go.uber.org/zap"
)

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
