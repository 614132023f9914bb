package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// emitList prints a list in whatever format is asked for.
func emitList[T any](a *app, list []T, name func(T) string, tabulate func(wide bool) *grid) error {
	switch a.output {
	case asJSON:
		if list == nil {
			list = []T{}
		}
		return a.emitJSON(list)
	case asJSONL:
		return a.emitLines(len(list), func(i int) ([]byte, error) { return compact(list[i]) })
	case asYAML:
		return a.emitYAML(len(list), func(i int) any { return list[i] })
	case asName:
		return a.emitLines(len(list), func(i int) ([]byte, error) { return []byte(name(list[i])), nil })
	}
	g, err := a.chosen(tabulate(a.output == asWide || len(a.columns) > 0))
	if err != nil {
		return err
	}
	return a.print(g.render(a))
}

// chosen is a table with the columns that --columns names; all, if it names none.
func (a *app) chosen(g *grid) (*grid, error) {
	if len(a.columns) == 0 {
		return g, nil
	}
	out := &grid{empty: g.empty}
	var at []int
	for _, name := range a.columns {
		i := slices.IndexFunc(g.heads, func(head string) bool { return columnName(head) == columnName(name) })
		if i < 0 {
			names := make([]string, len(g.heads))
			for i, head := range g.heads {
				names[i] = columnName(head)
			}
			e := usage("--columns %s: there are %s", quote(name), strings.Join(names, ", "))
			if near := task.Nearest(columnName(name), names); near != "" {
				return nil, e.hinting("did you mean: --columns %s", near)
			}
			return nil, e
		}
		at, out.heads = append(at, i), append(out.heads, g.heads[i])
	}
	for _, row := range g.rows {
		some := make([]string, len(at))
		for i, from := range at {
			if from < len(row) {
				some[i] = row[from]
			}
		}
		out.add(some...)
	}
	return out, nil
}

// columnName is how a column is named where one can type: "LAST 10" is last-10.
func columnName(head string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimSpace(head)), " ", "-")
}

// wants reports whether a table has a column that it may go without.
func (a *app) wants(head string) bool {
	return len(a.columns) == 0 || slices.ContainsFunc(a.columns, func(c string) bool { return columnName(c) == columnName(head) })
}

// emitOne prints one thing; for people it is whatever human writes.
func emitOne[T any](a *app, thing T, name string, human func(w *details)) error {
	switch a.output {
	case asJSON:
		return a.emitJSON(thing)
	case asJSONL:
		return a.emitLines(1, func(int) ([]byte, error) { return compact(thing) })
	case asYAML:
		return a.emitYAML(1, func(int) any { return thing })
	case asName:
		return a.print(name + "\n")
	}
	d := &details{app: a}
	human(d)
	return a.print(d.String())
}

func (a *app) emitJSON(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return a.printJSON(b.Bytes())
}

// printJSON prints JSON as it is, but for a terminal.
func (a *app) printJSON(b []byte) error {
	if _, tty := a.terminal(a.Out); tty {
		b = harmlessJSON(b)
	}
	return a.print(string(b))
}

func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func (a *app) emitLines(n int, line func(int) ([]byte, error)) error {
	var b bytes.Buffer
	for i := range n {
		l, err := line(i)
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		b.Write(append(l, '\n'))
	}
	return a.printJSON(b.Bytes())
}

// emitYAML writes one document for each item, so that each can be applied, or
// cut out, alone; an empty list is [].
func (a *app) emitYAML(n int, item func(int) any) error {
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
	return a.print(b.String())
}

func (a *app) print(s string) error {
	if _, err := io.WriteString(a.Out, s); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// grid is a table in the making.
type grid struct {
	heads []string
	rows  [][]string
	empty string // what to say, on the standard error, if there are no rows
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// render draws the table: no lines, columns as wide as they must be, two blanks
// between them. Only for a terminal it is made to fit.
func (g *grid) render(a *app) string {
	if len(g.rows) == 0 {
		if g.empty != "" {
			a.note("%s", a.plain(g.empty))
		}
		return ""
	}
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format = table.FormatOptions{}
	more := "…"
	if a.ascii {
		more = "~"
	}
	style.Box = table.BoxStyle{PaddingRight: "  ", UnfinishedRow: more}
	if width, tty := a.terminal(a.Out); tty && width > 0 {
		g = g.fit(width, more)
		style.Size.WidthMax = width + between // behind the last column are blanks, too
	}
	t.SetStyle(style)
	if !a.noHeaders {
		t.AppendHeader(cells(g.heads))
	}
	for _, r := range g.rows {
		t.AppendRow(cells(r))
	}
	var b strings.Builder
	for line := range strings.Lines(t.Render() + "\n") {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

func cells(texts []string) table.Row {
	row := make(table.Row, len(texts))
	for i, s := range texts {
		row[i] = s
	}
	return row
}

// details is one thing's fields, a line each, names in a column; what is empty
// is left out.
type details struct {
	app   *app
	pairs [][2]string
	parts []string
}

// field adds a field; what a terminal might obey is taken out of its value.
func (d *details) field(name, format string, args ...any) {
	d.painted(name, printable(fmt.Sprintf(format, args...)))
}

// painted adds a field whose value is ours, with its colours.
func (d *details) painted(name, value string) {
	if value != "" {
		d.pairs = append(d.pairs, [2]string{name, value})
	}
}

// section ends the fields so far and adds a titled block below them.
func (d *details) section(title, body string) {
	d.flush()
	if body == "" {
		return
	}
	if len(d.parts) > 0 {
		d.parts = append(d.parts, "\n")
	}
	d.parts = append(d.parts, d.app.paint(bold, title)+"\n", strings.TrimRight(body, "\n")+"\n")
}

func (d *details) flush() {
	width := 0
	for _, p := range d.pairs {
		width = max(width, len(p[0]))
	}
	for _, p := range d.pairs {
		value := strings.ReplaceAll(p[1], "\n", "\n"+strings.Repeat(" ", width+2))
		d.parts = append(d.parts, fmt.Sprintf("%s%*s  %s\n", d.app.paint(dim, p[0]), width-len(p[0]), "", value))
	}
	d.pairs = nil
}

func (d *details) String() string {
	d.flush()
	return strings.Join(d.parts, "")
}
