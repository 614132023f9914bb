//go:build browser

package browsertest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// awayNode is the node as it is while etcd does not answer: its pages say so, and its streams bring a fault. The package's own
// tests check that nodes serve such pages and streams.
type awayNode struct {
	address string
	page    func(html string) string // what becomes of pages

	away atomic.Bool
	back chan struct{} // closed by answer
}

func newAwayNode(t *testing.T, page func(html string) string) *awayNode {
	t.Helper()
	target, err := url.Parse("http://" + fixture.address)
	must(t, err)

	n := &awayNode{page: page, back: make(chan struct{})}
	n.away.Store(true)
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.Out.Header.Del("Accept-Encoding")
		},
		FlushInterval:  -1,
		ModifyResponse: n.change,
	}
	n.address, _ = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ui/live" && n.away.Load() {
			n.serveFault(w, r)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(n.answer)

	return n
}

// change makes a page one of a node without etcd.
func (n *awayNode) change(r *http.Response) error {
	if !n.away.Load() || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
		return nil
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	html := n.page(strings.Replace(string(b), `<html lang="en"`, `<html lang="en" data-away`, 1))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader([]byte(html))), int64(len(html))
	r.Header.Set("Content-Length", fmt.Sprint(len(html)))

	return r.Body.Close()
}

// serveFault serves a stream that brings a fault, and ends when etcd answers.
func (n *awayNode) serveFault(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "retry: 100\n\nevent: fault\ndata: {\"message\":\"etcd did not answer\",\"away\":true}\n\n")
	_ = http.NewResponseController(w).Flush()
	select {
	case <-r.Context().Done():
	case <-n.back:
	}
}

// answer makes etcd answer again.
func (n *awayNode) answer() {
	if n.away.Swap(false) {
		close(n.back)
	}
}

const awayBox = `<main id="content" tabindex="-1"><div id="away" class="banner warn">the last known state</div>`

// A page that is opened while etcd does not answer shows how old it is and changes nothing. It becomes current by itself.
func testEtcdAwayKnownState(t *testing.T) {
	t.Parallel()

	node := newAwayNode(t, func(html string) string {
		html = strings.Replace(html, `data-age="0"`, `data-age="7000"`, 1)
		return strings.Replace(html, `<main id="content" tabindex="-1">`, awayBox, 1)
	})
	p := chrome.newTab(t)
	p.open("http://" + node.address + "/ui/tasks/default/legacy-sync")
	p.await(`/^\d+s old$/.test(document.getElementById("age").textContent) && parseInt(document.getElementById("age").textContent) >= 7`)
	if eval[bool](p, `!document.getElementById("notice").hidden`) {
		t.Error("the page says twice that etcd is away")
	}

	// Actions are off, and say why.
	p.clickText("Resume")
	p.await(`document.getElementById("notice").textContent.includes("Nothing can be changed")`)

	node.answer()
	p.await(`document.getElementById("age").textContent === "live" && !document.getElementById("away") && document.getElementById("notice").hidden`)
	if eval[bool](p, `document.documentElement.hasAttribute("data-away")`) {
		t.Error("the actions of the page are still off")
	}
	p.checkPolicy()
}

// A page without a known state is loaded again when etcd answers.
func testEtcdAwayNothingKnown(t *testing.T) {
	t.Parallel()

	node := newAwayNode(t, func(html string) string {
		before, rest, _ := strings.Cut(html, `<main id="content" tabindex="-1">`)
		_, after, _ := strings.Cut(rest, "</main>")
		return before + strings.Replace(awayBox, "tabindex", "data-empty tabindex", 1) + "</main>" + after
	})
	p := chrome.newTab(t)
	p.open("http://" + node.address + "/ui/nodes")
	p.await(`document.getElementById("away") && !document.getElementById("nodes")`)

	node.answer()
	p.await(`document.getElementById("nodes")?.textContent.includes("dev") && !document.getElementById("away")`)
	p.checkPolicy()
}
