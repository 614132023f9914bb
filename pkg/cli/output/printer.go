package output

import (
	"fmt"
	"io"
	"time"
)

// Printer writes what a command has to say, in the form that the global flags ask for.
// What a person reads goes through Note and Say, data through Print and the Emit functions.
type Printer struct {
	Out, Err io.Writer
	Env      func(string) string
	Now      func() time.Time
	Terminal func(stream any) (width int, is bool) // a field, for tests

	Format    string
	TimeMode  string
	Color     string
	ASCII     bool
	NoHeaders bool
	Columns   []string
	Quiet     bool
}

// Note tells a person something on the standard error, unless -q.
func (p *Printer) Note(format string, args ...any) {
	if !p.Quiet {
		fmt.Fprintf(p.Err, p.Plain(format)+"\n", args...)
	}
}

// Say tells what was done, on the standard output, if that is for a person.
func (p *Printer) Say(format string, args ...any) {
	if !p.Quiet && p.ForPeople() {
		fmt.Fprintf(p.Out, p.Plain(format)+"\n", args...)
	}
}

// ForPeople reports whether the output is for people to read.
func (p *Printer) ForPeople() bool { return p.Format == FormatTable || p.Format == FormatWide }

// Print writes data to the standard output.
func (p *Printer) Print(s string) error {
	if _, err := io.WriteString(p.Out, s); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// SayNext tells a person the next step.
func (p *Printer) SayNext(format string, args ...any) {
	if p.ForPeople() {
		p.Say("next: "+format, args...)
	}
}
