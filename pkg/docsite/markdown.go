package docsite

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// markdown is what GitHub shows of the pages. HTML in them is left out. Cells are aligned with an attribute, because the
// content security policy allows no styles in pages.
var markdown = goldmark.New(goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))))

// accessible lets the keyboard scroll what is wider than a narrow screen, and makes empty headings plain cells. None of these can
// be part of a text, where < is &lt;.
var accessible = strings.NewReplacer(
	"<pre>", `<pre tabindex="0">`,
	"<table>", `<div class="table" tabindex="0"><table>`,
	"</table>", "</table></div>",
	"<th></th>", "<td></td>",
)

// parsePage renders a Markdown file. exists reports whether a file is part of the manual.
func parsePage(name string, source []byte, exists func(string) bool) (*page, error) {
	p := &page{source: name, name: pageName(name)}
	doc := markdown.Parser().Parse(text.NewReader(source))

	p.nameHeadings(doc, source)
	if p.title == "" {
		return nil, errors.New("it does not begin with a title")
	}
	p.sections = sectionsOf(doc, source, p.title)

	var comments []ast.Node
	err := ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}

		switch n := n.(type) {
		case *ast.HTMLBlock:
			comments = append(comments, n)
		case *ast.Link:
			target, err := p.resolveLink(string(n.Destination), exists)
			if err != nil {
				return ast.WalkStop, err
			}
			n.Destination = []byte(target)
		}

		return ast.WalkContinue, nil
	})
	if err != nil {
		return nil, err
	}
	for _, n := range comments {
		n.Parent().RemoveChild(n.Parent(), n)
	}

	var b bytes.Buffer
	if err := markdown.Renderer().Render(&b, source, doc); err != nil {
		return nil, err
	}
	p.body = template.HTML(accessible.Replace(b.String())) //nolint:gosec // goldmark escapes the text, and leaves HTML out

	return p, nil
}

// nameHeadings gives each heading the id by which GitHub links to it.
func (p *page) nameHeadings(doc ast.Node, source []byte) {
	used := map[string]int{}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		h, ok := n.(*ast.Heading)
		if !ok {
			continue
		}

		words := plainText(h, source)
		id := headingID(words)
		used[id]++
		if again := used[id] - 1; again > 0 {
			id = fmt.Sprintf("%s-%d", id, again)
		}
		h.SetAttributeString("id", []byte(id))

		if p.title == "" && h.Level == 1 {
			p.title = words
		}
		p.headings = append(p.headings, heading{h.Level, id, words})
	}
}

// headingID returns the id of a heading: its letters and digits in lower case, with dashes instead of spaces.
func headingID(words string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, words)
}

// resolveLink returns the address to which a link leads.
func (p *page) resolveLink(destination string, exists func(string) bool) (string, error) {
	u, err := url.Parse(destination)
	if err != nil {
		return "", err
	}
	if u.IsAbs() {
		return destination, nil
	}

	target := p.source
	if u.Path != "" {
		target = path.Join(path.Dir(p.source), u.Path)
	}
	if !fs.ValidPath(target) || !exists(target) { // a file outside of the manual
		u.Path = ""
		return Repository + path.Join("docs", target) + u.String(), nil
	}
	if path.Ext(target) != ".md" {
		return destination, nil
	}

	p.links = append(p.links, link{target, u.Fragment})
	if u.Path != "" {
		u.Path = path.Join(path.Dir(u.Path), path.Base(pageName(target)))
	}

	return u.String(), nil
}

// sectionsOf returns the texts below the headings.
func sectionsOf(doc ast.Node, source []byte, title string) []section {
	var all []section
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok {
			id, _ := h.AttributeString("id")
			b, _ := id.([]byte)
			s := section{id: string(b), heading: plainText(h, source)}
			if s.heading == title && len(all) == 0 {
				s.id = ""
			}
			all = append(all, s)
			continue
		}
		if _, ok := n.(*ast.HTMLBlock); ok || len(all) == 0 {
			continue
		}

		s := &all[len(all)-1]
		s.text = strings.TrimSpace(s.text + " " + plainText(n, source))
	}

	return all
}

// plainText returns the text of a node, without markup, with single spaces.
func plainText(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		switch n := n.(type) {
		case *ast.Text:
			if entering {
				b.Write(n.Value(source))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			if entering {
				b.Write(n.Lines().Value(source))
			}
		default:
			if n.Type() == ast.TypeBlock {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})

	return strings.Join(strings.Fields(b.String()), " ")
}

// navigationOf returns the navigation that the start page describes: its headings, or the lines above its lists, and the first
// link of each item of the lists.
func navigationOf(files fs.FS, pages map[string]*page, start *page) []group {
	source, err := fs.ReadFile(files, start.source)
	if err != nil {
		return nil // it was read before
	}

	var nav []group
	doc := markdown.Parser().Parse(text.NewReader(source))
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if !entering {
			return ast.WalkContinue, nil
		}

		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				nav = append(nav, group{Title: plainText(n, source)})
			}
		case *ast.Paragraph:
			if title, ok := strings.CutSuffix(plainText(n, source), ":"); ok && n.NextSibling() != nil && n.NextSibling().Kind() == ast.KindList {
				nav = append(nav, group{Title: title})
			}
		case *ast.ListItem:
			l := firstLink(n)
			if l == nil || len(nav) == 0 {
				break
			}
			if target := string(l.Destination); pages[target] != nil {
				g := &nav[len(nav)-1]
				g.Items = append(g.Items, item{target, plainText(l, source)})
			}
		}

		return ast.WalkContinue, nil
	})

	var used []group
	for _, g := range nav {
		if len(g.Items) > 0 {
			used = append(used, g)
		}
	}

	return used
}

// firstLink returns the first link of an item of a list, or nil.
func firstLink(n ast.Node) (found *ast.Link) {
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if l, ok := n.(*ast.Link); ok && entering {
			found = l
			return ast.WalkStop, nil
		}
		return ast.WalkContinue, nil
	})

	return found
}
