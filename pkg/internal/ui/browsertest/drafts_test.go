//go:build browser

package browsertest

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/carillonhq/carillon/pkg/task"
)

const restored = `!document.getElementById("draft").hidden`

// What was typed into the form of a task survives going away and back, until it is discarded or saved.
func TestDraft_SurvivesLeaving(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks/new")
	p.fill("f-name", "drafted")
	p.fill("f-description", "half a task")
	p.fill("f-schedule", "5 4 * * *")
	p.fill("f-process", "true")
	p.await(`document.getElementById("f-yaml").value.includes("half a task")`)

	p.open("/ui/nodes")
	if n := p.dialogCount(); n != 1 {
		t.Errorf("the page has asked %d times before it was left", n)
	}
	const whole = restored + ` && document.getElementById("f-name").value === "drafted" && document.getElementById("f-description").value === "half a task" && document.getElementById("f-schedule").value === "5 4 * * *" && document.getElementById("f-yaml").value.includes("half a task")`
	must(t, chromedp.Do(p.ctx, chromedp.NavigateBack()))
	p.await(whole)
	p.await(`document.getElementById("preview").innerText.includes("half a task") || document.getElementById("preview").innerText.includes("04:05")`)
	p.screenshot("new-restored-light")
	p.axe()
	must(t, chromedp.Do(p.ctx, chromedp.Reload()))
	p.await(whole)

	// A page of another address begins empty.
	p.open("/ui/tasks/new?ns=frozen")
	p.await(`document.getElementById("f-name").value === "" && document.getElementById("draft").hidden`)

	p.open("/ui/tasks/new")
	p.await(whole)
	p.click("#draft button")
	p.await(`document.getElementById("draft").hidden && document.getElementById("f-name").value === ""`)

	p.fill("f-name", "drafted")
	p.fill("f-schedule", "@manual")
	p.fill("f-process", "true")
	p.clickText("Create")
	p.awaitPage("/ui/tasks/default/drafted")
	t.Cleanup(func() { _ = fixture.api.Tasks.Delete(t.Context(), "default", "drafted", 0) })
	p.open("/ui/tasks/new")
	p.await(`document.getElementById("f-name").value === "" && document.getElementById("draft").hidden`)
	if n := p.dialogCount(); n != 1 {
		t.Errorf("pages without changes have asked %d times before they were left", n-1)
	}
	p.checkPolicy()
}

// A draft of an edit is one of the version that it began with: it overwrites nothing that others have saved since.
func TestDraft_OfAnOldVersion(t *testing.T) {
	createTask(t, "draft-old")
	p := chrome.newTab(t)
	p.open("/ui/tasks/default/draft-old/edit")
	p.fill("f-description", "mine")
	p.open("/ui/nodes")
	_, err := fixture.api.Tasks.Patch(t.Context(), "default", "draft-old", []byte(`{"description":"theirs"}`), 0)
	must(t, err)

	p.open("/ui/tasks/default/draft-old/edit")
	p.await(restored + ` && document.getElementById("f-description").value === "mine"`)
	p.clickText("Save")
	p.await(`document.querySelector(".conflict")?.innerText.includes("theirs")`)
	p.clickText("Discard yours")
	p.await(`document.getElementById("f-description").value === "theirs" && document.getElementById("draft").hidden`)
}

// Drafts contain no values that look like secrets. Those of the stored task come from the page.
func TestDraft_KeepsNoSecrets(t *testing.T) {
	createTask(t, "draft-secret", func(s *task.Spec) {
		s.Action.Process.Env = map[string]string{"API_TOKEN": "st0red", "MODE": "fast"}
	})
	p := chrome.newTab(t)
	p.open("/ui/tasks/default/draft-secret/edit")
	eval[bool](p, `(() => { const el = document.getElementById("f-env"); el.focus(); el.value = "API_TOKEN=st0red\nMODE=slow\nREF=secret:db/PASSWORD\nPASSWORD=typ3d"; return el.dispatchEvent(new Event("input", { bubbles: true })); })()`)
	p.await(`document.getElementById("f-yaml").value.includes("typ3d")`)
	p.fill("f-description", "with a token: no secret")
	stored := eval[string](p, `Object.values(sessionStorage).join("\n")`)
	if strings.Contains(stored, "st0red") || strings.Contains(stored, "typ3d") || !strings.Contains(stored, "slow") || !strings.Contains(stored, "with a token: no secret") || !strings.Contains(stored, "secret:db/PASSWORD") {
		t.Errorf("the tab stores %q", stored)
	}

	must(t, chromedp.Do(p.ctx, chromedp.Reload()))
	p.await(restored + ` && document.getElementById("f-env").value === "API_TOKEN=st0red\nMODE=slow\nREF=secret:db/PASSWORD\nPASSWORD="`)
	p.await(`document.getElementById("draft").textContent.includes("enter these again")`)
}

// If the session ends while somebody types, the page says so, and the draft is there after the next login. It is not shown to
// another subject, and signing out removes it.
func TestDraft_SurvivesTheSession(t *testing.T) {
	p := chrome.newTab(t, chromedp.WithNewBrowserContext())
	signIn := func() {
		t.Helper()
		link, err := fixture.api.Sessions.CreateLink(t.Context())
		must(t, err)
		p.open(link.Path)
		p.click("main button")
		p.await(`document.querySelector("nav")`)
	}
	before := sessions(t)
	signIn()
	p.open("/ui/tasks/new")
	for id := range sessions(t) {
		if !before[id] {
			must(t, fixture.api.Tokens.Delete(t.Context(), id))
		}
	}

	p.fill("f-name", "survivor")
	p.fill("f-schedule", "5 4 * * *")
	p.await(`document.getElementById("notice").textContent.includes("What you have typed is kept")`)
	p.clickText("Create")
	p.awaitPage("/ui/login")
	p.fill("token", fixture.token)
	p.press("\r")
	p.await(`location.pathname === "/ui/tasks/new" && ` + restored + ` && document.getElementById("f-name").value === "survivor"`)

	eval[bool](p, `document.querySelector("form[action='/ui/logout']").requestSubmit(), true`)
	p.await(`location.pathname === "/ui/login" && !Object.keys(sessionStorage).some((key) => key.startsWith("carillon-draft"))`)
}

// dialogCount returns how often pages have asked before they were left.
func (p *tab) dialogCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dialogs
}
