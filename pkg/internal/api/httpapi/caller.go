package httpapi

import (
	"context"
	"strings"
	"unicode"

	"github.com/carillonhq/carillon/pkg/internal/access"
)

// Caller identifies who sent a request.
type Caller struct {
	Who         string // the subject: user:NAME, service:NAME, cert:NAME or unix:USER
	Token       string // the id of the token; "" if there was none
	Certificate string // the name of the client certificate, if it was verified
	Address     string // the address that the request came from, without the port; "" over a unix socket
	Forwarder   string // the node that forwarded the request for this caller; "" if none did
}

// Subject returns the caller as access records know it. Every user of the host who is trusted without a token has the
// rights of root there.
func (c Caller) Subject() access.Caller {
	if strings.HasPrefix(c.Who, access.KindUnix+":") {
		return access.Caller{Subject: access.RootSubject}
	}
	return access.Caller{Subject: c.Who, Token: c.Token}
}

// Name returns the subject as messages show it.
func (c Caller) Name() string { return actorName(c.Who) }

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

// Actor returns the name of the caller, in the format of all records and events: the subject, the token's id, and
// the name of the client certificate if it was verified:
//
//	user:ann (token k3vq7t2m5xw4hzra, certificate ann-laptop)
//	cert:deploy (certificate deploy)
//	unix:uid=0
//
// A subject may have several tokens, so the id tells which one was used (G26). It is not secret: it is the token's key
// in etcd.
func (c Caller) Actor() string {
	var by []string
	if c.Token != "" {
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
