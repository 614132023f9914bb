package spool

import "bytes"

// longestLine is the number of bytes of a line that a LineMatcher receives at most.
const longestLine = 64 << 10

// LineMatcher receives the lines of an output. Its methods must be safe for concurrent use, because both streams of an
// attempt may call them at the same time.
type LineMatcher interface {
	// MatchLine receives a line without its line break, cut to 64 KiB. It must not keep the slice.
	MatchLine(line []byte)
	// Settled reports whether further lines cannot change the result. After that, MatchLine may not be called any more.
	Settled() bool
}

// lineSplitter splits a stream into lines for a matcher. It stores no more than the beginning of one line. Its
// zero value does nothing.
type lineSplitter struct {
	matcher LineMatcher // nil: none
	part    []byte      // the beginning of an incomplete line
}

// addBytes processes the next bytes of the stream.
func (t *lineSplitter) addBytes(b []byte) {
	if t.matcher == nil || t.matcher.Settled() {
		return
	}

	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		b = rest

		if len(t.part) > 0 || !ended {
			t.part = append(t.part, line[:min(len(line), longestLine-len(t.part))]...)
			line = t.part
		}

		if !ended && len(t.part) > 0 {
			return
		}

		t.matcher.MatchLine(line[:min(len(line), longestLine)])
		t.part = t.part[:0]
	}
}

// flushLine passes a last line without a line break to the matcher.
func (t *lineSplitter) flushLine() {
	if len(t.part) > 0 {
		t.matcher.MatchLine(t.part)
		t.part = nil
	}
}
