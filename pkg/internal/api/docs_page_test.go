package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var pageFile = flag.String("page", "", "the file to which TestPage_HasEveryOperationAndField writes the page")

// The page of the API for people, which make docs writes, is generated from the OpenAPI document. It has every operation, and
// every field of every object.
func TestPage_HasEveryOperationAndField(t *testing.T) {
	b, err := builtDocument()
	must(t, err)

	var d pageDocument
	must(t, json.Unmarshal(b, &d))

	var out bytes.Buffer
	must(t, (docsPage{doc: d}).write(&out))
	page := out.String()

	for path, methods := range d.Paths {
		for method, op := range methods {
			want := fmt.Sprintf("### %s\n\n`%s %s`\n", op.Summary, strings.ToUpper(method), path)
			if op.Summary == "" || !strings.Contains(page, want) {
				t.Errorf("%s %s is not on the page", method, path)
			}
		}
	}

	for name, schema := range d.Components.Schemas {
		_, section, ok := strings.Cut(page, "\n### "+name+"\n")
		if !ok {
			t.Errorf("the object %s is not on the page", name)
		}

		section, _, _ = strings.Cut(section, "\n### ")
		for field := range schema.Properties {
			if !strings.Contains(section, "| `"+field+"` |") {
				t.Errorf("the field %s of %s is not on the page", field, name)
			}
		}
	}

	if *pageFile != "" {
		must(t, os.WriteFile(*pageFile, out.Bytes(), 0o644))
	}
}

// pageDocument contains the fields that are read of an OpenAPI document.
type pageDocument struct {
	Info       struct{ Description string }
	Tags       []struct{ Name string }
	Paths      map[string]map[string]*pageOperation
	Components struct{ Schemas map[string]*pageSchema }
}

type pageOperation struct {
	Summary, Description string
	Tags                 []string
	Parameters           []struct {
		Name, In, Description string
		Schema                *pageSchema
	}
	RequestBody *struct {
		Description string
		Required    bool
		Content     pageContent
	}
	Responses map[string]struct {
		Description string
		Content     pageContent
	}
	Security []map[string]any

	method, path string
}

type pageContent map[string]struct{ Schema *pageSchema }

type pageSchema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	Format, Description  string
	Properties           map[string]*pageSchema
	Required             []string
	Items                *pageSchema
	OneOf, AnyOf, Enum   []any
	Default              any
	Minimum, Maximum     *float64
	AdditionalProperties json.RawMessage
}

// docsPage writes the page. It keeps the first error of out.
type docsPage struct {
	doc pageDocument
	out *bufio.Writer
}

const head = `# The API

%s
This page is generated from the OpenAPI document, which every node with the role api serves as ` + "`/openapi.json` and `/openapi.yaml`" + `.
The responses 400, 401, 403, 413, 415, 422, 500 and 503 are possible for most requests and are not repeated below.
`

// common contains the responses that are only named at the beginning of the page.
var common = []string{"400", "401", "403", "413", "415", "422", "500", "503"}

func (p docsPage) write(w io.Writer) error {
	p.out = bufio.NewWriter(w)
	p.line(head, p.doc.Info.Description)

	byTag := map[string][]*pageOperation{}
	for path, methods := range p.doc.Paths {
		for method, op := range methods {
			op.method, op.path = strings.ToUpper(method), path
			byTag[op.Tags[0]] = append(byTag[op.Tags[0]], op)
		}
	}

	for _, tag := range p.doc.Tags {
		ops := byTag[tag.Name]
		slices.SortFunc(ops, func(a, b *pageOperation) int { return strings.Compare(a.path+" "+a.method, b.path+" "+b.method) })
		p.line("## %s%s\n", strings.ToUpper(tag.Name[:1]), tag.Name[1:])

		for _, op := range ops {
			p.operation(op)
		}
	}

	p.line("## Objects\n")

	for _, name := range slices.Sorted(maps.Keys(p.doc.Components.Schemas)) {
		p.object(name, p.doc.Components.Schemas[name])
	}

	return p.out.Flush()
}

func (p docsPage) line(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

func (p docsPage) operation(op *pageOperation) {
	p.line("### %s\n\n`%s %s`\n", op.Summary, op.method, op.path)

	if op.Description != "" {
		p.line("%s\n", op.Description)
	}

	if !slices.ContainsFunc(op.Security, func(r map[string]any) bool { return len(r) > 0 }) {
		p.line("Without a token.\n")
	}

	if len(op.Parameters) > 0 {
		p.line("| parameter | in | | |\n|---|---|---|---|")
		for _, a := range op.Parameters {
			p.line("| `%s` | %s | %s | %s |", a.Name, a.In, kind(a.Schema), cell(a.Description+bounds(a.Schema)))
		}
		p.line("")
	}

	if b := op.RequestBody; b != nil {
		optional := ""
		if !b.Required {
			optional = ", may be left out"
		}
		p.line("Body: %s%s. %s\n", b.Content, optional, b.Description)
	}

	var rest []string
	for _, code := range slices.Sorted(maps.Keys(op.Responses)) {
		r := op.Responses[code]
		switch {
		case code < "300" && len(r.Content) == 0:
			p.line("- `%s` %s", code, r.Description)
		case code < "300":
			p.line("- `%s` %s: %s", code, r.Description, r.Content)
		case !slices.Contains(common, code):
			rest = append(rest, fmt.Sprintf("`%s` %s", code, r.Description))
		}
	}

	if len(rest) > 0 {
		p.line("- %s", strings.Join(rest, ", "))
	}

	p.line("")
}

// String describes the types of a body and its contents.
func (c pageContent) String() string {
	var parts []string
	var of *pageSchema
	for _, t := range slices.Sorted(maps.Keys(c)) {
		parts, of = append(parts, "`"+t+"`"), c[t].Schema
	}

	s := strings.Join(parts, " or ")
	if of != nil && of.Type != "string" {
		s = kind(of) + ", as " + s
	}

	return s
}

func (p docsPage) object(name string, s *pageSchema) {
	p.line("### %s\n", name)

	if s.Description != "" {
		p.line("%s\n", s.Description)
	}

	if len(s.Properties) == 0 {
		p.line("%s\n", cell(kind(s)+bounds(s)))
		return
	}

	p.line("| field | | |\n|---|---|---|")

	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		f := s.Properties[field]
		needed := ""
		if slices.Contains(s.Required, field) && string(s.AdditionalProperties) == "false" {
			needed = "Required. "
		}

		p.line("| `%s` | %s | %s |", field, kind(f), cell(needed+f.Description+bounds(f)))
	}

	p.line("")
}

// kind describes a schema in one or two words. Objects are links to their description.
func kind(s *pageSchema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	case s.Items != nil:
		return "list of " + kind(s.Items)
	case len(s.AnyOf) > 0 || len(s.OneOf) > 0:
		var parts []string
		for _, one := range append(slices.Clone(s.AnyOf), s.OneOf...) {
			parts = append(parts, kind(again(one)))
		}
		return strings.Join(slices.Compact(parts), " or ")
	case s.Format == "date-time":
		return "time"
	case len(s.AdditionalProperties) > 0 && string(s.AdditionalProperties) != "false" && len(s.Properties) == 0:
		var of pageSchema
		if json.Unmarshal(s.AdditionalProperties, &of) == nil {
			return "map to " + kind(&of)
		}
	}

	switch t := s.Type.(type) {
	case string:
		return t
	case []any: // one of them is null
		return fmt.Sprint(t[0])
	}

	return "any"
}

// again decodes a value as any other type.
func again(v any) *pageSchema {
	var s pageSchema
	if b, err := json.Marshal(v); err == nil {
		_ = json.Unmarshal(b, &s) // it was a schema before
	}
	return &s
}

// bounds describes the possible values and the default.
func bounds(s *pageSchema) string {
	if s == nil {
		return ""
	}

	text := ""
	if s.Items != nil && len(s.Items.Enum) > 0 {
		text += " Of " + list(s.Items.Enum) + "."
	}

	if len(s.Enum) > 0 {
		text += " One of " + list(s.Enum) + "."
	}

	switch {
	case s.Minimum != nil && s.Maximum != nil:
		text += fmt.Sprintf(" %.10g to %.10g.", *s.Minimum, *s.Maximum)
	case s.Minimum != nil:
		text += fmt.Sprintf(" At least %.10g.", *s.Minimum)
	}

	if s.Default != nil && s.Default != false {
		b, _ := json.Marshal(s.Default) // it was decoded from JSON
		text += " Default: `" + string(b) + "`."
	}

	return text
}

func list(values []any) string {
	var parts []string
	for _, v := range values {
		parts = append(parts, fmt.Sprintf("`%v`", v))
	}
	return strings.Join(parts, ", ")
}

// cell returns a text that can be part of a table.
func cell(s string) string {
	return strings.TrimSpace(strings.NewReplacer("|", `\|`, "\n", " ").Replace(s))
}
