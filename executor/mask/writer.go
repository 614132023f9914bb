package mask

import (
	"bytes"
	"cmp"
	"io"
	"math"
	"slices"
)

// Writer passes on its input without values. It holds back the last bytes, which may be the beginning of a value, until more is
// written, or Flush or Close is called. Call Begin before the first use.
type Writer struct {
	to           io.Writer
	values       [][]byte // the longest first
	unescaped    [][]byte // those that may occur with escapes
	keep         int      // number of bytes that are kept back
	held         []byte
	unsure       int    // how many bytes at the beginning of held may be the end of a value; see Restart
	passesUnsure bool   // what is passed on now is of these
	at           []int  // where each value occurs in held; see next
	escaped      []span // where values occur with escapes in held, in order
}

// Begin makes w pass on what is written to it without the values of m. w must be new.
func (w *Writer) Begin(m *Masker, to io.Writer) {
	w.to = to
	w.values, w.unescaped = m.snapshot()
	if len(w.values) == 0 {
		return
	}

	w.at = make([]int, len(w.values))
	w.keep = len(w.values[0]) - 1
	for _, v := range w.unescaped {
		w.keep = max(w.keep, maxEscape*plainSize(v)-1)
	}
}

// span is a part of a text.
type span struct{ from, to int }

func (w *Writer) Write(b []byte) (int, error) {
	if len(w.values) == 0 {
		return w.to.Write(b)
	}

	w.held = append(w.held, b...)
	if len(w.held) < 2*w.keep {
		return len(b), nil // so that each byte is searched twice at most
	}
	if err := w.flush(len(w.held)-w.keep, w.unescapeHeld()); err != nil {
		return 0, err
	}

	return len(b), nil
}

// Flush passes on what was kept back, but not the end if a value may begin with it. So a follower of the output of a
// program immediately sees what the program has written.
func (w *Writer) Flush() error {
	if len(w.values) == 0 {
		return nil
	}

	u := w.unescapeHeld()

	return w.flush(max(w.openEnd(u), len(w.held)-w.keep), u)
}

// Restart drops what was kept back, because a part of the text that follows it is left out. The next bytes may be the end of a
// value whose beginning was left out: IsUnsure reports which they are.
func (w *Writer) Restart() {
	w.held = w.held[:0]
	w.unsure = w.keep
}

// IsUnsure reports, while w passes on bytes, whether they may be the end of a value whose beginning was left out.
func (w *Writer) IsUnsure() bool { return w.passesUnsure }

// MaxHeld returns how many bytes w keeps back at most.
func (w *Writer) MaxHeld() int { return w.keep }

// Close passes on what was kept back.
func (w *Writer) Close() error { return w.flush(len(w.held), w.unescapeHeld()) }

// unescapeHeld returns what is held without escapes, or nil if no value may occur with escapes.
func (w *Writer) unescapeHeld() *unescaped {
	if len(w.unescaped) == 0 {
		return nil
	}
	return unescape(w.held)
}

// MaskCut hides the beginning of a value at the end of what was written, which was cut off there.
func (w *Writer) MaskCut() {
	for from := range w.held {
		rest := w.held[from:]
		if len(rest) >= minMasked && slices.ContainsFunc(w.values, func(v []byte) bool { return bytes.HasPrefix(v, rest) }) {
			w.held = append(w.held[:from], Text...)
			return
		}
	}

	u := w.unescapeHeld()
	if u == nil {
		return
	}

	for i := range u.text {
		rest := u.text[i:]
		if len(rest) >= minMasked && slices.ContainsFunc(w.unescaped, func(v []byte) bool { return bytes.HasPrefix(v, rest) }) {
			w.held = append(w.held[:u.from[i]], Text...)
			return
		}
	}
}

// openEnd returns where the longest end of what is held begins that may be the beginning of a value. It returns the
// length of what is held if there is none.
func (w *Writer) openEnd(u *unescaped) int {
	open := len(w.held)
	for _, v := range w.values {
		open = min(open, prefixAtEnd(w.held, v))
	}
	if u == nil {
		return open
	}

	for _, end := range u.openEnds() {
		for _, v := range w.unescaped {
			if at := prefixAtEnd(u.text[:end], v); at < len(u.from) {
				open = min(open, int(u.from[at]))
			}
		}
	}

	return open
}

// prefixAtEnd returns where the longest end of a text begins that is the beginning of v, but not all of it. It returns
// the length of the text if there is none.
func prefixAtEnd(text, v []byte) int {
	const probe = 8 // a longer end is found by its first bytes
	from := max(0, len(text)-len(v)+1)

	for len(text)-from >= probe {
		k := bytes.Index(text[from:], v[:probe])
		if k < 0 {
			from = len(text) - probe + 1
			break
		}
		if from += k; bytes.HasPrefix(v, text[from:]) {
			return from
		}
		from++
	}

	for ; from < len(text); from++ {
		if bytes.HasPrefix(v, text[from:]) {
			break
		}
	}

	return from
}

// flush passes on all values and other bytes that begin before end. u is what unescapeHeld returns.
func (w *Writer) flush(end int, u *unescaped) error {
	from := 0
	for i := range w.at {
		w.at[i] = searchAgain
	}
	w.findEscaped(u)

	for from < end {
		at, size := w.next(from)
		if at < 0 || at >= end {
			break
		}

		if err := w.passOn(from, at); err != nil {
			return err
		}
		if _, err := io.WriteString(w.to, Text); err != nil {
			return err
		}

		from = at + size
	}

	if from < end {
		if err := w.passOn(from, end); err != nil {
			return err
		}
		from = end
	}

	w.held = append(w.held[:0], w.held[from:]...)
	w.unsure = max(0, w.unsure-from)

	return nil
}

// passOn passes on a part of what is held, first the bytes for which IsUnsure is true.
func (w *Writer) passOn(from, to int) error {
	if sure := min(to, w.unsure); from < sure {
		w.passesUnsure = true
		_, err := w.to.Write(w.held[from:sure])
		w.passesUnsure = false

		if err != nil {
			return err
		}
		from = sure
	}

	if from == to {
		return nil
	}
	_, err := w.to.Write(w.held[from:to])

	return err
}

// Where a value occurs in what a Writer holds, besides the positions.
const (
	searchAgain = -1 // it has not been searched yet
	foundNone   = math.MaxInt
)

// next returns the first value that begins at from or later, and -1 if there is none. Of several at the same place, the
// longest counts. Each value is searched again only after its last place was passed: a target that repeats one value
// would otherwise make the node search for all others from each of these places.
func (w *Writer) next(from int) (at, size int) {
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

	// A value with escapes may also have begun before from, where another one ended.
	for len(w.escaped) > 0 && w.escaped[0].to <= from {
		w.escaped = w.escaped[1:]
	}
	if len(w.escaped) > 0 {
		s := w.escaped[0]
		if begin := max(s.from, from); begin < first || begin == first && s.to > first+size {
			first, size = begin, s.to-begin
		}
	}

	if first == foundNone {
		return -1, 0
	}

	return first, size
}

// findEscaped finds the values with escapes in what is held.
func (w *Writer) findEscaped(u *unescaped) {
	w.escaped = nil
	if u == nil {
		return
	}

	for _, v := range w.unescaped {
		for at := 0; ; {
			k := bytes.Index(u.text[at:], v)
			if k < 0 {
				break
			}

			from := at + k
			at = from + len(v)
			end := len(w.held)
			if at < len(u.from) {
				end = int(u.from[at])
			}
			w.escaped = append(w.escaped, span{int(u.from[from]), end})
		}
	}

	slices.SortFunc(w.escaped, func(a, b span) int { return cmp.Or(a.from-b.from, b.to-a.to) })
}
