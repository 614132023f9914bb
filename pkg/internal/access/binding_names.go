package access

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

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
