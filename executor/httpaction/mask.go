package httpaction

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const maskText = "***"

// minMasked is the length of the shortest value that is masked. Shorter ones occur in any text, and masking them would
// show where.
const minMasked = 4

// masker hides values of secrets in what is stored of a response and in messages: as they are, and in the encodings of
// URLs and JSON. Its methods may be called from any goroutine.
type masker struct {
	mu     sync.Mutex
	values [][]byte // the longest first
}

// hide adds a value.
func (m *masker) hide(value string) {
	quoted := quoteJSON(value, false)
	for _, v := range []string{
		value, strings.TrimSpace(value), url.QueryEscape(value), url.PathEscape(value), strings.Trim(strconv.Quote(value), `"`), // the latter in errors of Go
		quoted, quoteJSON(value, true), quoteJSON(quoted, false), quoteJSON(quoted, true), // the latter: JSON in a string of JSON
	} {
		m.add(v)
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
func (m *masker) add(v string) {
	if len(v) < minMasked {
		return
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	b := []byte(v)
	if slices.ContainsFunc(m.values, func(o []byte) bool { return bytes.Equal(o, b) }) {
		return
	}

	m.values = append(slices.Clone(m.values), b) // writers may use the old slice
	slices.SortStableFunc(m.values, func(a, b []byte) int { return len(b) - len(a) })
}

// snapshot returns the values to hide.
func (m *masker) snapshot() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.values
}

// apply returns a text without the values.
func (m *masker) apply(text string) string {
	var b strings.Builder
	w := m.writer(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close() // a strings.Builder has no errors

	return b.String()
}

// writer returns a writer that passes on what is written to it without the values. Close passes on the rest.
func (m *masker) writer(to io.Writer) *maskingWriter {
	w := &maskingWriter{to: to, values: m.snapshot()}
	w.at = make([]int, len(w.values))
	if len(w.values) > 0 {
		w.keep = len(w.values[0]) - 1
	}
	return w
}

// maskingWriter keeps back the last bytes, which may be the beginning of a value.
type maskingWriter struct {
	to     io.Writer
	values [][]byte // the longest first
	keep   int      // number of bytes that are kept back
	held   []byte
	at     []int // where each value occurs in held; see next
}

func (w *maskingWriter) Write(b []byte) (int, error) {
	if len(w.values) == 0 {
		return w.to.Write(b)
	}

	w.held = append(w.held, b...)
	if err := w.flush(len(w.held) - w.keep); err != nil {
		return 0, err
	}

	return len(b), nil
}

// Close passes on what was kept back.
func (w *maskingWriter) Close() error { return w.flush(len(w.held)) }

// maskCut hides the beginning of a value at the end of what was written, which was cut off there.
func (w *maskingWriter) maskCut() {
	for from := range w.held {
		rest := w.held[from:]
		if len(rest) >= minMasked && slices.ContainsFunc(w.values, func(v []byte) bool { return bytes.HasPrefix(v, rest) }) {
			w.held = append(w.held[:from], maskText...)
			return
		}
	}
}

// flush passes on all values and other bytes that begin before end.
func (w *maskingWriter) flush(end int) error {
	from := 0
	for i := range w.at {
		w.at[i] = searchAgain
	}

	for from < end {
		at, size := w.next(from)
		if at < 0 || at >= end {
			break
		}

		if _, err := w.to.Write(w.held[from:at]); err != nil {
			return err
		}
		if _, err := io.WriteString(w.to, maskText); err != nil {
			return err
		}

		from = at + size
	}

	if from < end {
		if _, err := w.to.Write(w.held[from:end]); err != nil {
			return err
		}
		from = end
	}

	w.held = append(w.held[:0], w.held[from:]...)

	return nil
}

// Where a value occurs in what a maskingWriter holds, besides the positions.
const (
	searchAgain = -1 // it has not been searched yet
	foundNone   = math.MaxInt
)

// next returns the first value that begins at from or later, and -1 if there is none. Of several at the same place, the
// longest counts. Each value is searched again only after its last place was passed: a target that repeats one value
// would otherwise make the node search for all others from each of these places.
func (w *maskingWriter) next(from int) (at, size int) {
	first := foundNone

	for i, v := range w.values {
		if w.at[i] < from {
			w.at[i] = foundNone
			if k := bytes.Index(w.held[from:], v); k >= 0 {
				w.at[i] = from + k
			}
		}

		if w.at[i] < first {
			first, size = w.at[i], len(v)
		}
	}

	if first == foundNone {
		return -1, 0
	}

	return first, size
}
