package oidclogin_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/internal/test/oidcprovider"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	clientID = "carillon"
	secret   = "s3cret with spaces & signs +%"
	redirect = "http://127.0.0.1:7070/ui/login/oidc/corp/callback"
)

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ann   = oidcprovider.User{Subject: "248289", Name: "Ann Ö", Mail: "ann@example.com", Groups: []string{"ops", "Domain Admins"}}
)

// world is a provider, and a node that lets people sign in with it.
type world struct {
	t        *testing.T
	provider *oidcprovider.Provider
	logins   *oidclogin.Logins
	now      time.Time // of the node
}

// newWorld returns a world. edit changes the settings of the node.
func newWorld(t *testing.T, edit func(*oidclogin.Config)) *world {
	w := &world{t: t, now: start}
	w.provider = oidcprovider.New(t,
		oidcprovider.Client{ID: clientID, Secret: secret, Redirects: []string{redirect}},
		oidcprovider.Client{ID: "other", Secret: secret, Redirects: []string{redirect}},
		oidcprovider.Client{ID: "public", Redirects: []string{redirect}},
	)
	w.provider.Now = func() time.Time { return start }
	w.logins = w.newNode(edit)

	return w
}

// newNode returns the logins of another node with the same key.
func (w *world) newNode(edit func(*oidclogin.Config)) *oidclogin.Logins {
	w.t.Helper()

	cfg := oidclogin.Config{
		Now:       func() time.Time { return w.now },
		Key:       withKey(0),
		Providers: []oidclogin.Provider{{Name: "corp", Display: "Corp Login", Issuer: w.provider.URL, ClientID: clientID, ClientSecretFile: writeSecret(w.t, secret)}},
	}
	if edit != nil {
		edit(&cfg)
	}
	if err := oidclogin.ValidateProviders("oidc", cfg.Providers); err != nil {
		w.t.Fatal(err)
	}

	return oidclogin.New(cfg)
}

// withKey returns a key that begins with a byte.
func withKey(first byte) func(context.Context) ([oidclogin.KeyBytes]byte, error) {
	return func(context.Context) ([oidclogin.KeyBytes]byte, error) { return [oidclogin.KeyBytes]byte{first}, nil }
}

func writeSecret(t *testing.T, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// begin begins a login on the web.
func (w *world) begin() oidclogin.WebLogin {
	w.t.Helper()

	login, err := w.logins.BeginWeb(w.t.Context(), "corp", redirect, "/ui/tasks?q=x")
	if err != nil {
		w.t.Fatal(err)
	}

	return login
}

// finish finishes a login with the provider's answer.
func (w *world) finish(login oidclogin.WebLogin, back *url.URL) (oidclogin.Identity, error) {
	id, _, err := w.logins.FinishWeb(w.t.Context(), "corp", login.Seal, back.Query())
	return id, err
}

// signIn does a whole login of a person.
func (w *world) signIn(user oidcprovider.User) (oidclogin.Identity, error) {
	w.t.Helper()
	login := w.begin()
	return w.finish(login, w.provider.SignIn(w.t, login.URL, user))
}

// wantRefusal fails the test unless err is a refusal of a kind whose text contains words, and nothing secret.
func wantRefusal(t *testing.T, err error, kind oidclogin.Kind, words string) {
	t.Helper()

	var r *oidclogin.Refusal
	if !errors.As(err, &r) {
		t.Fatalf("the error is %v, and no refusal", err)
	}
	if r.Kind != kind || !strings.Contains(r.Text, words) || r.Hint == "" {
		t.Fatalf("refused with kind %d: %q (hint %q); want kind %d and %q", r.Kind, r.Text, r.Hint, kind, words)
	}
	if strings.Contains(r.Text, secret) || strings.Contains(r.Text, url.QueryEscape(secret)) {
		t.Fatalf("the text contains the client's secret: %q", r.Text)
	}
}

func TestFinishWeb_ReturnsWhoHasSignedIn(t *testing.T) {
	cases := map[string]func(p *oidcprovider.Provider){
		"RS256":                   func(*oidcprovider.Provider) {},
		"ES256":                   func(p *oidcprovider.Provider) { p.Algorithm = "ES256" },
		"secret in the body":      func(p *oidcprovider.Provider) { p.InBody = true },
		"no list of auth methods": func(p *oidcprovider.Provider) { p.Metadata = without("token_endpoint_auth_methods_supported") },
		"several audiences": func(p *oidcprovider.Provider) {
			p.Claims = func(c map[string]any) { c["aud"], c["azp"] = []string{"api", clientID}, clientID }
		},
		"clock of the node 30 s ahead of the end": func(p *oidcprovider.Provider) {
			p.Claims = func(c map[string]any) { c["exp"] = start.Add(-30 * time.Second).Unix() }
		},
		"clock of the node 4 min behind": func(p *oidcprovider.Provider) {
			p.Claims = func(c map[string]any) { c["iat"] = start.Add(4 * time.Minute).Unix() }
		},
	}

	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			change(w.provider)

			login := w.begin()
			back := w.provider.SignIn(t, login.URL, ann)
			id, returnTo, err := w.logins.FinishWeb(t.Context(), "corp", login.Seal, back.Query())
			if err != nil {
				t.Fatal(err)
			}

			if id.Provider != "corp" || id.Subject != "user:corp/248289" || id.Name != "Ann Ö" || id.Mail != "ann@example.com" || returnTo != "/ui/tasks?q=x" {
				t.Errorf("signed in as %+v, and returns to %q", id, returnTo)
			}
			if got := strings.Join(id.Groups, " "); got != "group:corp/Domain%20Admins group:corp/ops" {
				t.Errorf("groups: %s", got)
			}
		})
	}
}

// without returns a change of metadata or claims that removes a key.
func without(key string) func(map[string]any) {
	return func(m map[string]any) { delete(m, key) }
}

func TestFinishWeb_AnotherNodeWithTheKeyFinishes(t *testing.T) {
	w := newWorld(t, nil)
	login := w.begin()

	w.logins = w.newNode(nil)
	if _, err := w.finish(login, w.provider.SignIn(t, login.URL, ann)); err != nil {
		t.Fatal(err)
	}
}

func TestFinishWeb_PublicClientHasNoSecret(t *testing.T) {
	w := newWorld(t, func(c *oidclogin.Config) { c.Providers[0].ClientID, c.Providers[0].ClientSecretFile = "public", "" })
	if _, err := w.signIn(ann); err != nil {
		t.Fatal(err)
	}
}

// Each damaged claim or signature alone must make the login fail.
func TestFinishWeb_RefusesIDTokens(t *testing.T) {
	set := func(key string, value any) func(*oidcprovider.Provider) {
		return func(p *oidcprovider.Provider) { p.Claims = func(c map[string]any) { c[key] = value } }
	}
	cases := map[string]struct {
		change func(p *oidcprovider.Provider)
		words  string
	}{
		"wrong issuer":                   {set("iss", "https://evil.example"), "issued by a different provider"},
		"wrong audience":                 {set("aud", "other"), "expected audience"},
		"issued to another client":       {set("azp", "other"), `issued to another client, "other"`},
		"several audiences, no party":    {set("aud", []string{clientID, "other"}), "several clients"},
		"wrong nonce":                    {set("nonce", "another"), "nonce"},
		"no nonce":                       {func(p *oidcprovider.Provider) { p.Claims = without("nonce") }, "nonce"},
		"expired":                        {set("exp", start.Add(-2*time.Minute).Unix()), "the clocks of the provider and of this node differ"},
		"no end":                         {func(p *oidcprovider.Provider) { p.Claims = without("exp") }, "expired"},
		"issued in the future":           {set("iat", start.Add(6*time.Minute).Unix()), "the clocks of the provider and of this node differ"},
		"not valid yet":                  {set("nbf", start.Add(10*time.Minute).Unix()), "nbf"},
		"no subject":                     {func(p *oidcprovider.Provider) { p.Claims = without("sub") }, "empty"},
		"subject too long":               {set("sub", strings.Repeat("x", 300)), "too long"},
		"subject with broken characters": {set("sub", "a\uFFFD"), "UTF-8"},
		"no signature":                   {func(p *oidcprovider.Provider) { p.Algorithm = "none" }, "is not accepted"},
		"signed with the secret":         {func(p *oidcprovider.Provider) { p.Algorithm = "HS256" }, "is not accepted"},
		"name is a number":               {set("name", 7), "cannot be read"},
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			c.change(w.provider)
			_, err := w.signIn(ann)
			wantRefusal(t, err, oidclogin.Refused, c.words)
		})
	}
}

func TestFinishWeb_RefusesAnIDTokenWithAForeignSignature(t *testing.T) {
	w := newWorld(t, nil)
	foreign := oidcprovider.New(t, oidcprovider.Client{ID: clientID})
	foreign.RotateKeys()
	foreign.Now = w.provider.Now

	login := w.begin()
	nonce := queryOf(t, login.URL).Get("nonce")
	w.provider.Intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/token" {
			return false
		}
		foreign.Claims = func(c map[string]any) { c["iss"] = w.provider.URL }
		_, _ = rw.Write([]byte(`{"access_token":"x","id_token":"` + foreign.IDToken(oidcprovider.Client{ID: clientID}, ann, nonce) + `"}`))
		return true
	}

	_, err := w.finish(login, w.provider.SignIn(t, login.URL, ann))
	wantRefusal(t, err, oidclogin.Refused, "signature")
}

func queryOf(t *testing.T, s string) url.Values {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query()
}

func TestFinishWeb_AcceptsNewKeysOfTheProvider(t *testing.T) {
	w := newWorld(t, nil)
	for range 2 {
		if _, err := w.signIn(ann); err != nil {
			t.Fatal(err)
		}
		w.provider.RotateKeys()
	}
}

// The keys of a provider are read again after five minutes, so that one that it has withdrawn is not accepted for longer.
func TestFinishWeb_ReadsKeysAgain(t *testing.T) {
	w := newWorld(t, nil)
	for _, c := range []struct {
		after time.Duration
		reads int
	}{{0, 1}, {4 * time.Minute, 1}, {2 * time.Minute, 2}} {
		w.now = w.now.Add(c.after)
		if _, err := w.signIn(ann); err != nil {
			t.Fatal(err)
		}
		if n := w.provider.Requests("/keys"); n != c.reads {
			t.Errorf("after another %s, the keys were read %d times, want %d", c.after, n, c.reads)
		}
	}
}

func TestFinishWeb_RefusesAnswersToOtherLogins(t *testing.T) {
	answer := func(change func(url.Values)) func(w *world) error {
		return func(w *world) error {
			login := w.begin()
			back := w.provider.SignIn(w.t, login.URL, ann).Query()
			change(back)
			_, _, err := w.logins.FinishWeb(w.t.Context(), "corp", login.Seal, back)
			return err
		}
	}
	cases := map[string]struct {
		login func(w *world) error
		words string
	}{
		"no cookie: another browser": {func(w *world) error {
			_, err := w.finish(oidclogin.WebLogin{}, w.provider.SignIn(w.t, w.begin().URL, ann))
			return err
		}, "no login is under way in this browser"},
		"cookie of another tab": {func(w *world) error {
			first, second := w.begin(), w.begin()
			_, err := w.finish(second, w.provider.SignIn(w.t, first.URL, ann))
			return err
		}, "belongs to another login"},
		"answer at the path of another provider": {func(w *world) error {
			login := w.begin()
			back := w.provider.SignIn(w.t, login.URL, ann).Query()
			back.Del("iss")
			_, _, err := w.logins.FinishWeb(w.t.Context(), "evil", login.Seal, back)
			return err
		}, `arrived at the address of another provider, "evil"`},
		"cookie was changed": {func(w *world) error {
			login := w.begin()
			back := w.provider.SignIn(w.t, login.URL, ann)
			b := []byte(login.Seal)
			b[len(b)/2] ^= 1
			login.Seal = string(b)
			_, err := w.finish(login, back)
			return err
		}, "the cookie of the login is not valid"},
		"cookie is not sealed": {func(w *world) error {
			_, err := w.finish(oidclogin.WebLogin{Seal: "{}"}, w.provider.SignIn(w.t, w.begin().URL, ann))
			return err
		}, "the cookie of the login is not valid"},
		"cookie of another cluster": {func(w *world) error {
			login := w.begin()
			w.logins = w.newNode(func(c *oidclogin.Config) { c.Key = withKey(1) })
			_, err := w.finish(login, w.provider.SignIn(w.t, login.URL, ann))
			return err
		}, "the cookie of the login is not valid"},
		"handle of a device as a cookie": {func(w *world) error {
			device, err := w.logins.BeginDevice(w.t.Context(), "corp")
			if err != nil {
				return err
			}
			_, err = w.finish(oidclogin.WebLogin{Seal: device.Seal}, w.provider.SignIn(w.t, w.begin().URL, ann))
			return err
		}, "the cookie of the login is not valid"},
		"too late": {func(w *world) error {
			login := w.begin()
			w.now = w.now.Add(10 * time.Minute)
			_, err := w.finish(login, w.provider.SignIn(w.t, login.URL, ann))
			return err
		}, "it took longer than 10 minutes"},
		"answer used before": {func(w *world) error {
			login := w.begin()
			back := w.provider.SignIn(w.t, login.URL, ann)
			if _, err := w.finish(login, back); err != nil {
				return err
			}
			_, err := w.finish(login, back)
			return err
		}, "the provider's answer was used before"},
		"answer used before on another node": {func(w *world) error {
			login := w.begin()
			back := w.provider.SignIn(w.t, login.URL, ann)
			if _, err := w.finish(login, back); err != nil {
				return err
			}
			w.logins = w.newNode(nil)
			_, err := w.finish(login, back)
			return err
		}, "does not accept the code"},
		"code for another client": {func(w *world) error {
			login := w.begin()
			other, err := url.Parse(login.URL)
			if err != nil {
				return err
			}
			q := other.Query()
			q.Set("client_id", "other")
			other.RawQuery = q.Encode()
			_, err = w.finish(login, w.provider.SignIn(w.t, other.String(), ann))
			return err
		}, "does not accept the code"},
		"code of another login, with its verifier": {func(w *world) error {
			mine, theirs := w.begin(), w.begin()
			stolen := w.provider.SignIn(w.t, theirs.URL, ann).Query().Get("code")
			back := w.provider.SignIn(w.t, mine.URL, ann)
			q := back.Query()
			q.Set("code", stolen)
			back.RawQuery = q.Encode()
			_, err := w.finish(mine, back)
			return err
		}, "does not accept the code"},
		"client id of the setting has changed": {func(w *world) error {
			login := w.begin()
			w.logins = w.newNode(func(c *oidclogin.Config) { c.Providers[0].ClientID = "other" })
			_, err := w.finish(login, w.provider.SignIn(w.t, login.URL, ann))
			return err
		}, "have changed"},
		"no state":           {answer(func(q url.Values) { q.Del("state") }), "belongs to another login"},
		"no code":            {answer(func(q url.Values) { q.Del("code") }), "has no code"},
		"unknown code":       {answer(func(q url.Values) { q.Set("code", "x") }), "does not accept the code"},
		"of another issuer":  {answer(func(q url.Values) { q.Set("iss", "https://evil.example") }), "comes from another provider"},
		"without the issuer": {answer(func(q url.Values) { q.Del("iss") }), "comes from another provider"},
		"denied": {answer(func(q url.Values) {
			q.Set("error", "access_denied")
			q.Set("error_description", "no \x1b[31m"+strings.Repeat("y", 500))
		}), `it was denied, by you or by the provider (access_denied: no \x1b[31my`},
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, c.login(newWorld(t, nil)), oidclogin.Refused, c.words)
		})
	}
}

func TestFinishWeb_ALateAnswerWithoutIssuerIsAcceptedFromProvidersThatSendNone(t *testing.T) {
	w := newWorld(t, nil)
	w.provider.Metadata = without("authorization_response_iss_parameter_supported")

	login := w.begin()
	back := w.provider.SignIn(t, login.URL, ann).Query()
	back.Del("iss")
	if _, _, err := w.logins.FinishWeb(t.Context(), "corp", login.Seal, back); err != nil {
		t.Fatal(err)
	}
}

func TestFinishWeb_GroupsClaim(t *testing.T) {
	cases := map[string]struct {
		claim any
		want  string
	}{
		"a list, with duplicates": {[]string{"b", "a", "b", ""}, "group:corp/a group:corp/b"},
		"one name":                {"ops", "group:corp/ops"},
		"null":                    {nil, ""},
		"hostile names":           {[]string{"a,b", "*", "x(y)", "%2C", "line\nbreak", strings.Repeat("z", 300)}, "group:corp/%252C group:corp/%2A group:corp/a%2Cb group:corp/line%0Abreak group:corp/x%28y%29"},
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(cfg *oidclogin.Config) { cfg.Providers[0].GroupsClaim = "roles" })
			w.provider.Claims = func(claims map[string]any) { claims["roles"] = c.claim }

			id, err := w.signIn(ann)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(id.Groups, " "); got != c.want {
				t.Errorf("groups: %s; want %s", got, c.want)
			}
		})
	}

	t.Run("an object", func(t *testing.T) {
		w := newWorld(t, nil)
		w.provider.Claims = func(claims map[string]any) { claims["groups"] = map[string]any{"a": 1} }
		_, err := w.signIn(ann)
		wantRefusal(t, err, oidclogin.Misconfigured, "neither a list of names nor a name")
	})
}

func TestFinishWeb_HostileNamesAreHarmless(t *testing.T) {
	w := newWorld(t, nil)
	id, err := w.signIn(oidcprovider.User{Subject: "auth0|a b*(c),\u202Ed", Name: "An\nn\x1b[31m\u202E" + strings.Repeat("x", 500), Mail: " a@b\x00 "})
	if err != nil {
		t.Fatal(err)
	}

	if id.Subject != "user:corp/auth0|a%20b%2A%28c%29%2C%E2%80%AEd" || !strings.HasPrefix(id.Name, "Ann[31mxxx") || len(id.Name) > 128 || id.Mail != "a@b" {
		t.Errorf("signed in as %+v", id)
	}
}

func TestProviders_SayWhyNobodyCanSignIn(t *testing.T) {
	metadata := func(key string, value any) func(*world) {
		return func(w *world) { w.provider.Metadata = func(m map[string]any) { m[key] = value } }
	}
	answer := func(status int, body string) func(*world) {
		return func(w *world) {
			w.provider.Intercept = func(rw http.ResponseWriter, _ *http.Request) bool {
				rw.WriteHeader(status)
				_, _ = rw.Write([]byte(body))
				return true
			}
		}
	}
	cases := map[string]struct {
		change func(w *world)
		kind   oidclogin.Kind
		words  string
	}{
		"away":                       {func(w *world) { w.provider.Close() }, oidclogin.Away, "does not answer"},
		"wrong issuer":               {metadata("issuer", "https://other.example"), oidclogin.Misconfigured, `names itself "https://other.example"`},
		"authorization without TLS":  {metadata("authorization_endpoint", "http://login.example.com/a"), oidclogin.Misconfigured, "does not use https"},
		"token endpoint without TLS": {metadata("token_endpoint", "http://login.example.com/t"), oidclogin.Misconfigured, "does not use https"},
		"keys without TLS":           {metadata("jwks_uri", "http://login.example.com/k"), oidclogin.Misconfigured, "does not use https"},
		"device without TLS":         {metadata("device_authorization_endpoint", "ftp://x"), oidclogin.Misconfigured, "does not use https"},
		"no token endpoint":          {metadata("token_endpoint", ""), oidclogin.Misconfigured, "token_endpoint"},
		"not JSON":                   {answer(http.StatusOK, "<html>"), oidclogin.Away, "does not answer"},
		"broken":                     {answer(http.StatusBadGateway, "\x1b[31m"+strings.Repeat("x", 1000)), oidclogin.Away, "502"},
		"endless": {func(w *world) {
			w.provider.Intercept = func(rw http.ResponseWriter, _ *http.Request) bool {
				_, _ = rw.Write([]byte(`{"issuer":"` + strings.Repeat("x", 2<<20) + `"}`))
				return true
			}
		}, oidclogin.Away, "does not answer"},
		"redirects to http": {func(w *world) {
			w.provider.Intercept = func(rw http.ResponseWriter, r *http.Request) bool {
				http.Redirect(rw, r, "http://login.example.com/", http.StatusFound)
				return true
			}
		}, oidclogin.Away, `"http://login.example.com/": does not use https`},
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			c.change(w)

			_, err := w.logins.BeginWeb(t.Context(), "corp", redirect, "")
			wantRefusal(t, err, c.kind, c.words)
			if strings.ContainsRune(err.Error(), '\x1b') || len(err.Error()) > 400 {
				t.Errorf("the text is not fit for people: %q", err)
			}

			list := w.logins.Providers(t.Context())
			if len(list) != 1 || list[0].Problem != err.Error() || list[0].Display != "Corp Login" || list[0].Name != "corp" {
				t.Errorf("providers: %+v; want the problem %q", list, err)
			}
		})
	}
}

func TestProviders_AnAbsentProviderIsAskedAgainAfterAWhileAndNotBefore(t *testing.T) {
	w := newWorld(t, nil)
	away := true
	w.provider.Intercept = func(rw http.ResponseWriter, _ *http.Request) bool {
		if away {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
		return away
	}

	for range 5 {
		if list := w.logins.Providers(t.Context()); list[0].Problem == "" {
			t.Fatal("a provider that is away has no problem")
		}
	}
	if n := w.provider.Requests("/.well-known/openid-configuration"); n != 1 {
		t.Errorf("the provider was asked %d times; want once", n)
	}

	away = false
	w.now = w.now.Add(10 * time.Second)
	if list := w.logins.Providers(t.Context()); list[0].Problem != "" || !list[0].Device {
		t.Errorf("providers: %+v; want no problem", list)
	}

	// What is known stays in use when the provider goes away again, long after.
	away = true
	w.now = w.now.Add(2 * time.Hour)
	if list := w.logins.Providers(t.Context()); list[0].Problem != "" {
		t.Errorf("providers: %+v; want no problem", list)
	}
}

func TestFinishWeb_ProviderThatGoesAwayMeanwhile(t *testing.T) {
	for path, words := range map[string]string{"/token": "does not answer: status 503", "/keys": "does not answer"} {
		t.Run(path, func(t *testing.T) {
			w := newWorld(t, nil)
			login := w.begin()
			w.provider.Intercept = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == path {
					rw.WriteHeader(http.StatusServiceUnavailable)
				}
				return r.URL.Path == path
			}

			_, err := w.finish(login, w.provider.SignIn(t, login.URL, ann))
			wantRefusal(t, err, oidclogin.Away, words)
		})
	}
}

func TestPost_SecretsDoNotFollowRedirects(t *testing.T) {
	w := newWorld(t, nil)
	login := w.begin()
	w.provider.Intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			http.Redirect(rw, r, "/elsewhere", http.StatusTemporaryRedirect)
		}
		return r.URL.Path == "/token"
	}

	_, err := w.finish(login, w.provider.SignIn(t, login.URL, ann))
	wantRefusal(t, err, oidclogin.Away, "redirects")
	if w.provider.Requests("/elsewhere") != 0 {
		t.Error("the code and the secret were sent elsewhere")
	}
}

func TestClientSecret_Faults(t *testing.T) {
	cases := map[string]struct {
		file  func(t *testing.T) string
		words string
	}{
		"wrong":    {func(t *testing.T) string { return writeSecret(t, "wrong") }, "does not accept the client of this cluster"},
		"missing":  {func(t *testing.T) string { return filepath.Join(t.TempDir(), "none") }, "cannot read the client's secret"},
		"empty":    {func(t *testing.T) string { return writeSecret(t, "") }, "cannot read the client's secret"},
		"readable": {readableByAll, "cannot read the client's secret"},
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(cfg *oidclogin.Config) { cfg.Providers[0].ClientSecretFile = c.file(t) })
			_, err := w.signIn(ann)
			wantRefusal(t, err, oidclogin.Misconfigured, c.words)
		})
	}
}

func readableByAll(t *testing.T) string {
	path := writeSecret(t, secret)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBegin_UnknownProvider(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.logins.BeginWeb(t.Context(), "nosuch", redirect, "")
	wantRefusal(t, err, oidclogin.Unknown, `there is no login provider "nosuch"`)

	var none *oidclogin.Logins
	_, err = none.BeginDevice(t.Context(), "corp")
	wantRefusal(t, err, oidclogin.Unknown, "there is no login provider")
	if len(none.Providers(t.Context())) != 0 {
		t.Error("no logins have providers")
	}
}

func TestBeginWeb_FitsIntoACookie(t *testing.T) {
	w := newWorld(t, nil)
	for name, c := range map[string]struct {
		returnTo string
		kept     bool
	}{
		"usual": {"/ui/tasks?q=" + strings.Repeat("x", 1000), true}, "too long": {"/ui?" + strings.Repeat("<", 100_000), false},
		"long when encoded": {"/ui?" + strings.Repeat("\x01", 1000), false},
	} {
		t.Run(name, func(t *testing.T) {
			login, err := w.logins.BeginWeb(t.Context(), "corp", redirect, c.returnTo)
			if err != nil {
				t.Fatal(err)
			}
			if len(login.Seal) > 4000 || strings.ContainsFunc(login.Seal, func(r rune) bool { return r > '~' || r <= ' ' || strings.ContainsRune("\",;\\", r) }) {
				t.Errorf("the sealed text has %d bytes, or is no value of a cookie", len(login.Seal))
			}

			_, returnTo, err := w.logins.FinishWeb(t.Context(), "corp", login.Seal, w.provider.SignIn(t, login.URL, ann).Query())
			if err != nil || (returnTo == c.returnTo) != c.kept {
				t.Errorf("returns to %d bytes of %d: %v", len(returnTo), len(c.returnTo), err)
			}
		})
	}
}

func TestDevice_ReturnsWhoHasConfirmed(t *testing.T) {
	for name, edit := range map[string]func(*oidcprovider.Provider){
		"secret in the header":                     func(*oidcprovider.Provider) {},
		"secret in the body":                       func(p *oidcprovider.Provider) { p.InBody = true },
		"secret in the body of the first one only": func(p *oidcprovider.Provider) { p.DeviceInBody = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			edit(w.provider)

			login, err := w.logins.BeginDevice(t.Context(), "corp")
			if err != nil {
				t.Fatal(err)
			}
			if login.Page != w.provider.URL+"/activate" || login.PageForCode != login.Page+"?code="+login.Code || login.Every != 2*time.Second || !login.Ends.Equal(start.Add(10*time.Minute)) {
				t.Errorf("began %+v", login)
			}

			var pending *oidclogin.Pending
			if _, err := w.logins.PollDevice(t.Context(), login.Seal); !errors.As(err, &pending) || pending.Slower {
				t.Fatalf("the login that nobody has confirmed: %v", err)
			}

			w.provider.Confirm(t, login.Code, ann)
			id, err := w.newNode(nil).PollDevice(t.Context(), login.Seal)
			if err != nil || id.Subject != "user:corp/248289" || len(id.Groups) != 2 {
				t.Fatalf("signed in as %+v: %v", id, err)
			}

			_, err = w.logins.PollDevice(t.Context(), login.Seal)
			wantRefusal(t, err, oidclogin.Refused, "does not accept the code")
		})
	}
}

func TestDevice_Refusals(t *testing.T) {
	begin := func(w *world) oidclogin.DeviceLogin {
		w.t.Helper()
		login, err := w.logins.BeginDevice(w.t.Context(), "corp")
		if err != nil {
			w.t.Fatal(err)
		}
		return login
	}
	poll := func(w *world, seal string) error {
		_, err := w.logins.PollDevice(w.t.Context(), seal)
		return err
	}
	cases := map[string]struct {
		login func(w *world) error
		kind  oidclogin.Kind
		words string
	}{
		"denied":             {func(w *world) error { l := begin(w); w.provider.Deny(w.t, l.Code); return poll(w, l.Seal) }, oidclogin.Refused, "denied"},
		"too late":           {func(w *world) error { l := begin(w); w.now = l.Ends; return poll(w, l.Seal) }, oidclogin.Refused, "in time"},
		"changed handle":     {func(w *world) error { return poll(w, begin(w).Seal+"A") }, oidclogin.Refused, "the handle of the login is not valid"},
		"cookie as a handle": {func(w *world) error { return poll(w, w.begin().Seal) }, oidclogin.Refused, "the handle of the login is not valid"},
		"no handle":          {func(w *world) error { return poll(w, "") }, oidclogin.Refused, "the handle of the login is not valid"},
		"no device flow": {func(w *world) error {
			w.provider.NoDevice = true
			_, err := w.logins.BeginDevice(w.t.Context(), "corp")
			return err
		}, oidclogin.Misconfigured, "does not support logins from the command line"},
		"page without TLS": {func(w *world) error {
			w.provider.Intercept = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/device" {
					_, _ = rw.Write([]byte(`{"device_code":"x","user_code":"y","verification_uri":"http://evil.example"}`))
				}
				return r.URL.Path == "/device"
			}
			_, err := w.logins.BeginDevice(w.t.Context(), "corp")
			return err
		}, oidclogin.Misconfigured, "page with https"},
		"ID token for another client": {func(w *world) error {
			w.provider.Claims = func(c map[string]any) { c["aud"] = "other" }
			l := begin(w)
			w.provider.Confirm(w.t, l.Code, ann)
			return poll(w, l.Seal)
		}, oidclogin.Refused, "expected audience"},
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, c.login(newWorld(t, nil)), c.kind, c.words)
		})
	}
}

func TestDevice_SlowsDownWhenTheProviderAsks(t *testing.T) {
	w := newWorld(t, nil)
	login, err := w.logins.BeginDevice(t.Context(), "corp")
	if err != nil {
		t.Fatal(err)
	}

	w.provider.Intercept = func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(http.StatusBadRequest)
		_, _ = rw.Write([]byte(`{"error":"slow_down"}`))
		return true
	}

	var pending *oidclogin.Pending
	if _, err := w.logins.PollDevice(t.Context(), login.Seal); !errors.As(err, &pending) || !pending.Slower {
		t.Errorf("polled: %v", err)
	}
}

func TestValidateProviders(t *testing.T) {
	good := oidclogin.Provider{Name: "corp", Issuer: "https://login.example.com/realms/x", ClientID: "c"}
	with := func(change func(*oidclogin.Provider)) []oidclogin.Provider {
		p := good
		change(&p)
		return []oidclogin.Provider{p}
	}
	cases := map[string]struct {
		list  []oidclogin.Provider
		field string // "": valid
	}{
		"valid":               {[]oidclogin.Provider{good}, ""},
		"http on loopback":    {with(func(p *oidclogin.Provider) { p.Issuer = "http://127.0.0.1:5556/dex" }), ""},
		"http on localhost":   {with(func(p *oidclogin.Provider) { p.Issuer = "http://localhost:5556/dex" }), ""},
		"http elsewhere":      {with(func(p *oidclogin.Provider) { p.Issuer = "http://login.example.com" }), "oidc[0].issuer"},
		"http, like loopback": {with(func(p *oidclogin.Provider) { p.Issuer = "http://127.0.0.1.example.com" }), "oidc[0].issuer"},
		"http, user loopback": {with(func(p *oidclogin.Provider) { p.Issuer = "http://127.0.0.1@example.com" }), "oidc[0].issuer"},
		"no URL":              {with(func(p *oidclogin.Provider) { p.Issuer = "login.example.com" }), "oidc[0].issuer"},
		"no issuer":           {with(func(p *oidclogin.Provider) { p.Issuer = "" }), "oidc[0].issuer"},
		"no client":           {with(func(p *oidclogin.Provider) { p.ClientID = "" }), "oidc[0].client_id"},
		"no name":             {with(func(p *oidclogin.Provider) { p.Name = "" }), "oidc[0].name"},
		"name with slash":     {with(func(p *oidclogin.Provider) { p.Name = "a/b" }), "oidc[0].name"},
		"name too long":       {with(func(p *oidclogin.Provider) { p.Name = strings.Repeat("a", 33) }), "oidc[0].name"},
		"display with escape": {with(func(p *oidclogin.Provider) { p.Display = "\x1b[31m" }), "oidc[0].display"},
		"scope with space":    {with(func(p *oidclogin.Provider) { p.Scopes = []string{"a b"} }), "oidc[0].scopes"},
		"two of a name":       {[]oidclogin.Provider{good, good}, "oidc[1].name"},
		"two of a client":     {append(with(func(p *oidclogin.Provider) { p.Name = "other" }), good), "oidc[1].client_id"},
		"two clients":         {append(with(func(p *oidclogin.Provider) { p.Name, p.ClientID = "other", "d" }), good), ""},
		"too many":            {make([]oidclogin.Provider, 17), "oidc"},
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := oidclogin.ValidateProviders("oidc", c.list)
			var fault *task.Error
			if errors.As(err, &fault) && fault.Field == c.field || err == nil && c.field == "" {
				return
			}
			t.Errorf("got %v; want a fault of %q", err, c.field)
		})
	}
}

func TestNew_ContactsNobody(t *testing.T) {
	w := newWorld(t, nil)
	if n := w.provider.Requests("/.well-known/openid-configuration"); n != 0 {
		t.Errorf("the provider was asked %d times before anybody wanted to sign in", n)
	}
}

func TestBegin_KeyThatCannotBeReadIsReadAgain(t *testing.T) {
	away := true
	w := newWorld(t, func(c *oidclogin.Config) {
		c.Key = func(context.Context) (key [oidclogin.KeyBytes]byte, err error) {
			if away {
				err = errors.New("etcd is away")
			}
			return key, err
		}
	})

	_, err := w.logins.BeginWeb(t.Context(), "corp", redirect, "")
	wantRefusal(t, err, oidclogin.Busy, "cannot read the key")

	away = false
	if _, err := w.signIn(ann); err != nil {
		t.Fatal(err)
	}
}
