package ui

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
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

// discard takes the answers of the lookup for paths that are no screen.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
