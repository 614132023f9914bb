package access

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

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
