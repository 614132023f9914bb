package readmodel

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// queryWord is a part of a query line without its quotes. Characters that were quoted have no special meaning.
type queryWord struct {
	source string // as it was written
	text   string
	quoted []bool // which bytes of text were quoted; nil: none
}

// isQuerySpace reports whether a character separates terms.
func isQuerySpace(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == '\r' }

// splitQuery splits a query line at white space outside of quotes. Within quotes, \" is a quote and \\ a backslash.
func splitQuery(text string) ([]queryWord, error) {
	var words []queryWord
	var word strings.Builder
	var quoted []bool
	from, inQuotes, inWord := 0, false, false

	add := func(c byte) {
		word.WriteByte(c)
		quoted = append(quoted, inQuotes)
	}
	end := func(at int) {
		if inWord {
			words = append(words, queryWord{source: text[from:at], text: word.String(), quoted: quoted})
		}
		word.Reset()
		quoted, inWord = nil, false
	}

	for i := 0; i < len(text); i++ {
		c := text[i]
		if !inQuotes && isQuerySpace(rune(c)) {
			end(i)
			continue
		}

		if !inWord {
			from, inWord = i, true
		}

		switch {
		case c == '"':
			inQuotes = !inQuotes
		case inQuotes && c == '\\' && i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\\'):
			i++
			add(text[i])
		default:
			add(c)
		}
	}

	if inQuotes {
		return nil, task.Invalid(task.CodeBadValue, "", "term %s: the quotes are not closed", task.Quote(text[from:]))
	}
	end(len(text))

	return words, nil
}

// isSpecial reports whether the byte at i is one of chars and was not quoted.
func (w queryWord) isSpecial(i int, chars string) bool {
	return strings.IndexByte(chars, w.text[i]) >= 0 && (w.quoted == nil || !w.quoted[i])
}

// indexAny returns the index of the first of chars that was not quoted, or -1.
func (w queryWord) indexAny(chars string) int {
	for i := range len(w.text) {
		if w.isSpecial(i, chars) {
			return i
		}
	}

	return -1
}

// slice returns a part of the word.
func (w queryWord) slice(from, to int) queryWord {
	part := queryWord{source: w.source, text: w.text[from:to]}
	if w.quoted != nil {
		part.quoted = w.quoted[from:to]
	}

	return part
}

// trimPrefix removes a prefix that was not quoted.
func (w queryWord) trimPrefix(prefix string) (queryWord, bool) {
	if !strings.HasPrefix(w.text, prefix) || w.quoted != nil && slices.Contains(w.quoted[:len(prefix)], true) {
		return w, false
	}
	return w.slice(len(prefix), len(w.text)), true
}

// split splits the word at commas that were not quoted.
func (w queryWord) split() []string {
	var parts []string
	for {
		at := w.indexAny(",")
		if at < 0 {
			return append(parts, w.text)
		}

		parts = append(parts, w.text[:at])
		w = w.slice(at+1, len(w.text))
	}
}

// writeQueryValue appends a value, in quotes if it needs them.
func writeQueryValue(b *strings.Builder, v string) {
	if !strings.ContainsAny(v, " \t\r\n,\"") {
		b.WriteString(v)
		return
	}

	b.WriteByte('"')
	for i := range len(v) {
		if v[i] == '"' || v[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(v[i])
	}
	b.WriteByte('"')
}
