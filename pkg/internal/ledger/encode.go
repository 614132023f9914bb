package ledger

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
)

// MarshalJSON writes the chunk as Decode reads it.
func (c Chunk) MarshalJSON() ([]byte, error) { return c.appendJSON(make([]byte, 0, 2*ChunkSize)), nil }

// appendJSON appends the chunk in JSON. A fold writes and reads a chunk, so this is several times as fast as encoding/json.
func (c *Chunk) appendJSON(b []byte) []byte {
	b = appendText(append(b, `{"uid":`...), c.UID)
	b = append(b, `,"from":"`...)
	b, _ = c.From.AppendText(b) // it never fails
	b = append(b, '"')

	if len(c.Spans) > 0 {
		b = appendArray(append(b, `,"ok":`...), c.Spans, (*Span).appendJSON)
	}

	if len(c.Exceptions) > 0 {
		b = appendArray(append(b, `,"not":`...), c.Exceptions, (*Exception).appendJSON)
	}

	if len(c.Hours) > 0 {
		b = appendArray(append(b, `,"hours":`...), c.Hours, (*Hour).appendJSON)
	}

	if len(c.Requested) > 0 {
		b = appendArray(append(b, `,"manual":`...), c.Requested, (*Exception).appendJSON)
	}

	if len(c.RequestedMore) > 0 {
		b = appendCauses(append(b, `,"manual_more":`...), c.RequestedMore)
	}

	if c.Unreadable != 0 {
		b = strconv.AppendInt(append(b, `,"unreadable":`...), c.Unreadable, 10)
	}

	if !c.Gone.IsZero() {
		b = append(b, `,"gone":"`...)
		b, _ = c.Gone.AppendText(b)
		b = append(b, '"')
	}

	if c.Uncounted {
		b = append(b, `,"uncounted":true`...)
	}

	return append(b, '}')
}

// appendArray appends the elements of an array.
func appendArray[E any](b []byte, list []E, appendElement func(*E, []byte) []byte) []byte {
	b = append(b, '[')
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElement(&list[i], b)
	}

	return append(b, ']')
}

// appendJSON appends the span as an array of its fields.
func (s *Span) appendJSON(b []byte) []byte {
	b = s.First.appendJSON(append(b, '['))
	b = s.Last.appendJSON(append(b, ','))
	for _, n := range [...]int64{s.Count, s.DurationMS, s.MaxDurationMS, s.MaxLatenessMS} {
		b = strconv.AppendInt(append(b, ','), n, 10)
	}

	return append(b, ']')
}

// size returns how many bytes the span has in JSON.
func (s *Span) size() int {
	var buffer [128]byte
	return len(s.appendJSON(buffer[:0]))
}

// appendJSON appends the exception as an array of its fields, without the last ones that are empty.
func (e *Exception) appendJSON(b []byte) []byte {
	b = e.First.appendJSON(append(b, '['))
	b = strconv.AppendInt(append(b, ','), e.Count, 10)
	b = appendText(append(b, ','), stateLetters[e.State])
	b = appendText(append(b, ','), e.writtenReason())
	b = strconv.AppendInt(append(b, ','), int64(e.Attempt), 10)
	b = appendText(append(b, ','), e.Suffix)
	b = appendText(append(b, ','), e.Node)

	if e.Late || e.Count > 1 {
		b = e.Last.appendJSON(append(b, ','))
	}
	if e.Late {
		b = append(b, `,"late"`...)
	}

	return append(b, ']')
}

// appendJSON appends the hour as an array: see Hour.
func (h *Hour) appendJSON(b []byte) []byte {
	b = strconv.AppendInt(append(b, '['), int64(h.Start/hourTime), 10)
	b = strconv.AppendInt(append(b, ','), h.Count, 10)
	b = appendCauses(append(b, ','), h.Causes)
	b = append(b, ',', '[')

	last := Offset(0)
	for i, o := range h.Named {
		if i > 0 {
			b = append(b, ',')
		}
		b = (o - last).appendJSON(b)
		last = o
	}

	b = append(b, ']')
	if h.hidden() > 0 {
		b = (h.HiddenFirst - last).appendJSON(append(b, ','))
		b = (h.HiddenLast - h.HiddenFirst).appendJSON(append(b, ','))
	}

	return append(b, ']')
}

// appendCauses appends counts by cause, sorted by cause.
func appendCauses(b []byte, causes map[string]int64) []byte {
	b = append(b, '{')
	for i, cause := range slices.Sorted(maps.Keys(causes)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(appendText(b, cause), ':'), causes[cause], 10)
	}

	return append(b, '}')
}

// appendJSON appends seconds, with decimals only where they are needed.
func (o Offset) appendJSON(b []byte) []byte {
	if o%1000 == 0 {
		return strconv.AppendInt(b, int64(o/1000), 10)
	}

	return strconv.AppendFloat(b, float64(o)/1000, 'f', -1, 64)
}

// appendText appends a text in quotes. What Carillon writes has no characters that must be escaped.
func appendText(b []byte, s string) []byte {
	if isPlain(s) {
		return append(append(append(b, '"'), s...), '"')
	}

	quoted, err := json.Marshal(s)
	if err != nil {
		return append(b, `""`...)
	}

	return append(b, quoted...)
}

// isPlain reports whether JSON contains a text as it is.
func isPlain(s string) bool {
	for i := range len(s) {
		if !isPlainByte(s[i]) {
			return false
		}
	}

	return true
}

// isPlainByte reports whether JSON contains a character as it is. encoding/json also escapes what is special in HTML.
func isPlainByte(c byte) bool {
	return ' ' <= c && c <= '~' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}
