package ui

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// servePage serves a screen.
func (s *Server) servePage(w http.ResponseWriter, r *http.Request, screen *Screen) {
	who, ok := s.useSession(w, r)
	if !ok {
		s.toLogin(w, r)
		return
	}

	q, err := s.newRequest(r, who)
	if err != nil {
		s.toLogin(w, r)
		return
	}

	v := s.newView(r, q, who, screen)
	v.Message = s.takeMessage(w, r)
	s.showScreen(w, r, http.StatusOK, v)
}

// newView returns the view of a screen, before its data are loaded.
func (s *Server) newView(r *http.Request, q *Request, who session, screen *Screen) *View {
	return &View{Request: q, Page: s.page(r, ""), Viewer: s.viewer(q, who), screen: screen, server: s, tmpl: s.templates.screens[screen.Name]}
}

// showScreen loads a screen and answers with its page. A problem that v has already keeps its place.
func (s *Server) showScreen(w http.ResponseWriter, r *http.Request, status int, v *View) {
	var data any
	var err error
	callgroup.Run(
		func() { data, err = v.screen.Load(r.Context(), v.Request) },
		func() { v.counts = s.countsFor(r.Context(), v.Request) },
	)

	switch {
	case isUnauthorized(err):
		s.clearCookies(w, r)
		s.toLogin(w, r)
		return
	case err != nil:
		p := problemOf(err)
		if v.Problem == nil {
			v.Problem, status = p, p.status()
		}
		if p.away() {
			v.Away = true
			v.Data, v.Stale = s.hub.lastKnown(v.At(), v.caller)
			w.Header().Set("Retry-After", "5")
		} else {
			v.Data, v.failed = data, true
		}
	default:
		v.Data = data
	}

	v.Title = v.screen.Title(v)
	s.render(w, r, status, v.tmpl, v)
	s.keepForStream(v)
}

// keepForStream keeps the live parts of a page for its stream, if they are the same for all viewers with the same rights:
// if the page shows nothing that its viewer has entered or done, and these rights have not changed meanwhile.
func (s *Server) keepForStream(v *View) {
	if !v.IsLive() || v.Away || v.Problem != nil || v.Message != "" || v.Form != nil || v.Result != nil {
		return
	}

	rights := s.rightsOf(v.view, v.caller)
	if after := s.Access.View(); rights == (access.Digest{}) || after.Fence != v.view.Fence || s.rightsOf(after, v.caller) != rights {
		return
	}

	state := &pageState{at: v.Now}
	for _, name := range v.screen.partNames() {
		i := slices.IndexFunc(v.shown, func(p part) bool { return p.name == name })
		if i < 0 {
			return // the page does not show this part now
		}
		state.parts = append(state.parts, v.shown[i])
	}

	s.hub.keepLoaded(watchKey{canonical(v.At()), rights}, loadedPage{v.Data, state})
}

// serveAction runs the action of a form, and shows its page again.
func (s *Server) serveAction(w http.ResponseWriter, r *http.Request, a Action) {
	who, ok := s.useSession(w, r)
	if !ok {
		s.toLogin(w, r)
		return
	}

	if err := r.ParseForm(); err != nil {
		s.showProblem(w, r, &Problem{Status: http.StatusBadRequest, Message: "the form cannot be read: " + err.Error()})
		return
	}

	q, err := s.newRequest(r, who)
	if err != nil {
		s.toLogin(w, r)
		return
	}
	q.Form = r.PostForm

	done, err := a.Run(r.Context(), q)
	at := localTarget(r.PostForm.Get("at"))
	switch {
	case isUnauthorized(err):
		s.clearCookies(w, r)
		s.toLogin(w, r)
	case err != nil:
		s.showAgain(w, r, who, at, problemOf(err), nil)
	case done.Result != nil:
		s.showAgain(w, r, who, at, nil, done.Result)
	default:
		if done.To != "" {
			at = localTarget(done.To)
		}
		s.setMessage(w, r, done.Message)
		http.Redirect(w, r, at, http.StatusSeeOther)
	}
}

// showAgain shows the page of a form with the problem or the result of its action, and with what was entered.
func (s *Server) showAgain(w http.ResponseWriter, r *http.Request, who session, at string, p *Problem, result any) {
	screen, page := s.screenAt(r.Context(), at)
	if screen == nil {
		if p == nil {
			p = &Problem{Status: http.StatusNotFound, Code: client.CodeNoRoute, Message: "the page of the form is not known"}
		}
		s.showProblem(w, r, p)
		return
	}

	page.RemoteAddr, page.TLS, page.Host = r.RemoteAddr, r.TLS, r.Host
	q, err := s.newRequest(page, who)
	if err != nil {
		s.toLogin(w, r)
		return
	}
	q.Form, q.Result = r.PostForm, result

	v := s.newView(r, q, who, screen)
	status := http.StatusOK
	if p != nil {
		v.Problem, status = p, p.status()
	}
	s.showScreen(w, r, status, v)
}

// foundKey is the context key of the screen that a lookup finds.
type foundKey struct{}

// found is what a lookup finds.
type found struct {
	screen  *Screen
	request *http.Request // with the values of the path
}

// noteScreen is called by the lookup with the screen of a path.
func noteScreen(r *http.Request, screen *Screen) {
	if f, ok := r.Context().Value(foundKey{}).(*found); ok {
		f.screen, f.request = screen, r
	}
}

// screenAt returns the screen at a path and query, and a request for it; nil if there is none.
func (s *Server) screenAt(ctx context.Context, at string) (*Screen, *http.Request) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, nil
	}

	f := &found{}
	r, err := http.NewRequestWithContext(context.WithValue(ctx, foundKey{}, f), http.MethodGet, u.RequestURI(), http.NoBody)
	if err != nil {
		return nil, nil
	}
	s.lookup.ServeHTTP(discard{}, r)

	return f.screen, f.request
}

// viewer describes who looks at a page.
func (s *Server) viewer(q *Request, who session) Viewer {
	v := Viewer{Subject: who.caller.Subject, Until: who.token.Until}
	for _, b := range access.BindingsInScope(who.token.Scope, q.view.BindingsOfCaller(who.caller)) {
		if !b.Until.IsZero() && !q.Now.Before(b.Until.Time) {
			continue
		}

		where := "in the cluster"
		if !b.Cluster {
			where = "in " + strings.Join(b.Namespaces, ", ")
		}
		v.Roles = append(v.Roles, b.Role+" "+where)
	}

	if scope := who.token.Scope; scope != nil {
		v.Scope = scope.Role
		if len(scope.Namespaces) > 0 {
			v.Scope += " in " + strings.Join(scope.Namespaces, ", ")
		}
	}

	return v
}

// discard takes the answers of the lookup for paths that are not a screen.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// Problem is why something failed, as the API says it.
type Problem struct {
	Status  int
	Code    string
	Field   string // the field of the form that it is about, if any
	Message string
	Hint    string
	Faults  []Fault // all that is wrong with a form, if that is more than one thing; the first one is Field and Message
}

// Fault is something that is wrong with a form.
type Fault struct{ Field, Message string }

// problemOf converts an error of package client.
func problemOf(err error) *Problem {
	var all formErrors
	if errors.As(err, &all) {
		return all.problem()
	}

	var e *client.Error
	if errors.As(err, &e) {
		p := &Problem{Status: e.Status, Code: e.Code, Field: e.Field, Message: e.Message, Hint: e.Hint}
		if e.Status == 0 && errors.Is(err, context.DeadlineExceeded) {
			p.Message, p.Hint = "the API did not answer in time", ""
		}
		return p
	}

	var field *task.Error
	if errors.As(err, &field) {
		return &Problem{Status: http.StatusUnprocessableEntity, Code: field.Code, Field: field.Field, Message: field.Message}
	}

	return &Problem{Status: http.StatusInternalServerError, Code: client.CodeInternal, Message: err.Error()}
}

// formErrors is all that is wrong with a form: at least two errors, none of which is a joined one.
type formErrors []error

func (e formErrors) Error() string   { return errors.Join(e...).Error() }
func (e formErrors) Unwrap() []error { return e }

// formOrder is the order of the fields of a task in its form.
var formOrder = []string{"name", "namespace", "description", "labels", "schedule", "after", "join", "timezone", "jitter", "overlap", "missed", "action", "timeout", "target", "retry", "pause_after_failures", "history", "alerts"}

// joinFormErrors returns all errors as one, in the order of the form; nil if there are none. Errors may be nil, or joined by
// errors.Join. Of several about the same field, the first one is kept. That a field is missing is left out if something
// within it is wrong.
func joinFormErrors(errs ...error) error {
	var all formErrors
	var fields []string
	var add func(err error)
	add = func(err error) {
		if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // wrapped errors are single ones
			for _, one := range joined.Unwrap() {
				add(one)
			}
			return
		}
		if err == nil {
			return
		}
		field := problemOf(err).Field
		if field == "" || !slices.ContainsFunc(fields, func(known string) bool { return known == field || strings.HasPrefix(known, field+".") }) {
			all, fields = append(all, err), append(fields, field)
		}
	}
	for _, err := range errs {
		add(err)
	}

	place := func(err error) int {
		top, _, _ := strings.Cut(problemOf(err).Field, ".")
		top, _, _ = strings.Cut(top, "[")
		if i := slices.Index(formOrder, top); i >= 0 {
			return i
		}
		return len(formOrder)
	}
	slices.SortStableFunc(all, func(a, b error) int { return place(a) - place(b) })

	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}

	return all
}

// problem converts the errors.
func (e formErrors) problem() *Problem {
	first := problemOf(e[0])
	for _, err := range e {
		p := problemOf(err)
		first.Faults = append(first.Faults, Fault{p.Field, p.Message})
	}

	return first
}

// messageAbout returns what is wrong with a field, or with something within it: "schedule" is the field of a fault of
// "schedule[1]". It returns "" if nothing is.
func (p *Problem) messageAbout(field string) string {
	for _, f := range slices.Concat(p.Faults, []Fault{{p.Field, p.Message}}) {
		if rest, ok := strings.CutPrefix(f.Field, field); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return f.Message
		}
	}
	return ""
}

// status is the status of a page that shows the problem.
func (p *Problem) status() int {
	if p.Status < http.StatusBadRequest {
		return http.StatusServiceUnavailable
	}
	return p.Status
}

// Heading says in a few words what kind of problem it is.
func (p *Problem) Heading() string {
	switch p.Code {
	case client.CodeProviderAway:
		return "The login provider does not answer"
	case client.CodeProviderSetup:
		return "Logins with this provider are not set up"
	}

	switch status := p.status(); {
	case status == http.StatusForbidden:
		return "You may not do this"
	case status == http.StatusNotFound:
		return "Not found"
	case status == http.StatusTooManyRequests:
		return "Too many requests at the moment"
	case status == http.StatusConflict || status == http.StatusPreconditionFailed:
		return "It has changed meanwhile"
	case p.away():
		return "The cluster does not answer at the moment"
	case status >= http.StatusInternalServerError:
		return "Something went wrong"
	}

	return "That was not possible"
}

// away reports whether the same request may succeed later, without any change.
func (p *Problem) away() bool {
	if p.Code == client.CodeProviderSetup {
		return false
	}

	switch p.status() {
	case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return true
	}
	return false
}
