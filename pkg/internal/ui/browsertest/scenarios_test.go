//go:build browser

package browsertest

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/carillonhq/carillon/pkg/task"
)

// The URL is the whole state: a search survives a reload, going back, and being opened in another tab.
func TestTasks_URLIsTheState(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks")
	p.fill("q", "label:team=data")
	p.press("\r")
	const found = `location.search.includes("label") && document.getElementById("q").value === "label:team=data" && document.querySelectorAll("#rows tr").length === 2`
	p.await(found)
	at := eval[string](p, "location.href")

	p.clickText("nightly-report")
	p.awaitPage("/ui/tasks/default/nightly-report")
	must(t, chromedp.Do(p.ctx, chromedp.NavigateBack()))
	p.await(found)
	must(t, chromedp.Do(p.ctx, chromedp.Reload()))
	p.await(found)

	other := chrome.newTab(t)
	other.open(at)
	other.await(found)
	other.checkPolicy()
}

// Pages change while somebody watches. What was typed and the focus stay, and new rows wait until the viewer asks for them.
func TestTasks_ChangeUnderTheViewer(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks")
	p.fill("q", "name~half a wor")

	s := fixtureTasks()[0]
	s.Name, s.Schedule = "aa-new", task.Schedules{"@every 1h"}
	_, err := fixture.api.Tasks.Create(t.Context(), "default", s)
	must(t, err)
	t.Cleanup(func() { _ = fixture.api.Tasks.Delete(context.WithoutCancel(t.Context()), "default", "aa-new", 0) })

	p.await(`document.getElementById("held-rows")?.textContent.includes("1 new")`)
	if eval[bool](p, `document.getElementById("rows").textContent.includes("aa-new")`) {
		t.Error("the new row is shown before the viewer asked for it")
	}
	if !eval[bool](p, `document.activeElement.id === "q" && document.activeElement.value === "name~half a wor"`) {
		t.Error("the focus or the typed text is lost")
	}

	// The row changes while it waits.
	eval[bool](p, `document.addEventListener("htmx:sse:after:message", (e) => { window.told ||= e.detail.message.data.includes("aa-new") && e.detail.message.data.includes("paused ("); }), true`)
	_, err = fixture.api.Tasks.Pause(t.Context(), "default", "aa-new", 0)
	must(t, err)
	p.await(`window.told`)

	p.click("#held-rows")
	p.await(`document.getElementById("rows").textContent.includes("aa-new") && !document.getElementById("held-rows")`)
	if !eval[bool](p, `[...document.querySelectorAll("#rows tr")].some((row) => row.textContent.includes("aa-new") && row.textContent.includes("paused ("))`) {
		t.Error("the new row is shown as it was before it changed")
	}

	// A row that stays is updated in its place.
	id, err := fixture.trigger(t.Context(), "edited")
	must(t, err)
	must(t, fixture.awaitRun(t.Context(), id, task.Succeeded))
	p.await(`[...document.querySelectorAll("#rows tr")].find((row) => row.textContent.includes("edited"))?.textContent.includes("succeeded")`)
	p.checkPolicy()
}

// A run whose record is deleted while somebody watches moves to the ledger, below the runs that are kept. The table of the
// days stays open when their numbers change.
func TestTask_RunsMoveToTheLedger(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks/default/short-memory?tab=runs")
	p.await(`document.querySelector("tbody.ledger")?.textContent.includes("exit 3")`)

	days := chrome.newTab(t)
	days.open("/ui/tasks/default/short-memory")
	days.click(".past summary")
	counted := eval[string](days, `document.querySelector(".past tbody tr").textContent`)
	rows := eval[int](p, `document.querySelectorAll("tbody.ledger tr").length`)

	must(t, fixture.runShortMemory(t.Context(), "good"))
	p.await(`document.getElementById("held-body")`) // the order of rows changes only on request
	p.click("#held-body")
	p.await(fmt.Sprintf(`document.querySelectorAll("tbody.ledger tr").length > %d`, rows))
	if n := eval[int](p, `document.querySelectorAll("tbody:not(.ledger) tr").length`); n != 1 {
		t.Errorf("%d runs are above the ledger, not 1", n)
	}

	days.await(fmt.Sprintf(`document.querySelector(".past tbody tr").textContent !== %s`, quote(counted)))
	if !eval[bool](days, `document.querySelector(".past details").open`) {
		t.Error("the table of the days was closed when its numbers changed")
	}
	days.checkPolicy()
}

// A tab has one stream. It is closed while nobody sees the tab, and opened again.
func TestStream_ClosesWhileHidden(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks")
	if begun, ended := p.streamCounts(); begun != 1 || ended != 0 {
		t.Errorf("%d streams were begun, %d have ended", begun, ended)
	}

	const changed = `, document.dispatchEvent(new Event("visibilitychange"))`
	eval[bool](p, "window.unseen = true"+changed)
	await(t, func() error {
		if begun, ended := p.streamCounts(); begun != 1 || ended != 1 {
			return fmt.Errorf("%d streams were begun, %d have ended", begun, ended)
		}
		return nil
	})

	eval[bool](p, "window.unseen = false"+changed)
	await(t, func() error {
		if begun, _ := p.streamCounts(); begun != 2 {
			return fmt.Errorf("%d streams were begun", begun)
		}
		return nil
	})
	p.ready()
}

// A page that has changed, and is again as it was when it was loaded, does not keep showing what was in between.
func TestStream_ReturnsToTheLoadedState(t *testing.T) {
	s := fixtureTasks()[0]
	s.Name, s.Schedule = "aa-back", task.Schedules{"@daily"}
	_, err := fixture.api.Tasks.Create(t.Context(), "default", s)
	must(t, err)
	t.Cleanup(func() { _ = fixture.api.Tasks.Delete(context.WithoutCancel(t.Context()), "default", "aa-back", 0) })

	p := chrome.newTab(t)
	p.open("/ui/tasks?q=aa-back")
	const paused, changed = `document.getElementById("rows").textContent.includes("paused (")`, `, document.dispatchEvent(new Event("visibilitychange"))`
	_, err = fixture.api.Tasks.Pause(t.Context(), "default", "aa-back", 0)
	must(t, err)
	p.await(paused)

	eval[bool](p, "window.unseen = true"+changed)
	await(t, func() error {
		if begun, ended := p.streamCounts(); begun != ended {
			return fmt.Errorf("%d streams were begun, %d have ended", begun, ended)
		}
		return nil
	})
	_, err = fixture.api.Tasks.Resume(t.Context(), "default", "aa-back", 0)
	must(t, err)

	eval[bool](p, "window.unseen = false"+changed)
	p.await("!" + paused)
}

// The secret of a login link is in no address that the browser sends, and does not stay in its history.
func TestLoginLink_LeavesNoTrace(t *testing.T) {
	p := chrome.newTab(t, chromedp.WithNewBrowserContext())
	link, err := fixture.api.Sessions.CreateLink(t.Context())
	must(t, err)
	p.open(link.Path)
	p.await(`document.querySelector("main button")?.textContent.startsWith("Sign in as")`)
	p.checkPolicy()
	p.axe()
	p.click("main button")
	p.await(`location.pathname === "/ui" && document.querySelector("nav")`)

	history := call(p, page.GetNavigationHistory, cdp.Empty{})
	for _, e := range history.Entries {
		if strings.Contains(e.URL, link.Secret) {
			t.Errorf("the history has %s", e.URL)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, url := range p.requests {
		if strings.Contains(url, link.Secret) {
			t.Errorf("the browser has requested %s", url)
		}
	}
}

// If the session ends while a page is open, the page says so once, and leads to the login and back. It does not ask again
// and again.
func TestSession_EndsUnderAnOpenPage(t *testing.T) {
	p := chrome.newTab(t, chromedp.WithNewBrowserContext())
	link, err := fixture.api.Sessions.CreateLink(t.Context())
	must(t, err)
	before := sessions(t)
	p.open(link.Path)
	p.click("main button")
	p.await(`document.querySelector("nav")`)
	p.open("/ui/tasks?q=label:team%3Ddata")

	for id := range sessions(t) {
		if !before[id] {
			must(t, fixture.api.Tokens.Delete(t.Context(), id))
		}
	}
	p.await(`document.getElementById("notice").textContent.includes("Your session has ended")`)

	// Time passes: a page that would try again has a reason to.
	begun, _ := p.streamCounts()
	for range 5 {
		eval[float64](p, "window.skew += 60_000")
		eval[bool](p, `document.dispatchEvent(new Event("visibilitychange"))`)
		eval[bool](p, `new Promise((done) => setTimeout(() => done(true), 300))`, chromedp.EvalAwaitPromise)
	}
	if now, _ := p.streamCounts(); now != begun || begun > 3 {
		t.Errorf("the page has asked for a stream %d times, %d of them after it knew", now, now-begun)
	}

	p.click("#notice a")
	p.await(`location.pathname === "/ui/login" && document.querySelector("input[name=next]").value === "/ui/tasks?q=label:team%3Ddata"`)
	p.fill("token", fixture.token)
	p.press("\r")
	p.await(`location.pathname === "/ui/tasks" && document.getElementById("q").value === "label:team=data"`)
}

// sessions returns the ids of all sessions.
func sessions(t *testing.T) map[string]bool {
	t.Helper()
	list, err := fixture.api.Tokens.ListWithSessions(t.Context(), "")
	must(t, err)
	ids := map[string]bool{}
	for _, token := range list {
		if token.Kind == task.TokenKindSession {
			ids[token.ID] = true
		}
	}
	return ids
}

// Keys are enough to find a task, trigger it, and read the output of the run.
func TestKeyboard_FindTriggerRead(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui")
	p.press("j")
	p.await(`document.activeElement.closest(".trouble li") && document.activeElement.pathname.startsWith("/ui/tasks/default/")`)

	p.open("/ui/tasks")
	p.press("/")
	p.await(`document.activeElement.id === "q"`)
	p.fill("q", "name~backup") // also removes the slash, which the protocol types although the page has handled the key
	p.press("\r")
	p.await(`location.search.includes("backup") && document.querySelectorAll("#rows tr").length === 1`)
	p.ready()
	p.press("j")
	p.await(`document.activeElement.textContent === "backup-db"`)
	p.press("\r")
	p.awaitPage("/ui/tasks/default/backup-db")
	p.ready()

	p.tabTo("Trigger")
	p.press("\r")
	p.await(`document.querySelector("textarea#env")`)
	p.ready()
	p.tabTo("Trigger now")
	p.press("\r")
	p.await(`document.body.innerText.includes("triggered backup-db")`)
	p.ready()

	p.press("j")
	p.await(`document.activeElement.closest("tbody")`)
	p.tabToRun()
	p.press("\r")
	p.await(`location.pathname.startsWith("/ui/runs/default/")`)
	p.await(`document.getElementById("output")?.textContent.includes("dumping")`)
	p.checkPolicy()
}

// tabToRun presses the tabulator until the focus is on a link to a run.
func (p *tab) tabToRun() {
	p.t.Helper()
	for range 20 {
		if eval[bool](p, `document.activeElement.getAttribute("href")?.startsWith("/ui/runs/")`) {
			return
		}
		p.press("\t")
	}
	p.t.Fatal("the tabulator does not reach a run")
}

// While somebody types, the preview and the other form follow, and nothing is written.
func TestEdit_PreviewFollows(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks/default/spread/edit")
	p.fill("f-description", "typed as a form")
	p.await(`document.getElementById("f-yaml").value.includes("typed as a form") && document.getElementById("preview").innerText.includes("typed as a form")`)
	if !eval[bool](p, `document.activeElement.id === "f-description" && document.activeElement.value === "typed as a form"`) {
		t.Error("the focus or the typed text is lost")
	}

	yaml := strings.Replace(eval[string](p, `document.getElementById("f-yaml").value`), "typed as a form", "typed as YAML", 1)
	eval[bool](p, `(() => { const el = document.getElementById("f-yaml"); el.focus(); el.value = `+quote(yaml)+`; return el.dispatchEvent(new Event("input", { bubbles: true })); })()`)
	p.await(`document.getElementById("f-description").value === "typed as YAML"`)
	if s, err := fixture.api.Tasks.Get(t.Context(), "default", "spread"); err != nil || s.Description != "" {
		t.Errorf("the task has the description %q, %v", s.Description, err)
	}
	p.checkPolicy()
}

// If two people edit a task, the second one sees both versions, and nothing is overwritten unasked.
func TestEdit_TwoPeople(t *testing.T) {
	first, second := chrome.newTab(t), chrome.newTab(t)
	const path = "/ui/tasks/default/edited/edit"
	first.open(path)
	second.open(path)

	call(first, page.BringToFront, empty)
	first.fill("f-description", "of the first")
	first.clickText("Save")
	first.awaitPage("/ui/tasks/default/edited")

	call(second, page.BringToFront, empty)
	second.fill("f-description", "of the second")
	second.fill("f-timeout", "7m")
	second.clickText("Save")
	second.await(`document.querySelector(".conflict")?.innerText.includes("of the first")`)
	second.await(`document.querySelector(".conflict").innerText.includes("of the second") && document.getElementById("f-timeout").value === "7m"`)
	second.screenshot("edit-conflict-light")
	second.axe()
	if s, err := fixture.api.Tasks.Get(t.Context(), "default", "edited"); err != nil || s.Description != "of the first" {
		t.Errorf("the task has the description %q, %v", s.Description, err)
	}

	second.clickText("Overwrite")
	second.awaitPage("/ui/tasks/default/edited")
	if s, err := fixture.api.Tasks.Get(t.Context(), "default", "edited"); err != nil || s.Description != "of the second" {
		t.Errorf("the task has the description %q, %v", s.Description, err)
	}
}

// However much a run writes, its page stays small.
func TestRun_FloodOfOutput(t *testing.T) {
	id, err := fixture.trigger(t.Context(), "flood")
	must(t, err)
	must(t, fixture.awaitRun(t.Context(), id, task.Running))

	p := chrome.newTab(t)
	p.open("/ui/runs/default/" + id)
	p.await(`document.querySelectorAll("#output .line").length > 1000`)
	p.await(`document.getElementById("output-note").textContent.includes("not shown")`)

	size := func() (nodes, heap float64) {
		t.Helper()
		s := eval[[]float64](p, `[document.querySelectorAll("*").length, performance.memory.usedJSHeapSize]`)
		return s[0], s[1]
	}
	newest := `document.querySelector("#output .line:last-child").textContent`
	for range 5 {
		nodes, heap := size()
		if nodes > 10_000 || heap > 100<<20 {
			t.Errorf("the page has %.0f elements and a heap of %.1f MiB", nodes, heap/(1<<20))
		}
		p.await(newest + " !== " + quote(eval[string](p, newest)))
	}
	nodes, heap := size()
	t.Logf("after the flood: %.0f elements, heap %.1f MiB; %s", nodes, heap/(1<<20), eval[string](p, `document.getElementById("output-note").textContent`))
	p.screenshot("run-flood-light")

	p.clickText("Cancel the run…")
	p.await(`location.search.includes("do=cancel")`)
	p.ready()
	p.click(".panel button.danger")
	must(t, fixture.awaitRun(t.Context(), id, task.Cancelled))
	p.await(`document.getElementById("head").textContent.includes("cancel")`)
	p.checkPolicy()
}

// Without scripts, reading and forms work.
func TestWithoutScripts(t *testing.T) {
	p := chrome.newTab(t)
	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	must(t, chromedp.Do(p.ctx, chromedp.Navigate(p.base+"/ui/tasks?q=name~backup"), chromedp.WaitVisible(chromedp.CSS("#rows a")), chromedp.Click(chromedp.CSS("#rows a")), chromedp.WaitVisible(chromedp.CSS("a.primary")),
		chromedp.Click(chromedp.CSS("a.primary")), chromedp.WaitVisible(chromedp.CSS("#env")), chromedp.Click(chromedp.CSS("form button.primary")), chromedp.WaitVisible(chromedp.CSS(".banner.good"))))
	text, err := chromedp.Run(p.ctx, chromedp.Text(chromedp.CSS(".banner.good")))
	must(t, err)
	if !strings.Contains(text, "triggered backup-db") {
		t.Errorf("the page says %q", text)
	}
}

// The colors that a viewer has chosen stay.
func TestTheme_Stays(t *testing.T) {
	p := chrome.newTab(t, chromedp.WithNewBrowserContext())
	p.open("/ui/login")
	link, err := fixture.api.Sessions.CreateLink(t.Context())
	must(t, err)
	p.open(link.Path)
	p.click("main button")
	p.await(`document.querySelector("nav")`)
	p.open("/ui/tasks?q=name~backup")
	p.click(".theme button")
	p.await(`document.documentElement.dataset.theme === "dark" && location.search === "?q=name~backup"`)
	p.open("/ui/nodes")
	p.await(`document.documentElement.dataset.theme === "dark"`)
}

// proxy is a proxy in front of the node, which can do to streams what proxies do.
type proxy struct {
	*http.Server
	address string

	mu      sync.Mutex
	streams int
}

// newProxy starts a proxy. handle serves streams; it calls pass to serve one as the node does.
func newProxy(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, pass http.Handler)) *proxy {
	t.Helper()
	target, err := url.Parse("http://" + fixture.address)
	must(t, err)
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.FlushInterval = -1
	pass.ErrorLog = log.New(io.Discard, "", 0)

	p := &proxy{}
	address, server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { _ = recover() }() // the proxy panics when a stream is cut
		if r.URL.Path != "/ui/live" {
			pass.ServeHTTP(w, r)
			return
		}

		p.mu.Lock()
		p.streams++
		p.mu.Unlock()
		handle(w, r, pass)
	}))
	p.Server, p.address = server, address

	return p
}

func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

// Proxies do to streams what they like. Most of these tests is waiting, so they run at the same time.
func TestProxy(t *testing.T) {
	t.Run("CutsStreams", testProxyCutsStreams)
	t.Run("HoldsStreamsBack", testProxyHoldsStreamsBack)
	t.Run("NodeHangs", testNodeHangs)
	t.Run("EtcdAwayKnownState", testEtcdAwayKnownState)
	t.Run("EtcdAwayNothingKnown", testEtcdAwayNothingKnown)
}

// A page stays current behind a proxy that cuts each stream after a short time.
func testProxyCutsStreams(t *testing.T) {
	t.Parallel()

	proxy := newProxy(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		pass.ServeHTTP(w, r.WithContext(ctx))
	})

	p := chrome.newTab(t)
	p.open("http://" + proxy.address + "/ui/tasks/default/backup-db?tab=runs")
	await(t, func() error {
		if n := proxy.count(); n < 3 {
			return fmt.Errorf("the page has asked for %d streams", n)
		}
		return nil
	})

	id, err := fixture.trigger(t.Context(), "backup-db")
	must(t, err)
	p.await(`document.getElementById("held-body")?.textContent.includes("1 new")`)
	p.click("#held-body")
	p.await(`document.getElementById("body").textContent.includes(` + quote(id) + `)`)
	if notice := eval[string](p, `document.getElementById("notice").textContent`); notice != "" {
		t.Errorf("the page says %q", notice)
	}
}

// A page behind a proxy that holds streams back does not pretend to be current.
func testProxyHoldsStreamsBack(t *testing.T) {
	t.Parallel()

	proxy := newProxy(t, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})

	p := chrome.newTab(t)
	p.open("http://" + proxy.address + "/ui/tasks")
	eval[float64](p, "window.skew += 25_000")
	p.await(`document.getElementById("age").dataset.state === "old"`)

	// After 40 seconds of silence, the page asks again.
	eval[float64](p, "window.skew += 45_000")
	await(t, func() error {
		if n := proxy.count(); n < 2 {
			return fmt.Errorf("the page has asked for %d streams", n)
		}
		return nil
	})
	p.screenshot("proxy-buffers-light")
}

// Each hour of the load is one link, which shows its minutes. A mouse reaches a minute of the map at once.
func TestLoad_HoursAndMinutes(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/load")
	if n := eval[int](p, `document.querySelectorAll(".heat a").length`); n < 24 || n > 26 {
		t.Errorf("the map has %d links", n)
	}

	eval[bool](p, `document.querySelectorAll(".heat a")[3].focus(), true`)
	p.press("\r")
	p.await(`location.search.includes("hour=") && document.querySelectorAll(".minute-list a").length > 0`)
	p.screenshot("load-hour-light")
	p.axe()
	p.size(320, 800)
	p.screenshot("load-hour-320")
	p.checkWidth()
	p.axe("target-size")
	p.size(1280, 900)

	// The tasks of the fixtures with hourly schedules have their ticks at the beginning of an hour: the left end of the map.
	must(t, chromedp.Do(p.ctx, chromedp.Navigate(p.base+"/ui/load")))
	p.ready()
	at := eval[[]float64](p, `(() => { const box = document.querySelectorAll(".heat .minutes")[4].getBoundingClientRect(); return [box.left + 2, box.top + box.height / 2]; })()`)
	must(t, chromedp.Do(p.ctx, chromedp.MouseClickXY(at[0], at[1])))
	p.await(`location.search.includes("minute=") && document.getElementById("minute-title")`)
	p.await(`document.querySelector(".seconds").textContent.includes(":00") && document.querySelector(".due").textContent.includes("hourly-a")`)
	p.screenshot("load-minute-light")
	p.checkPolicy()
}

// If the node dies under an open page, the page shows how old it is, and becomes current when the node is back. It is the
// last test.
func TestZ_NodeDies(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks")
	p.away = true
	fixture.kill(t)
	p.await(`document.getElementById("notice").textContent.includes("This node does not answer")`)
	if age := eval[string](p, `document.getElementById("age").textContent`); len(age) > len("15s old") || !strings.HasSuffix(age, "s old") {
		t.Errorf("the page says so when it is %s", age)
	}
	p.clickText("backup-db")
	p.fill("q", "name~kept")
	p.press("\r")
	eval[float64](p, "window.skew += 25_000")
	p.await(`document.getElementById("age").textContent.includes("old")`)
	if !eval[bool](p, `location.pathname === "/ui/tasks" && location.search === "" && document.getElementById("q").value === "name~kept"`) {
		t.Error("a link or a form leads away while the node does not answer")
	}
	if !eval[bool](p, `document.getElementById("rows").textContent.includes("backup-db")`) {
		t.Error("the page does not show what it has shown")
	}
	p.screenshot("node-dead-light")

	must(t, fixture.startNode(t.Context()))
	p.await(`document.getElementById("age").textContent === "live" && document.getElementById("notice").hidden`)
	p.checkPolicy()
	p.clickText("backup-db")
	p.awaitPage("/ui/tasks/default/backup-db")
}
