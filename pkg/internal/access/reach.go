package access

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

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
