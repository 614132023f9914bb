package access

import (
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// LastAdminWith is LastAdmin for a binding that replaces the one of its name: it reports whether no subject could
// administer the cluster then.
func (t *Table) LastAdminWith(now time.Time, b task.Binding) bool {
	after := *t
	after.bindings = append(slices.DeleteFunc(slices.Clone(t.bindings), func(old task.Binding) bool { return old.Name == b.Name }), b)

	return after.LastAdmin(now, func(string, string) bool { return false })
}

// bootstrapAge is how old a token without an end becomes before it is reported.
const bootstrapAge = 30 * 24 * time.Hour

// UnneededBootstrapToken returns a token without a scope that never expires and is at least 30 days old, as the bootstrap
// token, although the cluster has another administrator.
func (t *Table) UnneededBootstrapToken(now time.Time) (task.Token, bool) {
	for token := range t.tokens.all() {
		old := token.Kind == task.TokenKindToken && token.Scope == nil && token.Until.IsZero() && !token.CreatedAt.IsZero() && now.Sub(token.CreatedAt.Time) >= bootstrapAge
		if old && !t.LastAdmin(now, func(what, name string) bool { return what == "subject" && name == token.Subject }) {
			return token.Token, true
		}
	}

	return task.Token{}, false
}

// Binding returns a binding by its name.
func (t *Table) Binding(name string) (task.Binding, bool) {
	i := slices.IndexFunc(t.bindings, func(b task.Binding) bool { return b.Name == name })
	if i < 0 {
		return task.Binding{}, false
	}

	return t.bindings[i], true
}

// Subjects are all subjects that a binding, a token or a disabled subject's record names, in order.
func (t *Table) Subjects() []string {
	var list []string
	for _, b := range t.bindings {
		list = append(list, b.Subjects...)
	}
	for token := range t.tokens.all() {
		list = append(list, token.Subject)
	}
	for subject := range t.disabled {
		list = append(list, subject)
	}

	slices.Sort(list)

	return slices.Compact(list)
}

// ClusterRights returns what a caller may do to the kinds of objects that belong to the whole cluster, a rule for each kind.
func (t *Table) ClusterRights(c Caller, now time.Time) []task.Rule {
	var rules []task.Rule
	for k := Namespaces; k < kinds; k++ {
		var allowed Verb
		for rest := verbsOf[k]; rest != 0; rest &= rest - 1 {
			if v := Verb(1) << bits.TrailingZeros16(uint16(rest)); t.Allows(c, Need{Verb: v, Kind: k}, now) {
				allowed |= v
			}
		}

		if allowed != 0 {
			rules = append(rules, task.Rule{Verbs: strings.Split(allowed.String(), ", "), Objects: []string{k.String()}})
		}
	}

	return rules
}
