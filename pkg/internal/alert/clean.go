package alert

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// escapeSequence matches the sequences with which programs color their output and set titles of terminals.
var escapeSequence = regexp.MustCompile("\x1b(?:\\[[0-9;:?<=>]*[ -/]*[@-~]|\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)?|[@-Z\\\\^_])")

// Clean returns a text that every chat, mail server and terminal shows as it is: valid UTF-8 with line breaks, but without control
// characters, escape sequences of terminals, and characters that are invisible or change the direction of a text.
func Clean(s string) string {
	if isPlainASCII(s) {
		return s
	}

	s = escapeSequence.ReplaceAllString(s, "")
	s = strings.ReplaceAll(s, "\r\n", "\n")

	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\r', r == '\v', r == '\f', r == '\u0085', r == '\u2028', r == '\u2029':
			return '\n'
		case r == '\t', unicode.Is(unicode.Zs, r):
			return ' '
		case !unicode.IsPrint(r), unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
			return -1
		}
		return r
	}, s)
}

// isPlainASCII reports whether a text has only printable ASCII characters, as nearly all names and lines do.
func isPlainASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}

	return true
}

// maxShort is the most bytes of a name, and of other values that are parts of a line.
const maxShort = 300

// short returns a value as a part of a line.
func short(s string) string { return OneLine(cutBytes(s, maxShort)) }

// OneLine returns a clean text without line breaks, and with single spaces between its words.
func OneLine(s string) string { return strings.Join(strings.Fields(Clean(s)), " ") }

// Shorten returns a text as one line of at most so many bytes.
func Shorten(s string, most int) string { return cutBytes(OneLine(s), most) }

// lastLine returns the last line of a text that is not empty.
func lastLine(s string) string {
	lines := strings.Split(Clean(s), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if line := OneLine(lines[i]); line != "" {
			return line
		}
	}

	return ""
}

// firstLine returns the first line of a text that is not empty.
func firstLine(s string) string {
	for line := range strings.SplitSeq(Clean(s), "\n") {
		if line = OneLine(line); line != "" {
			return line
		}
	}

	return ""
}

// cutMark ends a text that was cut. It is ASCII, because a title must be, where that is possible.
const cutMark = "..."

// cutCharacters cuts a text to a number of characters.
func cutCharacters(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}

	return string([]rune(s)[:most-len(cutMark)]) + cutMark
}

// cutBytes cuts a text to a number of bytes, between two characters.
func cutBytes(s string, most int) string {
	if len(s) <= most {
		return s
	}

	return s[:startOfRune(s, most-len(cutMark))] + cutMark
}

// lastBytes returns the end of a text, from the beginning of a character.
func lastBytes(s string, most int) string {
	if len(s) <= most {
		return s
	}

	at := len(s) - most
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}

	return s[at:]
}

// startOfRune returns the start of the character that contains a byte.
func startOfRune(s string, at int) int {
	for at > 0 && !utf8.RuneStart(s[at]) {
		at--
	}
	return at
}

// cutMiddle shortens a name to a number of characters. Its beginning and its end stay.
func cutMiddle(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}

	end := (most - len(cutMark)) / 2
	begin := most - len(cutMark) - end

	return string(runes[:begin]) + cutMark + string(runes[len(runes)-end:])
}
