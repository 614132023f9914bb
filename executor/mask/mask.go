// Package mask hides the values of secrets in texts: in the output of processes, in stored responses to requests, and in
// messages.
//
// It finds a value in its original form, and with the escapes of URLs, JSON, HTML and Go, including nested escapes. It also
// finds the single lines of a value with several lines, and the strings in a JSON value: the longest 100 of each value.
//
// It does not find values in other encodings, such as Base64 or upper case, parts of a value, or values of fewer than four
// bytes, which occur in any text.
package mask

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Text replaces a value.
const Text = "***"

// minMasked is the length of the shortest value that is masked. Shorter ones occur in any text, and masking them would
// show where.
const minMasked = 4

const (
	// maxEscaped is the length of the longest value that is recognized whatever of it is escaped. Of longer ones, the forms in
	// Hide are. It limits the memory of a Writer.
	maxEscaped = 2 << 10
	// maxEscape is how many bytes an escape takes for each byte of the value, as "\\u00e9".
	maxEscape = 12
)

// minPart is the length of the shortest part of a secret that is masked on its own. Shorter ones are often words, such as
// "json".
const minPart = 8

// maxParts is how many parts of a secret are masked on their own.
const maxParts = 100

// Masker has the values to hide. The zero value has none. Its methods may be called from any goroutine.
type Masker struct {
	mu        sync.Mutex
	values    valueSet
	unescaped valueSet // the values that may occur with escapes, without them
}

// valueSet is a set of values. It is sorted when it is read, because the variables of an attempt can have tens of thousands
// of values.
type valueSet struct {
	known  map[string]struct{}
	sorted [][]byte // all of them, the longest first; nil: not sorted since the last one was added
}

// add adds a value.
func (s *valueSet) add(v string) {
	if _, ok := s.known[v]; ok {
		return
	}
	if s.known == nil {
		s.known = map[string]struct{}{}
	}

	s.known[v] = struct{}{}
	s.sorted = nil // writers may use the slice
}

// list returns the values, the longest first. The caller must not change them.
func (s *valueSet) list() [][]byte {
	if s.sorted == nil && len(s.known) > 0 {
		s.sorted = make([][]byte, 0, len(s.known))
		for v := range s.known {
			s.sorted = append(s.sorted, []byte(v))
		}
		slices.SortFunc(s.sorted, func(a, b []byte) int { return cmp.Or(len(b)-len(a), bytes.Compare(a, b)) })
	}

	return s.sorted
}

// Hide adds a value.
func (m *Masker) Hide(value string) {
	quoted := quoteJSON(value, false)
	for _, v := range []string{
		value, strings.TrimSpace(value), url.QueryEscape(value), url.PathEscape(value), strings.Trim(strconv.Quote(value), `"`), // the latter in errors of Go
		quoted, quoteJSON(value, true), quoteJSON(quoted, false), quoteJSON(quoted, true), // the latter: JSON in a string of JSON
	} {
		m.add(&m.values, v)
	}

	v := strings.TrimSpace(value)
	switch {
	case len(v) > maxEscaped:
		latin1, windows := asLatin1(v)
		m.add(&m.values, latin1)
		m.add(&m.values, windows)
	case strings.ContainsFunc(v, isEscapable):
		if u := unescape([]byte(v)).text; plainSize(u) >= minMasked {
			m.insert(&m.unescaped, string(u))
		}
	}
}

// HideURL hides a URL that is a secret, and the parts of it that a target is likely to show: it knows the request by its
// path, its segments, and the values of the query.
func (m *Masker) HideURL(u *url.URL) {
	m.Hide(u.RequestURI())
	m.Hide(u.Path)
	m.Hide(u.RawQuery)

	parts := strings.Split(u.EscapedPath(), "/")
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		_, value, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(value); err == nil {
			parts = append(parts, plain)
		}
	}

	for i, p := range parts {
		if plain, err := url.PathUnescape(p); err == nil {
			parts[i] = plain
		}
	}
	m.hideParts(parts)
}

// HideBody hides a body that is a secret, and the texts in it if it is JSON or a form.
func (m *Masker) HideBody(body string) {
	m.Hide(body)

	var v any
	if json.Unmarshal([]byte(body), &v) == nil {
		m.hideParts(textsIn(v, nil))
		return
	}

	if form, err := url.ParseQuery(body); err == nil {
		m.hideParts(slices.Concat(slices.Collect(maps.Values(form))...))
	}
}

// HideText hides a text that is a secret, the lines of it if it has several, such as a key in PEM, and the texts in it if
// it is JSON, with their lines.
func (m *Masker) HideText(text string) {
	m.Hide(text)

	parts := appendLines(nil, text)

	var v any
	if json.Unmarshal([]byte(text), &v) == nil {
		for _, inner := range textsIn(v, nil) {
			parts = appendLines(append(parts, inner), inner)
		}
	}

	m.hideParts(parts)
}

// appendLines appends the lines of a text to a list if it has several.
func appendLines(list []string, text string) []string {
	if strings.Contains(strings.TrimSpace(text), "\n") {
		for line := range strings.Lines(text) {
			list = append(list, strings.TrimSpace(line))
		}
	}

	return list
}

// IsEmpty reports whether there is nothing to hide.
func (m *Masker) IsEmpty() bool {
	values, _ := m.snapshot()
	return len(values) == 0
}

// textsIn appends the texts in a JSON value to a list.
func textsIn(v any, list []string) []string {
	switch v := v.(type) {
	case string:
		list = append(list, v)
	case []any:
		for _, inner := range v {
			list = textsIn(inner, list)
		}
	case map[string]any:
		for _, inner := range v {
			list = textsIn(inner, list)
		}
	}

	return list
}

// hideParts hides the longest parts of a secret.
func (m *Masker) hideParts(parts []string) {
	slices.SortFunc(parts, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	for _, p := range parts[:min(len(parts), maxParts)] {
		if len(p) >= minPart {
			m.Hide(p)
		}
	}
}

// quoteJSON returns a text as it is between the quotes of a string in JSON, with or without the escapes for HTML.
func quoteJSON(s string, html bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	_ = e.Encode(s) // a text can always be encoded

	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
}

// add adds one form of a value.
func (m *Masker) add(to *valueSet, v string) {
	if len(v) >= minMasked {
		m.insert(to, v)
	}
}

// insert adds one form of a value, however short it is.
func (m *Masker) insert(to *valueSet, v string) {
	m.mu.Lock()
	defer m.mu.Unlock()

	to.add(v)
}

// snapshot returns the values to hide.
func (m *Masker) snapshot() (values, unescaped [][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.values.list(), m.unescaped.list()
}

// Apply returns a text without the values.
func (m *Masker) Apply(text string) string {
	if values, _ := m.snapshot(); text == "" || len(values) == 0 {
		return text
	}

	var b strings.Builder
	w := m.Writer(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close() // a strings.Builder has no errors

	return b.String()
}

// Writer returns a writer that passes on what is written to it without the values that m has now. Close passes on the
// rest.
func (m *Masker) Writer(to io.Writer) *Writer {
	w := &Writer{}
	w.Begin(m, to)

	return w
}
