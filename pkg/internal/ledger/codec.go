package ledger

import (
	"bytes"
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

// decodeOwn reads a chunk as appendJSON writes it, several times as fast as encoding/json. It returns false for anything
// else: encoding/json reads that.
func decodeOwn(value []byte) (c Chunk, ok bool) {
	s := scanner{rest: value}

	s.expect(`{"uid":`)
	c.UID = s.text()
	s.expect(`,"from":`)
	if c.From.UnmarshalText([]byte(s.text())) != nil {
		return c, false
	}

	if s.skip(`,"ok":[`) {
		c.Spans = scanArray(&s, (*scanner).span)
	}

	if s.skip(`,"not":[`) {
		c.Exceptions = scanArray(&s, (*scanner).exception)
	}

	if s.skip(`,"hours":[`) {
		c.Hours = scanArray(&s, (*scanner).hour)
	}

	if s.skip(`,"manual":[`) {
		c.Requested = scanArray(&s, (*scanner).exception)
	}

	if s.skip(`,"manual_more":`) {
		c.RequestedMore = s.causes()
	}

	if s.skip(`,"unreadable":`) {
		c.Unreadable = s.integer()
	}

	if s.skip(`,"gone":`) && c.Gone.UnmarshalText([]byte(s.text())) != nil {
		return c, false
	}

	c.Uncounted = s.skip(`,"uncounted":true`)
	s.expect(`}`)

	return c, !s.failed && c.check() == nil && bytes.Equal(c.appendJSON(make([]byte, 0, len(value))), value)
}

// scanner reads the JSON that appendJSON writes. After a failure, what it returns is of no use.
type scanner struct {
	rest   []byte
	failed bool
}

// skip skips a literal. It returns false if something else follows.
func (s *scanner) skip(literal string) bool {
	if !bytes.HasPrefix(s.rest, []byte(literal)) {
		return false
	}

	s.rest = s.rest[len(literal):]

	return true
}

// expect is like skip, but fails if something else follows.
func (s *scanner) expect(literal string) {
	if !s.skip(literal) {
		s.failed = true
	}
}

// text reads a text without escapes.
func (s *scanner) text() string {
	s.expect(`"`)
	n := bytes.IndexByte(s.rest, '"')
	if n < 0 {
		s.failed = true
		return ""
	}

	text := string(s.rest[:n])
	s.rest = s.rest[n+1:]
	s.failed = s.failed || !isPlain(text)

	return text
}

// integer reads a whole number of at most 18 digits.
func (s *scanner) integer() int64 {
	negative := s.skip(`-`)
	n, digits := int64(0), 0
	for digits < len(s.rest) && digits < 19 && '0' <= s.rest[digits] && s.rest[digits] <= '9' {
		n = 10*n + int64(s.rest[digits]-'0')
		digits++
	}

	s.failed = s.failed || digits == 0 || digits == 19
	s.rest = s.rest[digits:]
	if negative {
		return -n
	}

	return n
}

// offset reads seconds, with at most three decimals.
func (s *scanner) offset() Offset {
	negative := len(s.rest) > 0 && s.rest[0] == '-'
	ms := Offset(s.integer()) * 1000
	if s.skip(`.`) {
		part := Offset(0)
		for scale := Offset(100); scale > 0 && len(s.rest) > 0 && '0' <= s.rest[0] && s.rest[0] <= '9'; scale /= 10 {
			part += scale * Offset(s.rest[0]-'0')
			s.rest = s.rest[1:]
		}

		if negative {
			part = -part
		}
		ms += part
	}

	s.failed = s.failed || ms > maxOffset || ms < -maxOffset

	return ms
}

// next reads the comma between two elements.
func (s *scanner) next() *scanner {
	s.expect(`,`)
	return s
}

// scanArray reads the elements of an array whose opening bracket is read.
func scanArray[E any](s *scanner, scan func(*scanner) E) []E {
	list := make([]E, 0, bytes.Count(s.rest, []byte(`],[`))+1)
	for !s.failed {
		list = append(list, scan(s))
		if !s.skip(`,`) {
			break
		}
	}

	s.expect(`]`)

	return slices.Clip(list)
}

// span reads a span.
func (s *scanner) span() (v Span) {
	s.expect(`[`)
	v = Span{First: s.offset(), Last: s.next().offset(), Count: s.next().integer(), DurationMS: s.next().integer(), MaxDurationMS: s.next().integer(), MaxLatenessMS: s.next().integer()}
	s.expect(`]`)
	s.failed = s.failed || v.check() != nil

	return v
}

// exception reads an exception.
func (s *scanner) exception() (e Exception) {
	s.expect(`[`)
	e = Exception{First: s.offset(), Count: s.next().integer()}
	letter := s.next().text()
	e.Reason, e.Attempt, e.Suffix, e.Node = s.next().text(), int(s.next().integer()), s.next().text(), s.next().text()
	if s.skip(`,`) {
		e.Last = s.offset()
		e.Late = s.skip(`,"late"`)
	}

	s.expect(`]`)
	s.failed = s.failed || e.complete(letter) != nil

	return e
}

// hour reads an hour.
func (s *scanner) hour() (h Hour) {
	s.expect(`[`)
	start := s.integer()
	h.Count, h.Causes = s.next().integer(), s.next().causes()
	h.Named = []Offset{}
	s.expect(`,[`)
	for !s.failed && !s.skip(`]`) {
		if len(h.Named) > 0 {
			s.expect(`,`)
		}
		h.Named = append(h.Named, s.offset())
	}

	if s.skip(`,`) {
		h.HiddenFirst = s.offset()
		h.HiddenLast = s.next().offset()
	}

	s.expect(`]`)
	s.failed = s.failed || h.complete(start) != nil

	return h
}

// causes reads counts by cause.
func (s *scanner) causes() map[string]int64 {
	causes := map[string]int64{}
	s.expect(`{`)
	for !s.failed && !s.skip(`}`) {
		if len(causes) > 0 {
			s.expect(`,`)
		}
		cause := s.text()
		s.expect(`:`)
		causes[cause] = s.integer()
	}

	return causes
}
