package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/docs"
	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/docsite"
	"github.com/carillonhq/carillon/pkg/internal/authority"
)

// Config contains what the pages of a node need.
type Config struct {
	// API is the handler of the node's API. It also answers all requests that are not for a page.
	API http.Handler
	// Access has the node's copy of the access records. Pages ask it who a session belongs to and which buttons to offer;
	// it allows nothing.
	Access Access
	// Cluster is the id of the cluster, Node the name of the node, and Version that of Carillon.
	Cluster, Node, Version string
	// Key returns the cluster's random key, under which the cookies of sessions are sealed. All nodes with pages need the same
	// one. It is called until it has succeeded once.
	Key func(ctx context.Context) ([KeyBytes]byte, error)
	// Origin is https://HOST[:PORT] of a proxy in front of the node that ends TLS, or "".
	Origin string
	// Now is the node's wall clock; nil means time.Now.
	Now func() time.Time
	// Ends, if set, is closed when the node stops serving requests. Streams end then.
	Ends <-chan struct{}
	// Logger may be nil.
	Logger *zap.Logger
}

// Access is the node's copy of the access records.
type Access interface {
	View() *authority.View
	// Await returns the first view for which is returns true, or an error if ctx ends first.
	Await(ctx context.Context, is func(*authority.View) bool) (*authority.View, error)
}

// home is the path of the start page, and the prefix of all others.
const home = "/ui"

// manual is the path of the manual, and the prefix of its pages.
const manual = "/docs"

// Server serves the pages of a node, and passes all other requests to its API.
type Server struct {
	Config
	log       *zap.Logger
	list      []Screen
	templates *templates
	mux       *http.ServeMux
	lookup    *http.ServeMux // finds the screen of a path, for streams
	guarded   http.Handler   // mux, behind the check of the origin
	hub       *hub
	cookies   *cookieSealer
	manual    *docsite.Handler
	counts    sharedCache[counts]
}

// New returns the pages of a node. It reads no files but embedded ones, and starts no goroutines.
func New(cfg Config) (*Server, error) {
	t, err := embeddedTemplates()
	if err != nil {
		return nil, fmt.Errorf("ui: %w", err)
	}

	return newServer(cfg, screens(), t)
}

// embeddedTemplates returns the templates of the product, which are parsed once for all nodes of a process.
var embeddedTemplates = sync.OnceValues(func() (*templates, error) { return parseTemplates(embedded, screens()) })

// newServer returns the pages of some screens with their templates.
func newServer(cfg Config, list []Screen, t *templates) (*Server, error) {
	if cfg.API == nil || cfg.Access == nil || cfg.Key == nil || cfg.Cluster == "" || cfg.Node == "" {
		return nil, errors.New("ui: API, Access, Key, Cluster and Node are required")
	}

	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}

	s := &Server{Config: cfg, log: cfg.Logger.Named("ui"), list: list, templates: t, mux: http.NewServeMux(), lookup: http.NewServeMux()}
	s.hub, s.cookies, s.manual = newHub(s), newCookieSealer(cfg.Key), docsite.NewHandler(manual, docs.Files, cfg.Version)

	origins := http.NewCrossOriginProtection()
	if cfg.Origin != "" {
		if err := origins.AddTrustedOrigin(cfg.Origin); err != nil {
			return nil, fmt.Errorf("ui: origin: %w", err)
		}
	}
	origins.SetDenyHandler(http.HandlerFunc(s.refuseOrigin))

	s.routes()
	s.guarded = origins.Handler(s.mux)

	return s, nil
}

// routes adds all pages to the muxes.
func (s *Server) routes() {
	s.mux.HandleFunc("GET /ui/static/{file}", s.templates.static.serve)
	s.mux.HandleFunc("GET /ui/login", s.serveLogin)
	s.mux.HandleFunc("POST /ui/login", s.login)
	s.mux.HandleFunc("GET /ui/login/link", s.serveLink)
	s.mux.HandleFunc("POST /ui/login/link", s.postLink)
	s.mux.HandleFunc("GET /ui/login/oidc/{provider}", s.beginOIDC)
	s.mux.HandleFunc("GET /ui/login/oidc/{provider}/callback", s.finishOIDC)
	s.mux.HandleFunc("POST /ui/logout", s.logout)
	s.mux.HandleFunc("POST /ui/theme", s.setTheme)
	s.mux.HandleFunc("GET /ui/live", s.serveLive)
	s.mux.HandleFunc("GET /{$}", s.redirectHome)
	s.mux.HandleFunc("/ui/", s.noPage)

	hasHome := false
	for i := range s.list {
		screen := &s.list[i]
		hasHome = hasHome || screen.Pattern == home
		s.mux.HandleFunc("GET "+screen.Pattern, func(w http.ResponseWriter, r *http.Request) { s.servePage(w, r, screen) })
		s.lookup.HandleFunc("GET "+screen.Pattern, func(_ http.ResponseWriter, r *http.Request) { noteScreen(r, screen) })

		for _, d := range screen.Downloads {
			s.mux.HandleFunc("GET "+d.Pattern, func(w http.ResponseWriter, r *http.Request) { s.serveDownload(w, r, d) })
		}
		for _, a := range screen.Actions {
			s.mux.HandleFunc("POST "+a.Pattern, func(w http.ResponseWriter, r *http.Request) { s.serveAction(w, r, a) })
		}
	}

	if !hasHome {
		s.mux.HandleFunc("GET /ui", s.redirectToFirst)
	}
}

// ServeHTTP serves pages and the manual, and passes all other requests to the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.isSecureOrigin(r) {
		w.Header().Set("Strict-Transport-Security", strictTransport)
	}

	p := r.URL.Path

	// The manual needs no login. It contains nothing of this cluster, and helps most while etcd does not answer.
	if s.manual.Serves(p) {
		setSecurityHeaders(w.Header())
		s.manual.ServeHTTP(w, r)
		return
	}

	page := p == home || strings.HasPrefix(p, home+"/") || p == "/" && acceptsHTML(r)
	if !page || path.Clean(p) != p {
		s.API.ServeHTTP(w, r)
		return
	}

	setSecurityHeaders(w.Header())
	defer func() {
		if p := recover(); p != nil {
			s.answerPanic(w, r, p)
		}
	}()

	if err := s.prepareCookies(r); err != nil {
		s.refuseWithoutKey(w, r, err)
		return
	}

	r.Body = http.MaxBytesReader(w, r.Body, s.maxFormOf(r))
	s.guarded.ServeHTTP(w, r)
}

// prepareCookies makes sure that the node can read the cookie of a request. The files of pages need none.
func (s *Server) prepareCookies(r *http.Request) error {
	if strings.HasPrefix(r.URL.Path, "/ui/static/") {
		return nil
	}

	return s.cookies.prepare(r.Context())
}

// refuseWithoutKey answers while the node cannot read cookies, because etcd has not answered since the node has started. It
// does not lead to the login page: the session may be valid.
func (s *Server) refuseWithoutKey(w http.ResponseWriter, r *http.Request, err error) {
	s.log.Warn("the key of the cookies of sessions cannot be read", zap.Error(err))

	p := &Problem{Status: http.StatusServiceUnavailable, Code: client.CodeUnavailable, Message: "the cluster does not answer, so this node cannot check your session"}
	if r.URL.Path == "/ui/live" {
		out := &stream{w: w, control: http.NewResponseController(w)}
		out.begin()
		_ = out.fault(p)
		return
	}

	w.Header().Set("Retry-After", "5")
	s.showProblem(w, r, p)
}

// strictTransport makes a browser use TLS for a year, whatever address of the host it opens.
const strictTransport = "max-age=31536000"

// isSecureOrigin reports whether a browser has opened the address of the setting ui_origin, which has TLS. Only such answers
// have Strict-Transport-Security: browsers apply it to all ports of a host, so that of a node without the setting would
// make other services on the same host unreachable that have no TLS.
func (s *Server) isSecureOrigin(r *http.Request) bool {
	u, err := url.Parse(s.Origin)

	return err == nil && u.Scheme == "https" && strings.EqualFold(u.Host, r.Host)
}

const (
	// maxForm is the maximum number of bytes that a form may post. A task has at most a MiB.
	maxForm = 4 << 20
	// maxLoginForm is the same for browsers without a session, which can have many connections.
	maxLoginForm = 32 << 10
)

// maxFormOf returns the maximum number of bytes that a request may post.
func (s *Server) maxFormOf(r *http.Request) int64 {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return maxLoginForm
	}
	if _, ok := s.sessionOf(r); !ok {
		return maxLoginForm
	}

	return maxForm
}

// acceptsHTML reports whether a browser asks.
func acceptsHTML(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// contentSecurityPolicy lets pages use only what comes from this node, and no inline script or style.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// setSecurityHeaders sets the headers of all answers. The policy of referrers is not no-referrer: browsers would send
// "Origin: null" with the forms of the page itself, which then look like those of another site on connections without
// TLS, where browsers send no Sec-Fetch-Site.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-store")
}

// redirectHome sends a browser that has opened the address of the node to its pages.
func (s *Server) redirectHome(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, home, http.StatusSeeOther)
}

// redirectToFirst sends a browser to the first screen.
func (s *Server) redirectToFirst(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, s.list[0].Pattern, http.StatusSeeOther)
}

// refuseOrigin answers a form that another site has sent.
func (s *Server) refuseOrigin(w http.ResponseWriter, r *http.Request) {
	s.showProblem(w, r, &Problem{
		Status: http.StatusForbidden, Code: client.CodeForbidden, Message: "this request comes from another site",
		Hint: "if a proxy is in front of this node, set ui_origin to the address that browsers use",
	})
}

// noPage answers a path that is not a page.
func (s *Server) noPage(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.sessionOf(r); !ok {
		s.toLogin(w, r)
		return
	}

	s.showProblem(w, r, &Problem{Status: http.StatusNotFound, Code: client.CodeNoRoute, Message: "there is no such page"})
}

// answerPanic handles a panic of a handler.
func (s *Server) answerPanic(w http.ResponseWriter, r *http.Request, recovered any) {
	p, stack := callgroup.Origin(recovered)
	if p == http.ErrAbortHandler {
		panic(p)
	}

	s.log.Error("panic while serving a page", zap.String("method", r.Method), zap.String("path", r.URL.Path), zap.Any("panic", p), zap.ByteString("stack", stack))
	s.showProblem(w, r, &Problem{Status: http.StatusInternalServerError, Code: client.CodeInternal, Message: "internal error; see the node's log"})
}

// panicked logs a panic of a goroutine that works for a stream, and returns the problem that its page shows.
func (s *Server) panicked(at string, p *callgroup.Panic) error {
	s.log.Error("panic while rendering a page for its viewers", zap.String("at", at), zap.Any("panic", p.Value), zap.ByteString("stack", p.Stack))

	return &client.Error{Status: http.StatusInternalServerError, Code: client.CodeInternal, Message: "internal error; see the node's log"}
}

// problemPage is what a page without a screen shows.
type problemPage struct {
	Page
	Problem *Problem
}

// showProblem answers with a page that says what is wrong.
func (s *Server) showProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	s.render(w, r, p.status(), s.templates.problem, problemPage{s.page(r, p.Heading()), p})
}

// page returns the frame of a page.
func (s *Server) page(r *http.Request, title string) Page {
	return Page{
		Title: title, Time: s.Now().UTC().Format(time.RFC3339Nano), Cluster: s.Cluster, Node: s.Node, Version: s.Version, Theme: s.themeOf(r), Clear: !s.encrypted(r) && !isLoopback(r.Host),
	}
}

// render answers with a page. Nothing is sent if the template fails.
func (s *Server) render(w http.ResponseWriter, r *http.Request, status int, t *template.Template, data any) {
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, "layout.html", data); err != nil {
		s.log.Error("a page cannot be rendered", zap.String("path", r.URL.Path), zap.Error(err))
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintln(w, "This page cannot be shown; see the node's log.")
		return
	}

	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Cookie")
	writeCompressed(w, r, status, b.Bytes())
}

// themeCookie has the theme that a viewer has chosen.
const themeCookie = "carillon-theme"

// themeOf returns the theme of a page: light, dark, or "" for that of the system.
func (s *Server) themeOf(r *http.Request) string {
	if c, err := r.Cookie(s.cookieFor(r, themeCookie).Name); err == nil && (c.Value == "light" || c.Value == "dark") {
		return c.Value
	}
	return ""
}

// setTheme chooses a theme, and returns to the page.
func (s *Server) setTheme(w http.ResponseWriter, r *http.Request) {
	c := s.cookieFor(r, themeCookie)
	c.Value, c.MaxAge, c.SameSite = r.PostFormValue("theme"), 365*24*3600, http.SameSiteLaxMode
	if c.Value != "light" && c.Value != "dark" {
		c.Value, c.MaxAge = "", -1
	}

	http.SetCookie(w, c)
	http.Redirect(w, r, localTarget(r.PostFormValue("at")), http.StatusSeeOther)
}

// The message of an action travels to the next page in a cookie, because the URL of a page is its state, and a link must
// not be able to show a message.
const messageCookie = "carillon-message"

// cookieFor returns a cookie with a name. On an encrypted connection, its name is one that browsers accept only from the node
// itself: no neighbor of the same domain can set it, and it does not travel without encryption.
func (s *Server) cookieFor(r *http.Request, name string) *http.Cookie {
	c := &http.Cookie{Name: name, Path: "/", SameSite: http.SameSiteStrictMode, HttpOnly: true}
	if s.encrypted(r) {
		c.Name, c.Secure = securePrefix+name, true
	}

	return c
}

// setMessage gives the next page a message.
func (s *Server) setMessage(w http.ResponseWriter, r *http.Request, text string) {
	if text == "" {
		return
	}

	c := s.cookieFor(r, messageCookie)
	c.Value, c.MaxAge = url.QueryEscape(text), 60
	http.SetCookie(w, c)
}

// takeMessage returns the message for a page, once.
func (s *Server) takeMessage(w http.ResponseWriter, r *http.Request) string {
	c := s.cookieFor(r, messageCookie)
	sent, err := r.Cookie(c.Name)
	if err != nil {
		return ""
	}
	c.MaxAge = -1
	http.SetCookie(w, c)

	text, err := url.QueryUnescape(sent.Value)
	if err != nil {
		return ""
	}

	return text
}
