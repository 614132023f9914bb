package task

import (
	"strings"
	"unicode"
)

// Actor is who made a change. Fields of records have a pointer to one, so that the many without an actor stay small; nil
// means that nobody is on record. The methods accept nil. Compare actors with Equal. An AuditRecord has the same fields.
type Actor struct {
	Subject     string `json:"subject" doc:"user:NAME (user:PROVIDER/SUB after a login with an identity provider), service:NAME, cert:NAME, or unix:USER for a user of the node's host; node:NAME for what a node did by itself; carillon for what Carillon did."`
	Token       string `json:"token,omitempty" doc:"The id of the token that the subject used. It is not secret."`
	Certificate string `json:"certificate,omitempty" doc:"The client certificate that the subject proved to have."`
}

// nodeSubject begins the subject of a node.
const nodeSubject = "node:"

// NewActor returns the actor with a subject, or nil if it is empty.
func NewActor(subject string) *Actor {
	if subject == "" {
		return nil
	}
	return &Actor{Subject: subject}
}

// NodeActor returns a node as an actor, or nil if its name is empty.
func NodeActor(name string) *Actor {
	if name == "" {
		return nil
	}
	return &Actor{Subject: nodeSubject + name}
}

// Is reports whether the actor has a subject, with whatever token.
func (a *Actor) Is(subject string) bool { return a != nil && a.Subject == subject }

// Node returns the name of the node that the actor is, or "" if it is none.
func (a *Actor) Node() string {
	if a == nil {
		return ""
	}
	if name, ok := strings.CutPrefix(a.Subject, nodeSubject); ok {
		return name
	}

	return ""
}

// Equal reports whether two actors are the same subject with the same token and certificate.
func (a *Actor) Equal(b *Actor) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// Name returns the subject as people see it, for lists with little space. A node has only its name. It returns "" for nil.
func (a *Actor) Name() string {
	if a == nil {
		return ""
	}
	if node := a.Node(); node != "" {
		return ActorText(node)
	}

	return ActorText(a.Subject)
}

// String returns the actor as people see it, or "" for nil:
//
//	user:ann (token k3vq7t2m5xw4hzra, certificate ann-laptop)
//	cert:deploy (certificate deploy)
//	unix:uid=0
func (a *Actor) String() string {
	if a == nil {
		return ""
	}

	var with []string
	if a.Token != "" {
		with = append(with, "token "+ActorText(a.Token))
	}
	if a.Certificate != "" {
		with = append(with, "certificate "+ActorText(a.Certificate))
	}

	text := a.Name()
	if len(with) > 0 {
		text += " (" + strings.Join(with, ", ") + ")"
	}

	return text
}

// maxActorText is the maximum number of bytes of a name that people see.
const maxActorText = 128

// ActorText returns a subject, or the name of a token or a certificate, as people see it: one line, of limited length, and
// without the characters that separate it from the others. So no name can imitate another token.
func ActorText(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || strings.ContainsRune("(),", r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))

	if len(s) > maxActorText {
		s = strings.ToValidUTF8(s[:maxActorText], "") + "…"
	}

	return s
}
