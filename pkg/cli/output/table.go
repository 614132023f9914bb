package output

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// SelectColumns returns a table with only the columns of --columns, or g if the flag is not set.
func (p *Printer) SelectColumns(g *Table) (*Table, error) {
	if len(p.Columns) == 0 {
		return g, nil
	}

	out := &Table{Empty: g.Empty}
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
}

// AddRow adds a row. It may have fewer cells than there are columns.
func (g *Table) AddRow(cells ...string) { g.Rows = append(g.Rows, cells) }

// Render returns the table as text: without lines, columns as wide as necessary, and two spaces between them.
// On a terminal, it is shortened to the terminal's width.
func (g *Table) Render(p *Printer) string {
	if len(g.Rows) == 0 {
		if g.Empty != "" {
			p.Note("%s", p.Plain(g.Empty))
		}
		return ""
	}

	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format = table.FormatOptions{}

	more := "…"
	if p.ASCII {
		more = "~"
	}

	style.Box = table.BoxStyle{PaddingRight: "  ", UnfinishedRow: more}
	if width, tty := p.Terminal(p.Out); tty && width > 0 {
		g = g.fitToWidth(width, more)
		style.Size.WidthMax = width + columnGap // the last column is also followed by spaces
	}

	t.SetStyle(style)

	if !p.NoHeaders {
		t.AppendHeader(rowOf(g.Headers))
	}

	for _, r := range g.Rows {
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
	t.Empty = ""
	part := *p
	part.NoHeaders = true
	var b strings.Builder

	for line := range strings.Lines(t.Render(&part)) {
		b.WriteString("  " + line)
	}

	return b.String()
}
