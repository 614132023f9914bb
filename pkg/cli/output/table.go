package output

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// SelectColumns is a table with the columns that --columns names; all, if it names none.
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

			e := failure.Usage("--columns %s: there are %s", task.Quote(name), strings.Join(names, ", "))

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

// columnName is how a column is named where one can type: "LAST 10" is last-10.
func columnName(head string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimSpace(head)), " ", "-")
}

// WantsColumn reports whether a table has a column that it may go without.
func (p *Printer) WantsColumn(head string) bool {
	return len(p.Columns) == 0 || slices.ContainsFunc(p.Columns, func(c string) bool { return columnName(c) == columnName(head) })
}

// Table is a table in the making.
type Table struct {
	Headers []string
	Rows    [][]string
	Empty   string // what to say, on the standard error, if there are no rows
}

// AddRow adds a row; it may have fewer cells than there are columns.
func (g *Table) AddRow(cells ...string) { g.Rows = append(g.Rows, cells) }

// Render draws the table: no lines, columns as wide as they must be, two blanks
// between them. Only for a terminal it is made to fit.
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
		style.Size.WidthMax = width + columnGap // behind the last column are blanks, too
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

func rowOf(texts []string) table.Row {
	row := make(table.Row, len(texts))
	for i, s := range texts {
		row[i] = s
	}
	return row
}

// RenderIndented is a table below a title, without its headers.
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
