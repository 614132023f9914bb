package access

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// CheckRole checks a role that somebody wants to write.
func CheckRole(r *task.Role) error {
	if err := task.CheckName("name", r.Name); err != nil {
		return err
	}

	if slices.ContainsFunc(BuiltInRoles(), func(b task.Role) bool { return b.Name == r.Name }) {
		return task.Invalid(task.CodeBadName, "name", "%s is a built-in role, which cannot be changed", task.Quote(r.Name))
	}

	if err := task.CheckDescription("description", r.Description); err != nil {
		return err
	}

	switch {
	case len(r.Rules) == 0:
		return task.Invalid(task.CodeRequired, "rules", "is empty: a role has at least one rule")
	case len(r.Rules) > task.MaxRules:
		return task.Invalid(task.CodeTooMany, "rules", "has %d rules; at most %d are allowed", len(r.Rules), task.MaxRules)
	}

	_, err := compileRole(*r)

	return err
}

// CheckBinding checks the form of a binding: not whether its role exists, nor its end.
func CheckBinding(b *task.Binding) error {
	if err := task.CheckName("name", b.Name); err != nil {
		return err
	}

	switch {
	case b.Role == "":
		return task.Invalid(task.CodeRequired, "role", "is required")
	case len(b.Subjects) == 0:
		return task.Invalid(task.CodeRequired, "subjects", "is empty: a binding has at least one subject")
	case len(b.Subjects) > task.MaxSubjects:
		return task.Invalid(task.CodeTooMany, "subjects", "has %d subjects; at most %d are allowed", len(b.Subjects), task.MaxSubjects)
	}

	for i, s := range b.Subjects {
		if err := CheckSubject(index("subjects", i), s); err != nil {
			return err
		}
		if slices.Contains(b.Subjects[:i], s) {
			return task.Invalid(task.CodeBadValue, index("subjects", i), "%s is in the list twice", task.Quote(s))
		}
	}

	switch {
	case b.Cluster && len(b.Namespaces) > 0:
		return task.Invalid(task.CodeBadValue, "namespaces", "cannot be combined with cluster, which includes every namespace")
	case !b.Cluster && len(b.Namespaces) == 0:
		return task.Invalid(task.CodeRequired, "namespaces", "is required, unless cluster is true")
	}

	if err := checkNameScope(b); err != nil {
		return err
	}
	if err := checkNamespaces("namespaces", b.Namespaces); err != nil {
		return err
	}

	if err := task.CheckLabels("labels", b.Labels); err != nil {
		return err
	}

	if len(b.Reason) > task.MaxReason {
		return task.Invalid(task.CodeTooLong, "reason", "is %d bytes long; at most %d are allowed", len(b.Reason), task.MaxReason)
	}

	return task.CheckDescription("reason", b.Reason)
}

func checkNamespaces(field string, names []string) error {
	if len(names) > task.MaxNamespaces {
		return task.Invalid(task.CodeTooMany, field, "has %d namespaces; at most %d are allowed", len(names), task.MaxNamespaces)
	}

	for i, s := range names {
		if err := checkPattern(index(field, i), s); err != nil {
			return err
		}
		if slices.Contains(names[:i], s) {
			return task.Invalid(task.CodeBadValue, index(field, i), "%s is in the list twice", task.Quote(s))
		}
	}

	return nil
}

// CheckScope checks the form of a token's scope.
func CheckScope(field string, s *task.TokenScope) error {
	if s.Role == "" {
		return task.Invalid(task.CodeRequired, field+".role", "is required")
	}

	if err := checkNamespaces(field+".namespaces", s.Namespaces); err != nil {
		return err
	}

	return task.CheckLabels(field+".labels", s.Labels)
}

// CheckEnd checks when a binding or a token ends: an end in the past would give nothing.
func CheckEnd(field string, until task.Time, now time.Time) error {
	switch {
	case until.IsZero():
		return nil
	case !now.Before(until.Time):
		return task.Invalid(task.CodeBadTime, field, "%s has passed", until.Format(time.RFC3339))
	case until.Year() > 2100:
		return task.Invalid(task.CodeBadTime, field, "%s is after the year 2100", until.Format(time.RFC3339))
	}

	return nil
}

// CheckNamespace checks the record of a namespace.
func CheckNamespace(n *task.Namespace) error {
	if err := task.CheckName("name", n.Name); err != nil {
		return err
	}

	if err := task.CheckDescription("description", n.Description); err != nil {
		return err
	}

	lists := []struct {
		field string
		names []string
	}{{"run_as", n.RunAs}, {"groups", n.Groups}, {"env_files", n.EnvFiles}}

	for _, l := range lists {
		if len(l.names) > task.MaxRunAs {
			return task.Invalid(task.CodeTooMany, l.field, "has %d entries; at most %d are allowed", len(l.names), task.MaxRunAs)
		}

		for i, s := range l.names {
			field := index(l.field, i)
			switch {
			case s == "":
				return task.Invalid(task.CodeRequired, field, "is empty")
			case s == "*":
			case strings.Contains(s, "*"):
				return task.Invalid(task.CodeBadValue, field, "%s: * stands for any name and must be the whole entry", task.Quote(s))
			case l.field == "env_files" && (s[0] != '/' || path.Clean(s) != strings.TrimSuffix(s, "/") && s != "/"):
				return task.Invalid(task.CodeBadValue, field, "%s is not an absolute path without . and ..", task.Quote(s))
			}

			if err := task.CheckDescription(field, s); err != nil {
				return err
			}
		}
	}

	if _, err := task.ParseSelector(n.Nodes); err != nil {
		return task.Under("nodes", err)
	}

	return nil
}

// The names of bindings are global and show who has which role where. So callers who may not see all bindings must not find out
// which names are taken. For this, a name with a dot belongs to the bindings of one namespace, which is the part before its last
// dot. Only administrators of access may choose names without a dot.

// NameScope returns the first part of the names of the bindings that apply to exactly these namespaces, without its dot. It
// is "" if the name of such a binding has no dot: the binding applies to the cluster or to several namespaces.
//
// Different scopes have different bindings. The scope of a prefix does not end with a letter or a digit, so it cannot be the name
// of a namespace.
func NameScope(namespaces []string) string {
	if len(namespaces) != 1 {
		return ""
	}

	prefix, isPrefix := strings.CutSuffix(namespaces[0], "*")
	switch {
	case !isPrefix:
		return prefix
	case prefix == "":
		return "all_"
	}

	return prefix + "-"
}

// NameIsScoped reports whether the name of a binding has a scope, so that every caller who may write the binding may choose it.
func NameIsScoped(b *task.Binding) bool { return strings.Contains(b.Name, ".") }

// checkNameScope rejects a name with a dot that does not belong to the binding's namespace.
func checkNameScope(b *task.Binding) error {
	i := strings.LastIndexByte(b.Name, '.')
	if i < 0 || b.Name[:i] == NameScope(b.Namespaces) {
		return nil
	}

	if scope := NameScope(b.Namespaces); scope != "" {
		return task.Invalid(task.CodeBadName, "name", "%s: a name with a dot begins with the binding's namespace: %s.NAME, where NAME has no dot", task.Quote(b.Name), scope)
	}

	return task.Invalid(task.CodeBadName, "name", "%s: only the name of a binding in one namespace can have a dot: NAMESPACE.NAME", task.Quote(b.Name))
}
