package mask

import (
	"bytes"
	"cmp"
	"html"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Targets send back what they have received in many ways: in URLs, JSON, HTML, or one in the other. What an encoder
// escapes, and how, differs between libraries: "/" is also "\/", "\u002F", "%2f" and "&#47;". So a value is not searched in
// every form. Instead, all escapes of a text are replaced by what they stand for, until none is left, and the value is
// searched in the result.
//
// A target that takes UTF-8 for Latin-1, and sends the result as UTF-8, turns "é" into "Ã©". This too is undone as often as it
// was done: characters of Latin-1 and Windows-1252 are replaced by their bytes, which may be the end of another character.
// So the text without escapes has "é" as one byte, and is not valid UTF-8.

// maxEntity is the length of the longest entity of HTML that is recognized, such as "&#x1F600;".
const maxEntity = 10

// unescaped is a text without its escapes.
type unescaped struct {
	text []byte
	from []int32 // where each byte of text begins in the original
	// plainFrom is the length of text from which on no escape that has begun can end, so that bytes that cannot be part of
	// one need no search.
	plainFrom int
}

// beginsEscape has the bytes with which an escape can begin, and those that stand for another byte.
var beginsEscape = func() (is [256]bool) {
	for c := range is {
		is[c] = c >= utf8.RuneSelf || strings.IndexByte(`\%&+`, byte(c)) >= 0
	}
	return is
}()

// unescape replaces the escapes of URLs, JSON, HTML and Go in a text, and characters of Latin-1. The result contains no more
// of them: "%2541" becomes "A", as does "%41". A space and "+" are the same, as in queries.
func unescape(original []byte) *unescaped {
	u := &unescaped{text: make([]byte, 0, len(original)), from: make([]int32, 0, len(original))}
	for i, c := range original {
		if len(u.text) >= u.plainFrom && !beginsEscape[c] {
			u.text, u.from = append(u.text, c), append(u.from, int32(i))
		} else {
			u.push(c, int32(i))
		}
	}

	return u
}

// push adds a byte that begins at a place of the original. If an escape ends with it, what it stands for takes its place.
// Since that can be the end of another escape, each escape is found, however deep it is nested.
func (u *unescaped) push(c byte, from int32) {
	if c == '+' {
		c = ' '
	}
	u.text, u.from = append(u.text, c), append(u.from, from)
	if beginsEscape[c] {
		u.plainFrom = len(u.text) + maxEntity
	}

	length, means := u.escapeAtEnd()
	if length == 0 {
		return
	}

	at := len(u.text) - length
	from = u.from[at]
	u.text, u.from = u.text[:at], u.from[:at]
	for _, b := range []byte(means) {
		u.push(b, from)
	}
}

// maxOpen is how many bytes at the end of a text without escapes may belong to nested escapes that are not complete.
// Several levels need a few bytes each. The limit bounds the time for a text that consists of them, such as a line of "%".
const maxOpen = 64

// openEnds returns the lengths of the beginnings of the text after which only what may be the beginning of an escape
// follows, at most maxOpen bytes. The first is the whole text.
func (u *unescaped) openEnds() []int {
	ends := []int{len(u.text)}
	first := max(0, len(u.text)-maxOpen)
	for i := 0; i < len(ends); i++ {
		end := ends[i]
		for at := max(first, end-maxEntity); at < end; at++ {
			if mayBecomeEscape(u.text[at:end]) && !slices.Contains(ends, at) {
				ends = append(ends, at)
			}
		}
	}

	return ends
}

// mayBecomeEscape reports whether a text without complete escapes may be the beginning of one.
func mayBecomeEscape(t []byte) bool {
	rest := t[1:]
	switch {
	case t[0] == firstHalf && len(t) == 3:
		return true // the second half may follow
	case t[0] >= utf8.RuneSelf: // perhaps the beginning of a character of Latin-1 or Windows-1252
		return len(t) < utf8.UTFMax && !slices.ContainsFunc(rest, func(c byte) bool { return c < utf8.RuneSelf })
	case t[0] == '%':
		return len(rest) == 0 || len(rest) == 1 && isHex(rest[0])
	case t[0] == '&':
		return len(t) < maxEntity && !slices.ContainsFunc(rest, func(c byte) bool { return c != '#' && !isAlphanumeric(c) })
	case t[0] != '\\':
		return false
	case len(rest) == 0:
		return true
	case rest[0] == 'x':
		return len(rest) < 3 && !slices.ContainsFunc(rest[1:], func(c byte) bool { return !isHex(c) })
	case rest[0] == 'u':
		return len(rest) < 5 && !slices.ContainsFunc(rest[1:], func(c byte) bool { return !isHex(c) })
	}

	return false
}

// escapeAtEnd returns the length of the escape at the end, and what it stands for. The length is 0 if there is none.
func (u *unescaped) escapeAtEnd() (length int, means string) {
	t := u.text
	n := len(t)
	last := t[n-1]

	if n >= 2 && t[n-2] == '\\' {
		if i := strings.IndexByte("nrtbf", last); i >= 0 {
			return 2, "\n\r\t\b\f"[i : i+1]
		}
		if !isAlphanumeric(last) {
			return 2, string(t[n-1:])
		}
	}

	switch {
	case last >= utf8.RuneSelf:
		return u.latin1AtEnd()

	case last == ';':
		begin := max(n-maxEntity, 0)
		if at := bytes.LastIndexByte(t[begin:], '&'); at >= 0 {
			entity := string(t[begin+at:])
			if char := html.UnescapeString(entity); char != entity {
				return len(entity), char
			}
		}

	case !isHex(last):
	case n >= 3 && t[n-3] == '%' && isHex(t[n-2]):
		return 3, hexByte(t[n-2:])
	case n >= 4 && t[n-4] == '\\' && t[n-3] == 'x' && isHex(t[n-2]):
		return 4, hexByte(t[n-2:])
	case n >= 6 && t[n-6] == '\\' && t[n-5] == 'u':
		return u.unicodeAtEnd()
	}

	return 0, ""
}

// unicodeAtEnd is escapeAtEnd for \uXXXX, which may be the second half of a character.
func (u *unescaped) unicodeAtEnd() (length int, means string) {
	n := len(u.text)
	code, err := strconv.ParseUint(string(u.text[n-4:]), 16, 16)
	if err != nil {
		return 0, ""
	}

	const half = 3 // bytes of what stands for the first half until the second follows
	char := rune(code)
	if utf16.IsSurrogate(char) {
		if n >= 6+half && u.text[n-6-half] == firstHalf {
			before := rune(u.text[n-6-2])<<8 | rune(u.text[n-6-1])
			if whole := utf16.DecodeRune(before, char); whole != utf8.RuneError {
				return 6 + half, string(whole)
			}
		}
		return 6, string([]byte{firstHalf, byte(code >> 8), byte(code)})
	}

	return 6, string(char)
}

// windows1252 has the bytes of the characters of Windows-1252 that differ from Latin-1.
var windows1252 = map[rune]byte{
	'€': 0x80, '‚': 0x82, 'ƒ': 0x83, '„': 0x84, '…': 0x85, '†': 0x86, '‡': 0x87, 'ˆ': 0x88, '‰': 0x89, 'Š': 0x8a, '‹': 0x8b, 'Œ': 0x8c, 'Ž': 0x8e,
	'‘': 0x91, '’': 0x92, '“': 0x93, '”': 0x94, '•': 0x95, '–': 0x96, '—': 0x97, '˜': 0x98, '™': 0x99, 'š': 0x9a, '›': 0x9b, 'œ': 0x9c, 'ž': 0x9e, 'Ÿ': 0x9f,
}

// latin1AtEnd returns the length of a character of Latin-1 or Windows-1252 at the end, in UTF-8, and its byte there.
func (u *unescaped) latin1AtEnd() (length int, means string) {
	r, size := utf8.DecodeLastRune(u.text)
	if size < 2 {
		return 0, "" // not complete
	}

	b, ok := windows1252[r]
	if !ok && r > 0xff {
		return 0, ""
	}
	if !ok {
		b = byte(r)
	}

	return size, string([]byte{b})
}

// plainSize returns the size in UTF-8 of a text without escapes, at least.
func plainSize(unescaped []byte) (n int) {
	for _, b := range unescaped {
		if n++; b >= utf8.RuneSelf {
			n++ // it can stand for a character of Latin-1
		}
	}
	return n
}

// asLatin1 returns the result of reading a text in UTF-8 as Latin-1, or as Windows-1252.
func asLatin1(text string) (latin1, windows string) {
	chars := map[byte]rune{}
	for r, b := range windows1252 {
		chars[b] = r
	}

	var l, w strings.Builder
	for _, b := range []byte(text) {
		l.WriteRune(rune(b))
		w.WriteRune(cmp.Or(chars[b], rune(b)))
	}

	return l.String(), w.String()
}

// firstHalf marks the first half of a character outside of the basic plane. What follows it belongs to the same character: "ÿ" has the
// same byte, but two bytes that make half a character do not follow it by accident.
const firstHalf = 0xff

// hexByte returns the byte with two hexadecimal digits.
func hexByte(digits []byte) string {
	b, _ := strconv.ParseUint(string(digits), 16, 8) // the caller has checked them
	return string([]byte{byte(b)})
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

func isAlphanumeric(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// isEscapable reports whether an encoder may replace a byte of a value by something else.
func isEscapable(r rune) bool {
	return r >= utf8.RuneSelf || !isAlphanumeric(byte(r)) && r != '-' && r != '_' && r != '.'
}
