package httpaction

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// loopback are rules under which the tests' servers can be reached.
var loopback = &policy.HTTP{Allow: []string{"127.0.0.0/8", "::1"}}

// loopbackAndNames are the same with the name of this host.
var loopbackAndNames = &policy.HTTP{Allow: []string{"127.0.0.0/8", "::1", "localhost"}}

// newRunner returns a runner that may connect to this host. change may change its configuration.
func newRunner(t testing.TB, change func(*Config)) *Runner {
	t.Helper()

	cfg := Config{Node: "n1", Rules: func() (Rules, error) { return Rules{HTTP: loopback}, nil }, Dir: t.TempDir()}
	if change != nil {
		change(&cfg)
	}

	r, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(r.Close)

	return r
}

// lastToken makes tokens unique in the whole test program.
var lastToken atomic.Int64

// observed is what an attempt's callbacks have seen.
type observed struct {
	mu      sync.Mutex
	asked   int         // calls of MayStart
	started []time.Time // calls of OnStarted
	pauses  []process.PauseState
}

// newAttempt returns an attempt of an action with a new token.
func newAttempt(h task.HTTP) (process.Attempt, *observed) {
	seen := &observed{}
	a := process.Attempt{Token: lastToken.Add(1)}
	a.Namespace, a.Task, a.ID, a.Attempt = "default", "call", "20261126T070000.000Z-k3f9", 1
	a.ScheduledTime = task.At(time.Date(2026, 11, 26, 7, 0, 0, 0, time.UTC))
	a.Action.HTTP = &h
	a.Timeout = task.Duration(10 * time.Second)

	a.MayStart = func() error {
		seen.mu.Lock()
		defer seen.mu.Unlock()

		seen.asked++
		return nil
	}
	a.OnStarted = func(at time.Time) {
		seen.mu.Lock()
		defer seen.mu.Unlock()

		seen.started = append(seen.started, at)
	}
	a.OnPause = func(s process.PauseState) {
		seen.mu.Lock()
		defer seen.mu.Unlock()

		seen.pauses = append(seen.pauses, s)
	}

	return a, seen
}

// run runs one attempt of an action to its end.
func run(r *Runner, h task.HTTP) process.Result {
	a, _ := newAttempt(h)
	return r.RunAttempt(a, process.NewOrders())
}

// probe is a server that notes which requests have arrived, by their token, and behaves as their path says.
type probe struct {
	url string
	ln  net.Listener

	mu       sync.Mutex
	arrivals map[int64][]string       // the paths
	requests map[string]*http.Request // the last one by path
	bodies   map[string]string        // of these, if the path is echo or redirect
	conns    map[net.Conn]bool
	accepted int
	closed   bool
	wg       sync.WaitGroup
}

// newProbe starts a probe for http.
func newProbe(t testing.TB) *probe { return newProbeTLS(t, nil) }

// newProbeTLS starts a probe for https, or for http without a configuration.
func newProbeTLS(t testing.TB, cfg *tls.Config) *probe {
	t.Helper()

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	scheme := "http"
	if cfg != nil {
		scheme, ln = "https", tls.NewListener(ln, cfg)
	}

	p := &probe{url: scheme + "://" + ln.Addr().String(), ln: ln, arrivals: map[int64][]string{}, requests: map[string]*http.Request{}, bodies: map[string]string{}, conns: map[net.Conn]bool{}}
	p.wg.Go(p.acceptAll)
	t.Cleanup(p.stop)

	return p
}

// stop closes all connections and waits for their goroutines.
func (p *probe) stop() {
	p.ln.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *probe) acceptAll() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}

		p.mu.Lock()
		p.accepted++
		p.conns[c] = true
		if p.closed {
			c.Close()
		}
		p.mu.Unlock()

		p.wg.Go(func() {
			defer func() {
				c.Close()
				p.mu.Lock()
				delete(p.conns, c)
				p.mu.Unlock()
			}()
			p.serve(c)
		})
	}
}

// serve serves the requests of one connection.
func (p *probe) serve(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		q, err := http.ReadRequest(r)
		if err != nil {
			return
		}

		token, _ := strconv.ParseInt(q.Header.Get(headerToken), 10, 64)
		p.mu.Lock()
		p.arrivals[token] = append(p.arrivals[token], q.URL.Path)
		p.requests[q.URL.Path] = q
		p.mu.Unlock()

		if !p.behave(c, q) {
			return
		}
	}
}

// respond writes a response.
func respond(w io.Writer, status, headers, body string) {
	fmt.Fprintf(w, "HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s", status, len(body), headers, body)
}

// behave answers a request, or does not. It returns false if the connection must be closed.
func (p *probe) behave(c net.Conn, q *http.Request) bool {
	read := func() { _, _ = io.Copy(io.Discard, q.Body) }
	body := "hello"
	if q.Method == http.MethodHead {
		body = ""
	}

	switch strings.TrimPrefix(q.URL.Path, "/") {
	case "early": // answers before it reads the body
		respond(c, "200 OK", "", body)
		read()
		return true
	case "early-close":
		respond(c, "200 OK", "Connection: close\r\n", body)
		return false
	case "after-headers":
		return false
	case "after-body":
		read()
		return false
	case "mid-headers":
		read()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Le")
		return false
	case "mid-body":
		read()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhel")
		return false
	case "mid-chunk":
		read()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		return false
	case "garbage":
		read()
		fmt.Fprint(c, "SSH-2.0-OpenSSH_9.9\r\n")
		return false
	case "silent":
		read()
		_, _ = io.Copy(io.Discard, c) // until the client closes
		return false
	case "switch":
		read()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
		return false
	case "hints": // informational responses before the final one
		read()
		fmt.Fprint(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
		respond(c, "200 OK", "", body)
		return true
	case "circle":
		read()
		respond(c, "307 Temporary Redirect", "Location: /circle\r\n", "")
		return true
	case "big-headers":
		read()
		respond(c, "200 OK", "X-Big: "+strings.Repeat("x", 2*maxHeaderBytes)+"\r\n", body)
		return true
	case "endless":
		read()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
		for b := []byte(strings.Repeat("x", 32<<10)); ; {
			if _, err := c.Write(b); err != nil {
				return false
			}
		}
	case "redirect": // as its query says
		b, _ := io.ReadAll(q.Body)
		p.note(q, string(b))
		respond(c, q.URL.Query().Get("status"), "Location: "+q.URL.Query().Get("to")+"\r\n", "")
		return true
	case "echo": // answers with the request
		b, _ := io.ReadAll(q.Body)
		p.note(q, string(b))
		var all strings.Builder
		fmt.Fprintf(&all, "%s %s\n", q.Method, q.URL.RequestURI())
		_ = q.Header.Write(&all)
		all.Write(b)
		respond(c, cmp.Or(q.URL.Query().Get("status"), "200 OK"), "", all.String())
		return true
	case "fail":
		read()
		respond(c, "500 Internal Server Error", "", body)
		return true
	case "wait":
		read()
		respond(c, "503 Service Unavailable", "Retry-After: 7\r\n", body)
		return true
	}

	read()
	respond(c, "200 OK", "", body)

	return true
}

// note notes the body of a request.
func (p *probe) note(q *http.Request, body string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.bodies[q.URL.Path] = body
}

// last returns the last request with a path, and its body.
func (p *probe) last(path string) (*http.Request, string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.requests[path], p.bodies[path]
}

// arrivalsOf returns the paths of the requests that arrived with a token.
func (p *probe) arrivalsOf(token int64) []string {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.arrivals[token]
}

// connections returns how many connections the probe has accepted.
func (p *probe) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.accepted
}

// errForTest is an error of a callback.
var errForTest = errors.New("not now")
