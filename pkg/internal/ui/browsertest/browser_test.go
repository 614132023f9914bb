//go:build browser

package browsertest

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// axe.min.js is axe-core 4.14.1, from the npm package of that name. It is used only here, and is not part of programs.
//
//go:embed testdata/axe.min.js
var axeSource string

// patience is how long a test waits for something in a page. It is long because machines may be busy; nothing depends on it.
const patience = 60 * time.Second

// prelude runs in each page before its own scripts. It collects violations of the Content Security Policy, and lets tests
// make the page believe that time has passed, or that nobody sees it: tabs of a headless browser are always visible.
const prelude = `
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => violations.push(e.effectiveDirective + " " + (e.blockedURI || e.sample)));
window.skew = 0;
const realNow = performance.now.bind(performance);
performance.now = () => realNow() + window.skew;
window.unseen = false;
Object.defineProperty(document, "hidden", { get: () => window.unseen });
Object.defineProperty(document, "visibilityState", { get: () => window.unseen ? "hidden" : "visible" });
`

// tab is a tab of the browser. What goes wrong in it beside what a test looks at is collected.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string // the address of the node
	away bool   // the node goes away, so streams may fail

	mu       sync.Mutex
	errors   []string // errors of scripts, and errors on the console
	requests []string // addresses that were requested
	received float64  // bytes of requests that have finished, compressed
	streams  int      // requests for streams
	ended    int      // of them, those that have ended
	isStream map[network.RequestID]bool
	dialogs  int // questions whether to leave a page, which are answered with yes
}

// empty are the parameters of commands without any.
var empty cdp.Empty

// newTab opens a tab. It is closed at the end of the test, which fails if scripts have failed in it, if it has requested
// anything from elsewhere, or if it has violated its policy.
func (b *browser) newTab(t *testing.T, opts ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx, opts...)
	t.Cleanup(cancel)

	p := &tab{t: t, ctx: ctx, base: b.base, isStream: map[network.RequestID]bool{}}
	must(t, chromedp.Listen(ctx, p.note))
	call(p, network.Enable, network.EnableParams{})
	call(p, log.Enable, cdp.Empty{})
	call(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: prelude})
	p.size(1280, 900)
	t.Cleanup(p.check)

	return p
}

// call sends a command of the protocol to a tab.
func call[P, R any](p *tab, cmd cdp.Command[P, R], params P) R {
	p.t.Helper()
	r, err := chromedp.Call(p.ctx, cmd, params)
	must(p.t, err)

	return r
}

// note collects what happens in the tab.
func (p *tab) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()

	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
		if strings.Contains(e.Request.URL, "/ui/live?") {
			p.streams++
			p.isStream[e.RequestID] = true
		}
	case *network.EventLoadingFinished:
		p.received += e.EncodedDataLength
		if p.isStream[e.RequestID] {
			p.ended++
		}
	case *network.EventLoadingFailed:
		if p.isStream[e.RequestID] {
			p.ended++
		}
	case *page.EventJavascriptDialogOpening:
		p.dialogs++
		go func() {
			_, _ = chromedp.Call(p.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	case *runtime.EventExceptionThrown:
		p.errors = append(p.errors, e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			text, _ := json.Marshal(e.Args)
			p.errors = append(p.errors, string(text))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != "network" {
			p.errors = append(p.errors, e.Entry.Text)
		}
	}
}

// check fails the test if something went wrong that no page may do.
func (p *tab) check() {
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, text := range p.errors {
		if p.away && strings.Contains(text, "htmx:sse:error") {
			continue
		}
		p.t.Errorf("an error in the page: %s", text)
	}
	for _, url := range p.requests {
		if !strings.HasPrefix(url, "http://127.0.0.1:") && !strings.HasPrefix(url, "data:") && !strings.HasPrefix(url, "about:") && !strings.HasPrefix(url, "blob:http://127.0.0.1:") {
			p.t.Errorf("the page requests something from elsewhere: %s", url)
		}
	}
}

// size sets the size of the page, and shows it as on a desktop or on a phone.
func (p *tab) size(width, height int) {
	p.t.Helper()
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: int64(width), Height: int64(height), DeviceScaleFactor: 1, Mobile: width < 500})
}

// dark shows the page in the colors of a dark or a light system.
func (p *tab) dark(on bool) {
	p.t.Helper()
	scheme := "light"
	if on {
		scheme = "dark"
	}
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// open loads a page, and waits until its scripts have run and its stream is open.
func (p *tab) open(path string) {
	p.t.Helper()
	if strings.HasPrefix(path, "/") {
		path = p.base + path
	}
	must(p.t, chromedp.Do(p.ctx, chromedp.Navigate(path)))
	p.ready()
}

// ready waits until the scripts of the page have run and its stream is open.
func (p *tab) ready() {
	p.t.Helper()
	p.await(`document.readyState === "complete" && (!document.getElementById("live") || !!document.getElementById("live")._htmx?.sse)`)
}

// await waits until an expression is true in the page. Pages may be loaded in the meantime.
func (p *tab) await(expression string) {
	p.t.Helper()
	if err := p.tryAwait(expression, patience); err != nil {
		text, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string](`location.href + "\nfocus: " + document.activeElement?.outerHTML.slice(0, 300) + "\n" + document.body.innerText`))
		p.t.Fatalf("waited for %s: %v; the page:\n%s", expression, err, text)
	}
}

// awaitPage waits until a page is there that a click or a form has led to, as open does.
func (p *tab) awaitPage(path string) {
	p.t.Helper()
	p.await(`location.pathname === ` + quote(path))
	p.ready()
}

func (p *tab) tryAwait(expression string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(p.ctx, within)
	defer cancel()

	return poll(ctx, within, func() error {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		if err == nil && !ok {
			err = fmt.Errorf("it is not true")
		}
		return err
	})
}

// eval returns the value of an expression in the page.
func eval[T any](p *tab, expression string, opts ...chromedp.EvaluateOption) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience) // Chromium does not answer while the answer to a form is on its way
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, opts...))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// press types keys, as a keyboard does.
func (p *tab) press(keys string) {
	p.t.Helper()
	must(p.t, chromedp.Do(p.ctx, chromedp.KeyEvent(keys)))
}

// tabTo presses the tabulator until the focus is on an element with a text.
func (p *tab) tabTo(text string) {
	p.t.Helper()
	for range 80 {
		p.press("\t")
		if eval[bool](p, `document.activeElement.textContent.trim().startsWith(`+quote(text)+`)`) {
			return
		}
	}
	p.t.Fatalf("the tabulator does not reach %q", text)
}

// click clicks an element that a CSS selector finds.
func (p *tab) click(selector string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Click(chromedp.CSS(selector))); err != nil {
		p.t.Fatalf("click %s: %v", selector, err)
	}
}

// clickText clicks the first link or button whose text begins so.
func (p *tab) clickText(text string) {
	p.t.Helper()
	const mark = "data-clicked-by-test"
	must(p.t, poll(p.ctx, patience, func() error {
		marked, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool](`(() => { document.querySelector("[`+mark+`]")?.removeAttribute("`+mark+`"); const el = [...document.querySelectorAll("main a, main button")].find((el) => el.offsetParent && el.textContent.trim().startsWith(`+quote(text)+`)); el?.setAttribute("`+mark+`", ""); return !!el; })()`))
		if err == nil && !marked {
			err = fmt.Errorf("no link or button begins with %q", text)
		}
		if err != nil {
			return err
		}

		// The page may change in between, and the mark with it.
		ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
		defer cancel()

		return chromedp.Do(ctx, chromedp.Click(chromedp.CSS("["+mark+"]")))
	}))
}

// fill replaces the value of a field by typing.
func (p *tab) fill(id, text string) {
	p.t.Helper()
	eval[bool](p, `(() => { const el = document.getElementById(`+quote(id)+`); el.focus(); el.select(); return true; })()`)
	p.press(text)
	p.await(`document.getElementById(` + quote(id) + `).value === ` + quote(text))
}

// streamCounts returns how many streams the tab has begun, and how many of them have ended.
func (p *tab) streamCounts() (begun, ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams, p.ended
}

// violations checks that the page has not violated its policy.
func (p *tab) checkPolicy() {
	p.t.Helper()
	for _, v := range eval[[]string](p, "violations") {
		p.t.Errorf("the page violates its Content Security Policy: %s", v)
	}
}

// finding is what axe-core finds.
type finding struct {
	ID, Help string
	Nodes    []struct {
		HTML           string
		FailureSummary string
	}
}

// axe checks the page with axe-core: all rules, or those named.
func (p *tab) axe(rules ...string) {
	p.t.Helper()
	if !eval[bool](p, `typeof axe === "object"`) {
		eval[chromedp.Void](p, axeSource)
	}

	options := `{resultTypes: ["violations"]}`
	if len(rules) > 0 {
		list, err := json.Marshal(rules)
		must(p.t, err)
		options = `{resultTypes: ["violations"], runOnly: {type: "rule", values: ` + string(list) + `}}`
	}
	found := eval[[]finding](p, `axe.run(document, `+options+`).then((r) => r.violations.map((v) => ({ID: v.id, Help: v.help, Nodes: v.nodes.slice(0, 3).map((n) => ({HTML: n.html.slice(0, 300), FailureSummary: n.failureSummary}))})))`, chromedp.EvalAwaitPromise)
	for _, f := range found {
		for _, n := range f.Nodes {
			p.t.Errorf("axe: %s (%s): %s\n%s", f.Help, f.ID, n.HTML, n.FailureSummary)
		}
	}
}

// checkWidth checks that the page does not scroll sideways, and names what is too wide.
func (p *tab) checkWidth() {
	p.t.Helper()
	wide := eval[[]string](p, `(() => {
		const root = document.documentElement, width = root.clientWidth;
		if (root.scrollWidth <= width) return [];
		const scrolls = (el) => { for (; el && el !== root; el = el.parentElement) if (getComputedStyle(el).overflowX !== "visible") return true; return false; };
		return [...document.body.querySelectorAll("*")].filter((el) => el.checkVisibility() && el.getBoundingClientRect().right > width + 0.5 && !scrolls(el)).slice(-5).map((el) => el.outerHTML.slice(0, 160)).concat("width " + root.scrollWidth);
	})()`)
	if len(wide) > 0 {
		p.t.Errorf("the page is wider than the window: %s", strings.Join(wide, "\n"))
	}
}

// screenshot writes a picture of the page to build/ui, with at most 2,400 pixels of its height.
func (p *tab) screenshot(name string) {
	p.t.Helper()
	p.await(`document.readyState === "complete"`)
	size := eval[[]float64](p, `[document.documentElement.clientWidth, document.documentElement.scrollHeight]`)
	beyond := true
	shot := call(p, page.CaptureScreenshot, page.CaptureScreenshotParams{
		CaptureBeyondViewport: &beyond, Clip: &page.Viewport{Width: size[0], Height: math.Min(size[1], 2400), Scale: 1},
	})
	must(p.t, os.MkdirAll(shots, 0o755))
	must(p.t, os.WriteFile(filepath.Join(shots, name+".png"), shot.Data, 0o644))
}

// quote returns a text as a literal of JavaScript.
func quote(text string) string {
	b, _ := json.Marshal(text) // a string can always be encoded
	return string(b)
}
