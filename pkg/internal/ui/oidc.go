package ui

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
)

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
// leads to another site. It changes nothing but a cookie, so another site that leads a browser here only makes it begin a
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
