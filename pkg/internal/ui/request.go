package ui

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// Request is what the functions of a screen know: the page, and the API with the rights of a viewer.
type Request struct {
	// API calls this node's API with the viewer's credential.
	API *client.Client
	// Now is the time of the request.
	Now time.Time
	// Path and Query are those of the page.
	Path  string
	Query url.Values
	// Form is what a form has posted; nil if the page is only read.
	Form url.Values
	// Result is the Done.Result of the action whose page is shown; nil if there is none.
	Result any

	caller access.Caller
	view   *authority.View        // when the request came
	access func() *authority.View // now
	value  func(name string) string
	zone   *time.Location // nil: the zone of each task

	watched  bool // only the live parts are needed, again and again
	previous any  // what Load has returned for the rendering before, for viewers with the same rights; nil if there was none
}

// Value returns the part of the path that matches {name} in the pattern of the screen or the action.
func (r *Request) Value(name string) string {
	if r.value == nil {
		return ""
	}
	return r.value(name)
}

// May reports whether the viewer may do something, to decide which buttons a page offers: May("trigger", "tasks", "prod").
// For kinds of the cluster, namespace is "". If it depends on the labels of a task, May returns true. The API decides.
func (r *Request) May(verb, kind, namespace string) (bool, error) {
	need, err := access.ParseNeed(verb, kind)
	if err != nil {
		return false, err
	}
	need.Namespace = namespace

	return r.view.AllowsSomewhere(r.caller, need, r.Now), nil
}

// ReadsEverything reports whether the viewer may read the tasks of all namespaces.
func (r *Request) ReadsEverything() bool {
	return r.view.ReadsEveryNamespace(r.caller, access.Tasks, r.Now)
}

// Namespaces returns the namespaces whose tasks the viewer may read, in order.
func (r *Request) Namespaces() []string {
	return r.view.Readable(r.caller, access.Tasks, r.view.Namespaces(), r.Now)
}

// Zone returns the zone in which times are shown. timezone is that of the task that they belong to, if any.
func (r *Request) Zone(timezone string) *time.Location {
	if r.zone != nil {
		return r.zone
	}

	if timezone != "" {
		if loc, err := schedule.Location(timezone); err == nil {
			return loc
		}
	}

	return time.UTC
}

// zoneParam is the parameter of all pages that chooses the zone of times. Without it, times of tasks are shown in the zone
// of each task, and others in UTC.
const zoneParam = "tz"

// newRequest returns the request of a viewer for a page.
func (s *Server) newRequest(r *http.Request, who session) (*Request, error) {
	api, err := s.clientFor(r, who.secret)
	if err != nil {
		return nil, err
	}

	q := &Request{
		API: api, Now: s.Now(), Path: r.URL.Path, Query: r.URL.Query(), caller: who.caller, view: s.Access.View(), access: s.Access.View, value: r.PathValue,
	}
	q.zone, _ = schedule.Location(q.Query.Get(zoneParam))
	if q.Query.Get(zoneParam) == "" {
		q.zone = nil
	}

	return q, nil
}

// clientFor returns a client of this node's API for a credential that the viewer of a request has shown.
func (s *Server) clientFor(r *http.Request, secret string) (*client.Client, error) {
	return s.clientAt(&transport{api: s.API, remote: r.RemoteAddr, tls: r.TLS}, secret)
}

// clientAt returns a client that calls through a transport. The address is never connected to.
func (s *Server) clientAt(t *transport, secret string) (*client.Client, error) {
	return client.New(client.Config{Server: "http://" + s.Node, Insecure: true, Token: secret, HTTP: &http.Client{Transport: t}})
}

// transport calls the API's handler in this process, on behalf of a viewer. The API sees the address and the client
// certificate of the viewer's connection.
type transport struct {
	api    http.Handler
	remote string // the address of the viewer, as in http.Request.RemoteAddr
	tls    *tls.ConnectionState
}

// RoundTrip implements http.RoundTripper. It returns when the handler begins its answer. The handler's context ends when
// the body of the answer is closed.
func (t *transport) RoundTrip(out *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(out.Context())

	in := out.WithContext(ctx)
	u := *out.URL
	u.Scheme, u.Host = "", ""
	in.URL, in.Header = &u, out.Header.Clone()
	in.RemoteAddr, in.TLS, in.RequestURI = t.remote, t.tls, u.RequestURI()
	if in.Body == nil {
		in.Body = http.NoBody
	}

	body, writer := io.Pipe()
	w := &pipedAnswer{header: http.Header{}, body: writer, begun: make(chan struct{})}
	callgroup.Start(func() {
		defer cancel()
		w.finish(callgroup.Catch(func() { t.api.ServeHTTP(w, in) }))
	}, func(*callgroup.Panic) {})

	select {
	case <-w.begun:
	case <-ctx.Done():
	}

	// The context also ends when the handler returns, which may be before this goroutine has noticed the answer.
	select {
	case <-w.begun:
	default:
		body.CloseWithError(ctx.Err())
		cancel()
		return nil, context.Cause(ctx)
	}

	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: &answerBody{body, cancel}, ContentLength: -1, Request: out,
	}, nil
}

// answerBody ends the request when it is closed.
type answerBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *answerBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// pipedAnswer is the http.ResponseWriter of a call in this process. Only the goroutine of the handler uses it, until begun
// is closed.
type pipedAnswer struct {
	header http.Header
	body   *io.PipeWriter

	once   sync.Once
	begun  chan struct{} // closed when status and sent are set
	status int
	sent   http.Header
}

func (a *pipedAnswer) Header() http.Header { return a.header }

func (a *pipedAnswer) WriteHeader(status int) {
	if status < 200 {
		return // interim responses are for slow networks
	}

	a.once.Do(func() {
		a.status, a.sent = status, a.header.Clone()
		close(a.begun)
	})
}

func (a *pipedAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// Flush lets a stream begin. Each write reaches the reader at once.
func (a *pipedAnswer) Flush() { a.WriteHeader(http.StatusOK) }

// finish ends the answer when the handler has returned. A panic of the handler, which the API has logged, cuts the answer off,
// as net/http would do.
func (a *pipedAnswer) finish(p *callgroup.Panic) {
	if p != nil {
		a.WriteHeader(http.StatusInternalServerError)
		a.body.CloseWithError(io.ErrUnexpectedEOF)
		return
	}

	a.WriteHeader(http.StatusOK)
	a.body.Close()
}

const (
	// failuresKept is for how long a failed reading is not repeated. While the API is slow, viewers so do not wait for each
	// other's attempts in turn.
	failuresKept = 2 * time.Second
	// unusedKept is for how long a value is kept that nobody asks for.
	unusedKept = time.Minute
)

// sharedCache keeps what all viewers with the same rights see, so that it is read once. The zero value is empty.
type sharedCache[T any] struct {
	mu  sync.Mutex
	all map[access.Digest]*sharedValue[T]
}

// sharedValue is the value for some rights.
type sharedValue[T any] struct {
	asked time.Time // guarded by the mutex of the cache

	// turn holds an element while somebody uses the fields below. It is not a mutex, because a waiter may give up.
	turn  chan struct{}
	at    time.Time // zero: not read yet
	value T
	err   error
}

// get returns the value for the rights of a viewer. Unless the one that is kept is fresh, it is read: by one viewer, for
// whom others with the same rights wait. A value is kept only if the rights were the same all the time.
func (c *sharedCache[T]) get(ctx context.Context, q *Request, fresh func(at time.Time) bool, read func(context.Context) (T, error)) (value T, err error) {
	before := q.access()
	rights := before.Digest(q.caller, q.Now)

	v := c.entry(rights, q.Now)
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return value, ctx.Err()
	}

	switch {
	case v.at.IsZero():
	case v.err == nil && fresh(v.at):
		return v.value, nil
	case v.err != nil && q.Now.Sub(v.at) < failuresKept:
		return value, v.err
	}

	value, err = read(ctx)
	if ctx.Err() != nil {
		return value, err // the viewer has left, which says nothing about the API
	}
	if after := q.access(); after.Fence == before.Fence && after.Digest(q.caller, q.Now) == rights {
		v.at, v.value, v.err = q.Now, value, err
	}

	return value, err
}

// entry returns the place of the value for some rights, and forgets values that nobody uses.
func (c *sharedCache[T]) entry(rights access.Digest, now time.Time) *sharedValue[T] {
	c.mu.Lock()
	defer c.mu.Unlock()

	v := c.all[rights]
	if v == nil {
		for r, other := range c.all {
			if now.Sub(other.asked) > unusedKept {
				delete(c.all, r)
			}
		}

		if c.all == nil {
			c.all = map[access.Digest]*sharedValue[T]{}
		}
		v = &sharedValue[T]{turn: make(chan struct{}, 1)}
		c.all[rights] = v
	}
	v.asked = now

	return v
}
