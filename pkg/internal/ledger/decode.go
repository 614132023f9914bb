package ledger

import (
	"bytes"
	"slices"
)

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
