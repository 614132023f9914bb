package output

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Color is the ANSI code of a color or an attribute. Colors only repeat what a symbol or a word expresses.
type Color string

const (
	Red    Color = "31"
	Green  Color = "32"
	Yellow Color = "33"
	Cyan   Color = "36"
	Dim    Color = "2"
	Bold   Color = "1"
)

// UsesColor reports whether output to a stream is colored.
func (p *Printer) UsesColor(stream any) bool {
	switch p.Color {
	case "always":
		return true
	case "never":
		return false
	}

	_, tty := p.Terminal(stream)
	return tty && p.Env("NO_COLOR") == "" && p.Env("TERM") != "dumb"
}

// Paint colors a text for stdout, if that stream is colored.
func (p *Printer) Paint(c Color, s string) string {
	if s == "" || c == "" || !p.UsesColor(p.Out) {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// PaintErr colors a text for stderr, if that stream is colored.
func (p *Printer) PaintErr(c Color, s string) string {
	if !p.UsesColor(p.Err) {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// Plain replaces the symbols in a text of this program if --ascii is set.
func (p *Printer) Plain(s string) string {
	if !p.ASCII {
		return s
	}
	return strings.NewReplacer("·", "-", "–", "-", "…", "...", "→", "->", "×", "x", "±", "+/-").Replace(s)
}

// NoValue is the text of an empty cell.
func (p *Printer) NoValue() string { return p.Plain("–") }

// stateStyle is the appearance of a state.
type stateStyle struct {
	symbol, ascii string
	color         Color
}

// stateStyles are the appearances of all states.
var stateStyles = map[task.State]stateStyle{
	task.Queued:     {"…", ".", Cyan},
	task.Dispatched: {"▸", ">", Cyan},
	task.Running:    {"▶", ">", Cyan},
	task.Paused:     {"‖", "=", Yellow},
	task.Succeeded:  {"✓", "+", Green},
	task.Failed:     {"✗", "x", Red},
	task.TimedOut:   {"✗", "x", Red},
	task.Lost:       {"?", "?", Red},
	task.Cancelled:  {"⊘", "/", Yellow},
	task.Skipped:    {"↷", "-", Yellow},
	task.Missed:     {"○", "o", Yellow},
}

// StateSign returns the symbol of a state.
func (p *Printer) StateSign(s task.State) string {
	f, ok := stateStyles[s]
	switch {
	case !ok:
		return "?"
	case p.ASCII:
		return p.Paint(f.color, f.ascii)
	}

	return p.Paint(f.color, f.symbol)
}

// StateText returns the symbol of a state, followed by words.
func (p *Printer) StateText(s task.State, words string) string {
	f, ok := stateStyles[s]
	if !ok {
		return words
	}

	sign := f.symbol
	if p.ASCII {
		sign = f.ascii
	}

	return p.Paint(f.color, sign+" "+words)
}
