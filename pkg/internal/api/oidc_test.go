package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/internal/test/oidcprovider"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// people are persons whom the provider knows.
var (
	annAtCorp = oidcprovider.User{Subject: "1", Name: "Ann", Mail: "ann@example.com", Groups: []string{"ops", "all staff"}}
	bobAtCorp = oidcprovider.User{Subject: "2", Name: "Bob"}
)

// oidcWorld is a world whose people can sign in with a provider.
type oidcWorld struct {
	*world
	provider *oidcprovider.Provider
	anyone   *client.Client // has no token
	reads    atomic.Int64   // of etcd; the node also reads every two seconds, to know that its access records are current

	mu      sync.Mutex
	refused []task.AuditRecord
}

func newOIDCWorld(t *testing.T) *oidcWorld {
	t.Helper()

	w := &oidcWorld{}
	etcd := kvtest.Memory(t)
	etcd.KV = etcdhook.KV(etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if op.IsGet() {
			w.reads.Add(1)
		}
		return next(ctx, op)
	})
	w.world = newWorldOn(t, etcd)
	w.provider = oidcprovider.New(t, oidcprovider.Client{ID: "carillon", Redirects: []string{"http://127.0.0.1:7070/ui/login/oidc/corp/callback"}})
	w.provider.Now = w.clock.now

	providers := []oidclogin.Provider{{Name: "corp", Issuer: w.provider.URL, ClientID: "carillon"}}
	must(t, oidclogin.ValidateProviders("oidc", providers))
	w.logins = oidclogin.New(oidclogin.Config{Providers: providers, Key: w.store.LoginKey, Now: w.clock.now})

	w.refusedLogin = func(a task.AuditRecord) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.refused = append(w.refused, a)
	}
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)
	w.anyone = w.with("")

	return w
}

// signIn signs a person in as a browser does.
func (w *oidcWorld) signIn(user oidcprovider.User) (client.WebSession, error) {
	w.t.Helper()

	login, err := w.anyone.Logins.BeginWeb(w.t.Context(), client.WebLoginRequest{Provider: "corp", ReturnTo: "/ui/nodes"})
	must(w.t, err)

	return w.anyone.Logins.FinishWeb(w.t.Context(), "corp", login.State, w.provider.SignIn(w.t, login.URL, user).Query())
}

// refusals returns the audit records of refused logins so far.
func (w *oidcWorld) refusals() []task.AuditRecord {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.refused)
}

// wantProblem fails the test unless an error is a problem with a status and some words.
func wantProblem(t *testing.T, err error, status int, words string) {
	t.Helper()

	var e *client.Error
	if !errors.As(err, &e) || e.Status != status || !strings.Contains(e.Message, words) {
		t.Fatalf("got %v; want %d with %q", err, status, words)
	}
}

func TestOIDC_APersonWithABindingGetsASession(t *testing.T) {
	w := newOIDCWorld(t)
	w.bind("user:corp/1", access.RoleViewer, "prod")

	s, err := w.signIn(annAtCorp)
	must(t, err)
	if s.ReturnTo != "/ui/nodes" || s.Kind != task.TokenKindSession || s.Parent != "" || s.Subject != "user:corp/1" || s.Name != "Ann" || s.Mail != "ann@example.com" || s.Scope != nil {
		t.Errorf("the session is %+v", s)
	}
	if want := w.clock.now().Add(8 * time.Hour); !s.Until.Equal(want) {
		t.Errorf("the session ends at %s, want %s", s.Until, want)
	}
	if got := strings.Join(s.Groups, " "); got != "group:corp/all%20staff group:corp/ops" {
		t.Errorf("groups: %s", got)
	}

	ann := w.with(s.Secret)
	me, err := ann.Access.WhoAmI(t.Context())
	must(t, err)
	if me.Subject != "user:corp/1" || !slices.Equal(me.Namespaces, []string{"prod"}) {
		t.Errorf("the session is that of %+v", me)
	}

	var records []task.AuditRecord
	for a, err := range w.AuditLog.List(t.Context(), client.AuditLogOptions{Operation: "finish-web-login"}) {
		must(t, err)
		records = append(records, a)
	}
	if len(records) != 1 || records[0].Subject != "user:corp/1" || records[0].Address != "127.0.0.1" || len(records[0].Objects) != 1 || records[0].Objects[0].Name != s.ID {
		t.Errorf("audit records: %+v", records)
	}

	// It ends after its time, or when the person logs out or is disabled.
	must(t, ann.Sessions.End(t.Context()))
	wantRefused(t, "after the logout", w.as(s.Secret, "GET", "/v1/whoami", ""), "not known")

	s, err = w.signIn(annAtCorp)
	must(t, err)
	_, err = w.Subjects.Disable(t.Context(), "user:corp/1")
	must(t, err)
	wantRefused(t, "of a disabled person", w.as(s.Secret, "GET", "/v1/whoami", ""), "disabled")
	_, err = w.signIn(annAtCorp)
	wantProblem(t, err, http.StatusUnauthorized, "disabled")
}

// A person without a token can list and end their own sessions, and nothing else.
func TestOIDC_PeopleEndTheirOtherSessions(t *testing.T) {
	w := newOIDCWorld(t)
	for _, who := range []string{"user:corp/1", "user:corp/2"} {
		w.bind(who, access.RoleViewer, "prod")
	}

	sessions := map[string]client.WebSession{}
	for name, who := range map[string]oidcprovider.User{"here": annAtCorp, "forgotten": annAtCorp, "bob": bobAtCorp} {
		var err error
		sessions[name], err = w.signIn(who)
		must(t, err)
	}
	token := w.token("user:corp/1")
	ofToken, err := w.with(token).Sessions.Create(t.Context())
	must(t, err)

	ann := w.with(sessions["here"].Secret)
	list, err := ann.Tokens.ListWithSessions(t.Context(), "")
	must(t, err)
	if !slices.ContainsFunc(list, func(t task.Token) bool { return t.ID == sessions["forgotten"].ID }) || slices.ContainsFunc(list, func(t task.Token) bool { return t.ID == sessions["bob"].ID }) {
		t.Errorf("the sessions are %+v", list)
	}

	must(t, ann.Tokens.Delete(t.Context(), sessions["forgotten"].ID))
	wantRefused(t, "the session that was ended", w.as(sessions["forgotten"].Secret, "GET", "/v1/whoami", ""), "not known")

	for what, id := range map[string]string{"of somebody else": sessions["bob"].ID, "a token": tokenID(token), "of a token": ofToken.ID} {
		if err := ann.Tokens.Delete(t.Context(), id); err == nil {
			t.Errorf("%s: it is deleted", what)
		}
	}

	// Nor can the session of a token end those of other logins.
	if err := w.with(ofToken.Secret).Tokens.Delete(t.Context(), sessions["here"].ID); err == nil {
		t.Error("the session of a token has ended that of a login")
	}
}

func TestOIDC_GroupsOfTheLoginGiveTheirRightsToTheSessionOnly(t *testing.T) {
	w := newOIDCWorld(t)
	w.bind("group:corp/ops", "editor", "prod")
	w.create("a", "@daily")

	s, err := w.signIn(annAtCorp)
	must(t, err)
	ann := w.with(s.Secret)

	_, err = ann.Tasks.Create(t.Context(), "prod", spec("b", "@daily"))
	must(t, err)
	if r := w.as(s.Secret, "DELETE", "/v1/namespaces/default/tasks/a", ""); r.status != http.StatusNotFound {
		t.Errorf("in another namespace: %d %s", r.status, r.body)
	}

	me, err := ann.Access.WhoAmI(t.Context())
	must(t, err)
	if len(me.Bindings) != 1 || !slices.Equal(me.Bindings[0].Subjects, []string{"group:corp/ops"}) {
		t.Errorf("bindings: %+v", me.Bindings)
	}

	// Another session, of a login without the group, has nothing of it, and neither has a token of the person.
	w.bind("user:corp/1", access.RoleViewer, "other")
	outside := annAtCorp
	outside.Groups = nil
	s2, err := w.signIn(outside)
	must(t, err)
	token := w.token("user:corp/1", until(w.clock.now().Add(time.Hour)))
	for what, secret := range map[string]string{"a session without the group": s2.Secret, "a token": token} {
		if r := w.as(secret, "DELETE", "/v1/namespaces/prod/tasks/b", ""); r.status != http.StatusNotFound {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}

	// A right that is taken away from the group is taken away from the session.
	bindings, err := w.Bindings.List(t.Context(), "group:corp/ops")
	must(t, err)
	must(t, w.Bindings.Delete(t.Context(), bindings[0].Name, bindings[0].Revision))
	if r := w.as(s.Secret, "DELETE", "/v1/namespaces/prod/tasks/b", ""); r.status != http.StatusNotFound {
		t.Errorf("after the binding was deleted: %d %s", r.status, r.body)
	}
}

func TestOIDC_WithoutABindingNobodyGetsASession(t *testing.T) {
	w := newOIDCWorld(t)
	_, err := w.signIn(annAtCorp) // the key is written
	wantProblem(t, err, http.StatusForbidden, "you are signed in as user:corp/1 (Ann ann@example.com), but have no access to this cluster: no binding names you or your groups; the groups of this login are group:corp/all%20staff, group:corp/ops")

	before := w.writes.committed()
	_, err = w.signIn(bobAtCorp)
	wantProblem(t, err, http.StatusForbidden, "this login has no groups")
	if n := w.writes.committed() - before; n != 0 {
		t.Errorf("a refused login made %d writes", n)
	}

	refused := w.refusals()
	if len(refused) != 2 || refused[1].Subject != "user:corp/2" || refused[1].Outcome != task.AuditRefused || refused[1].Operation != "login" || !strings.Contains(refused[1].Reason, "no access") {
		t.Errorf("recorded: %+v", refused)
	}
}

// A binding that has ended, and one of somebody else, give no session.
func TestOIDC_BindingsThatDoNotCount(t *testing.T) {
	w := newOIDCWorld(t)
	w.bind("user:1", access.RoleViewer)
	w.bind("user:other/1", access.RoleViewer)
	w.bind("group:other/ops", access.RoleViewer)
	w.access(w.store.Keys().Binding("ended"), func(now time.Time) (int64, error) {
		return w.store.PutBinding(t.Context(), 0, task.Binding{
			Name: "ended", Role: access.RoleViewer, RoleUID: access.BuiltInUID, Subjects: []string{"user:corp/1"}, Cluster: true, Until: task.At(w.clock.now()),
		}, now)
	})

	_, err := w.signIn(annAtCorp)
	wantProblem(t, err, http.StatusForbidden, "no access")
}

// The binding is deleted after the node has read it, and before the session is written.
func TestOIDC_TheSessionIsNotWrittenAfterTheBindingIsGone(t *testing.T) {
	w := newOIDCWorld(t)
	w.bind("user:corp/1", access.RoleViewer)
	bindings, err := w.Bindings.List(t.Context(), "user:corp/1")
	must(t, err)
	_, err = w.store.LoginKey(t.Context())
	must(t, err)

	login, err := w.anyone.Logins.BeginWeb(t.Context(), client.WebLoginRequest{Provider: "corp"})
	must(t, err)
	back := w.provider.SignIn(t, login.URL, annAtCorp)

	deleted := sync.OnceFunc(func() {
		must(t, w.store.DeleteBinding(t.Context(), bindings[0].Name, bindings[0].Revision, w.clock.now()))
	})
	w.beforeSession(deleted)
	_, err = w.anyone.Logins.FinishWeb(t.Context(), "corp", login.State, back.Query())
	wantProblem(t, err, http.StatusForbidden, "no access")
}

// beforeSession calls f before the first write that puts a token.
func (w *oidcWorld) beforeSession(f func()) {
	w.writes.set(func(txn kv.Txn) {
		for _, op := range txn.Then {
			if op.IsPut() && strings.HasPrefix(string(op.KeyBytes()), w.store.Keys().Tokens()) {
				w.writes.set(nil, nil)
				f()
				return
			}
		}
	}, nil)
}

func TestOIDC_RefusedLoginsAreRecordedAndLimited(t *testing.T) {
	w := newOIDCWorld(t)
	_, err := w.store.LoginKey(t.Context())
	must(t, err)
	login, err := w.anyone.Logins.BeginWeb(t.Context(), client.WebLoginRequest{Provider: "corp"})
	must(t, err)

	writes, reads, statuses, began := w.writes.committed(), w.reads.Load(), map[int]int{}, time.Now()
	for range 200 {
		_, err := w.anyone.Logins.FinishWeb(t.Context(), "corp", login.State, url.Values{"state": {"x"}})
		var e *client.Error
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		statuses[e.Status]++
	}

	if statuses[http.StatusUnauthorized] < 15 || statuses[http.StatusTooManyRequests] < 20 || statuses[401]+statuses[429] != 200 {
		t.Errorf("200 invalid logins: %v", statuses)
	}
	if n, m := w.writes.committed()-writes, w.reads.Load()-reads; n != 0 || m > 10+int64(time.Since(began).Seconds()) {
		t.Errorf("200 invalid logins made %d writes and %d reads", n, m)
	}
	if refused := w.refusals(); len(refused) == 0 || len(refused) > 10 || !strings.Contains(refused[0].Reason, "belongs to another login") || refused[0].Address != "127.0.0.1" {
		t.Errorf("recorded: %+v", refused)
	}

	metrics := w.do(request{method: "GET", path: "/metrics"}).body
	if !strings.Contains(metrics, `carillon_api_logins_refused_total{code="401"}`) {
		t.Errorf("the metrics count no refused login: %s", metrics)
	}
}

func TestOIDC_DeviceLogin(t *testing.T) {
	w := newOIDCWorld(t)
	w.bind("group:corp/ops", access.RoleViewer)

	login, err := w.anyone.Logins.BeginDevice(t.Context(), "corp")
	must(t, err)
	if login.Interval != 2 || login.Page != w.provider.URL+"/activate" || !login.Ends.Equal(w.clock.now().Add(10*time.Minute)) {
		t.Errorf("began %+v", login)
	}

	answer, err := w.anyone.Logins.PollDevice(t.Context(), login.Handle)
	must(t, err)
	if !answer.Pending || answer.Session != nil {
		t.Errorf("not confirmed: %+v", answer)
	}

	w.provider.Confirm(t, login.Code, annAtCorp)
	answer, err = w.anyone.Logins.PollDevice(t.Context(), login.Handle)
	must(t, err)
	if answer.Pending || answer.Session == nil || answer.Session.Subject != "user:corp/1" {
		t.Fatalf("confirmed: %+v", answer)
	}
	if r := w.as(answer.Session.Secret, "GET", "/v1/whoami", ""); r.status != http.StatusOK {
		t.Errorf("the session: %d %s", r.status, r.body)
	}

	_, err = w.anyone.Logins.PollDevice(t.Context(), login.Handle)
	wantProblem(t, err, http.StatusUnauthorized, "does not accept the code")
}

func TestOIDC_ProvidersAndTheirProblems(t *testing.T) {
	w := newOIDCWorld(t)
	w.provider.Close()

	list, err := w.anyone.Logins.Providers(t.Context())
	must(t, err)
	if len(list) != 1 || list[0].Name != "corp" || !strings.Contains(list[0].Problem, "does not answer") {
		t.Errorf("providers: %+v", list)
	}

	_, err = w.anyone.Logins.BeginDevice(t.Context(), "corp")
	wantProblem(t, err, http.StatusServiceUnavailable, "does not answer")
	_, err = w.anyone.Logins.BeginDevice(t.Context(), "nosuch")
	wantProblem(t, err, http.StatusNotFound, "no login provider")
}

func TestOIDC_ANodeWithoutProvidersHasNone(t *testing.T) {
	w := newWorld(t)
	anyone := w.with("")

	list, err := anyone.Logins.Providers(t.Context())
	must(t, err)
	if len(list) != 0 {
		t.Errorf("providers: %+v", list)
	}

	_, err = anyone.Logins.BeginWeb(t.Context(), client.WebLoginRequest{Provider: "corp"})
	wantProblem(t, err, http.StatusNotFound, "no login provider")
	_, err = anyone.Logins.FinishWeb(t.Context(), "corp", "x", nil)
	wantProblem(t, err, http.StatusNotFound, "no login provider")
	_, err = anyone.Logins.PollDevice(t.Context(), "x")
	wantProblem(t, err, http.StatusNotFound, "no login provider")
}

func TestOIDC_ANodeWhoseClockIsNotTrustedStartsNoSession(t *testing.T) {
	w := newOIDCWorld(t)
	w.bind("user:corp/1", access.RoleViewer)
	w.badTime = errors.New("it is wrong")

	_, err := w.signIn(annAtCorp)
	wantProblem(t, err, http.StatusServiceUnavailable, "clock is not trusted")
}

func TestOIDC_TheOldestOfTooManySessionsEnds(t *testing.T) {
	w := newOIDCWorld(t)
	w.bind("user:corp/1", access.RoleViewer)

	var secrets []string
	for i := range 22 {
		w.clock.advance(time.Minute)
		login, err := w.from(i).Logins.BeginWeb(t.Context(), client.WebLoginRequest{Provider: "corp"})
		must(t, err)
		s, err := w.from(i).Logins.FinishWeb(t.Context(), "corp", login.State, w.provider.SignIn(t, login.URL, annAtCorp).Query())
		must(t, err)
		secrets = append(secrets, s.Secret)
	}

	for i, secret := range secrets {
		r := w.as(secret, "GET", "/v1/whoami", "")
		if want := i >= 2; (r.status == http.StatusOK) != want {
			t.Errorf("session %d of 22: %d %s", i, r.status, r.body)
		}
	}
}

func TestOIDC_AGroupCannotActByItself(t *testing.T) {
	w := newOIDCWorld(t)
	_, err := w.Tokens.Create(t.Context(), client.TokenRequest{Subject: "group:corp/ops", Until: task.At(w.clock.now().Add(time.Hour))})
	wantProblem(t, err, http.StatusUnprocessableEntity, "is a group")
	_, err = w.Subjects.Disable(t.Context(), "group:corp/ops")
	wantProblem(t, err, http.StatusUnprocessableEntity, "is a group")
}

// from returns a client without a token that seems to be on another host for each number.
func (w *oidcWorld) from(i int) *client.Client {
	w.t.Helper()

	plain := &http.Transport{DisableKeepAlives: true}
	c, err := client.New(client.Config{Server: w.url, HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		r.Header.Set("X-Test-From", fmt.Sprintf("192.0.2.%d", i))
		return plain.RoundTrip(r)
	})}})
	must(w.t, err)

	return c
}

// roundTrip is a function as an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (t roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
