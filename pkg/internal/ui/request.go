package ui

import (
	"net/http"
	"net/url"
	"time"

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
