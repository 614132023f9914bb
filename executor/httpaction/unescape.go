package httpaction

import (
	"bytes"
	"html"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Targets send back what they have received in many ways: in URLs, JSON, HTML, or one in the other. What an encoder
// escapes, and how, differs between libraries: "/" is also "\/", "\u002F", "%2f" and "&#47;". So a value is not searched in
// every form. Instead, all escapes of a text are replaced by what they stand for, until none is left, and the value is
// searched in the result.

// maxEntity is the length of the longest entity of HTML that is recognized, such as "&#x1F600;".
const maxEntity = 10

// unescaped is a text without its escapes.
type unescaped struct {
	text []byte
	from []int32 // where each byte of text begins in the original
}

// unescape replaces the escapes of URLs, JSON, HTML and Go in a text. The result contains no more of them: "%2541" becomes
// "A", as does "%41". A space and "+" are the same, as in queries.
func unescape(original []byte) *unescaped {
	u := &unescaped{text: make([]byte, 0, len(original)), from: make([]int32, 0, len(original))}
	for i, c := range original {
		u.push(c, int32(i))
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

// firstHalf marks the first half of a character outside of the basic plane. The byte occurs in no text in UTF-8.
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
