package ui

import (
	"html"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/internal/test/oidcprovider"
)

var callback = "http://127.0.0.1:7070" + client.LoginCallbackPath("corp")

var annAtCorp = oidcprovider.User{Subject: "1", Name: "Ann", Groups: []string{"ops"}}

// oidcWorld is a world whose people can sign in with a provider.
type oidcWorld struct {
	*world
	provider *oidcprovider.Provider
}

func newOIDCWorld(t *testing.T) *oidcWorld {
	t.Helper()

	w := &oidcWorld{world: newWorld(t)}
	w.provider = oidcprovider.New(t, oidcprovider.Client{ID: "carillon", Redirects: []string{callback}})
	w.provider.Now = w.Clock.Now

	providers := []oidclogin.Provider{{Name: "corp", Display: `Corp <script>alert(1)</script>`, Issuer: w.provider.URL, ClientID: "carillon"}}
	must(t, oidclogin.ValidateProviders("oidc", providers))
	transport := &http.Transport{DisableKeepAlives: true}
	logins := oidclogin.New(oidclogin.Config{Providers: providers, Key: w.Store.LoginKey, Now: w.Clock.Now, Transport: transport})
	w.api = w.apiWith(func(c *api.Config) {
		c.Logins, c.LoginRedirect = logins, func(string) (string, error) { return callback, nil }
	})

	return w
}

// visitor returns a browser that keeps cookies.
func (w *oidcWorld) visitor() *browser {
	w.t.Helper()

	b := w.as("")
	jar, err := cookiejar.New(nil)
	must(w.t, err)
	b.client.Jar = secureOnLoopback{jar}

	return b
}

// secureOnLoopback is a cookie jar that treats loopback like an encrypted connection, as most browsers do.
type secureOnLoopback struct{ http.CookieJar }

func (s secureOnLoopback) SetCookies(u *url.URL, cookies []*http.Cookie) {
	s.CookieJar.SetCookies(encrypted(u), cookies)
}

func (s secureOnLoopback) Cookies(u *url.URL) []*http.Cookie {
	return s.CookieJar.Cookies(encrypted(u))
}

func encrypted(u *url.URL) *url.URL {
	c := *u
	c.Scheme = "https"

	return &c
}

// begin opens the login page and follows its link to the provider. It returns the address of the provider's page.
func (b *browser) begin(page string) string {
	b.w.t.Helper()

	link := regexp.MustCompile(`href="(/ui/login/oidc/[^"]*)"`).FindStringSubmatch(b.page(page))
	if link == nil {
		b.w.t.Fatal("the login page has no link to the provider")
	}

	a := b.get(html.UnescapeString(link[1]))
	if a.StatusCode != http.StatusSeeOther {
		b.w.t.Fatalf("GET %s: %d %s", link[1], a.StatusCode, a.body)
	}

	return a.Header.Get("Location")
}

func TestOIDC_SigningInLeadsToThePageThatWasWanted(t *testing.T) {
	w := newOIDCWorld(t)
	w.Bind("group:corp/ops", access.RoleViewer)
	b := w.visitor()

	if a := b.get("/ui/nodes?tz=UTC"); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/login?next=%2Fui%2Fnodes%3Ftz%3DUTC" {
		t.Fatalf("without a session: %d to %s", a.StatusCode, a.Header.Get("Location"))
	}

	back := w.provider.SignIn(t, b.begin("/ui/login?next=%2Fui%2Fnodes%3Ftz%3DUTC"), annAtCorp)
	a := b.get(back.RequestURI())
	if a.StatusCode != http.StatusSeeOther || strings.Contains(a.Header.Get("Location"), "code=") {
		t.Fatalf("with the provider's answer: %d to %s: %s", a.StatusCode, a.Header.Get("Location"), a.body)
	}

	a = b.get(a.Header.Get("Location"))
	if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/nodes?tz=UTC" {
		t.Fatalf("after the login: %d to %s", a.StatusCode, a.Header.Get("Location"))
	}
	if page := b.page("/ui/nodes?tz=UTC"); !strings.Contains(page, "user:corp/1") {
		t.Error("the page does not say who has signed in")
	}
}

func TestOIDC_CookiesAreProtected(t *testing.T) {
	w := newOIDCWorld(t)
	w.Bind("user:corp/1", access.RoleViewer)

	for name, c := range map[string]struct {
		edit func(r *http.Request)
		want []string
	}{
		"on loopback":            {func(*http.Request) {}, []string{"__Host-carillon-login-", "carillon-login-"}},
		"elsewhere, without TLS": {func(r *http.Request) { r.Host = "carillon.example.com" }, []string{"carillon-login-"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := w.as("").get("/ui/login/oidc/corp?moved=1", c.edit)
			cookies := a.Cookies()
			if a.StatusCode != http.StatusSeeOther || len(cookies) != len(c.want) {
				t.Fatalf("%d with %v", a.StatusCode, cookies)
			}
			for i, cookie := range cookies {
				secure := strings.HasPrefix(cookie.Name, securePrefix)
				if !strings.HasPrefix(cookie.Name, c.want[i]) || cookie.Secure != secure || !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode || cookie.Path != "/" || cookie.MaxAge != 600 || cookie.Domain != "" {
					t.Errorf("the cookie is %s", cookie)
				}
			}
		})
	}
}

// Some browsers take no secure cookie on loopback. Then the session is in a plain one.
func TestOIDC_PlainCookieWhereTheBrowserTakesNoOther(t *testing.T) {
	w := newOIDCWorld(t)
	w.Bind("user:corp/1", access.RoleViewer)
	b := w.as("")

	begun := b.get("/ui/login/oidc/corp")
	back := w.provider.SignIn(t, begun.Header.Get("Location"), annAtCorp)
	a := b.get(back.RequestURI(), func(r *http.Request) {
		for _, c := range begun.Cookies() {
			if !c.Secure {
				r.AddCookie(c)
			}
		}
	})

	for _, c := range a.Cookies() {
		if c.Value != "" && (c.Secure || strings.HasPrefix(c.Name, securePrefix)) {
			t.Errorf("the session is in the cookie %s", c.Name)
		}
	}
	if a.StatusCode != http.StatusSeeOther {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestOIDC_RefusedLoginsShowTheReason(t *testing.T) {
	w := newOIDCWorld(t)

	// Nobody has a binding.
	b := w.visitor()
	back := w.provider.SignIn(t, b.begin("/ui/login"), annAtCorp)
	a := b.get(back.RequestURI())
	if a.StatusCode != http.StatusForbidden || !strings.Contains(a.body, "you are signed in as user:corp/1 (Ann), but have no access") {
		t.Errorf("without a binding: %d %s", a.StatusCode, a.body)
	}

	// The answer is used up, and its cookie is gone.
	a = b.get(back.RequestURI())
	if a.StatusCode != http.StatusUnauthorized || !strings.Contains(a.body, "no login is under way in this browser") {
		t.Errorf("the answer again: %d %s", a.StatusCode, a.body)
	}

	// Another site leads somebody here with the answer to a login of its own.
	back = w.provider.SignIn(t, w.visitor().begin("/ui/login"), annAtCorp)
	victim := w.visitor()
	victim.begin("/ui/login")
	a = victim.get(back.RequestURI(), header("Sec-Fetch-Site", "cross-site"))
	if a.StatusCode != http.StatusUnauthorized || !strings.Contains(a.body, "belongs to another login") {
		t.Errorf("the answer to another login: %d %s", a.StatusCode, a.body)
	}

	a = w.visitor().get("/ui/login/oidc/nosuch")
	if a.StatusCode != http.StatusNotFound || !strings.Contains(a.body, "no login provider") {
		t.Errorf("an unknown provider: %d %s", a.StatusCode, a.body)
	}

	// What a provider says is shown, and does nothing.
	evil := w.visitor()
	back = w.provider.SignIn(t, evil.begin("/ui/login"), annAtCorp)
	q := back.Query()
	q.Set("error", "<script>alert(1)</script>")
	a = evil.get(back.Path + "?" + q.Encode())
	if a.StatusCode != http.StatusUnauthorized || strings.Contains(a.body, "<script>alert") || !strings.Contains(a.body, "&lt;script&gt;alert") {
		t.Errorf("a hostile answer: %d %s", a.StatusCode, a.body)
	}
}

func TestOIDC_LoginPageSaysWhyAProviderIsNotAvailable(t *testing.T) {
	w := newOIDCWorld(t)
	w.provider.Close()

	page := w.visitor().page("/ui/login")
	if strings.Contains(page, "/ui/login/oidc/") || !strings.Contains(page, "the provider does not answer") || strings.Contains(page, "<script>alert") {
		t.Errorf("the page is %s", page)
	}
	a := w.visitor().get("/ui/login/oidc/corp")
	if a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(a.body, `name="token"`) {
		t.Errorf("the login: %d %s", a.StatusCode, a.body)
	}
	if !strings.Contains(a.body, "The login provider does not answer") || strings.Contains(a.body, "The cluster does not answer") {
		t.Errorf("the heading of %s", a.body)
	}
}

// The provider knows one address of the cluster. A browser that uses another one is sent there, once.
func TestOIDC_BrowserAtAnotherAddress(t *testing.T) {
	w := newOIDCWorld(t)
	at := func(r *http.Request) { r.Host = "localhost:7070" }

	a := w.visitor().get("/ui/login/oidc/corp?next=%2Fui%2Fnodes", at)
	if got := a.Header.Get("Location"); a.StatusCode != http.StatusSeeOther || got != "http://127.0.0.1:7070/ui/login/oidc/corp?moved=1&next=%2Fui%2Fnodes" || len(a.Cookies()) != 0 {
		t.Errorf("%d to %s with %v", a.StatusCode, got, a.Cookies())
	}

	a = w.visitor().get("/ui/login/oidc/corp?moved=1", at)
	if got := a.Header.Get("Location"); !strings.HasPrefix(got, w.provider.URL) {
		t.Errorf("after that: %d to %s", a.StatusCode, got)
	}
}

func TestOIDC_ReturnsToPagesOfTheClusterOnly(t *testing.T) {
	w := newOIDCWorld(t)
	w.Bind("user:corp/1", access.RoleViewer)

	for _, next := range []string{"https://evil.example/", "//evil.example/ui", "/v1/tasks", "javascript:alert(1)"} {
		b := w.visitor()
		back := w.provider.SignIn(t, b.begin("/ui/login?next="+url.QueryEscape(next)), annAtCorp)
		if a := b.get(back.RequestURI()); a.Header.Get("Location") != "/ui/login?check=1&next=%2Fui" {
			t.Errorf("%s: %d to %s", next, a.StatusCode, a.Header.Get("Location"))
		}
	}
}
