package ui

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// apiFor returns a client of the API with a token.
func (w *world) apiFor(token string) *client.Client {
	w.t.Helper()
	c, err := w.ui.clientAt(&transport{api: w.api, remote: "127.0.0.1:4711"}, token)
	must(w.t, err)

	return c
}

// enter follows the answer to a login: the browser keeps the cookie, and must have arrived.
func (b *browser) enter(a answer) {
	b.w.t.Helper()
	if a.StatusCode != http.StatusSeeOther || len(a.Cookies()) != 1 {
		b.w.t.Fatalf("the login: %d %v %s", a.StatusCode, a.Cookies(), a.body)
	}

	b.cookie = a.Cookies()[0].Value
	b.secret, _, _ = b.w.ui.cookies.open(b.cookie)
	next := b.get(a.Header.Get("Location"))
	if next.StatusCode != http.StatusSeeOther || next.Header.Get("Location") != home {
		b.w.t.Fatalf("after the login: %d %s", next.StatusCode, next.Header.Get("Location"))
	}
}

// records returns the tokens, sessions and links that exist, by kind.
func (w *world) records() map[string][]task.Token {
	w.t.Helper()
	v, err := w.Keeper.Current(w.t.Context())
	must(w.t, err)

	all := map[string][]task.Token{}
	for _, t := range v.Tokens() {
		all[t.Kind] = append(all[t.Kind], t)
	}

	return all
}

func TestLogin_AToken_BecomesASession(t *testing.T) {
	w := newWorld(t)
	token := w.Token("user:bob")
	b := w.as("")

	b.enter(b.do(http.MethodPost, "/ui/login", url.Values{"token": {" " + token + " "}}))
	if b.secret == token {
		t.Error("the cookie is the token itself")
	}

	sessions := w.records()[task.TokenKindSession]
	if len(sessions) != 1 || sessions[0].Subject != "user:bob" || !strings.Contains(token, sessions[0].Parent) {
		t.Fatalf("the sessions are %+v", sessions)
	}

	// The session ends when the browser signs out, and the token stays.
	a := b.do(http.MethodPost, "/ui/logout", url.Values{})
	if a.StatusCode != http.StatusSeeOther || len(w.records()[task.TokenKindSession]) != 0 || len(a.Cookies()) == 0 || a.Cookies()[0].MaxAge >= 0 {
		t.Errorf("signing out: %d, cookies %v, sessions %v", a.StatusCode, a.Cookies(), w.records()[task.TokenKindSession])
	}
	if a := b.get("/ui/nodes"); a.StatusCode != http.StatusSeeOther || !strings.HasPrefix(a.Header.Get("Location"), client.LoginPath) {
		t.Errorf("after signing out: %d %s", a.StatusCode, a.Header.Get("Location"))
	}
	if _, err := w.apiFor(token).Access.WhoAmI(t.Context()); err != nil {
		t.Errorf("the token after signing out: %v", err)
	}
}

// A login ends the session that it replaces in the browser. Pages that are open with it learn that. A login that fails ends
// nothing, and sessions of other browsers stay.
func TestLogin_EndsTheSessionThatItReplaces(t *testing.T) {
	w := newWorld(t)
	other, b := w.as("user:ann"), w.as("user:bob")
	former := b.cookie
	if n := len(w.records()[task.TokenKindSession]); n != 2 {
		t.Fatalf("there are %d sessions", n)
	}

	b.do(http.MethodPost, "/ui/login", url.Values{"token": {"carillon_none"}})
	if a := b.get("/ui"); a.StatusCode != http.StatusOK {
		t.Errorf("after a login that has failed: %d", a.StatusCode)
	}

	b.enter(b.do(http.MethodPost, "/ui/login", url.Values{"token": {w.Token("user:ann")}}))
	sessions := w.records()[task.TokenKindSession]
	if len(sessions) != 2 || slices.ContainsFunc(sessions, func(s task.Token) bool { return s.Subject != "user:ann" }) || b.cookie == former {
		t.Errorf("the sessions are %+v", sessions)
	}
	b.cookie = former
	if a := b.get("/ui"); a.StatusCode != http.StatusSeeOther {
		t.Errorf("the former session: %d", a.StatusCode)
	}
	if a := other.get("/ui"); a.StatusCode != http.StatusOK {
		t.Errorf("the session of another browser: %d", a.StatusCode)
	}
}

func TestLogin_RefusesWhatIsNoToken(t *testing.T) {
	w := newWorld(t)
	session, err := w.apiFor(w.Token("user:bob")).Sessions.Create(t.Context())
	must(t, err)
	unknown, _ := authority.NewSecret()

	for name, c := range map[string]struct {
		token  string
		status int
		says   string
	}{
		"nothing":   {"", http.StatusUnprocessableEntity, "is required"},
		"junk":      {"<script>", http.StatusUnprocessableEntity, "is not a complete token"},
		"cut off":   {session.Secret[:40], http.StatusUnprocessableEntity, "is not a complete token"},
		"unknown":   {unknown, http.StatusUnauthorized, "the token is not known"},
		"a session": {session.Secret, http.StatusForbidden, "a session cannot create sessions"},
	} {
		a := w.as("").do(http.MethodPost, "/ui/login", url.Values{"token": {c.token}})
		if a.StatusCode != c.status || !strings.Contains(a.body, c.says) || len(a.Cookies()) != 0 || strings.Contains(a.body, "<script>") {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}

	if n := len(w.records()[task.TokenKindSession]); n != 1 {
		t.Errorf("there are %d sessions, want 1", n)
	}
}

// Only a session opens pages: a token is not accepted in a cookie, and neither is a link.
func TestLogin_CookieIsASession(t *testing.T) {
	w := newWorld(t)
	token := w.Token("user:ann")
	link, err := w.apiFor(token).Sessions.CreateLink(t.Context())
	must(t, err)

	for _, secret := range []string{token, link.Secret} {
		b := w.as("")
		b.cookie = w.cookieOf(secret)
		if a := b.get("/ui/nodes"); a.StatusCode != http.StatusSeeOther {
			t.Errorf("%d", a.StatusCode)
		}
		if a := b.get("/ui/live?at=%2Fui%2Fnodes"); a.StatusCode != http.StatusUnauthorized {
			t.Errorf("a stream: %d", a.StatusCode)
		}
	}
}

// Opening a login link uses nothing up: only its button does, once.
func TestLogin_ALinkIsUsedByItsButton(t *testing.T) {
	w := newWorld(t)
	link, err := w.apiFor(w.Token("user:bob")).Sessions.CreateLink(t.Context())
	must(t, err)

	b := w.as("")
	// The browser does not send the secret, and the script of the page posts it.
	path, secret, _ := strings.Cut(link.Path, "#")
	if secret != link.Secret || strings.Contains(path, "?") {
		t.Errorf("the link is %s", link.Path)
	}
	want(t, b.page(path), `id="login-link"`)

	for range 3 {
		page := b.do(http.MethodPost, "/ui/login/link", url.Values{"link": {secret}}).body
		want(t, page, "Sign in as user:bob", `action="/ui/login/link"`, html.EscapeString(link.Secret))
		if strings.Contains(page, `name="token"`) {
			t.Error("the page asks for a token, too")
		}
	}
	if len(w.records()[task.TokenKindLink]) != 1 {
		t.Error("opening the page has used the link up")
	}

	press := url.Values{"link": {secret}, "confirm": {"1"}}
	if a := b.do(http.MethodPost, "/ui/login/link", press, header("Sec-Fetch-Site", "cross-site")); a.StatusCode != http.StatusForbidden {
		t.Errorf("from another site: %d", a.StatusCode)
	}

	b.enter(b.do(http.MethodPost, "/ui/login/link", press))
	all := w.records()
	if len(all[task.TokenKindLink]) != 0 || len(all[task.TokenKindSession]) != 1 {
		t.Errorf("after the login: %+v", all)
	}

	for name, a := range map[string]answer{
		"the page": w.as("").do(http.MethodPost, "/ui/login/link", url.Values{"link": {secret}}), "the button": w.as("").do(http.MethodPost, "/ui/login/link", press),
		"junk": w.as("").do(http.MethodPost, "/ui/login/link", url.Values{"link": {"<script>"}}), "a junk button": w.as("").do(http.MethodPost, "/ui/login/link", url.Values{"link": {"a b"}, "confirm": {"1"}}),
	} {
		if a.StatusCode != http.StatusUnauthorized || !strings.Contains(a.body, "was used already") || strings.Contains(a.body, "<script>") || len(a.Cookies()) != 0 {
			t.Errorf("%s again: %d %s", name, a.StatusCode, a.body)
		}
	}
}

// A session of a token that was deleted opens nothing, and the browser comes back after it has signed in again.
func TestLogin_DeletingTheTokenEndsTheSession(t *testing.T) {
	w := newWorld(t)
	token := w.Token("user:bob")
	b := w.as("")
	b.enter(b.do(http.MethodPost, "/ui/login", url.Values{"token": {token}}))

	must(t, w.apiFor(w.Token("user:ann")).Tokens.Delete(t.Context(), strings.Split(token, "_")[1]))
	a := b.get("/ui/tasks?q=state%3Afailed")
	if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != "/ui/login?next=%2Fui%2Ftasks%3Fq%3Dstate%253Afailed" {
		t.Errorf("%d %s", a.StatusCode, a.Header.Get("Location"))
	}
}

// lateAccess knows no newer records until somebody waits for them.
type lateAccess struct {
	Access
	old *authority.View
}

func (l *lateAccess) View() *authority.View {
	if l.old != nil {
		return l.old
	}
	return l.Access.View()
}

func (l *lateAccess) Await(ctx context.Context, is func(*authority.View) bool) (*authority.View, error) {
	l.old = nil
	return l.Access.Await(ctx, is)
}

// Behind a load balancer, the page after a login may come from a node that does not know the session yet.
func TestLogin_WaitsForASessionOfAnotherNode(t *testing.T) {
	late := &lateAccess{}
	w := newWorld(t, func(c *Config) { late.Access, c.Access = c.Access, late })
	late.old = late.Access.View()

	a := w.as("user:bob").get("/ui/login?check=1")
	if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != home {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

// A viewer ends the sessions in all browsers, but not those of another token.
func TestLogout_Everywhere(t *testing.T) {
	w := newWorld(t)
	token, other := w.Token("user:bob"), w.Token("user:bob")
	signIn := func(token string) *browser {
		b := w.as("")
		b.enter(b.do(http.MethodPost, "/ui/login", url.Values{"token": {token}}))
		return b
	}
	here, there, elsewhere := signIn(token), signIn(token), signIn(other)

	if a := here.do(http.MethodPost, "/ui/logout", url.Values{"everywhere": {"1"}}); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	for name, c := range map[string]struct {
		b    *browser
		want int
	}{"here": {here, http.StatusSeeOther}, "there": {there, http.StatusSeeOther}, "with another token": {elsewhere, http.StatusForbidden}} { // signed in, without rights
		if a := c.b.get("/ui/nodes"); a.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", name, a.StatusCode, c.want)
		}
	}
}
