package spool

import "bytes"

// longestLine is how much of a line a LineMatcher gets to see.
const longestLine = 64 << 10

// LineMatcher looks for something in the lines of an output. Both streams of an attempt may call it at the same time.
type LineMatcher interface {
	// MatchLine takes a line without its end: its first 64 KiB, if it is longer. It must not keep the slice.
	MatchLine(line []byte)
	// Settled reports whether no further line can matter.
	Settled() bool
}

// lineSplitter cuts a stream into lines for a matcher, and keeps no more of it than the beginning of one line. Its
// zero value looks at nothing.
type lineSplitter struct {
	matcher LineMatcher // nil: none
	part    []byte      // the beginning of a line whose end has not come
}

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

// flushLine looks at a last line that has no end.
func (t *lineSplitter) flushLine() {
	if len(t.part) > 0 {
		t.matcher.MatchLine(t.part)
		t.part = nil
	}
}
