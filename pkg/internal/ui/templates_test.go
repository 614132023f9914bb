package ui

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template/parse"
)

// The files of htmx are those of the npm package htmx.org 4.0.1.
func TestStatic_FilesOfHTMXAreUnchanged(t *testing.T) {
	for name, want := range map[string]string{
		"htmx.min.js":      "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
		"hx-sse.min.js":    "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
		"LICENSE-htmx.txt": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
	} {
		b, err := fs.ReadFile(embedded, "static/"+name)
		must(t, err)
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has the SHA-256 %x", name, sum)
		}
	}
}

// Static files are served compressed, under names that change with their content, and may be kept for ever.
func TestStatic_AreKeptForEver(t *testing.T) {
	w := newWorld(t)
	page := w.as("").page("/ui/login")
	paths := regexp.MustCompile(`/ui/static/[^"]+`).FindAllString(page, -1)
	if len(paths) < 3 {
		t.Fatalf("the page refers to %q", paths)
	}

	for _, path := range paths {
		a := w.as("").get(path)
		zipped := w.as("").get(path, header("Accept-Encoding", "gzip"))
		if a.StatusCode != http.StatusOK || !strings.Contains(a.Header.Get("Cache-Control"), "immutable") || a.Header.Get("Content-Encoding") != "" {
			t.Errorf("GET %s: %d %v", path, a.StatusCode, a.Header)
		}
		if small := len(a.body) < 1024; (zipped.Header.Get("Content-Encoding") == "gzip") == small || len(zipped.body) >= len(a.body) && !small || zipped.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("GET %s, compressed: %d of %d bytes, %v", path, len(zipped.body), len(a.body), zipped.Header)
		}
	}
	if a := w.as("").get("/ui/static/app-000000000000.css"); a.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown file: %d", a.StatusCode)
	}
}

// writers are the functions and methods that may write values into attributes that htmx interprets.
var writers = []string{"Link", "With", "Stream", "BuilderPath", "vals"}

// openHX finds an attribute of htmx whose value has begun, and what the value has so far.
var openHX = regexp.MustCompile(`(?s)\s(hx-[^\s="'<>]*)\s*=\s*(?:"([^"]*)|'([^']*))$`)

// Values get into attributes that htmx interprets only through functions that escape them by their place.
func TestTemplates_WriteAttributesOfHTMXSafely(t *testing.T) {
	for name, tree := range parsedTemplates(t) {
		c := &hxCheck{t: t, name: name}
		c.check(tree.Root)
	}

	// The check finds what it looks for.
	for text, allowed := range map[string]bool{
		`<a hx-get="{{.X}}">`: false, `<a hx-vals='{"a":"{{.X}}"}'>`: false, `<a hx-get="/ui/{{if .X}}{{.Y}}{{end}}">`: false, `<a hx-get={{.X}}>`: false, `<a hx-on:click="x()">`: false, `<a hx-vals="js:x">`: false,
		`<a hx-get="{{$.Link "/ui/x" "q" .X}}" title="{{.X}}">{{.Y}}`: true, `<a hx-vals='{{vals "a" .X}}'>`: true, `<a hx-get="{{.Link "/ui" | printf "%s"}}">`: false, `<a hx-get="x">{{.X}}`: true,
	} {
		tree, err := parse.Parse("x", text, "{{", "}}", map[string]any{"vals": vals, "printf": fmt.Sprintf})
		must(t, err)
		c := &hxCheck{name: "x"}
		c.check(tree["x"].Root)
		if allowed != (len(c.found) == 0) {
			t.Errorf("%s: found %q", text, c.found)
		}
	}
}

// parsedTemplates returns the trees of all templates, by file and name.
func parsedTemplates(t *testing.T) map[string]*parse.Tree {
	t.Helper()
	files, err := fs.Glob(embedded, "templates/*.html")
	must(t, err)
	static, err := newStaticFiles(embedded)
	must(t, err)

	all := map[string]*parse.Tree{}
	for _, file := range files {
		b, err := fs.ReadFile(embedded, file)
		must(t, err)
		tmpl, err := template.New(file).Funcs(functions(static)).Parse(string(b))
		must(t, err)
		for _, one := range tmpl.Templates() {
			if one.Tree != nil {
				all[file+" "+one.Name()] = one.Tree
			}
		}
	}

	return all
}

// hxCheck walks through a template with the text so far.
type hxCheck struct {
	t     *testing.T // nil: only collect
	name  string
	text  strings.Builder
	found []string
}

func (c *hxCheck) report(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
	if c.t != nil {
		c.t.Errorf("%s: %s", c.name, c.found[len(c.found)-1])
	}
}

// unquotedHX finds an attribute of htmx whose value is not in quotes.
var unquotedHX = regexp.MustCompile(`\shx-[^\s="'<>]*\s*=\s*$`)

func (c *hxCheck) check(n parse.Node) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n != nil {
			for _, child := range n.Nodes {
				c.check(child)
			}
		}
	case *parse.TextNode:
		for _, bad := range []string{"hx-on", "js:", "javascript:", "onclick", " style="} {
			if strings.Contains(string(n.Text), bad) {
				c.report("the template contains %q", bad)
			}
		}
		c.text.Write(n.Text)
	case *parse.ActionNode:
		if len(n.Pipe.Decl) > 0 {
			return
		}
		if unquotedHX.MatchString(c.text.String()) {
			c.report("%s is the value of an attribute without quotes", n)
		}
		if open := openHX.FindStringSubmatch(c.text.String()); open != nil && (open[2]+open[3] != "" || !slices.Contains(writers, writerOf(n.Pipe))) {
			c.report("%s is written into %s", n, open[1])
		}
		c.text.WriteString("X")
	case *parse.IfNode:
		c.checkBranch(&n.BranchNode)
	case *parse.RangeNode:
		c.checkBranch(&n.BranchNode)
	case *parse.WithNode:
		c.checkBranch(&n.BranchNode)
	case *parse.TemplateNode:
		if openHX.MatchString(c.text.String()) {
			c.report("%s is written into an attribute of htmx", n)
		}
	}
}

func (c *hxCheck) checkBranch(n *parse.BranchNode) {
	if openHX.MatchString(c.text.String()) {
		c.report("an attribute of htmx depends on a condition: %s", n.Pipe)
	}
	c.check(n.List)
	if n.ElseList != nil {
		c.check(n.ElseList)
	}
}

// writerOf returns the function or method whose result a pipe writes; "" for anything else.
func writerOf(p *parse.PipeNode) string {
	if len(p.Cmds) != 1 {
		return ""
	}

	switch arg := p.Cmds[0].Args[0].(type) {
	case *parse.IdentifierNode:
		return arg.Ident
	case *parse.FieldNode:
		if len(arg.Ident) == 1 {
			return arg.Ident[0]
		}
	case *parse.VariableNode:
		if len(arg.Ident) == 2 && arg.Ident[0] == "$" {
			return arg.Ident[1]
		}
	}

	return ""
}

// Links escape each value by its place, and keep the time zone.
func TestView_Link(t *testing.T) {
	v := &View{Request: &Request{Path: "/ui/tasks", Query: url.Values{"tz": {"Europe/Vienna"}, "q": {"a b"}, "page": {"x"}}}}
	for _, c := range []struct {
		path  string
		pairs []any
		want  string
	}{
		{"/ui/tasks/{}/{}", []any{"a/b?c", "d&e=f#g", "tab", "runs&x=1", "no", ""}, "/ui/tasks/a%2Fb%3Fc/d&e=f%23g?tab=runs%26x%3D1&tz=Europe%2FVienna"},
		{"/ui", nil, "/ui?tz=Europe%2FVienna"},
		{"/ui", []any{"tz", ""}, "/ui"},
	} {
		got, err := v.Link(c.path, c.pairs...)
		must(t, err)
		if got != c.want {
			t.Errorf("%s %q: got %s, want %s", c.path, c.pairs, got, c.want)
		}
	}

	for _, bad := range [][]any{{"/ui/{}"}, {"/ui/{}", ".."}, {"/ui", "x"}} {
		if got, err := v.Link(bad[0].(string), bad[1:]...); err == nil {
			t.Errorf("%q is the link %s", bad, got)
		}
	}

	if got, err := v.With("sort", "next"); err != nil || got != "/ui/tasks?q=a+b&sort=next&tz=Europe%2FVienna" {
		t.Errorf("With: %s, %v", got, err)
	}
}

// The values of hx-vals are JSON, whatever they contain.
func TestVals_WritesJSON(t *testing.T) {
	tmpl := template.Must(template.New("x").Funcs(template.FuncMap{"vals": vals}).Parse(`<a hx-vals='{{vals "label" .}}'>`))
	var b bytes.Buffer
	must(t, tmpl.Execute(&b, `x","ns":"other'}&<`))
	if got := b.String(); got != `<a hx-vals='{&#34;label&#34;:&#34;x\&#34;,\&#34;ns\&#34;:\&#34;other&#39;}\u0026\u003c&#34;}'>` {
		t.Errorf("got %s", got)
	}
}
