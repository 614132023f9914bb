package httpapi

import (
	"context"
	"strings"
	"unicode"
)

// Caller identifies who sent a request.
type Caller struct {
	Who, Role   string
	Token       string // the id of the token; "" if there was none
	Certificate string // the common name of the client certificate, if it was verified
	Forwarder   string // the node that forwarded the request for this caller; "" if none did
}

// whoKey is the context key of a Caller.
type whoKey struct{}

// WithCaller returns the context of a request after its caller was authenticated.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, whoKey{}, c)
}

// CallerOf returns the authenticated caller of a request. It is the zero value for public operations.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(whoKey{}).(Caller)
	return c
}

// maxActorName is the maximum number of bytes of a token's or a certificate's name in a record.
const maxActorName = 128

// Actor returns the name of the caller, in the format of all records and events. It contains the name of the
// token's holder, the token's id, and the common name of the client certificate if it was verified:
//
//	ann (token k3vq7t2m5xw4hzra, certificate ann-laptop)
//	token k3vq7t2m5xw4hzra
//	unix:uid=0
//
// Two tokens may have the same name, and a certificate alone grants no access, so only all three together
// identify the caller (G26). The id is not secret: it is the token's key in etcd.
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

// TokenName is the name of a caller whose token has no name.
func TokenName(token string) string { return "token " + token }

// actorName returns a name in the format of records: one line, of limited length, and without the characters
// that separate it from the token and the certificate. So no name can imitate another token.
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
