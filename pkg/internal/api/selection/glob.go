package selection

import (
	"path"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// globs are patterns for the names of tasks, any of which may match: "web-*", or
// with a namespace "prod/web-*". None match all.
type globs []string

// maxGlob is how long a pattern may be, and maxGlobs how many there may be: what it
// takes to match a name grows with both, and a list has many names.
const maxGlob, maxGlobs = 4 * task.MaxName, 1000

// UnmarshalText reads patterns separated by commas, which no name has.
func (g *globs) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}

	list := globs(strings.Split(string(text), ","))
	if len(list) > maxGlobs {
		return task.Invalid(task.CodeTooMany, "", "%d patterns are more than %d", len(list), maxGlobs)
	}

	for _, p := range list {
		if len(p) > maxGlob {
			return task.Invalid(task.CodeTooLong, "", "%s: %d bytes are more than %d", task.Quote(p), len(p), maxGlob)
		}
		if _, err := path.Match(p, ""); err != nil || p == "" || strings.Count(p, "/") > 1 {
			return task.Invalid(task.CodeBadValue, "", "%s is not a pattern of names: use *, ? and [a-z]", task.Quote(p))
		}
	}

	*g = list

	return nil
}

// match reports whether the patterns let a task pass.
func (g globs) match(namespace, name string) bool {
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

const globSigns = `*?[\`

// exact are the tasks that the patterns name, if all of them are names; else false.
func (g globs) exact(namespace string) (names [][2]string, ok bool) {
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

// prefix is what all names begin with that match.
func (g globs) prefix() string {
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
