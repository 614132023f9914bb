package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// The colours. They repeat what a symbol or a word says, and add nothing.
type colour string

const (
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
	cyan   colour = "36"
	dim    colour = "2"
	bold   colour = "1"
)

// colourful reports whether a stream gets colours.
func (a *app) colourful(stream any) bool {
	switch a.color {
	case "always":
		return true
	case "never":
		return false
	}
	_, tty := a.terminal(stream)
	return tty && a.Env("NO_COLOR") == "" && a.Env("TERM") != "dumb"
}

func (a *app) paint(c colour, s string) string {
	if s == "" || c == "" || !a.colourful(a.Out) {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

func (a *app) paintErr(c colour, s string) string {
	if !a.colourful(a.Err) {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// plain is a text of ours without symbols, if that is asked for.
func (a *app) plain(s string) string {
	if !a.ascii {
		return s
	}
	return strings.NewReplacer("·", "-", "–", "-", "…", "...", "→", "->", "×", "x", "±", "+/-").Replace(s)
}

// none stands where there is nothing to show.
func (a *app) none() string { return a.plain("–") }

// face is how a state looks.
type face struct {
	symbol, ascii string
	colour        colour
}

var faces = map[task.State]face{
	task.Queued:     {"…", ".", cyan},
	task.Dispatched: {"▸", ">", cyan},
	task.Running:    {"▶", ">", cyan},
	task.Paused:     {"‖", "=", yellow},
	task.Succeeded:  {"✓", "+", green},
	task.Failed:     {"✗", "x", red},
	task.TimedOut:   {"✗", "x", red},
	task.Lost:       {"?", "?", red},
	task.Cancelled:  {"⊘", "/", yellow},
	task.Skipped:    {"↷", "-", yellow},
	task.Missed:     {"○", "o", yellow},
}

// sign is a state's sign alone.
func (a *app) sign(s task.State) string {
	f, ok := faces[s]
	switch {
	case !ok:
		return "?"
	case a.ascii:
		return a.paint(f.colour, f.ascii)
	}
	return a.paint(f.colour, f.symbol)
}

// symbol is a state's sign before words that say it.
func (a *app) symbol(s task.State, words string) string {
	f, ok := faces[s]
	if !ok {
		return words
	}
	sign := f.symbol
	if a.ascii {
		sign = f.ascii
	}
	return a.paint(f.colour, sign+" "+words)
}

// printable takes away what could move a terminal's cursor: texts come from
// servers, from files and from other people's programs. Lines and tabs stay.
func printable(s string) string {
	clean := func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}
	return strings.Map(clean, s)
}

// harmlessJSON is JSON for a terminal: it says the same, and what the terminal might
// obey is escaped. What is below a space JSON has escaped already.
func harmlessJSON(b []byte) []byte {
	var out []byte
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r < utf8.RuneSelf && r != 0x7f || unicode.IsPrint(r) && !(r == utf8.RuneError && n == 1) {
			if out != nil {
				out = append(out, b[i:i+n]...)
			}
		} else {
			if out == nil {
				out = append(make([]byte, 0, len(b)+16), b[:i]...)
			}
			for _, u := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, u)
			}
		}
		i += n
	}
	if out == nil {
		return b
	}
	return out
}

// oneLine is printable text for a cell of a table.
func oneLine(s string) string {
	return strings.Join(strings.Fields(printable(s)), " ")
}
