package output

import (
	"fmt"
	"strings"
)

// Details prints the fields of one object, one per line, with the names in a column. Empty fields are omitted.
type Details struct {
	Printer *Printer
	pairs   [][2]string
	Parts   []string
}

// Field adds a field. It removes control characters from the value.
func (d *Details) Field(name, format string, args ...any) {
	d.StyledField(name, Sanitize(fmt.Sprintf(format, args...)))
}

// StyledField adds a field whose value may contain colors. The value must be sanitized.
func (d *Details) StyledField(name, value string) {
	if value != "" {
		d.pairs = append(d.pairs, [2]string{name, value})
	}
}

// Section ends the current group of fields and adds a block with a title below it.
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

// Flush ends the current group of fields. Fields are aligned only within a group.
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

// String returns the text of all fields and sections.
func (d *Details) String() string {
	d.Flush()
	return strings.Join(d.Parts, "")
}
