package output

import (
	"fmt"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/internal/wording"
)

// Plural returns a number with its noun: "1 run", "2 runs".
func Plural(n int64, noun string) string { return wording.Plural(n, noun) }

// Sanitize replaces control characters, which could move the cursor or execute terminal commands. Texts come
// from servers, files and other users' programs. Newlines and tabs stay.
func Sanitize(s string) string { return wording.Sanitize(s) }

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
func OneLine(s string) string { return wording.OneLine(s) }

// Truncate limits the length of a text in characters.
func Truncate(s string, most int) string {
	if list := []rune(s); len(list) > most {
		return string(list[:most]) + "…"
	}
	return s
}

// Labels returns labels on one line, sorted by key.
func Labels(labels map[string]string) string { return wording.Labels(labels) }

// Bytes formats a number of bytes.
func Bytes(n int64) string { return wording.Bytes(n) }
