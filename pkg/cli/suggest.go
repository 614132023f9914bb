package cli

import (
	"reflect"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// maxTyped is how long a word may be to be a name with a mistake in it.
const maxTyped = task.MaxName + 16

// nearest is the word of words that was probably meant by typed; "" if none is
// near enough. A word that typed begins counts as near.
func nearest(typed string, words []string) string {
	if len(typed) > maxTyped {
		return ""
	}
	typed = strings.ToLower(typed)
	best, least := "", len(typed)/3+1
	for _, w := range words {
		d := distance(typed, strings.ToLower(w))
		if len(typed) >= 3 && strings.HasPrefix(w, typed) {
			d = 1
		}
		if d < least || (d == least && best == "" && d < len(typed)) {
			best, least = w, d
		}
	}
	return best
}

// distance counts the insertions, deletions, changes and swaps of neighbours
// that make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// nearField is the field of a task that was probably meant by the last part of
// a path that no task has.
func nearField(path string) string {
	return nearest(path[strings.LastIndex(path, ".")+1:], fieldNames(reflect.TypeFor[task.Spec](), nil))
}

// fieldNames are the names of a type's fields in JSON, and of those within.
func fieldNames(t reflect.Type, names []string) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return names
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
		names = fieldNames(f.Type, names)
	}
	return names
}
