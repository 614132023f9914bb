package top

import (
	"strings"
	"unicode"

	"github.com/clipperhouse/displaywidth"
)

// Style is how text looks: one of the colours, and how it is set off. Colours repeat
// what a word or a symbol says, and add nothing.
type Style uint8

// The styles, which can be added to each other, but for the colours.
const (
	Plain   Style = 0
	Red     Style = 1
	Green   Style = 2
	Yellow  Style = 3
	Cyan    Style = 4
	Dim     Style = 8
	Bold    Style = 16
	Reverse Style = 32

	colourMask Style = 7
)

// Colour is the colour of a style.
func (s Style) Colour() Style { return s & colourMask }

// Span is text in one style, without ends of lines.
type Span struct {
	Text  string
	Style Style
}

// Line is a line of a picture.
type Line []Span

// Picture is what is to be seen.
type Picture []Line

// Text is the picture without styles, for a terminal or a file that has none.
func (p Picture) Text() string {
	var b strings.Builder

	for _, l := range p {
		b.WriteString(strings.TrimRight(l.plainText(), " "))
		b.WriteByte('\n')
	}

	return b.String()
}

var colourCodes = map[Style]string{Red: "31", Green: "32", Yellow: "33", Cyan: "36"}

// ANSI is the picture with the codes of a terminal for its styles.
func (p Picture) ANSI() string {
	var b strings.Builder

	for _, l := range p {
		for _, s := range l {
			var c []string
			if s.Style&Bold != 0 {
				c = append(c, "1")
			}

			if s.Style&Dim != 0 {
				c = append(c, "2")
			}

			if s.Style&Reverse != 0 {
				c = append(c, "7")
			}

			if code := colourCodes[s.Style.Colour()]; code != "" {
				c = append(c, code)
			}

			if len(c) == 0 || strings.TrimSpace(s.Text) == "" {
				b.WriteString(s.Text)
				continue
			}

			b.WriteString("\x1b[" + strings.Join(c, ";") + "m" + s.Text + "\x1b[0m")
		}

		b.WriteByte('\n')
	}

	return b.String()
}

func (l Line) plainText() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

func (l Line) displayWidth() int { return textWidth(l.plainText()) }

// textWidth is how many columns a text takes.
func textWidth(s string) int { return displaywidth.String(s) }

// fitColumns is l in exactly so many columns: cut, or filled up. more says that it goes on.
func (l Line) fitColumns(columns int, more string, fill Style) Line {
	left := columns - Line{{strings.TrimRight(l.plainText(), " "), Plain}}.displayWidth()
	if left < 0 {
		left = -textWidth(more)
	}

	out, room := Line{}, columns+min(left, 0)
	for _, s := range l {
		text := cutHead(s.Text, room)
		if out, room = append(out, Span{text, s.Style}), room-textWidth(text); text != s.Text {
			break
		}
	}

	if left < 0 {
		out, room = append(out, Span{more, fill}), columns-out.displayWidth()-textWidth(more)
	}

	if room > 0 {
		out = append(out, Span{strings.Repeat(" ", room), fill})
	}

	return out
}

// cutHead is the beginning of a text that fits into so many columns.
func cutHead(s string, columns int) string {
	if textWidth(s) <= columns {
		return s
	}

	for i, r := range s {
		if columns -= textWidth(string(r)); columns < 0 {
			return s[:i]
		}
	}

	return s
}

// cutText is a text in at most so many columns; more says that it goes on.
func cutText(s string, columns int, more string) string {
	if textWidth(s) <= columns {
		return s
	}
	return cutHead(s, columns-textWidth(more)) + cutHead(more, columns)
}

// stripControls takes away what could move a terminal's cursor: texts come from servers, and
// from other people's programs.
func stripControls(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n':
			return ' '
		case unicode.IsPrint(r):
			return r
		}

		return '\uFFFD'
	}, s)
}
