package access

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// addGroups gives a session the grants of its groups, in addition to those of its subject. Its bindings must be compiled. The
// groups are those that the identity provider named at the login.
func (t *Table) addGroups(token *task.Token) {
	if len(token.Groups) == 0 {
		return
	}

	all := slices.Clone(t.grants[token.Subject])
	for _, group := range token.Groups {
		all = append(all, t.grants[group]...)
	}

	t.sessionGrants[token.ID] = all
}

// heldBy returns what the subject and the groups of a caller have. The caller's token must belong to its subject.
func (t *Table) heldBy(c Caller) []grant {
	if c.Token != "" {
		if all, ok := t.sessionGrants[c.Token]; ok {
			return all
		}
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
	subjects := append([]string{c.Subject}, t.tokens[c.Token].Groups...)

	var list []task.Binding
	for _, b := range t.bindings {
		b.Subjects = slices.DeleteFunc(slices.Clone(b.Subjects), func(s string) bool { return !slices.Contains(subjects, s) })
		if len(b.Subjects) > 0 {
			list = append(list, b)
		}
	}

	return list
}
