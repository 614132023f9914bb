package output

import (
	"fmt"
	"io"
	"time"
)

// Printer writes the output of a command in the form that the global flags define. Text for people goes through
// Note and Say, data through Print and the Emit functions.
type Printer struct {
	Out, Err io.Writer
	Env      func(string) string
	Now      func() time.Time
	Terminal func(stream any) (width int, is bool) // replaced in tests

	Format    string
	TimeMode  string
	Color     string
	ASCII     bool
	NoHeaders bool
	Columns   []string
	Quiet     bool
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
