package docsite

import (
	"bytes"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/net/html"

	"github.com/carillonhq/carillon/docs"
)

// manual returns the site of the real manual.
func manual(t *testing.T) map[string][]byte {
	t.Helper()
	site, err := Render(docs.Files, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}

	return site
}

// elements returns all elements of a page.
func elements(t *testing.T, content []byte) (all []*html.Node) {
	t.Helper()
	root, err := html.Parse(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}

	for n := range root.Descendants() {
		if n.Type == html.ElementNode {
			all = append(all, n)
		}
	}

	return all
}

// attribute returns an attribute of an element, or "".
func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}

	return ""
}

// TestRender_EveryLinkResolves follows each link of each page, as a browser does: to files of the site, to elements in them,
// and to files of the repository.
func TestRender_EveryLinkResolves(t *testing.T) {
	site := manual(t)

	ids := map[string]bool{}
	for name, content := range site {
		if path.Ext(name) != ".html" {
			continue
		}
		for _, n := range elements(t, content) {
			if id := attribute(n, "id"); id != "" {
				if ids[name+"#"+id] {
					t.Errorf("%s: the id %q is not unique", name, id)
				}
				ids[name+"#"+id] = true
			}
		}
	}

	links := 0
	for name, content := range site {
		if path.Ext(name) != ".html" {
			continue
		}
		for _, n := range elements(t, content) {
			for _, target := range []string{attribute(n, "href"), attribute(n, "src")} {
				if target == "" {
					continue
				}
				links++

				if file, ok := strings.CutPrefix(target, Repository); ok {
					file, _, _ = strings.Cut(file, "#")
					if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					continue
				}
				if strings.HasPrefix(target, "https://") && n.Data == "a" {
					continue
				}

				file, id, _ := strings.Cut(target, "#")
				file = path.Join(path.Dir(name), file)
				if target[0] == '#' {
					file = name
				}
				if site[file] == nil {
					t.Errorf("%s: the link to %s leads nowhere", name, target)
				} else if id != "" && !ids[file+"#"+id] {
					t.Errorf("%s: the link to %s leads to no heading", name, target)
				}
			}
		}
	}
	if links < 1000 {
		t.Errorf("only %d links", links)
	}
}

// TestRender_WorksUnderAStrictPolicy checks that pages load nothing from other places, and have no script or style of their own.
func TestRender_WorksUnderAStrictPolicy(t *testing.T) {
	for name, content := range manual(t) {
		if path.Ext(name) != ".html" {
			continue
		}
		for _, n := range elements(t, content) {
			switch {
			case n.Data == "style", attribute(n, "style") != "", n.Data == "script" && attribute(n, "src") == "":
				t.Errorf("%s: <%s> has a style or script of its own", name, n.Data)
			case n.Data != "a" && strings.Contains(attribute(n, "src")+attribute(n, "href"), "//"):
				t.Errorf("%s: <%s> loads %s", name, n.Data, attribute(n, "src")+attribute(n, "href"))
			}
			for _, a := range n.Attr {
				if strings.HasPrefix(a.Key, "on") {
					t.Errorf("%s: <%s> has the script %s", name, n.Data, a.Key)
				}
			}
		}
	}
}

// TestRender_StartPageNamesAllPages checks that no page is missing in the navigation.
func TestRender_StartPageNamesAllPages(t *testing.T) {
	for name, content := range manual(t) {
		if path.Ext(name) == ".html" && bytes.Contains(content, []byte("Generated references")) {
			t.Fatalf("%s lists pages that docs/README.md does not name", name)
		}
	}
}

// TestManual_AnswersTheFirstQuestions counts the clicks from the start page to what a new user looks for. Only links in the text
// count, not the navigation beside it.
func TestManual_AnswersTheFirstQuestions(t *testing.T) {
	pages, err := readPages(docs.Files)
	if err != nil {
		t.Fatal(err)
	}

	near := map[string]bool{} // pages and headings at most two clicks away
	for _, l := range pages[startPage].links {
		near[l.page], near[l.page+"#"+l.id] = true, true
		for _, second := range pages[l.page].links {
			near[second.page], near[second.page+"#"+second.id] = true, true
		}
	}

	for question, answer := range map[string]string{
		"install": "how-to/install.md", "first task": "tutorial.md", "40 hosts": "how-to/forty-hosts.md", "be told of failures": "how-to/alerts.md",
		"backup": "how-to/backup.md", "upgrade": "how-to/upgrade.md", "security": "security.md",
	} {
		page, _, _ := strings.Cut(answer, "#")
		if pages[page] == nil {
			t.Errorf("%s: there is no page %s", question, page)
		}
		if !near[answer] {
			t.Errorf("%s: %s is more than two clicks away from the start page", question, answer)
		}
	}
}

// TestComparison_NamesItsSources checks that each statement about another project in the overview has a link to a source, and that
// each section about a project has some.
func TestComparison_NamesItsSources(t *testing.T) {
	var table *html.Node
	links := map[string]int{} // by the section about a project
	section := ""
	for _, n := range elements(t, manual(t)["comparison.html"]) {
		switch {
		case n.Data == "h2":
			section = attribute(n, "id")
		case n.Data == "table" && section == "overview":
			table = n
		case n.Data == "a" && strings.HasPrefix(attribute(n, "href"), "https://") && !strings.HasPrefix(attribute(n, "href"), Repository):
			links[section]++
		}
	}
	if table == nil {
		t.Fatal("there is no overview")
	}

	projects := map[string]string{
		"cron": "cron", "systemd timers": "systemd-timers", "CronJob": "kubernetes-cronjob", "Dkron": "dkron", "cronstable": "cronstable", "xyOps": "xyops", "Temporal": "temporal",
	}
	rows := 0
	for row := range table.Descendants() {
		if row.Data != "tr" {
			continue
		}

		var cells []*html.Node
		for cell := range row.ChildNodes() {
			if cell.Data == "td" {
				cells = append(cells, cell)
			}
		}
		if len(cells) == 0 || cells[0].FirstChild.Data == "Carillon" {
			continue
		}

		rows++
		project := cells[0].FirstChild.Data
		for i, cell := range cells[1:] {
			hasLink := false
			for n := range cell.Descendants() {
				hasLink = hasLink || n.Data == "a" && strings.HasPrefix(attribute(n, "href"), "https://")
			}
			if !hasLink {
				t.Errorf("%s, column %d: the statement has no source", project, i+1)
			}
		}
		if id, ok := projects[project]; !ok || links[id] < 2 {
			t.Errorf("%s: its section has %d links to sources", project, links[id])
		}
	}
	if rows != len(projects) {
		t.Errorf("%d projects are compared, want %d", rows, len(projects))
	}
}

func TestRender_Links(t *testing.T) {
	files := fstest.MapFS{
		"README.md":   {Data: []byte("# Start\n\n## Pages\n\nRead these:\n\n- [A](how-to/a.md), and [not this](b.md)\n- [B](b.md)\n- [out](https://example.com/x.md)\n")},
		"how-to/a.md": {Data: []byte("# A\n\n[same](#two-words), [other](../b.md#c--d), [start](../README.md), [code](../../pkg/x.go#L1), [picture](../images/p.png)\n\n## Two *words*\n")},
		"b.md":        {Data: []byte("# B\n\nText <b onclick=x>&</b>\n\n<!-- comment -->\n\n| a | |\n|--:|---|\n| 1 | 2 |\n\n## C & D\n\n## `C` & D\n")},
		"images/p.png": {
			Data: []byte("png"),
		},
	}
	site, err := Render(files, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}

	for page, parts := range map[string][]string{
		"index.html": {`<a href="how-to/a.html">A</a>`, `<a href="https://example.com/x.md">out</a>`, "<h2>Read these</h2>\n<ul>\n<li><a href=\"how-to/a.html\">A</a></li>\n<li><a href=\"b.html\">B</a></li>\n</ul>", "Carillon 1.2.3"},
		"how-to/a.html": {`href="#two-words"`, `href="../b.html#c--d"`, `href="../index.html"`, `href="` + Repository + `pkg/x.go#L1"`, `href="../images/p.png"`,
			`<h2 id="two-words">`, `<a href="../how-to/a.html" aria-current="page">A</a>`},
		"b.html": {`<h2 id="c--d">`, `<h2 id="c--d-1">`, `<td align="right">1</td>`, "<td></td>", "&amp;", `<div class="table" tabindex="0">`},
	} {
		for _, part := range parts {
			if !strings.Contains(string(site[page]), part) {
				t.Errorf("%s has no %s:\n%s", page, part, site[page])
			}
		}
	}
	if got := string(site["b.html"]); strings.Contains(got, "onclick") || strings.Contains(got, "comment") {
		t.Errorf("HTML of the source is on the page:\n%s", got)
	}
	if got, want := slices.Sorted(maps.Keys(site)), []string{"b.html", "how-to/a.html", "images/p.png", "index.html", "search.js", "static/docs.css", "static/docs.js", "static/icon.svg"}; !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	if got := string(site["search.js"]); !strings.Contains(got, `["b.html","B","B","Text & a 1 2"],["b.html#c--d","B","C \u0026 D",""]`) && !strings.Contains(got, `["b.html","B","B","Text \u0026 a 1 2"],["b.html#c--d","B","C \u0026 D",""]`) {
		t.Errorf("search.js: %s", got)
	}
}

func TestRender_Faults(t *testing.T) {
	for name, c := range map[string]struct{ page, want string }{
		"heading": {"# A\n\n[x](README.md#no)", "a.md: README.md has no heading for #no"},
		"title":   {"text", "a.md: it does not begin with a title"},
		"address": {"# A\n\n[x](%zz)", "a.md: parse"},
	} {
		_, err := Render(fstest.MapFS{"README.md": {Data: []byte("# Start")}, "a.md": {Data: []byte(c.page)}}, "")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
	}

	if _, err := Render(fstest.MapFS{"a.md": {Data: []byte("# A")}}, ""); err == nil {
		t.Error("a manual without a start page was rendered")
	}
}

// TestHeadingID compares ids with those of GitHub.
func TestHeadingID(t *testing.T) {
	for words, want := range map[string]string{
		"When etcd is full":            "when-etcd-is-full",
		"Start, end, jitter & ttl":     "start-end-jitter--ttl",
		"Option 1: embedded etcd":      "option-1-embedded-etcd",
		"`max_runs` and --no-headers":  "max_runs-and---no-headers",
		"Größe, 日本 — and “quotes”":     "größe-日本--and-quotes",
		"What G7 means (changes win).": "what-g7-means-changes-win",
	} {
		if got := headingID(words); got != want {
			t.Errorf("%q: %s, want %s", words, got, want)
		}
	}
}
