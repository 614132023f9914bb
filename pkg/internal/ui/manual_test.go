package ui

import (
	"net/http"
	"strings"
	"testing"
)

// The manual can be read without a login, under the policy of all pages.
func TestServer_ServesTheManual(t *testing.T) {
	w := newWorld(t)
	w.api = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the API was asked for %s", r.URL) })
	b := w.as("")

	a := b.get("/docs/")
	want(t, a.body, "Carillon manual", `href="tutorial.html"`, "Carillon 1.2.3")
	if a.StatusCode != http.StatusOK || a.Header.Get("Content-Security-Policy") != contentSecurityPolicy || a.Header.Get("X-Frame-Options") != "DENY" {
		t.Errorf("%d, header %v", a.StatusCode, a.Header)
	}
	if a := b.get("/docs"); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/docs/" {
		t.Errorf("/docs: %d to %s", a.StatusCode, a.Header.Get("Location"))
	}
}

// The pages of a session and the login page lead to the manual.
func TestPage_LeadsToTheManual(t *testing.T) {
	w := newWorld(t)
	for page, html := range map[string]string{"nodes": w.as("user:ann").page("/ui/nodes"), "login": w.as("").page("/ui/login")} {
		if strings.Count(html, `href="/docs/"`) != 1 {
			t.Errorf("%s does not have one link to the manual:\n%s", page, html)
		}
	}
}
