//go:build browser

package browsertest

import (
	"context"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// slowLine is a connection on which the answers to forms arrive when the test lets them. All requests reach the node.
type slowLine struct {
	address string
	clicked chan struct{} // closed when the script of clickInPage has ended
	release func()
}

// clickedPath is what the script of clickInPage requests when it has ended.
const clickedPath = "/healthz?clicked"

func newSlowLine(t *testing.T) *slowLine {
	t.Helper()
	target, err := url.Parse("http://" + fixture.address)
	must(t, err)

	arrives := make(chan struct{})
	l := &slowLine{clicked: make(chan struct{}), release: sync.OnceFunc(func() { close(arrives) })}
	reportClicks := sync.OnceFunc(func() { close(l.clicked) })
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
		},
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodPost {
				<-arrives
			}
			return nil
		},
	}

	l.address, _ = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { _ = recover() }() // the proxy panics when the browser has gone
		if r.URL.RequestURI() == clickedPath {
			reportClicks()
		}
		if r.Method == http.MethodPost {
			r = r.WithContext(context.WithoutCancel(r.Context()))
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(l.release)

	return l
}

// clickInPage runs a script in the page that sends a form and clicks again, and waits until the script has ended. The script
// may await conditions with until(() => …). The next page finds what it returns with clickResult. Chromium answers no
// commands of the test between the click and the next page, so all clicks are part of one script.
func (l *slowLine) clickInPage(p *tab, script string) {
	p.t.Helper()
	eval[bool](p, `(() => {
		const until = async (condition) => { while (!condition()) await new Promise((done) => setTimeout(done, 20)); };
		setTimeout(async () => {
			const result = await (async () => {`+script+`})();
			sessionStorage.setItem("clicked", JSON.stringify(result));
			await fetch("`+clickedPath+`");
		}, 50);
		return true;
	})()`)

	select {
	case <-l.clicked:
	case <-time.After(patience):
		p.t.Error("the script in the page has not ended")
	}
	l.release()
}

// clickResult is what the script of clickInPage has returned.
const clickResult = `JSON.parse(sessionStorage.getItem("clicked"))`

// openOnSlowLine opens a page on a slow line.
func openOnSlowLine(t *testing.T, path string) (*tab, *slowLine) {
	t.Helper()
	line := newSlowLine(t)
	p := chrome.newTab(t)
	p.base = "http://" + line.address
	p.open(path)

	return p, line
}

// runsOf returns the runs of a task.
func runsOf(t *testing.T, name string) []task.Run {
	t.Helper()
	runs, err := fixture.api.Runs.ListByTask(t.Context(), "default", name, client.RunListOptions{})
	must(t, err)

	return runs
}

// createManual creates a task that only triggers run.
func createManual(t *testing.T, name, shell string) {
	t.Helper()
	s := task.Defaults()
	s.Namespace, s.Name, s.Schedule, s.Action = "default", name, task.Schedules{"@manual"}, task.Action{Process: &task.Process{Shell: shell}}
	_, err := fixture.api.Tasks.Create(t.Context(), "default", s)
	must(t, err)
	t.Cleanup(func() { _ = fixture.api.Tasks.Delete(context.WithoutCancel(t.Context()), "default", name, 0) })
}

// Three clicks on a slow line start one run. The page shows that it is busy.
func TestSlowLine_TriggersOnce(t *testing.T) {
	createManual(t, "once", "true")
	p, line := openOnSlowLine(t, "/ui/tasks/default/once?do=trigger")

	line.clickInPage(p, `
		const form = document.querySelector("form[action$='/trigger']"), button = form.querySelector("button");
		for (let i = 0; i < 3; i++) button.click();
		await until(() => document.documentElement.hasAttribute("data-sending"));
		button.click();
		return form.getAttribute("aria-busy") + " " + button.getAttribute("aria-disabled") + " " + button.disabled;`)

	p.await(`document.querySelector(".banner.good")?.textContent.includes("triggered once")`)
	if busy := eval[string](p, clickResult); busy != "true true false" {
		t.Errorf("while the form is sent, aria-busy, aria-disabled and disabled are %s", busy)
	}
	if runs := runsOf(t, "once"); len(runs) != 1 {
		t.Errorf("there are %d runs, not 1", len(runs))
	}
	p.checkPolicy()
}

// A run that is retried in a live part may have ended, and have been replaced by the next one, before the answer has come.
// More clicks do not retry that one.
func TestSlowLine_RetriesOnce(t *testing.T) {
	createManual(t, "fails", "exit 3")
	id, err := fixture.trigger(t.Context(), "fails")
	must(t, err)
	must(t, fixture.awaitRun(t.Context(), id, task.Failed))
	p, line := openOnSlowLine(t, "/ui/tasks/default/fails")

	p.await(`document.querySelector("form[action$='/retry']")?.action.includes(` + quote(id) + `)`)
	line.clickInPage(p, `
		const form = () => document.querySelector("form[action$='/retry']");
		form().querySelector("button").click();
		await until(() => form() && !form().action.includes(`+quote(id)+`)); // the form is about the retry, which has failed
		for (let i = 0; i < 2; i++) form().querySelector("button").click();`)

	p.await(`location.pathname.startsWith("/ui/runs/default/")`)
	runs := runsOf(t, "fails")
	if len(runs) != 2 || !strings.HasSuffix(eval[string](p, "location.pathname"), runs[0].ID) {
		t.Errorf("there are %d runs, not 2: %+v", len(runs), runs)
	}
	p.checkPolicy()
}
