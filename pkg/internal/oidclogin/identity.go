package oidclogin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/carillonhq/carillon/pkg/internal/access"
)

const (
	// maxSkew is how long after its end an ID token is accepted.
	maxSkew = time.Minute
	// maxAhead is how far in the future an ID token may have been issued, by the node's clock.
	maxAhead = 5 * time.Minute
	// maxShown is the maximum length of a name or a mail address.
	maxShown = 128
)

// Identity is a person who has signed in.
type Identity struct {
	Provider string   // the provider's name
	Subject  string   // user:PROVIDER/SUB
	Groups   []string // group:PROVIDER/NAME, in order
	Name     string   // the person's name and mail address: they are only shown
	Mail     string
}

// claims are the claims of an ID token that this package reads itself.
type claims struct {
	AuthorizedParty string `json:"azp"`
	Name            string `json:"name"`
	PreferredName   string `json:"preferred_username"`
	Mail            string `json:"email"`
}

// verifyIDToken returns the person that an ID token names. nonce is the one that was sent with the login; "" if none was.
func (p *provider) verifyIDToken(ctx context.Context, m *metadata, raw, nonce string) (Identity, error) {
	if raw == "" {
		return Identity{}, p.refuseMisconfigured("the provider's answer has no ID token; is the scope openid allowed for the client?")
	}

	token, err := m.verifier.Verify(oidc.ClientContext(ctx, p.http), raw)
	if err != nil {
		return Identity{}, p.refuseToken(err)
	}

	var c claims
	all := map[string]json.RawMessage{}
	if err := errors.Join(token.Claims(&c), token.Claims(&all)); err != nil {
		return Identity{}, p.refuseLogin("the ID token cannot be read: %s", shorten(err.Error()))
	}

	switch {
	case token.Nonce != nonce && nonce != "":
		return Identity{}, p.refuseLogin("the ID token belongs to another login: its nonce is a different one")
	case c.AuthorizedParty != "" && c.AuthorizedParty != p.ClientID:
		return Identity{}, p.refuseLogin("the ID token was issued to another client, %s", quote(c.AuthorizedParty))
	case len(token.Audience) > 1 && c.AuthorizedParty == "":
		return Identity{}, p.refuseLogin("the ID token is for several clients, and does not name the one that it was issued to")
	case token.IssuedAt.Sub(p.now()) > maxAhead:
		return Identity{}, p.refuseLogin("the ID token was issued at %s, which is in the future: the clocks of the provider and of this node differ", token.IssuedAt.UTC().Format(time.RFC3339))
	}

	id := Identity{Provider: p.Name, Subject: subjectOf(access.KindUser, p.Name, token.Subject), Name: shownText(c.Name), Mail: shownText(c.Mail)}
	if id.Name == "" {
		id.Name = shownText(c.PreferredName)
	}
	// Bytes that are not UTF-8 are all decoded to the same character, so they could make two people one.
	if access.CheckSubject("sub", id.Subject) != nil || token.Subject == "" || strings.ContainsRune(token.Subject, unicode.ReplacementChar) {
		return Identity{}, p.refuseLogin("the subject %s of the ID token cannot be used: it is empty, too long, or not UTF-8", quote(token.Subject))
	}

	id.Groups, err = p.groupsOf(all[p.GroupsClaim])

	return id, err
}

// refuseToken returns the refusal for an ID token that the verifier did not accept.
func (p *provider) refuseToken(err error) error {
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return p.refuseLogin("the ID token expired at %s, but it is %s on this node: the clocks of the provider and of this node differ",
			expired.Expiry.UTC().Format(time.RFC3339), p.now().UTC().Format(time.RFC3339))
	case strings.Contains(err.Error(), "fetching keys"):
		return p.refuseFailedRequest(err)
	}

	r := p.refuseLogin("the ID token is not accepted: %s", shorten(strings.TrimPrefix(err.Error(), "oidc: ")))
	r.cause = err

	return r
}

// groupsOf returns the subjects of the groups in a claim: a list of names, or one name. Names that no binding could
// contain are left out.
func (p *provider) groupsOf(claim json.RawMessage) ([]string, error) {
	if len(claim) == 0 || string(claim) == "null" {
		return nil, nil
	}

	var names []string
	var one string
	if json.Unmarshal(claim, &one) == nil {
		names = []string{one}
	} else if json.Unmarshal(claim, &names) != nil {
		return nil, p.refuseMisconfigured("the claim %s of the ID token is neither a list of names nor a name", quote(p.GroupsClaim))
	}

	var groups []string
	for _, name := range names {
		group := subjectOf(access.KindGroup, p.Name, name)
		if name != "" && access.CheckSubject("groups", group) == nil {
			groups = append(groups, group)
		}
	}

	slices.Sort(groups)

	return slices.Compact(groups), nil
}

// subjectOf returns the subject of a name that a provider uses. Bytes that a subject cannot contain are escaped as in
// URLs, so different names are always different subjects.
func subjectOf(kind, provider, name string) string {
	var b strings.Builder
	for _, r := range name {
		if r != '%' && r != unicode.ReplacementChar && unicode.IsPrint(r) && !strings.ContainsRune(" *,()", r) {
			b.WriteRune(r)
			continue
		}

		for _, c := range []byte(string(r)) {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}

	return kind + ":" + provider + "/" + b.String()
}

// shownText returns a text of a provider on one line and with a limited length.
func shownText(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))

	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "")
	}

	return strings.TrimSpace(s)
}
