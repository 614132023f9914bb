// Package docsite renders the manual in docs/ as a site: an HTML page for each Markdown file, with the same names and links,
// and an index for the search, which a script on the pages does. All links are relative, so the same files work below /docs of
// a node, on any web server, and when they are opened as files.
//
// The pages refer to nothing outside of the site, and work under the content security policy of the Web UI. A link to a file of
// the repository that is not part of the site leads to the repository. A link to a page or a heading that does not exist is an
// error of New.
package docsite

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Repository is where links lead to files that are not part of the site. docs/ is a folder of it.
const Repository = "https://github.com/carillonhq/carillon/blob/main/"

// startPage is the Markdown file that becomes index.html. Its headings and lists are the navigation of all pages.
const startPage = "README.md"

//go:embed static layout.html
var embedded embed.FS

// page is a Markdown file of the manual, and what it becomes.
type page struct {
	source   string // the name of the file, such as how-to/install.md
	name     string // the name of the page, such as how-to/install.html
	title    string
	body     template.HTML
	headings []heading
	sections []section
	links    []link
}

// heading is a heading below the title.
type heading struct {
	Level    int
	ID, Text string
}

// section is what the search finds: the text below a heading.
type section struct{ id, heading, text string }

// link is a link to a page of the site. id is the heading, or "".
type link struct{ page, id string }

// group is a part of the navigation: a heading of the start page or a line above one of its lists, and the pages that the items
// name first.
type group struct {
	Title string
	Items []item
}

type item struct{ page, Text string }

// Render returns the files of the site, by name. version is that of Carillon, for the foot of the pages.
func Render(files fs.FS, version string) (map[string][]byte, error) {
	pages, err := readPages(files)
	if err != nil {
		return nil, err
	}
	if err := checkLinks(pages); err != nil {
		return nil, err
	}

	start, ok := pages[startPage]
	if !ok {
		return nil, fmt.Errorf("there is no %s", startPage)
	}
	nav := addOthers(navigationOf(files, pages, start), pages)

	site, err := copyFiles(files)
	if err != nil {
		return nil, err
	}

	layout, err := template.ParseFS(embedded, "layout.html")
	if err != nil {
		return nil, err
	}
	for _, p := range pages {
		var b bytes.Buffer
		if err := layout.Execute(&b, view{p, nav, version}); err != nil {
			return nil, fmt.Errorf("%s: %w", p.source, err)
		}
		site[p.name] = b.Bytes()
	}

	if site["search.js"], err = searchIndex(pages); err != nil {
		return nil, err
	}

	return site, nil
}

// readPages parses all Markdown files, by their names.
func readPages(files fs.FS) (map[string]*page, error) {
	sources := map[string][]byte{}
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".md" {
			return err
		}

		sources[name], err = fs.ReadFile(files, name)
		return err
	})
	if err != nil {
		return nil, err
	}

	exists := func(name string) bool {
		_, err := fs.Stat(files, name)
		return err == nil
	}
	pages := map[string]*page{}
	for name, source := range sources {
		if pages[name], err = parsePage(name, source, exists); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}

	return pages, nil
}

// pageName returns the name of the page that a Markdown file becomes.
func pageName(source string) string {
	if source == startPage {
		return "index.html"
	}
	return strings.TrimSuffix(source, ".md") + ".html"
}

// checkLinks returns an error for each link to a page or a heading that does not exist.
func checkLinks(pages map[string]*page) error {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		for _, l := range pages[name].links {
			target := pages[l.page]
			if l.id != "" && !slices.ContainsFunc(target.headings, func(h heading) bool { return h.ID == l.id }) {
				faults = append(faults, fmt.Errorf("%s: %s has no heading for #%s", name, l.page, l.id))
			}
		}
	}

	return errors.Join(faults...)
}

// addOthers adds the pages that the start page does not name. In the repository there are none; make site adds the generated
// references.
func addOthers(nav []group, pages map[string]*page) []group {
	listed := map[string]bool{startPage: true}
	for _, g := range nav {
		for _, i := range g.Items {
			listed[i.page] = true
		}
	}

	others := group{Title: "Generated references"}
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		if !listed[name] {
			others.Items = append(others.Items, item{name, pages[name].title})
		}
	}
	if len(others.Items) == 0 {
		return nav
	}

	return append(nav, others)
}

// copyFiles returns the images of the manual, and the style and the script of the pages.
func copyFiles(files fs.FS) (map[string][]byte, error) {
	site := map[string][]byte{}
	add := func(from fs.FS, pattern string) error {
		names, err := fs.Glob(from, pattern)
		for _, name := range names {
			b, err := fs.ReadFile(from, name)
			if err != nil {
				return err
			}
			site[name] = b
		}
		return err
	}

	return site, errors.Join(add(files, "images/*"), add(embedded, "static/*"))
}

// searchIndex returns the script with all sections. A page loads it when somebody searches. It is a script and not JSON,
// because browsers do not let a page that was opened as a file fetch another one.
func searchIndex(pages map[string]*page) ([]byte, error) {
	var all [][4]string // the address, the title of the page, the heading, and the text
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		p := pages[name]
		for _, s := range p.sections {
			address := p.name
			if s.id != "" {
				address += "#" + s.id
			}
			all = append(all, [4]string{address, p.title, s.heading, s.text})
		}
	}

	b, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}

	return slices.Concat([]byte("searchManual("), b, []byte(");\n")), nil
}

// view is what the layout shows.
type view struct {
	page    *page
	nav     []group
	version string
}

// The methods of view are for the layout.
func (v view) Title() string       { return v.page.title }
func (v view) Body() template.HTML { return v.page.body }
func (v view) Nav() []group        { return v.nav }
func (v view) Version() string     { return v.version }

// Headings returns the headings of the table of contents; none if there is only one.
func (v view) Headings() []heading {
	var all []heading
	for _, h := range v.page.headings {
		if h.Level == 2 || h.Level == 3 {
			all = append(all, h)
		}
	}
	if len(all) < 2 {
		return nil
	}

	return all
}

// Root is the way from the page to the start page.
func (v view) Root() string { return strings.Repeat("../", strings.Count(v.page.name, "/")) }

// Address returns the address of a page of the navigation, relative to this page.
func (v view) Address(i item) string { return v.Root() + pageName(i.page) }

// Current reports whether a page of the navigation is this one.
func (v view) Current(i item) bool { return i.page == v.page.source }
