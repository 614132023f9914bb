//go:build browser

package browsertest

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// The search of the manual works with keys only: it finds a section, and leads to it.
func TestManual_SearchWithKeys(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/docs/how-to/install.html")

	p.press("/")
	p.await(`document.activeElement.id === "query"`)
	p.fill("query", "etcd is full") // also removes the slash, which the protocol types although the page has handled the key
	p.await(`document.querySelectorAll("#results a").length > 0`)
	if first := eval[string](p, `document.querySelector("#results a").textContent`); len(first) < 20 {
		t.Errorf("the first result is %q", first)
	}
	p.checkPolicy()
	p.axe()
	p.screenshot("docs-search")

	p.press(kb.ArrowDown)
	p.await(`document.activeElement.matches("#results a")`)
	p.press(kb.Escape)
	p.await(`document.getElementById("results").hidden && document.activeElement.id === "query"`)

	p.fill("query", "spool_retention zzz")
	p.await(`document.getElementById("found").textContent === "Nothing found"`)
	p.press(kb.Escape)
	p.fill("query", "dead-letter runs operations")
	p.await(`document.querySelectorAll("#results a").length > 0`)
	p.press(kb.Enter)
	p.await(`location.pathname.endsWith("/operations.html") && location.hash === "#dead-letter-runs"`)
}

// No page of the manual is wider than a phone, and all of them are accessible and keep to their policy.
func TestManual_PagesFitNarrowScreens(t *testing.T) {
	t.Parallel() // it has a tab of its own

	p := chrome.newTab(t)
	p.size(320, 800)
	p.open("/docs/")
	pages := eval[[]string](p, `[...document.querySelectorAll("#pages a")].map((a) => a.pathname)`)
	if len(pages) < 50 {
		t.Fatalf("only %d pages", len(pages))
	}

	for _, page := range pages {
		p.open(page)
		p.checkWidth()
		p.axe()
		p.checkPolicy()
		if t.Failed() {
			t.Fatalf("the page is %s", page)
		}
	}
}
