// Package output prints the results of commands: lists and single objects in the formats of -o, tables that fit
// a terminal, colors, times and durations, and texts without control characters.
//
// A Printer holds the global flags about output. It writes only to its two streams: data to stdout, everything
// else to stderr. The package defines the appearance of run states, and otherwise does not depend on tasks,
// servers or commands. Output is shortened only on a terminal.
package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// Printer writes the output of a command in the form that the global flags define. Text for people goes through
// Note and Say, data through Print and the Emit functions.
type Printer struct {
	Out, Err io.Writer
	Env      func(string) string
	Now      func() time.Time
	Terminal func(stream any) (width int, is bool) // replaced in tests
	Local    *time.Location                        // the user's time zone; nil: time.Local

	Format    string
	TimeMode  string
	Color     string
	ASCII     bool
	NoHeaders bool
	Columns   []string
	Quiet     bool

	taskZone *time.Location // of the only task that the command is about; see AboutTask
}

// Note prints a message for people on stderr, unless --quiet is set.
func (p *Printer) Note(format string, args ...any) {
	if !p.Quiet {
		fmt.Fprintf(p.Err, p.Plain(format)+"\n", args...)
	}
}

// Say prints on stdout what was done, if the output is for people.
func (p *Printer) Say(format string, args ...any) {
	if !p.Quiet && p.ForPeople() {
		fmt.Fprintf(p.Out, p.Plain(format)+"\n", args...)
	}
}

// ForPeople reports whether the output format is for people.
func (p *Printer) ForPeople() bool { return p.Format == FormatTable || p.Format == FormatWide }

// Print writes data to stdout.
func (p *Printer) Print(s string) error {
	if _, err := io.WriteString(p.Out, s); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// SayNext prints the next step for the user.
func (p *Printer) SayNext(format string, args ...any) {
	if p.ForPeople() {
		p.Say("next: "+format, args...)
	}
}

// The output formats. A command that supports only some of them is passed to factory.LimitFormats.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	FormatJSON  = "json"
	FormatJSONL = "jsonl"
	FormatYAML  = "yaml"
	FormatName  = "name"
)

// Formats contains all output formats.
var Formats = []string{FormatTable, FormatWide, FormatJSON, FormatJSONL, FormatYAML, FormatName}

// EmitList prints a list in the requested format. tabulate returns the table for people.
func EmitList[T any](p *Printer, list []T, name func(T) string, tabulate func(wide bool) *Table) error {
	switch p.Format {
	case FormatJSON:
		if list == nil {
			list = []T{}
		}
		return p.EmitJSON(list)
	case FormatJSONL:
		return p.EmitLines(len(list), func(i int) ([]byte, error) { return CompactJSON(list[i]) })

	case FormatYAML:
		return p.EmitYAML(len(list), func(i int) any { return list[i] })

	case FormatName:
		return p.EmitLines(len(list), func(i int) ([]byte, error) { return []byte(name(list[i])), nil })
	}

	g, err := p.SelectColumns(tabulate(p.Format == FormatWide || len(p.Columns) > 0))
	if err != nil {
		return err
	}

	return p.Print(g.Render(p))
}

// EmitOne prints one object in the requested format. human writes the details for people.
func EmitOne[T any](p *Printer, thing T, name string, human func(w *Details)) error {
	switch p.Format {
	case FormatJSON:
		return p.EmitJSON(thing)
	case FormatJSONL:
		return p.EmitLines(1, func(int) ([]byte, error) { return CompactJSON(thing) })

	case FormatYAML:
		return p.EmitYAML(1, func(int) any { return thing })

	case FormatName:
		return p.Print(name + "\n")
	}

	d := &Details{Printer: p}
	human(d)

	return p.Print(d.String())
}

// EmitJSON prints one value as indented JSON.
func (p *Printer) EmitJSON(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")

	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}

	return p.printJSON(b.Bytes())
}

// printJSON prints JSON. On a terminal it escapes control characters.
func (p *Printer) printJSON(b []byte) error {
	if _, tty := p.Terminal(p.Out); tty {
		b = SanitizeJSON(b)
	}
	return p.Print(string(b))
}

// CompactJSON encodes a value as JSON on one line, without a newline.
func CompactJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)

	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// EmitLines prints n lines of JSON or of names.
func (p *Printer) EmitLines(n int, line func(int) ([]byte, error)) error {
	var b bytes.Buffer

	for i := range n {
		l, err := line(i)
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		b.Write(append(l, '\n'))
	}

	return p.printJSON(b.Bytes())
}

// EmitYAML prints one document for each item, so that each can be applied or copied separately. An empty list
// is [].
func (p *Printer) EmitYAML(n int, item func(int) any) error {
	var b bytes.Buffer

	for i := range n {
		j, err := json.Marshal(item(i))
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}

		y, err := manifest.WriteYAML(j)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}

		if i > 0 {
			b.WriteString("---\n")
		}

		b.Write(y)
	}

	if n == 0 {
		b.WriteString("[]\n")
	}

	return p.Print(b.String())
}

// EmitChanged prints the changed objects for programs; the text for people was printed before. If asked is 1,
// it prints an object, otherwise a list.
func EmitChanged[T any](p *Printer, changed []T, asked int, name func(T) string) error {
	switch {
	case p.ForPeople(), asked == 0, asked == 1 && len(changed) == 0:
		return nil
	case asked == 1:
		return EmitOne(p, changed[0], name(changed[0]), nil)
	}

	return EmitList(p, changed, name, nil)
}

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
	return strings.NewReplacer("·", "-", "–", "-", "…", "...", "→", "->", "×", "x", "±", "+/-", "└", "+").Replace(s)
}

// NoValue is the text of an empty cell.
func (p *Printer) NoValue() string { return p.Plain("–") }

// toneColors are the colors of states.
var toneColors = map[string]Color{"good": Green, "bad": Red, "warn": Yellow, "busy": Cyan}

// StateSign returns the symbol of a state.
func (p *Printer) StateSign(s task.State) string {
	if _, ok := wording.StateLooks[s]; !ok {
		return "?"
	}
	return p.paintState(s, "")
}

// StateText returns the symbol of a state, followed by words.
func (p *Printer) StateText(s task.State, words string) string {
	if _, ok := wording.StateLooks[s]; !ok {
		return words
	}
	return p.paintState(s, " "+words)
}

func (p *Printer) paintState(s task.State, words string) string {
	look := wording.StateLooks[s]
	sign := look.Sign
	if p.ASCII {
		sign = look.ASCII
	}

	return p.Paint(toneColors[look.Tone], sign+words)
}

// noSuchProgram is the smallest exit code with which a shell reports that it could not run a program.
const noSuchProgram = 126

// WithPager calls print with stdout or, if that is a terminal and PAGER is set, with the input of that program.
// It returns when both have ended. It is not an error if the user quits the pager early.
func (p *Printer) WithPager(print func(out io.Writer) error) error {
	program := strings.TrimSpace(p.Env("PAGER"))
	if _, tty := p.Terminal(p.Out); !tty || program == "" || program == "cat" {
		return print(p.Out)
	}

	cmd := UserCommand(program)
	cmd.Stdout, cmd.Stderr, cmd.Env = p.Out, p.Err, os.Environ()
	if p.Env("LESS") == "" {
		cmd.Env = append(cmd.Env, "LESS=FRX") // as git does: allow colors, and quit if the text fits on one screen
	}

	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}

	if err != nil {
		return fmt.Errorf("start the pager %s: %w", task.Quote(program), err)
	}

	failed := print(in)
	_ = in.Close() // the pager may have ended already

	err = cmd.Wait()
	switch left := errors.Is(failed, syscall.EPIPE); {
	case err != nil && (failed == nil || left && cmd.ProcessState.ExitCode() >= noSuchProgram):
		return fmt.Errorf("the pager %s: %w", task.Quote(program), err)
	case left:
		return nil
	}

	return failed
}
