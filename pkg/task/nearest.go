package task

import (
	"slices"
	"strings"
)

// maxTyped is how long a word may be to be a name with a mistake in it: the time
// that Nearest needs grows with it.
const maxTyped = MaxName + 16

// Nearest is the word of words that was probably meant by typed; "" if none is
// near enough. Case, '-' and '_' make no difference; a word that typed, of three
// letters or more, begins counts as near. Of words that are as near, the first is it.
func Nearest(typed string, words []string) string {
	if len(typed) > maxTyped {
		return ""
	}

	typed = normalizeKey(typed)
	best, least := "", len(typed)/3+1
	for _, w := range words {
		word := normalizeKey(w)
		d := len(word) - len(typed) // or more
		switch {
		case len(typed) >= 3 && strings.HasPrefix(word, typed):
			d = min(d, 1)
		case max(d, -d) > least:
			continue
		default:
			d = editDistance(typed, word)
		}

		if d < least || (d == least && best == "" && d < len(typed)) {
			best, least = w, d
		}
	}

	return best
}

// didYouMean is the end of a message: what was probably meant, if that is known.
func didYouMean(typed string, words []string) string {
	near := Nearest(typed, words)
	if near == "" {
		return ""
	}
	return "; did you mean " + near + "?"
}

// editDistance counts the insertions, deletions, changes and swaps of neighbours
// that make b of a.
func editDistance(a, b string) int {
	if len(b) > maxTyped {
		return len(b) // as far as makes no difference
	}

	var rows [3][maxTyped + 1]int // on the stack: there may be hundreds of words
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}

	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}

			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}

		before, last, row = last, row, before
	}

	return last[len(b)]
}

// asName makes a name of a text that is none: what would be allowed in its place.
// "" if nothing of it can stay.
func asName(text string) string {
	return reshapeName(strings.ToLower(text), "._-", MaxName)
}

// reshapeName keeps ASCII letters and digits, and the marks between them; what stands
// in other places becomes one dash. The result is at most so many bytes long.
func reshapeName(text, marks string, most int) string {
	var b []byte
	for _, c := range []byte(text) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		last := byte('-') // nothing begins with a mark
		if len(b) > 0 {
			last = b[len(b)-1]
		}

		switch {
		case alnum:
			b = append(b, c)
		case strings.IndexByte("._-/", last) >= 0:
		case strings.IndexByte(marks, c) >= 0:
			b = append(b, c)
		default:
			b = append(b, '-')
		}
	}

	b = b[:min(len(b), most)]
	return strings.TrimRight(string(b), "._-/")
}

// oneOf refuses a value that is none of those allowed.
func oneOf(field, v string, allowed ...string) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	return NoneOf(CodeBadValue, field, v, allowed...)
}

// NoneOf is the error of a value that is none of those allowed; it says which of
// them was probably meant.
func NoneOf(code, field, v string, allowed ...string) *Error {
	return Invalid(code, field, "%s is not one of %s%s", Quote(v), strings.Join(allowed, ", "), didYouMean(v, allowed))
}
