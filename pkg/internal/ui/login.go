package ui

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
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
	// Link is the secret of a login link that the page offers to use, and LinkSubject who is signed in by it.
	Link, LinkSubject string
	// ReadsLink is set if the browser has opened a login link, whose secret the script of the page posts.
	ReadsLink bool
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
	if q.Has("check") {
		s.awaitSession(r)
	}
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

	target := client.LoginPath
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
	if _, _, ok := authority.ParseSecret(token); !ok {
		refuse(http.StatusUnprocessableEntity, &Problem{Field: "token", Message: "is not a complete token: a token has the form carillon_ID_SECRET"})
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

	s.enter(w, r, secret, next)
}

// enter gives the browser a session, and has it show that it keeps the cookie.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, secret, next string) {
	s.endFormerSession(r)
	s.beginSession(w, r, secret, r.PostFormValue("plain") == "1")
	http.Redirect(w, r, client.LoginPath+"?"+url.Values{"check": {"1"}, "next": {next}}.Encode(), http.StatusSeeOther)
}

// endFormerSession ends the session that a login replaces in a browser: nobody could end it any more, and pages that the
// browser has open show what its subject may read. If that fails, it ends by itself within eight hours.
func (s *Server) endFormerSession(r *http.Request) {
	former, ok := s.anySession(r)
	if !ok {
		return
	}

	api, err := s.clientFor(r, former.secret)
	if err == nil {
		err = api.Sessions.End(r.Context())
	}
	if err != nil && !isUnauthorized(err) {
		s.log.Warn("the former session of a browser has not ended", zap.String("session", former.caller.Token), zap.Error(err))
	}
}

// startSession creates a session of a token, and returns its secret.
func (s *Server) startSession(r *http.Request, token string) (string, error) {
	api, err := s.clientFor(r, token)
	if err != nil {
		return "", &client.Error{Status: http.StatusUnauthorized, Code: client.CodeUnauthorized, Message: "the token is not known"}
	}

	session, err := api.Sessions.Create(r.Context())

	return session.Secret, err
}

// serveLink shows the page that a login link opens. The secret of the link is in the fragment of the address, which browsers
// do not send: it is in no log of a proxy or of this node. The script of the page takes it out of the address, so that it
// does not stay in the history of the browser, and posts it.
func (s *Server) serveLink(w http.ResponseWriter, r *http.Request) {
	s.showLogin(w, r, http.StatusOK, loginPage{Next: home, ReadsLink: true})
}

// postLink receives the secret of a login link: from the script of its page, to show whose it is, and from the button.
func (s *Server) postLink(w http.ResponseWriter, r *http.Request) {
	link := r.PostFormValue("link")
	if r.PostFormValue("confirm") == "" {
		s.offerLink(w, r, link)
		return
	}

	s.useLink(w, r, link)
}

// offerLink shows the page of a login link, which has one button. Nothing is used up before the button is pressed, because
// programs that preview links, and browsers that fetch pages ahead, open the page, too. The page names the subject, so that
// nobody works unknowingly with a session that somebody else has sent.
func (s *Server) offerLink(w http.ResponseWriter, r *http.Request, link string) {
	view := s.Access.View()
	id, hash, _ := authority.ParseSecret(link)
	token, ok := view.Verify(id, hash)

	if !ok || token.Kind != task.TokenKindLink || view.TokenProblem(access.Caller{Subject: token.Subject, Token: id}, s.Now()) != "" {
		s.showLogin(w, r, http.StatusUnauthorized, loginPage{Next: home, Problem: deadLink})
		return
	}

	s.showLogin(w, r, http.StatusOK, loginPage{Next: home, Link: link, LinkSubject: token.Subject})
}

// deadLink is why a login link does nothing.
var deadLink = &Problem{
	Status: http.StatusUnauthorized, Code: client.CodeUnauthorized, Message: "this login link was used already, or has expired",
	Hint: "carillon ui creates another one",
}

// useLink exchanges a login link for a session.
func (s *Server) useLink(w http.ResponseWriter, r *http.Request, link string) {
	api, err := s.clientFor(r, link)
	if err != nil {
		s.showLogin(w, r, http.StatusUnauthorized, loginPage{Next: home, Problem: deadLink})
		return
	}

	session, err := api.Sessions.UseLink(r.Context())
	if err != nil {
		p := problemOf(err)
		if p.Status == http.StatusUnauthorized || p.Status == http.StatusForbidden {
			p = deadLink
		}
		s.showLogin(w, r, p.status(), loginPage{Next: home, Problem: p})
		return
	}

	s.enter(w, r, session.Secret, home)
}

// endOtherSessions ends all other sessions of the same login or token: those in other browsers, on which somebody may have
// forgotten to sign out.
func endOtherSessions(ctx context.Context, api *client.Client, current session) error {
	all, err := api.Tokens.ListWithSessions(ctx, current.caller.Subject)
	if err != nil {
		return err
	}

	for _, t := range all {
		if t.Kind != task.TokenKindSession || t.Parent != current.token.Parent || t.ID == current.token.ID {
			continue
		}
		if err := api.Tokens.Delete(ctx, t.ID); err != nil && !errors.Is(err, task.ErrNotFound) {
			return err
		}
	}

	return nil
}

// logout ends the session, and with everywhere all others of the same login or token. The browser forgets it in any case.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	s.clearCookies(w, r)

	current, ok := s.anySession(r)
	if !ok {
		http.Redirect(w, r, client.LoginPath, http.StatusSeeOther)
		return
	}

	api, err := s.clientFor(r, current.secret)
	if err == nil && r.PostFormValue("everywhere") != "" {
		err = endOtherSessions(r.Context(), api, current)
	}
	if err == nil {
		err = api.Sessions.End(r.Context())
	}
	if err != nil && !isUnauthorized(err) {
		p := problemOf(err)
		p.Hint = "this browser has forgotten the session, but it has not ended; it ends by itself, or with: carillon token delete " + current.caller.Token
		s.showLogin(w, r, p.status(), loginPage{Next: home, Problem: p})
		return
	}

	http.Redirect(w, r, client.LoginPath, http.StatusSeeOther)
}

// isUnauthorized reports whether the API has refused a viewer's credential.
func isUnauthorized(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == http.StatusUnauthorized
}

// maxLogin is how long a browser keeps the cookie of a login that is under way.
const maxLogin = 10 * time.Minute

// loginCookieNames returns the names of the cookies with the state of a login. On loopback a browser gets both, because some
// accept no secure cookie there: the one that comes back shows which kind the session can have.
func (s *Server) loginCookieNames(r *http.Request) []string {
	names := s.cookieNames(r)
	for i, name := range names {
		prefix := ""
		if strings.HasPrefix(name, securePrefix) {
			prefix = securePrefix
		}
		names[i] = prefix + "carillon-login-" + s.Cluster
	}

	return names
}

// setLoginCookies keeps the state of a login in the browser; "" removes it. The cookie is not Strict: the provider's answer is a
// navigation from another site.
func (s *Server) setLoginCookies(w http.ResponseWriter, r *http.Request, state string) {
	age := int(maxLogin / time.Second)
	if state == "" {
		age = -1
	}

	for _, name := range s.loginCookieNames(r) {
		http.SetCookie(w, &http.Cookie{
			Name: name, Value: state, Path: "/", MaxAge: age, HttpOnly: true, Secure: strings.HasPrefix(name, securePrefix), SameSite: http.SameSiteLaxMode,
		})
	}
}

// loginProviders returns the OpenID Connect providers for the login page. next is the page that is shown after the login.
func (s *Server) loginProviders(r *http.Request, next string) []Provider {
	api, err := s.clientFor(r, "")
	if err != nil {
		return nil
	}

	list, err := api.Logins.Providers(r.Context())
	if err != nil {
		return nil // the form for a token is there in any case, and says what is wrong
	}

	var providers []Provider
	for _, p := range list {
		path := client.LoginPath + "/oidc/" + url.PathEscape(p.Name)
		if next != home {
			path += "?" + url.Values{"next": {next}}.Encode()
		}
		providers = append(providers, Provider{Label: p.Display, Path: path, Problem: p.Problem})
	}

	return providers
}

// beginOIDC sends the browser to a provider. It is a link and not a form: the Content Security Policy forbids that a form
// leads to another site. It changes only a cookie, so another site that leads a browser here only makes it begin a
// login of its own user.
func (s *Server) beginOIDC(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	next := localTarget(q.Get("next"))

	api, err := s.clientFor(r, "")
	if err != nil {
		s.refuseOIDC(w, r, next, err)
		return
	}

	login, err := api.Logins.BeginWeb(r.Context(), client.WebLoginRequest{Provider: r.PathValue("provider"), ReturnTo: next})
	if err != nil {
		s.refuseOIDC(w, r, next, err)
		return
	}

	// The provider sends the browser back to one address of the cluster, and cookies of other addresses are not sent there. A
	// proxy can hide the address that the browser uses, so the browser is sent there once only.
	if host, at := loginTarget(login.URL); at != "" && !strings.EqualFold(host, r.Host) && !q.Has("moved") {
		q.Set("moved", "1")
		http.Redirect(w, r, at+r.URL.EscapedPath()+"?"+q.Encode(), http.StatusSeeOther)
		return
	}

	s.setLoginCookies(w, r, login.State)
	http.Redirect(w, r, login.URL, http.StatusSeeOther)
}

// loginTarget returns the host, and the scheme and host, to which a provider sends the browser back.
func loginTarget(provider string) (host, origin string) {
	u, err := url.Parse(provider)
	if err != nil {
		return "", ""
	}

	back, err := url.Parse(u.Query().Get("redirect_uri"))
	if err != nil || back.Host == "" {
		return "", ""
	}

	return back.Host, back.Scheme + "://" + back.Host
}

// finishOIDC receives the browser with the answer of a provider, and gives it a session.
func (s *Server) finishOIDC(w http.ResponseWriter, r *http.Request) {
	state, plain := "", false
	for _, name := range s.loginCookieNames(r) {
		if c, err := r.Cookie(name); err == nil && c.Value != "" {
			state, plain = c.Value, !strings.HasPrefix(name, securePrefix)
			break
		}
	}

	s.setLoginCookies(w, r, "") // an answer is used once

	api, err := s.clientFor(r, "")
	if err != nil {
		s.refuseOIDC(w, r, home, err)
		return
	}

	session, err := api.Logins.FinishWeb(r.Context(), r.PathValue("provider"), state, r.URL.Query())
	if err != nil {
		s.refuseOIDC(w, r, home, err)
		return
	}

	// The next page does not have the code in its address, and checks that the cookie has arrived.
	s.endFormerSession(r)
	s.beginSession(w, r, session.Secret, plain)
	http.Redirect(w, r, client.LoginPath+"?"+url.Values{"check": {"1"}, "next": {localTarget(session.ReturnTo)}}.Encode(), http.StatusSeeOther)
}

// refuseOIDC shows the login page with the reason why a login with a provider did not succeed.
func (s *Server) refuseOIDC(w http.ResponseWriter, r *http.Request, next string, err error) {
	p := problemOf(err)
	s.showLogin(w, r, p.status(), loginPage{Next: next, Problem: p})
}
