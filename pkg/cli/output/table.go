package output

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// SelectColumns returns a table with only the columns of --columns, or g if the flag is not set.
func (p *Printer) SelectColumns(g *Table) (*Table, error) {
	if len(p.Columns) == 0 {
		return g, nil
	}

	out := &Table{Empty: g.Empty, Key: g.Key}
	var at []int
	for _, name := range p.Columns {
		i := slices.IndexFunc(g.Headers, func(head string) bool { return columnName(head) == columnName(name) })
		if i < 0 {
			names := make([]string, len(g.Headers))
			for i, head := range g.Headers {
				names[i] = columnName(head)
			}

			e := failure.Usage("--columns %s: use %s", task.Quote(name), strings.Join(names, ", "))

			if near := task.Nearest(columnName(name), names); near != "" {
				return nil, e.WithHint("did you mean: --columns %s", near)
			}

			return nil, e
		}

		at, out.Headers = append(at, i), append(out.Headers, g.Headers[i])
	}

	for _, row := range g.Rows {
		some := make([]string, len(at))
		for i, from := range at {
			if from < len(row) {
				some[i] = row[from]
			}
		}

		out.AddRow(some...)
	}

	return out, nil
}

// columnName returns the name of a column for --columns: "LAST 10" becomes last-10.
func columnName(head string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimSpace(head)), " ", "-")
}

// WantsColumn reports whether an optional column is printed.
func (p *Printer) WantsColumn(head string) bool {
	return len(p.Columns) == 0 || slices.ContainsFunc(p.Columns, func(c string) bool { return columnName(c) == columnName(head) })
}

// Table is a table to print.
type Table struct {
	Headers []string
	Rows    [][]string
	Empty   string // the message on stderr if there are no rows
	Key     string // the heading of the column that names what the rows are about, if it is a usual column in other tables
}

// AddRow adds a row. It may have fewer cells than there are columns.
func (ta *Table) AddRow(cells ...string) { ta.Rows = append(ta.Rows, cells) }

// Render returns the table as text: without lines, columns as wide as necessary, and two spaces between them.
// On a terminal, it is shortened to the terminal's width.
func (ta *Table) Render(p *Printer) string {
	if len(ta.Rows) == 0 {
		if ta.Empty != "" {
			p.Note("%s", p.Plain(ta.Empty))
		}
		return ""
	}

	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format = table.FormatOptions{}

	style.Box = table.BoxStyle{PaddingRight: "  ", UnfinishedRow: p.moreSign()}
	if width, tty := p.Terminal(p.Out); tty && width > 0 {
		ta = ta.fitToWidth(p, width)
		style.Size.WidthMax = width + columnGap // the last column is also followed by spaces
	}

	t.SetStyle(style)

	if !p.NoHeaders {
		t.AppendHeader(rowOf(ta.Headers))
	}

	for _, r := range ta.Rows {
		t.AppendRow(rowOf(r))
	}

	var b strings.Builder

	for line := range strings.Lines(t.Render() + "\n") {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}

	return b.String()
}

// rowOf converts cells to a row of the table writer.
func rowOf(texts []string) table.Row {
	row := make(table.Row, len(texts))
	for i, s := range texts {
		row[i] = s
	}
	return row
}

// RenderIndented returns a table for a section, indented and without headings.
func (p *Printer) RenderIndented(t *Table) string {
	const indent = "  "
	t.Empty = ""
	part := *p
	part.NoHeaders = true
	part.Terminal = func(stream any) (int, bool) {
		width, tty := p.Terminal(stream)
		return max(width-len(indent), 0), tty
	}

	var b strings.Builder
	for line := range strings.Lines(t.Render(&part)) {
		b.WriteString(indent + line)
	}

	return b.String()
}

// columnGap is the number of spaces between two columns.
const columnGap = 2

// fitToWidth makes a table as narrow as a terminal, as fitColumns describes. Cutting rows at the edge instead would hide the
// state of a task because of a long schedule.
func (ta *Table) fitToWidth(p *Printer, width int) *Table {
	out := &Table{Empty: ta.Empty}
	more := p.moreSign()
	shown := ta.fitColumns(p, width, more)

	for _, c := range shown {
		out.Headers = append(out.Headers, text.Snip(c.cells[c.used][0], max(c.width, 1), more))
	}
	if len(shown) < len(ta.Headers) {
		out.Headers = append(out.Headers, more)
	}

	for i := range ta.Rows {
		var row []string
		for _, c := range shown {
			row = append(row, text.Snip(c.cells[c.used][i+1], c.width, more))
		}
		out.AddRow(row...)
	}

	return out
}

// moreSign returns the sign that something was cut.
func (p *Printer) moreSign() string {
	if p.ASCII {
		return "~"
	}
	return "…"
}

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
