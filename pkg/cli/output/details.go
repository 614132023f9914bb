package output

import (
	"fmt"
	"strings"
)

// Details is one thing's fields, a line each, names in a column; what is empty
// is left out.
type Details struct {
	Printer *Printer
	pairs   [][2]string
	Parts   []string
}

// Field adds a field; what a terminal might obey is taken out of its value.
func (d *Details) Field(name, format string, args ...any) {
	d.StyledField(name, Sanitize(fmt.Sprintf(format, args...)))
}

// StyledField adds a field whose value is ours, with its colours.
func (d *Details) StyledField(name, value string) {
	if value != "" {
		d.pairs = append(d.pairs, [2]string{name, value})
	}
}

// Section ends the fields so far and adds a titled block below them.
func (d *Details) Section(title, body string) {
	d.Flush()

	if body == "" {
		return
	}

	if len(d.Parts) > 0 {
		d.Parts = append(d.Parts, "\n")
	}

	d.Parts = append(d.Parts, d.Printer.Paint(Bold, title)+"\n", strings.TrimRight(body, "\n")+"\n")
}

// Flush ends the fields so far, so that they are aligned with each other only.
func (d *Details) Flush() {
	width := 0
	for _, p := range d.pairs {
		width = max(width, len(p[0]))
	}

	for _, p := range d.pairs {
		value := strings.ReplaceAll(p[1], "\n", "\n"+strings.Repeat(" ", width+2))
		d.Parts = append(d.Parts, fmt.Sprintf("%s%*s  %s\n", d.Printer.Paint(Dim, p[0]), width-len(p[0]), "", value))
	}

	d.pairs = nil
}

func (d *Details) String() string {
	d.Flush()
	return strings.Join(d.Parts, "")
}
