package access

import (
	"iter"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Excess is a part of a new grant that its author does not hold.
type Excess struct {
	Verb      Verb
	Kind      Kind
	Namespace string // as the new grant has it; "" for the whole cluster
}

// CoversBinding reports whether a caller holds everything that a new binding would give. If
// not, excess is a part that the caller does not hold. An error is a fault of the binding.
func (t *Table) CoversBinding(c Caller, b task.Binding, now time.Time) (excess *Excess, err error) {
	grants, err := t.grantsOf(b)
	if err != nil {
		return nil, err
	}

	return t.excessOf(c, grants, now), nil
}

// CoversRole is CoversBinding for new rules of a role: in every binding that the role has, and for every token whose
// scope it is (see CoversToken).
func (t *Table) CoversRole(c Caller, role task.Role, now time.Time) (excess *Excess, err error) {
	compiled, err := compileRole(role)
	if err != nil {
		return nil, err
	}

	for _, b := range t.bindings {
		if b.Role != role.Name || b.RoleUID != role.UID {
			continue
		}

		grants := expand(compiled.rules, binding{where: parsePatterns(b.Namespaces), cluster: b.Cluster, labels: b.Labels, until: b.Until.Time})
		if excess := t.excessOf(c, grants, now); excess != nil {
			return excess, nil
		}
	}

	for token := range t.tokens.all() {
		s := token.Scope
		if s == nil || s.Role != role.Name || s.RoleUID != role.UID {
			continue
		}

		scope := expand(compiled.rules, bindingOfScope(s))
		if excess := t.excessOf(c, t.mostOf(c, token.Token, scope), now); excess != nil {
			return excess, nil
		}
	}

	return nil, nil
}

// CoversToken is CoversBinding for a token: what the token can ever do, including what its subject is granted
// later. Its scope bounds that. So the caller must hold the whole scope, or everything in the cluster if the token
// has none: what the subject may do now does not matter, because a binding that somebody else creates later would
// also give its rights to every holder of the token. Only for a token of its own subject does a caller need nothing but
// what the subject has now, unless the caller's own token has a scope, which the new token would escape.
func (t *Table) CoversToken(c Caller, token task.Token, now time.Time) (excess *Excess, err error) {
	var scope []grant
	if token.Scope != nil {
		if scope, err = t.scopeOf(token.Scope); err != nil {
			return nil, err
		}
	}

	return t.excessOf(c, t.mostOf(c, token, scope), now), nil
}

// mostOf returns what a token that a caller creates can do at most. scope has the grants of the token's scope.
func (t *Table) mostOf(c Caller, token task.Token, scope []grant) []grant {
	most := scope
	if token.Scope == nil {
		most = t.everything()
	}

	if own := t.tokens.get(c.Token); token.Subject == c.Subject && (own == nil || own.Scope == nil) {
		most = intersect(t.grants[c.Subject], most)
	}

	return endingAt(most, token.Until.Time)
}

// everything returns the grants of an administrator of the cluster.
func (t *Table) everything() []grant {
	return expand(t.roles[RoleAdmin].rules, binding{cluster: true})
}

// Administers reports whether a caller may do everything in the cluster now.
func (t *Table) Administers(c Caller, now time.Time) bool {
	return t.excessOf(c, endingAt(t.everything(), now.Add(time.Nanosecond)), now) == nil
}

// CoversSubject reports, like CoversBinding, whether a caller holds everything that a subject's bindings give it now.
func (t *Table) CoversSubject(c Caller, subject string, now time.Time) (excess *Excess) {
	return t.excessOf(c, t.grants[subject], now)
}

// endingAt returns the grants, limited to the time until; zero: no limit.
func endingAt(grants []grant, until time.Time) []grant {
	if until.IsZero() {
		return grants
	}

	list := slices.Clone(grants)
	for i := range list {
		if list[i].until.IsZero() || list[i].until.After(until) {
			list[i].until = until
		}
	}

	return list
}

// intersect returns what both lists allow.
func intersect(a, b []grant) []grant {
	var both []grant
	for i := range a {
		for j := range b {
			if g, ok := a[i].and(&b[j]); ok {
				both = append(both, g)
			}
		}
	}

	return both
}

func (g *grant) and(h *grant) (grant, bool) {
	r := grant{cluster: g.cluster && h.cluster, until: g.until}
	for k := range kinds {
		r.verbs[k] = g.verbs[k] & h.verbs[k]
	}

	if r.verbs.isEmpty() {
		return r, false
	}

	switch {
	case g.cluster:
		r.where = h.where
	case h.cluster:
		r.where = g.where
	default:
		for _, p := range g.where {
			for _, q := range h.where {
				if p.covers(q) {
					r.where = append(r.where, q)
				} else if q.covers(p) {
					r.where = append(r.where, p)
				}
			}
		}
	}

	if !r.cluster && len(r.where) == 0 {
		return r, false
	}

	if r.until.IsZero() || !h.until.IsZero() && h.until.Before(r.until) {
		r.until = h.until
	}

	labels, ok := joinLabels(labelMap(g.labels), labelMap(h.labels))
	r.labels = labels

	return r, ok
}

func labelMap(labels []label) map[string]string {
	m := map[string]string{}
	for _, l := range labels {
		m[l.key] = l.value
	}

	return m
}

// excessOf returns a part of the wanted grants that does not lie within one of the caller's.
func (t *Table) excessOf(c Caller, wanted []grant, now time.Time) *Excess {
	held := t.heldBy(c)
	if t.disabled[c.Subject] || t.Fence == 0 {
		held = nil
	}

	if c.Token != "" {
		token := t.tokens.get(c.Token)
		switch {
		case token == nil || token.Subject != c.Subject:
			held = nil
		case token.Scope != nil:
			held = intersect(held, t.scopeGrants(token))
		}

		// A token's end does not bound what its subject grants: the subject could do so
		// with its next token, too.
	}

	for i := range wanted {
		if e := excessOfOne(held, &wanted[i], now); e != nil {
			return e
		}
	}

	return nil
}

func excessOfOne(held []grant, want *grant, now time.Time) *Excess {
	places := want.where
	if want.cluster {
		places = []pattern{{}}
	}

	for k := range kinds {
		for rest := want.verbs[k]; rest != 0; rest &= rest - 1 {
			verb := Verb(1) << bits.TrailingZeros16(uint16(rest))
			for _, place := range places {
				if slices.ContainsFunc(held, func(h grant) bool { return h.lasts(now) && h.holds(verb, k, place, want) }) {
					continue
				}

				e := &Excess{Verb: verb, Kind: k}
				if !want.cluster {
					e.Namespace = place.text
					if place.prefix {
						e.Namespace += "*"
					}
				}

				return e
			}
		}
	}

	return nil
}

// holds reports whether a wanted verb on a kind, in one place, lies within the grant.
func (g *grant) holds(verb Verb, k Kind, place pattern, want *grant) bool {
	if g.verbs[k]&verb == 0 {
		return false
	}

	if !g.until.IsZero() && (want.until.IsZero() || want.until.After(g.until)) {
		return false
	}

	if !g.cluster && (want.cluster || !slices.ContainsFunc(g.where, func(p pattern) bool { return p.covers(place) })) {
		return false
	}

	return g.accepts(labelMap(want.labels))
}

// LastAdmin reports whether no subject could administer the cluster now without the records that
// drop names: an admin is a subject that is not disabled, has a live token without a scope or is a
// certificate, and has the role admin in the cluster by a binding without an end. Tokens may end:
// a person's token always does, and root on the host of an API node can create another one.
func (t *Table) LastAdmin(now time.Time, drop func(what, name string) bool) bool {
	hasToken := map[string]bool{}
	for token := range t.tokens.all() {
		if token.Kind == task.TokenKindToken && token.Scope == nil && !hasEnded(&token.Token, now) && len(token.CIDRs) == 0 && !drop("token", token.ID) {
			hasToken[token.Subject] = true
		}
	}

	for _, b := range t.bindings {
		if b.Role != RoleAdmin || b.RoleUID != BuiltInUID || !b.Cluster || !b.Until.IsZero() || len(b.Labels) > 0 || drop("binding", b.Name) {
			continue
		}

		for _, s := range b.Subjects {
			if !t.disabled[s] && !drop("subject", s) && (hasToken[s] || strings.HasPrefix(s, KindCert+":")) {
				return false
			}
		}
	}

	return true
}

// Readable are the namespaces of a list in which a caller may read objects of a kind.
func (t *Table) Readable(c Caller, k Kind, names []string, now time.Time) []string {
	return slices.DeleteFunc(slices.Clone(names), func(ns string) bool {
		return !t.Allows(c, Need{Verb: Read, Kind: k, Namespace: ns}, now)
	})
}

// BindingsOf are the bindings that name a subject.
func (t *Table) BindingsOf(subject string) []task.Binding {
	var list []task.Binding
	for _, b := range t.bindings {
		if slices.Contains(b.Subjects, subject) {
			list = append(list, b)
		}
	}

	return list
}

// Bindings are all bindings, in the order of their keys.
func (t *Table) Bindings() []task.Binding { return t.bindings }

// Tokens are all tokens, by id.
func (t *Table) Tokens() []task.Token {
	list := make([]task.Token, 0, t.tokens.len())
	for token := range t.tokens.all() {
		list = append(list, token.Token)
	}
	slices.SortFunc(list, func(a, b task.Token) int { return strings.Compare(a.ID, b.ID) })

	return list
}

// EachToken returns all tokens, in no particular order. The caller must not change them.
func (t *Table) EachToken() iter.Seq[*task.Token] {
	return func(yield func(*task.Token) bool) {
		for token := range t.tokens.all() {
			if !yield(&token.Token) {
				return
			}
		}
	}
}

// Roles are all roles, the built-in ones first.
func (t *Table) Roles() []task.Role {
	list := BuiltInRoles()
	for _, name := range slices.Sorted(maps.Keys(t.roles)) {
		if r := t.roles[name]; !r.BuiltIn {
			list = append(list, r.Role)
		}
	}

	return list
}

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

// BindingsInScope returns the bindings that apply in a namespace of a token's scope, each with only those of its namespaces.
// The bindings of a token that has no scope, or a scope without namespaces, are all of them.
func BindingsInScope(s *task.TokenScope, bindings []task.Binding) []task.Binding {
	if s == nil || len(s.Namespaces) == 0 {
		return bindings
	}

	scope := parsePatterns(s.Namespaces)
	var list []task.Binding
	for _, b := range bindings {
		if !b.Cluster {
			b.Namespaces = slices.DeleteFunc(slices.Clone(b.Namespaces), func(ns string) bool {
				return !slices.ContainsFunc(scope, parsePattern(ns).overlaps)
			})
			if len(b.Namespaces) == 0 {
				continue
			}
		}

		list = append(list, b)
	}

	return list
}

// overlaps reports whether there can be a namespace that both patterns match.
func (p pattern) overlaps(q pattern) bool { return p.covers(q) || q.covers(p) }

// HoldsOutsideGrant reports whether a subject holds a right anywhere that the caller may not grant bindings: in another
// namespace, or in the whole cluster.
func (t *Table) HoldsOutsideGrant(c Caller, subject string, now time.Time) bool {
	for _, g := range t.grants[subject] {
		if !g.lasts(now) {
			continue
		}

		// The caller must have grant on bindings now, wherever the subject's right applies.
		want := grant{where: g.where, cluster: g.cluster, until: now}
		want.verbs[Bindings] = Grant
		if t.excessOf(c, []grant{want}, now) != nil {
			return true
		}
	}

	return false
}
