package ask

import (
	"path"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// Globs are patterns for the names of tasks, such as "web-*", or "prod/web-*" with a namespace. A task matches
// if any pattern matches. An empty list matches all tasks.
type Globs []string

// maxGlob is the maximum length of a pattern, and maxGlobs the maximum number of patterns. The cost of matching
// a name grows with both, and a list has many names.
const maxGlob, maxGlobs = 4 * task.MaxName, 1000

// UnmarshalText parses patterns that are separated by commas. Names contain no commas.
func (g *Globs) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}

	list := Globs(strings.Split(string(text), ","))
	if len(list) > maxGlobs {
		return task.Invalid(task.CodeTooMany, "", "%d patterns; at most %d are allowed", len(list), maxGlobs)
	}

	for _, p := range list {
		if len(p) > maxGlob {
			return task.Invalid(task.CodeTooLong, "", "%s: %d bytes; at most %d are allowed", task.Quote(p), len(p), maxGlob)
		}
		if _, err := path.Match(p, ""); err != nil || p == "" || strings.Count(p, "/") > 1 {
			return task.Invalid(task.CodeBadValue, "", "%s is not a pattern of names: use *, ? and [a-z]", task.Quote(p))
		}
	}

	*g = list

	return nil
}

// MarshalText joins the patterns with commas.
func (g Globs) MarshalText() ([]byte, error) { return []byte(strings.Join(g, ",")), nil }

// globSigns are the characters with a special meaning in a pattern.
const globSigns = `*?[\`

// ExactNames returns the tasks that the patterns name, as pairs of namespace and name. ok is false if a pattern is
// not an exact name.
func (g Globs) ExactNames(namespace string) (names [][2]string, ok bool) {
	for _, p := range g {
		ns, name, in := strings.Cut(p, "/")
		if !in {
			ns, name = namespace, p
		}

		if ns == "" || strings.ContainsAny(p, globSigns) {
			return nil, false
		}

		if namespace == "" || ns == namespace {
			names = append(names, [2]string{ns, name})
		}
	}

	return names, len(g) > 0
}

// Range returns the namespace and the text with which names must begin there, if nothing else is required: "web-" for
// "web-*". namespace is that of the list; "": all. A prefix needs a namespace, as in "prod/web-*".
func (g Globs) Range(namespace string) (ns, prefix string, ok bool) {
	if len(g) == 0 {
		return namespace, "", true
	}
	if len(g) > 1 {
		return "", "", false
	}

	ns, name, in := strings.Cut(g[0], "/")
	if !in {
		ns, name = namespace, g[0]
	}

	prefix, isPrefix := strings.CutSuffix(name, "*")
	ok = isPrefix && !strings.ContainsAny(ns+prefix, globSigns) && (namespace == "" || ns == namespace)

	return ns, prefix, ok && (ns != "" || prefix == "")
}

// condition returns the condition that a task matches one of the patterns. Exact names, which are most patterns, cost
// little for each row, however many there are.
func (g Globs) condition() readmodel.Condition {
	names, full := map[string]bool{}, map[string]bool{} // exact names, without and with their namespace
	var patterns, fullPatterns []readmodel.Glob

	for _, p := range g {
		switch slash := strings.Contains(p, "/"); {
		case !strings.ContainsAny(p, globSigns) && slash:
			full[p] = true
		case !strings.ContainsAny(p, globSigns):
			names[p] = true
		case slash:
			fullPatterns = append(fullPatterns, readmodel.CompileGlob(p))
		default:
			patterns = append(patterns, readmodel.CompileGlob(p))
		}
	}

	return func(r *readmodel.Row, _ int64) bool {
		name := r.Name[strings.IndexByte(r.Name, '/')+1:]
		if names[name] || full[r.Name] {
			return true
		}

		return readmodel.MatchesAny(patterns, name) || readmodel.MatchesAny(fullPatterns, r.Name)
	}
}
