package httpapi

import (
	"context"
	"strings"
	"unicode"
)

// Caller is who a request is from.
type Caller struct {
	Who, Role   string
	Token       string // the id of its token
	Certificate string // the common name of its client certificate, if that was verified
	Forwarder   string // the node that forwarded the request in its name, if one did
}

type whoKey struct{}

// WithCaller returns the context of a request whose caller was authenticated.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, whoKey{}, c)
}

// CallerOf is the caller of a request, as it was authenticated.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(whoKey{}).(Caller)
	return c
}

// maxActorName is how many bytes of a token's name, or of a certificate's, are kept.
const maxActorName = 128

// Actor returns who made a request, in the one form that records and events have: the
// name of the token's holder, the token's id, and the common name of the client
// certificate if it was verified:
//
//	ann (token k3vq7t2m5xw4hzra, certificate ann-laptop)
//	token k3vq7t2m5xw4hzra
//	unix:uid=0
//
// Two tokens may have the same name, and a certificate alone grants nothing: only all of
// them say whose request it was. The id is no secret: it is the token's key in etcd.
func (c Caller) Actor() string {
	var by []string
	if c.Token != "" && c.Who != TokenName(c.Token) {
		by = append(by, "token "+c.Token)
	}

	if c.Certificate != "" {
		by = append(by, "certificate "+actorName(c.Certificate))
	}

	text := actorName(c.Who)
	if len(by) > 0 {
		text += " (" + strings.Join(by, ", ") + ")"
	}

	return text
}

// TokenName is the name of a caller whose token has none.
func TokenName(token string) string { return "token " + token }

// actorName returns a name as records keep it: one line, of a bounded length, without
// what sets the token and the certificate apart from it, so that no name can pretend to
// have another token.
func actorName(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || strings.ContainsRune("(),", r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))

	if len(s) > maxActorName {
		s = strings.ToValidUTF8(s[:maxActorName], "") + "…"
	}

	return s
}
