package selection

import (
	"path"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// globs are patterns for the names of tasks, such as "web-*", or "prod/web-*" with a namespace. A task matches
// if any pattern matches. An empty list matches all tasks.
type globs []string

// maxGlob is the maximum length of a pattern, and maxGlobs the maximum number of patterns. The cost of matching
// a name grows with both, and a list has many names.
const maxGlob, maxGlobs = 4 * task.MaxName, 1000

// UnmarshalText parses patterns that are separated by commas. Names contain no commas.
func (g *globs) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}

	list := globs(strings.Split(string(text), ","))
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

// matchesName reports whether a task matches the patterns.
func (g globs) matchesName(namespace, name string) bool {
	for _, p := range g {
		text := name
		if strings.Contains(p, "/") {
			text = namespace + "/" + name
		}

		if ok, _ := path.Match(p, text); ok {
			return true
		}
	}

	return len(g) == 0
}

// globSigns are the characters with a special meaning in a pattern.
const globSigns = `*?[\`

// exactNames returns the tasks that the patterns name, as pairs of namespace and name. ok is false if a pattern is
// not an exact name.
func (g globs) exactNames(namespace string) (names [][2]string, ok bool) {
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

// commonPrefix returns the prefix that all matching names share, so that a list reads only that key range.
func (g globs) commonPrefix() string {
	common := ""
	for i, p := range g {
		if strings.Contains(p, "/") {
			return ""
		}

		if at := strings.IndexAny(p, globSigns); at >= 0 {
			p = p[:at]
		}

		if i == 0 {
			common = p
		}

		for !strings.HasPrefix(p, common) {
			common = common[:len(common)-1]
		}
	}

	return common
}
