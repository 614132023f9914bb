//go:build browser

package browsertest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// Each page is accessible in light and dark colors and on a phone, keeps to its policy, and loads nothing from elsewhere.
func TestPages(t *testing.T) {
	for _, page := range Pages {
		t.Run(page.Name, func(t *testing.T) {
			t.Parallel() // each page has a tab of its own

			var opts []chromedp.ContextOption
			if page.Public {
				opts = append(opts, chromedp.WithNewBrowserContext())
			}
			p := chrome.newTab(t, opts...)
			p.dark(false)
			p.open(fixture.path(page))
			if page.Screen != "" && eval[bool](p, `document.body.innerText.includes("there is no such page")`) {
				t.Errorf("there is no page at %s", page.Path)
				return
			}
			p.checkPolicy()
			p.screenshot(page.Name + "-light")
			p.axe()

			p.dark(true)
			p.screenshot(page.Name + "-dark")
			p.axe("color-contrast")

			p.dark(false)
			p.size(320, 800)
			p.screenshot(page.Name + "-320")
			p.checkWidth()
			p.axe("target-size")
		})
	}
}

// The checks of pages find what they look for.
func TestChecks_FindWhatTheyLookFor(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/login")
	eval[bool](p, `document.body.insertAdjacentHTML("beforeend", "<p style='color:red'>x</p>"), true`)
	p.await(`violations.length === 1`)

	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errors) != 1 || !strings.Contains(p.errors[0], "Content Security Policy") {
		t.Errorf("the console has %q", p.errors)
	}
	p.errors = nil
	if len(p.requests) == 0 {
		t.Error("no request was noticed")
	}
}

// The first load of the list of tasks is small.
func TestTasks_FirstLoadIsSmall(t *testing.T) {
	p := chrome.newTab(t)
	call(p, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true})
	p.open("/ui/tasks")

	p.mu.Lock()
	received := p.received
	p.mu.Unlock()
	times := eval[map[string]float64](p, `(({responseStart, requestStart, domContentLoadedEventEnd}) => ({first: responseStart - requestStart, loaded: domContentLoadedEventEnd}))(performance.getEntriesByType("navigation")[0])`)
	t.Logf("first load of Tasks: %.1f kB compressed; first byte after %.0f ms, DOMContentLoaded after %.0f ms (budget: 60 kB, 250 ms on a machine that is not busy)", received/1000, times["first"], times["loaded"])
	if received > 60_000 || received < 1000 {
		t.Errorf("the first load has %.0f bytes; at most 60000 are allowed", received)
	}
}

// Without a session, pages lead to the login, and streams are refused. A form of another site is refused.
func TestRequests_NeedASession(t *testing.T) {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, c := range []struct {
		method, path, origin string
		status               int
	}{
		{"GET", "/ui/tasks", "", http.StatusSeeOther},
		{"GET", "/ui/live?at=/ui/tasks", "", http.StatusUnauthorized},
		{"POST", "/ui/logout", "https://example.com", http.StatusForbidden},
	} {
		r, err := http.NewRequest(c.method, fixture.url(c.path), http.NoBody)
		must(t, err)
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		res, err := client.Do(r)
		must(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%s %s: %s, not %d", c.method, c.path, res.Status, c.status)
		}
	}
}
