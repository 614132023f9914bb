package top

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/clipperhouse/displaywidth"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// Style is the appearance of text: at most one color, and attributes. Colors only repeat what a word or a
// symbol expresses, so the screen is usable without them.
type Style uint8

// The styles. They can be combined, except for the colors.
const (
	Plain   Style = 0
	Red     Style = 1
	Green   Style = 2
	Yellow  Style = 3
	Cyan    Style = 4
	Dim     Style = 8
	Bold    Style = 16
	Reverse Style = 32

	// colourMask selects the color of a style.
	colourMask Style = 7
)

// Colour returns the color of a style.
func (s Style) Colour() Style { return s & colourMask }

// Span is text in one style, without newlines.
type Span struct {
	Text  string
	Style Style
}

// Line is one line of a picture.
type Line []Span

// Picture is the content of a screen.
type Picture []Line

// Text returns the picture without styles.
func (p Picture) Text() string {
	var b strings.Builder

	for _, l := range p {
		b.WriteString(strings.TrimRight(l.plainText(), " "))
		b.WriteByte('\n')
	}

	return b.String()
}

// colourCodes are the ANSI codes of the colors.
var colourCodes = map[Style]string{Red: "31", Green: "32", Yellow: "33", Cyan: "36"}

// ANSI returns the picture with ANSI codes for its styles.
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

// plainText returns the line without styles.
func (l Line) plainText() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// displayWidth returns the width of the line in terminal columns.
func (l Line) displayWidth() int { return textWidth(l.plainText()) }

// textWidth returns the width of a text in terminal columns.
func textWidth(s string) int { return displaywidth.String(s) }

// fitColumns returns l in exactly this many columns: cut, or filled with spaces in style fill. more marks text
// that was cut.
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

// cutHead returns the longest beginning of a text that fits into this many columns.
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

// cutText returns a text in at most this many columns. more marks text that was cut.
func cutText(s string, columns int, more string) string {
	if textWidth(s) <= columns {
		return s
	}
	return cutHead(s, columns-textWidth(more)) + cutHead(more, columns)
}

// stripControls replaces control characters, which could move the cursor or execute terminal commands. Texts
// come from servers and from other users' programs.
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

// formatSpan formats a duration in whole seconds or larger units, because the screen is drawn once a second.
func formatSpan(d time.Duration) string {
	if d < time.Second {
		return "0s"
	}

	return task.Duration(d).Approximate()
}

// formatMillis formats a lateness.
func formatMillis(ms int64) string {
	switch {
	case ms < 1000:
		return fmt.Sprintf("%dms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.1fs", float64(ms)/1000)
	}

	return formatSpan(time.Duration(ms) * time.Millisecond)
}

// formatNumber formats n with thousands separators.
func formatNumber[T int | int64](n T) string { return wording.Grouped(int(n)) }

// formatCount returns a number with its noun: "1 task", "2 tasks".
func formatCount[T int | int64](n T, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return formatNumber(n) + " " + one + "s"
}

// formatRate formats a count per minute as a rate per second.
func formatRate(perMinute int64) string {
	switch {
	case perMinute == 0:
		return "0/s"
	case perMinute < 600:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(perMinute)/60), ".0") + "/s"
	}

	return formatNumber((perMinute+30)/60) + "/s"
}

var barRunes = []rune("▁▂▃▄▅▆▇█")

// drawBars draws numbers as a row of bars, scaled to the largest one.
func drawBars(list []int64) string {
	var most int64
	for _, n := range list {
		most = max(most, n)
	}

	var b strings.Builder

	for _, n := range list {
		i := 0
		if most > 0 {
			i = int((n*int64(len(barRunes)) - 1) / most)
		}
		b.WriteRune(barRunes[max(i, 0)])
	}

	return b.String()
}

// withoutSymbols replaces symbols that some terminals lack.
func withoutSymbols(s string) string {
	return strings.NewReplacer("·", "-", "–", "-", "…", "~", "→", "->", "─", "-", "✓", "+", "✗", "x", "○", "o", "❄", "*", "◐", "o", "▶", ">", "‖", "=", "▸", ">",
		"⊘", "/", "↷", "-", "×", "x", "⏎", "enter", "▁", "_", "▂", ".", "▃", ".", "▄", ":", "▅", ":", "▆", "|", "▇", "|", "█", "#", "░", ".", "↑", "^", "↓", "v").Replace(s)
}

// progressWords describes the progress that a run has reported, or returns "".
func progressWords(p *task.Progress) string {
	const long = 10

	if p == nil || p.Percent == nil {
		return ""
	}

	percent := min(max(*p.Percent, 0), 100)
	n := int(percent / 100 * long)

	return strings.TrimSpace(fmt.Sprintf("%s%s %.0f%% %s", strings.Repeat("█", n), strings.Repeat("░", long-n), percent, stripControls(p.Text)))
}
