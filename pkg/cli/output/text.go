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

// Plural is a number of things: "1 run", "2 runs".
func Plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Sanitize takes away what could move a terminal's cursor: texts come from
// servers, from files and from other people's programs. Lines and tabs stay.
func Sanitize(s string) string {
	clean := func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}

	return strings.Map(clean, s)
}

// SanitizeJSON is JSON for a terminal: it says the same, and what the terminal might
// obey is escaped. What is below a space JSON has escaped already.
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

// OneLine is printable text for a cell of a table.
func OneLine(s string) string {
	return strings.Join(strings.Fields(Sanitize(s)), " ")
}

// Truncate is the beginning of a text.
func Truncate(s string, most int) string {
	if list := []rune(s); len(list) > most {
		return string(list[:most]) + "…"
	}
	return s
}

// Labels are labels on one line, sorted.
func Labels(labels map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, k+"="+labels[k])
	}
	return OneLine(strings.Join(words, ","))
}
