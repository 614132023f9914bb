package ledger

import (
	"encoding/json"
)

// size returns how many bytes the chunk has in JSON. It is called for nearly every record, so it encodes nothing.
func (c *Chunk) size() int {
	n := len(`{"uid":,"from":}`) + textSize(c.UID) + len(`"2026-11-21T00:00:00.000Z"`)

	if len(c.Spans) > 0 {
		n += len(`,"ok":[]`) + len(c.Spans) - 1
		for i := range c.Spans {
			n += c.Spans[i].size()
		}
	}

	n += entriesSize(`,"not":[]`, c.Exceptions)

	if len(c.Hours) > 0 {
		n += len(`,"hours":[]`) + len(c.Hours) - 1
		for i := range c.Hours {
			n += c.Hours[i].size()
		}
	}

	n += entriesSize(`,"manual":[]`, c.Requested)

	if len(c.RequestedMore) > 0 {
		n += len(`,"manual_more":`) + causesSize(c.RequestedMore)
	}

	if c.Unreadable != 0 {
		n += len(`,"unreadable":`) + intSize(c.Unreadable)
	}

	return n
}

// entriesSize returns the size of a field with entries, which is omitted if there are none.
func entriesSize(field string, entries []Exception) int {
	if len(entries) == 0 {
		return 0
	}

	n := len(field) + len(entries) - 1
	for i := range entries {
		n += entries[i].size()
	}

	return n
}

// size returns the size in JSON.
func (s *Span) size() int {
	return len(`[,,,,,]`) + s.First.size() + s.Last.size() + intSize(s.Count) + intSize(s.DurationMS) + intSize(s.MaxDurationMS) + intSize(s.MaxLatenessMS)
}

// size returns the size in JSON.
func (e *Exception) size() int {
	n := len(`[,,"f",,,,]`) + e.First.size() + intSize(e.Count) + textSize(e.writtenReason()) + intSize(int64(e.Attempt)) + textSize(e.Suffix) + textSize(e.Node)

	switch {
	case e.Late:
		return n + len(`,,"late"`) + e.Last.size()
	case e.Count > 1:
		return n + len(`,`) + e.Last.size()
	}

	return n
}

// size returns the size in JSON.
func (h *Hour) size() int {
	n := len(`[,,,[]]`) + intSize(int64(h.Start/hourTime)) + intSize(h.Count) + causesSize(h.Causes) + max(len(h.Named)-1, 0)

	last := Offset(0)
	for _, o := range h.Named {
		n += (o - last).size()
		last = o
	}

	if h.hidden() > 0 {
		n += len(`,,`) + (h.HiddenFirst - last).size() + (h.HiddenLast - h.HiddenFirst).size()
	}

	return n
}

// causesSize returns the size of counts by cause.
func causesSize(causes map[string]int64) int {
	n := len(`{}`) + max(len(causes)-1, 0)
	for cause, count := range causes {
		n += textSize(cause) + len(`:`) + intSize(count)
	}

	return n
}

// size returns the size in JSON: seconds, with at most three decimals.
func (o Offset) size() int {
	n := intSize(int64(o) / 1000)
	if o < 0 && o > -1000 {
		n = len(`-0`)
	}

	switch {
	case o%1000 == 0:
		return n
	case o%100 == 0:
		return n + len(`.0`)
	case o%10 == 0:
		return n + len(`.00`)
	}

	return n + len(`.000`)
}

// intSize returns how many characters a number has.
func intSize(v int64) int {
	n := 1
	if v < 0 {
		n++
	}

	for v /= 10; v != 0; v /= 10 {
		n++
	}

	return n
}

// textSize returns the size of a text in JSON.
func textSize(s string) int {
	if isPlain(s) {
		return len(s) + len(`""`)
	}

	b, err := json.Marshal(s)
	if err != nil {
		return 0
	}

	return len(b)
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
