//go:build browser

package browsertest

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// hangingNode is the node as it is while its process is stopped: connections stay open, and nothing comes.
type hangingNode struct {
	address string

	mu      sync.Mutex
	cond    *sync.Cond
	stopped bool
}

func newHangingNode(t *testing.T) *hangingNode {
	t.Helper()
	target, err := url.Parse("http://" + fixture.address)
	must(t, err)

	n := &hangingNode{}
	n.cond = sync.NewCond(&n.mu)
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.FlushInterval = -1
	n.address, _ = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { _ = recover() }() // the proxy panics when a stream is cut
		n.await()
		pass.ServeHTTP(&hangingWriter{w, n}, r)
	}))
	t.Cleanup(func() { n.stop(false) })

	return n
}

// stop stops the node, or lets it go on.
func (n *hangingNode) stop(stopped bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = stopped
	n.cond.Broadcast()
}

// await waits while the node is stopped.
func (n *hangingNode) await() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.stopped {
		n.cond.Wait()
	}
}

// hangingWriter writes nothing while the node is stopped.
type hangingWriter struct {
	http.ResponseWriter
	node *hangingNode
}

func (w *hangingWriter) Write(b []byte) (int, error) {
	w.node.await()
	return w.ResponseWriter.Write(b)
}

func (w *hangingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// If the node hangs, the page says so within ten seconds, leads to the same page on other nodes, and nowhere else. It heals
// when the node goes on.
func testNodeHangs(t *testing.T) {
	t.Parallel()

	node := newHangingNode(t)
	p := chrome.newTab(t)
	p.open("http://" + node.address + "/ui/tasks?q=name~backup")
	p.await(`document.getElementById("rows").textContent.includes("backup-db")`)
	eval[bool](p, `document.querySelector("nav ul").insertAdjacentHTML("beforeend", '<li hidden data-other="http://127.0.0.1:1">web-3</li><li hidden data-other="javascript:alert(1)">bad</li>'), true`)

	node.stop(true)
	p.await(`document.getElementById("notice").textContent.includes("This node does not answer")`)
	if links := eval[[]string](p, `[...document.querySelectorAll("#notice a")].map((a) => a.textContent + " " + a.href)`); len(links) != 1 || links[0] != "web-3 http://127.0.0.1:1/ui/tasks?q=name~backup" {
		t.Errorf("the page leads to %q", links)
	}
	p.screenshot("node-hangs-light")
	p.axe()
	p.clickText("backup-db")
	if at := eval[string](p, `location.pathname`); at != "/ui/tasks" {
		t.Errorf("the link leads to %s", at)
	}

	node.stop(false)
	p.await(`document.getElementById("notice").hidden && document.getElementById("age").textContent === "live"`)
	p.clickText("backup-db")
	p.awaitPage("/ui/tasks/default/backup-db")
	p.checkPolicy()
}
