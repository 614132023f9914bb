package output

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Plural returns a number with its noun: "1 run", "2 runs".
func Plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Sanitize replaces control characters, which could move the cursor or execute terminal commands. Texts come
// from servers, files and other users' programs. Newlines and tabs stay.
func Sanitize(s string) string {
	clean := func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}

	return strings.Map(clean, s)
}

// SanitizeJSON escapes control characters in JSON for a terminal, without changing its meaning. JSON already
// escapes the characters below a space.
func SanitizeJSON(b []byte) []byte {
	var out []byte
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r < utf8.RuneSelf && r != 0x7f || unicode.IsPrint(r) && !(r == utf8.RuneError && n == 1) {
			if out != nil {
				out = append(out, b[i:i+n]...)
			}
		} else {
			if out == nil {
				out = append(make([]byte, 0, len(b)+16), b[:i]...)
			}

			for _, u := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, u)
			}
		}

		i += n
	}

	if out == nil {
		return b
	}

	return out
}

// OneLine returns a sanitized text on one line, for a cell of a table.
func OneLine(s string) string {
	return strings.Join(strings.Fields(Sanitize(s)), " ")
}

// Truncate limits the length of a text in characters.
func Truncate(s string, most int) string {
	if list := []rune(s); len(list) > most {
		return string(list[:most]) + "…"
	}
	return s
}

// Labels returns labels on one line, sorted by key.
func Labels(labels map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, k+"="+labels[k])
	}
	return OneLine(strings.Join(words, ","))
}
