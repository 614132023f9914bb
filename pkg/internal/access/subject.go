package access

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/carillonhq/carillon/pkg/task"
)

// The kinds of subjects, as the part of a subject before the colon.
const (
	KindUser    = "user"    // a person; PROVIDER/SUB for one who signs in with an identity provider
	KindGroup   = "group"   // PROVIDER/NAME: the people whom an identity provider says to be in a group
	KindService = "service" // a program
	KindCert    = "cert"    // the URI SAN of a client certificate, or else its common name
	KindUnix    = "unix"    // a user of the host who is trusted without a token
)

// RootSubject is root on the host of a node that serves the API, over its unix socket. It
// may do everything: it could also read the node's credentials for etcd. It is also the subject of the sessions with which
// root uses the Web UI of that node.
const RootSubject = "unix:root"

// CheckSubject checks a subject that a binding names: KIND:NAME.
func CheckSubject(field, subject string) error {
	kind, name, ok := strings.Cut(subject, ":")
	switch {
	case !ok || name == "":
		return task.Invalid(task.CodeBadValue, field, "%s is not a subject; write user:NAME, group:PROVIDER/NAME, service:NAME or cert:NAME", task.Quote(subject))
	case kind != KindUser && kind != KindGroup && kind != KindService && kind != KindCert:
		return task.Invalid(task.CodeBadValue, field, "%s: %s is not a kind of subject; the kinds are user, group, service and cert", task.Quote(subject), task.Quote(kind))
	case len(subject) > task.MaxSubjectLength:
		return task.Invalid(task.CodeTooLong, field, "%s is longer than %d bytes", task.Quote(subject), task.MaxSubjectLength)
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' || strings.ContainsRune("*,()\uFFFD", r) }):
		return task.Invalid(task.CodeBadValue, field, "%s contains a character that a subject cannot have: a space, a control character or one of * , ( )", task.Quote(subject))
	}

	switch kind {
	case KindService:
		return task.CheckName(field, name)
	case KindGroup:
		if provider, group, ok := strings.Cut(name, "/"); !ok || provider == "" || group == "" {
			return task.Invalid(task.CodeBadValue, field, "%s is not a group; write group:PROVIDER/NAME", task.Quote(subject))
		}
	}

	return nil
}

// CheckActor checks a subject that can act by itself. A group cannot: it gives its rights to the sessions of its members.
func CheckActor(field, subject string) error {
	if strings.HasPrefix(subject, KindGroup+":") {
		return task.Invalid(task.CodeBadValue, field, "%s is a group; name one person or one service", task.Quote(subject))
	}
	return CheckSubject(field, subject)
}

// pattern is a namespace, or a prefix of namespaces.
type pattern struct {
	text   string
	prefix bool
}

// checkPattern checks a namespace of a binding or a scope: a name, or a prefix with * at its end.
func checkPattern(field, s string) error {
	prefix, isPrefix := strings.CutSuffix(s, "*")
	if !isPrefix {
		return task.CheckName(field, s)
	}

	if strings.ContainsAny(prefix, "*?[") {
		return task.Invalid(task.CodeBadValue, field, "%s: * is allowed only at the end", task.Quote(s))
	}

	if prefix == "" {
		return nil
	}

	return task.CheckName(field, strings.TrimRight(prefix, "-_.")+"x")
}

func parsePattern(s string) pattern {
	prefix, isPrefix := strings.CutSuffix(s, "*")
	return pattern{text: prefix, prefix: isPrefix}
}

func (p pattern) matches(namespace string) bool {
	if p.prefix {
		return strings.HasPrefix(namespace, p.text)
	}
	return p.text == namespace
}

// MatchesNamespace reports whether a list of namespaces, in which a name that ends in * is a prefix, contains a namespace.
func MatchesNamespace(patterns []string, namespace string) bool {
	return slices.ContainsFunc(patterns, func(s string) bool { return parsePattern(s).matches(namespace) })
}

// covers reports whether each namespace that q matches is one that p matches.
func (p pattern) covers(q pattern) bool {
	if p.prefix {
		return strings.HasPrefix(q.text, p.text)
	}
	return !q.prefix && p.text == q.text
}

// grantsOfGroups returns the grants of a session's subject and of its groups. The groups are those that the identity
// provider named at the login. It returns nil for a token without groups. The bindings must be compiled.
func (t *Table) grantsOfGroups(token *task.Token) []grant {
	if len(token.Groups) == 0 {
		return nil
	}

	all := slices.Clone(t.grants[token.Subject])
	for _, group := range token.Groups {
		all = append(all, t.grants[group]...)
	}

	return all
}

// heldBy returns what the subject and the groups of a caller have. The caller's token must belong to its subject.
func (t *Table) heldBy(c Caller) []grant {
	if token := t.tokens.get(c.Token); token != nil && token.held != nil {
		return token.held
	}

	return t.grants[c.Subject]
}

// HoldsSomething reports whether a subject or one of some groups has any right now.
func (t *Table) HoldsSomething(subject string, groups []string, now time.Time) bool {
	return slices.ContainsFunc(append([]string{subject}, groups...), func(s string) bool {
		return slices.ContainsFunc(t.grants[s], func(g grant) bool { return g.lasts(now) })
	})
}

// BindingsOfCaller are the bindings that name a caller, or a group of the caller's session. They name no other subjects.
func (t *Table) BindingsOfCaller(c Caller) []task.Binding {
	token, _ := t.Token(c.Token)
	subjects := append([]string{c.Subject}, token.Groups...)

	var list []task.Binding
	for _, b := range t.bindings {
		b.Subjects = slices.DeleteFunc(slices.Clone(b.Subjects), func(s string) bool { return !slices.Contains(subjects, s) })
		if len(b.Subjects) > 0 {
			list = append(list, b)
		}
	}

	return list
}
