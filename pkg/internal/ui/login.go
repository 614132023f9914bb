package ui

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
)

// loginPage is what the login page shows.
type loginPage struct {
	Page
	Next    string // where to go after the login
	Problem *Problem
	// NoCookie is set if the browser did not send the cookie of the login back.
	NoCookie bool
	// Plain asks for a cookie that is not marked as secure, for browsers that accept no other on loopback.
	Plain     bool
	Providers []Provider
}

// Provider is a way to sign in beside a token, such as an OIDC provider.
type Provider struct {
	Label   string // "Sign in with LABEL"
	Path    string // the page that begins the login, below /ui
	Problem string // why it is not available now; "" if it is
}

// serveLogin shows the login page. With check, the browser comes from a successful login and should have a session.
func (s *Server) serveLogin(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	next := localTarget(q.Get("next"))
	if _, ok := s.sessionOf(r); ok {
		http.Redirect(w, r, next, http.StatusSeeOther)
		return
	}

	s.showLogin(w, r, http.StatusOK, loginPage{Next: next, NoCookie: q.Has("check")})
}

// showLogin renders the login page.
func (s *Server) showLogin(w http.ResponseWriter, r *http.Request, status int, p loginPage) {
	p.Page = s.page(r, "Sign in")
	p.Plain = p.NoCookie && !s.encrypted(r) && isLoopback(r.Host)
	p.Providers = s.loginProviders(r, p.Next)

	s.render(w, r, status, s.templates.login, p)
}

// toLogin sends a browser to the login page, from where it comes back. A form that was posted without a session goes back
// to its page.
func (s *Server) toLogin(w http.ResponseWriter, r *http.Request) {
	next := r.URL.RequestURI()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		next = localTarget(r.PostFormValue("at"))
	}

	target := "/ui/login"
	if next = localTarget(next); next != home {
		target += "?" + url.Values{"next": {next}}.Encode()
	}

	http.Redirect(w, r, target, http.StatusSeeOther)
}

// login exchanges a token for a session. The API decides whether the token is valid.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	next := localTarget(r.PostFormValue("next"))
	token := strings.TrimSpace(r.PostFormValue("token"))

	refuse := func(status int, p *Problem) {
		s.showLogin(w, r, status, loginPage{Next: next, Problem: p})
	}
	if token == "" {
		refuse(http.StatusUnprocessableEntity, &Problem{Field: "token", Message: "is required"})
		return
	}

	secret, err := s.startSession(r, token)
	if err != nil {
		p := problemOf(err)
		if p.Status == http.StatusUnauthorized {
			p.Hint = "" // the hint is about headers
		}
		p.Field = "token"
		refuse(p.status(), p)
		return
	}

	s.setCookie(w, r, secret, r.PostFormValue("plain") == "1")
	http.Redirect(w, r, "/ui/login?"+url.Values{"check": {"1"}, "next": {next}}.Encode(), http.StatusSeeOther)
}

// startSession returns the secret of a session of a token's holder.
func (s *Server) startSession(r *http.Request, token string) (string, error) {
	api, err := s.clientFor(r, token)
	if err != nil {
		return "", &client.Error{Status: http.StatusUnauthorized, Code: client.CodeUnauthorized, Message: "the token is not known"}
	}
	if _, err := api.Version(r.Context()); err != nil {
		return "", err
	}

	return token, nil
}

// logout ends the session.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	s.clearCookies(w, r)
	http.Redirect(w, r, "/ui/login", http.StatusSeeOther)
}

// isUnauthorized reports whether the API has refused a viewer's credential.
func isUnauthorized(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == http.StatusUnauthorized
}
