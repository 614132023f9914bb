package output

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

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
