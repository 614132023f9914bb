// Package wording describes records for people: how a run ended, why a node does not work, what is missing in a list. The
// command line and the Web UI share it, so both say the same. It is pure, and knows neither colors nor layouts.
package wording

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

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

// OneLine returns a sanitized text on one line.
func OneLine(s string) string {
	return strings.Join(strings.Fields(Sanitize(s)), " ")
}

// Labels returns labels on one line, sorted by key.
func Labels(labels map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, k+"="+labels[k])
	}
	return OneLine(strings.Join(words, ","))
}

// Plural returns a number with its noun: "1 run", "2 runs".
func Plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Grouped formats a number with commas: 12,345.
func Grouped(n int) string {
	digits := []byte(strconv.Itoa(n))
	for at := len(digits) - 3; at > 0 && digits[at-1] != '-'; at -= 3 {
		digits = slices.Insert(digits, at, ',')
	}

	return string(digits)
}

// Bytes formats a number of bytes.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}

	v, i := float64(n)/unit, 0
	for v >= unit && i < 4 {
		v /= unit
		i++
	}

	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[i])
}

// ValueLines returns a value of a field in lines: a string unchanged, any other value as JSON. It returns nil for nil.
func ValueLines(v any) []string {
	if v == nil {
		return nil
	}

	text, ok := v.(string)
	if !ok || text == "" {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(v) // cannot fail: the value was decoded from JSON
		text = b.String()
	}

	return strings.Split(Sanitize(strings.TrimSuffix(text, "\n")), "\n")
}
