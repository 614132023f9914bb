package api_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// with returns a client that has another token.
func (w *world) with(secret string) *client.Client {
	w.t.Helper()
	old := w.secret
	defer func() { w.secret = old }()
	w.secret = secret

	return w.client(w.url)
}

// session creates a session of a token.
func (w *world) session(token string) client.NewToken {
	w.t.Helper()
	s, err := w.with(token).Sessions.Create(w.t.Context())
	must(w.t, err)

	return s
}

// link creates a login link of a token.
func (w *world) link(token string) client.LoginLink {
	w.t.Helper()
	l, err := w.with(token).Sessions.CreateLink(w.t.Context())
	must(w.t, err)

	return l
}

func TestSession_ActsAsItsTokenAndEndsWithIt(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.bind("user:eve", "editor", "default")
	token := w.token("user:eve", func(t *task.Token) {
		t.Scope = &task.TokenScope{Role: "operator", RoleUID: access.BuiltInUID, Namespaces: []string{"default"}}
		t.CIDRs = []string{"127.0.0.0/8"}
	})
	s := w.session(token)
	eve := w.with(s.Secret)

	me, err := eve.Access.WhoAmI(ctx)
	must(t, err)
	got := me.Token
	if me.Subject != "user:eve" || got.Kind != task.TokenKindSession || got.Parent != tokenID(token) || got.Scope.Role != "operator" || !slices.Equal(got.CIDRs, []string{"127.0.0.0/8"}) {
		t.Errorf("the session is %+v", got)
	}
	if want := w.clock.now().Add(8 * time.Hour); !got.Until.Equal(want) {
		t.Errorf("the session ends at %s, want %s", got.Until, want)
	}

	w.create("a", "@daily")
	_, err = eve.Tasks.Pause(ctx, "default", "a", 0)
	must(t, err)
	if r := w.as(s.Secret, "DELETE", "/v1/namespaces/default/tasks/a", ""); r.status != http.StatusForbidden {
		t.Errorf("beyond the scope of its token: %d %s", r.status, r.body)
	}

	must(t, w.Tokens.Delete(ctx, tokenID(token)))
	wantRefused(t, "after its token was deleted", w.as(s.Secret, "GET", "/v1/whoami", ""), "has been deleted")
}

func wantRefused(t *testing.T, what string, r response, detail string) {
	t.Helper()
	if r.status != http.StatusUnauthorized || !strings.Contains(r.Detail, detail) {
		t.Errorf("%s: %d %s; want 401, %s", what, r.status, r.body, detail)
	}
}

func TestSession_EndsAfterHoursOrWhenItsTokenExpires(t *testing.T) {
	w := newWorld(t)
	long, short := w.token("user:eve"), w.token("user:eve", until(w.clock.now().Add(time.Hour)))
	lasting, brief := w.session(long), w.session(short)

	w.clock.advance(time.Hour)
	wantRefused(t, "after its token has expired", w.as(brief.Secret, "GET", "/v1/whoami", ""), "has ended")

	w.clock.advance(7*time.Hour - time.Second)
	wantStatus(t, "before eight hours", w.as(lasting.Secret, "GET", "/v1/whoami", ""), http.StatusOK, "")

	w.clock.advance(time.Second)
	wantRefused(t, "after eight hours", w.as(lasting.Secret, "GET", "/v1/whoami", ""), "the session has ended")
}

// What a session does must not outlive its token, so it creates neither sessions nor tokens of its own subject.
func TestSession_CreatesNoSessionsAndTokens(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "editor", "default")
	token := w.token("user:eve")
	s := w.session(token)

	for path, body := range map[string]string{"/v1/sessions": "", "/v1/login-links": "", "/v1/tokens": `{"scope":{"role":"viewer"}}`} {
		wantStatus(t, path, w.as(s.Secret, "POST", path, body), http.StatusForbidden, client.CodeForbidden)
	}
	wantStatus(t, "its token", w.as(s.Secret, "DELETE", "/v1/tokens/"+tokenID(token), ""), http.StatusForbidden, client.CodeForbidden)

	// An administrator may grant access, also in a session.
	admin := w.session(w.secret)
	end := w.clock.now().Add(time.Hour).Format(time.RFC3339)
	wantStatus(t, "a token of somebody else", w.as(admin.Secret, "POST", "/v1/tokens", `{"subject":"service:ci","until":"`+end+`"}`), http.StatusCreated, "")
}

func TestSession_LogoutEndsItAndNothingElse(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	one, other := w.session(w.secret), w.session(w.secret)

	must(t, w.with(one.Secret).Sessions.End(ctx))
	wantStatus(t, "after the logout", w.as(one.Secret, "GET", "/v1/whoami", ""), http.StatusUnauthorized, client.CodeUnauthorized)
	wantStatus(t, "another session", w.as(other.Secret, "GET", "/v1/whoami", ""), http.StatusOK, "")

	wantStatus(t, "a token is no session", w.do(request{method: "DELETE", path: "/v1/sessions/current"}), http.StatusForbidden, client.CodeForbidden)
	wantStatus(t, "the token", w.do(request{method: "GET", path: "/v1/whoami"}), http.StatusOK, "")
}

// A write of a session that was authorised does not commit after the token of the session was deleted.
//
// Verifies: G27
func TestSession_AChangeLosesToTheDeletionOfItsToken(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.bind("user:eve", "editor", "default")
	token := w.token("user:eve")
	s := w.session(token)

	var once atomic.Bool
	w.writes.set(func(kv.Txn) {
		if once.CompareAndSwap(false, true) {
			must(t, w.store.DeleteToken(ctx, tokenID(token), w.keeper.View().Created(tokenID(token))))
		}
	}, nil)

	r := w.as(s.Secret, "POST", "/v1/namespaces/default/tasks", `{"name":"late","schedule":"@daily","action":{"noop":{}}}`)
	w.writes.set(nil, nil)
	wantRefused(t, "a task", r, "has been deleted")
	if _, err := w.store.Task(ctx, ref("default", "late")); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("the task was created: %v", err)
	}
}

func TestSession_AnotherOneEndsTheOldest(t *testing.T) {
	w := newWorld(t)
	token, scoped := w.token("user:ann"), w.token("user:ann", func(t *task.Token) {
		t.Scope = &task.TokenScope{Role: "viewer", RoleUID: access.BuiltInUID}
	})

	first, second := w.session(token), w.session(token)
	for range 19 {
		w.clock.advance(time.Second) // the scoped token's holder may create a few within a second
		w.session(token)
		w.session(scoped)
	}

	wantStatus(t, "the oldest of 21", w.as(first.Secret, "GET", "/v1/whoami", ""), http.StatusUnauthorized, client.CodeUnauthorized)
	wantStatus(t, "the second", w.as(second.Secret, "GET", "/v1/whoami", ""), http.StatusOK, "")

	// Those that have ended are deleted with the next one.
	w.clock.advance(9 * time.Hour)
	w.session(token)
	if n := len(w.sessionsOf(token)); n != 1 {
		t.Errorf("%d sessions are left, want 1", n)
	}
}

// sessionsOf returns the ids of the sessions and links of a token, as etcd has them.
func (w *world) sessionsOf(token string) (ids []string) {
	w.t.Helper()
	v, err := w.keeper.Current(w.t.Context())
	must(w.t, err)
	for _, t := range v.Tokens() {
		if t.Parent == tokenID(token) {
			ids = append(ids, t.ID)
		}
	}

	return ids
}

func TestLoginLink_BecomesOneSession(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	token := w.token("user:eve")
	l := w.link(token)
	if l.Path != "/ui/login/link#"+l.Secret || !l.Until.Equal(w.clock.now().Add(10*time.Minute)) {
		t.Errorf("the link is %+v", l)
	}

	s, err := w.with(l.Secret).Sessions.UseLink(ctx)
	must(t, err)
	if s.Kind != task.TokenKindSession || s.Parent != tokenID(token) || !s.Until.Equal(w.clock.now().Add(8*time.Hour)) {
		t.Errorf("the session is %+v", s)
	}
	wantStatus(t, "the session", w.as(s.Secret, "GET", "/v1/whoami", ""), http.StatusOK, "")

	wantStatus(t, "the link again", w.as(l.Secret, "POST", "/v1/login-links:use", ""), http.StatusUnauthorized, client.CodeUnauthorized)
	if ids := w.sessionsOf(token); !slices.Equal(ids, []string{s.ID}) {
		t.Errorf("the token has %v, want the session %s", ids, s.ID)
	}
}

// However many nodes a link is sent to at once, it becomes one session.
//
// Verifies: G27
func TestLoginLink_IsUsedOnceByManyAtOnce(t *testing.T) {
	w := newWorld(t)
	token := w.token("user:eve")
	l := w.link(token)
	urls := []string{w.url, w.serve("node-b"), w.serve("node-c")}

	var used atomic.Int32
	var running sync.WaitGroup
	for _, url := range urls {
		c, err := client.New(client.Config{Server: url, Token: l.Secret})
		must(t, err)
		for range 3 {
			running.Go(func() {
				if _, err := c.Sessions.UseLink(t.Context()); err == nil {
					used.Add(1)
				}
			})
		}
	}
	running.Wait()

	if n, sessions := used.Load(), len(w.sessionsOf(token)); n != 1 || sessions != 1 {
		t.Errorf("the link was used %d times and made %d sessions", n, sessions)
	}
}

func TestLoginLink_IsGoodForNothingElse(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	token := w.token("user:eve")
	l := w.link(token)

	for _, c := range []struct{ method, path string }{{"GET", "/v1/whoami"}, {"GET", "/v1/tasks"}, {"POST", "/v1/sessions"}, {"POST", "/v1/login-links"}, {"DELETE", "/v1/sessions/current"}, {"GET", "/v1/nowhere"}} {
		wantRefused(t, c.method+" "+c.path, w.as(l.Secret, c.method, c.path, ""), "a login link is not a token")
	}
	wantStatus(t, "a token is no link", w.as(token, "POST", "/v1/login-links:use", ""), http.StatusForbidden, client.CodeForbidden)

	w.clock.advance(10 * time.Minute)
	wantRefused(t, "an old link", w.as(l.Secret, "POST", "/v1/login-links:use", ""), "the login link has expired")

	fresh := w.link(token)
	must(t, w.Tokens.Delete(ctx, tokenID(token)))
	wantRefused(t, "a link of a deleted token", w.as(fresh.Secret, "POST", "/v1/login-links:use", ""), "has been deleted")
}

// The address from which a session is used counts, and not that from which its link was made.
func TestLoginLink_KeepsTheAddressesOfItsToken(t *testing.T) {
	w := newWorld(t)
	token := w.token("user:eve", func(t *task.Token) { t.CIDRs = []string{"127.0.0.0/8"} })
	l := w.link(token)

	r := w.do(request{method: "POST", path: "/v1/login-links:use", header: map[string]string{"Authorization": "Bearer " + l.Secret, "X-Test-From": "192.0.2.1"}})
	wantRefused(t, "from elsewhere", r, "not accepted from this address")
	wantStatus(t, "from there", w.as(l.Secret, "POST", "/v1/login-links:use", ""), http.StatusCreated, "")
}

func TestSession_NeedsATokenAndATrustedClock(t *testing.T) {
	w := newWorld(t)
	token := w.token("user:eve")
	l := w.link(token)

	w.badTime = errors.New("it is an hour ahead")
	for _, c := range []struct{ secret, path string }{{token, "/v1/sessions"}, {token, "/v1/login-links"}, {l.Secret, "/v1/login-links:use"}} {
		if r := w.as(c.secret, "POST", c.path, ""); r.status < 400 {
			t.Errorf("%s without a trusted clock: %d", c.path, r.status)
		}
	}

	w.badTime = nil
	w.configure = func(s *http.Server) {
		s.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return api.WithTrustedUser(ctx, 1000) }
	}
	w.url = w.serve("node-b")
	for _, path := range []string{"/v1/sessions", "/v1/login-links", "/v1/login-links:use"} {
		wantStatus(t, path+" by a user of the host", w.do(request{method: "POST", path: path, noToken: true}), http.StatusForbidden, client.CodeForbidden)
	}
}

func TestSession_IsListedOnlyIfAskedFor(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.bind("user:eve", "editor", "default")
	token := w.token("user:eve")
	s, l := w.session(token), w.link(token)

	ids := func(list []task.Token, err error) (ids []string) {
		must(t, err)
		for _, t := range list {
			ids = append(ids, t.ID)
		}

		return ids
	}
	if got := ids(w.Tokens.List(ctx, "user:eve")); !slices.Equal(got, []string{tokenID(token)}) {
		t.Errorf("the tokens are %v", got)
	}

	want := []string{tokenID(token), s.ID, l.ID}
	slices.Sort(want)
	if got := ids(w.Tokens.ListWithSessions(ctx, "user:eve")); !slices.Equal(got, want) {
		t.Errorf("with sessions: %v, want %v", got, want)
	}

	change, err := w.Subjects.Disable(ctx, "user:eve")
	must(t, err)
	if len(change.Tokens) != 1 {
		t.Errorf("disabling lists %d tokens, want 1", len(change.Tokens))
	}
	wantRefused(t, "a disabled subject", w.as(s.Secret, "GET", "/v1/whoami", ""), "is disabled")
	wantRefused(t, "a disabled subject's link", w.as(l.Secret, "POST", "/v1/login-links:use", ""), "is disabled")

	must(t, w.Tokens.Delete(ctx, s.ID)) // like any token
	must(t, w.Tokens.Delete(ctx, tokenID(token)))
	if got := ids(w.Tokens.ListWithSessions(ctx, "user:eve")); len(got) > 0 {
		t.Errorf("after the token was deleted: %v", got)
	}
}

// Logins and logouts have audit records, which name the session and the link.
func TestSession_LoginAndLogoutAreAudited(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.bind("user:eve", "editor", "default")
	token := w.token("user:eve")
	l := w.link(token)
	w.clock.advance(time.Second) // records of one millisecond have no order
	s, err := w.with(l.Secret).Sessions.UseLink(ctx)
	must(t, err)
	w.clock.advance(time.Second)
	must(t, w.with(s.Secret).Sessions.End(ctx))

	var got []string
	for r, err := range w.AuditLog.List(ctx, client.AuditLogOptions{Subject: "user:eve", OldestFirst: true}) {
		must(t, err)
		line := fmt.Sprintf("%s by %s:", r.Operation, r.Token)
		for _, o := range r.Objects {
			line += fmt.Sprintf(" %s %s %s", o.Change, o.Kind, o.Name)
		}
		got = append(got, line)
	}

	want := []string{
		fmt.Sprintf("create-login-link by %s: put token %s", tokenID(token), l.ID),
		fmt.Sprintf("use-login-link by %s: put token %s delete token %s", l.ID, s.ID, l.ID),
		fmt.Sprintf("delete-session by %s: delete token %s", s.ID, s.ID),
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit records are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A group of tasks is as large as etcd allows, together with what the writes of a session compare.
func TestSession_BatchesFitIntoTransactions(t *testing.T) {
	w := newWorld(t)
	w.secret = w.session(w.secret).Secret

	for _, schedule := range []string{"@daily", "@hourly"} {
		var lines []string
		for i := range 60 {
			lines = append(lines, line(fmt.Sprintf("t%d", i), schedule))
		}

		for _, r := range w.batch("", lines...) {
			if r.Error != nil {
				t.Fatalf("%s: %+v", schedule, r.Error)
			}
		}
	}
}

// serveSocket serves the API of a node to a user of its host, as its unix socket does.
func (w *world) serveSocket(node string, uid uint32) (url string) {
	w.t.Helper()
	w.configure = func(s *http.Server) {
		s.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return api.WithTrustedUser(ctx, uid) }
	}
	defer func() { w.configure = nil }()

	return w.serve(node)
}

// rootLink creates a login link as root on the host of a node, without a token.
func (w *world) rootLink(node string) client.LoginLink {
	w.t.Helper()
	c, err := client.New(client.Config{Server: w.serveSocket(node, 0)})
	must(w.t, err)
	l, err := c.Sessions.CreateLink(w.t.Context())
	must(w.t, err)

	return l
}

// Root has no token on the socket, and a browser cannot open the socket: the link stands for what the socket shows.
func TestLoginLink_OfRootBecomesAShortSessionOfThisNode(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	l := w.rootLink("node-a")
	if l.Subject != access.RootSubject || l.Node != "node-a" || l.Parent != "" || l.URL != "http://node-a.example.com:7070"+l.Path || !l.Until.Equal(w.clock.now().Add(10*time.Minute)) {
		t.Errorf("the link is %+v", l)
	}
	wantRefused(t, "the link as a token", w.as(l.Secret, "GET", "/v1/whoami", ""), "a login link is not a token")

	s, err := w.with(l.Secret).Sessions.UseLink(ctx)
	must(t, err)
	if s.Subject != access.RootSubject || s.Node != "node-a" || s.Parent != "" || !s.Until.Equal(w.clock.now().Add(time.Hour)) {
		t.Errorf("the session is %+v", s)
	}
	wantStatus(t, "the link again", w.as(l.Secret, "POST", "/v1/login-links:use", ""), http.StatusUnauthorized, client.CodeUnauthorized)

	me, err := w.with(s.Secret).Access.WhoAmI(ctx)
	must(t, err)
	if !me.Host || me.Subject != access.RootSubject || !me.AllNamespaces || me.Token.ID != s.ID {
		t.Errorf("root is %+v", me)
	}
	w.secretCreates(s.Secret, "a")

	w.clock.advance(time.Hour)
	wantRefused(t, "after an hour", w.as(s.Secret, "GET", "/v1/whoami", ""), "the session has ended")
}

// secretCreates creates a task with a credential.
func (w *world) secretCreates(secret, name string) {
	w.t.Helper()
	wantStatus(w.t, "create "+name, w.as(secret, "POST", "/v1/namespaces/default/tasks", `{"name":"`+name+`","schedule":"@daily","action":{"noop":{}}}`), http.StatusCreated, "")
}

// The link shows that its holder was root on the host of one node. So no other node accepts it or its session, and nothing
// that needs the socket itself accepts the session.
func TestLoginLink_OfRootIsLimited(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	l, other := w.rootLink("node-b"), w.rootLink("node-a")
	for what, r := range map[string]response{
		"the link at another node": w.as(l.Secret, "POST", "/v1/login-links:use", ""),
		"a token's operation":      w.as(other.Secret, "GET", "/v1/tasks", ""),
	} {
		wantStatus(t, what, r, http.StatusUnauthorized, client.CodeUnauthorized)
	}

	at := w.url
	w.url = w.serve("node-b")
	s, err := w.with(l.Secret).Sessions.UseLink(ctx)
	must(t, err)
	wantStatus(t, "the session at its node", w.as(s.Secret, "GET", "/v1/tasks", ""), http.StatusOK, "")
	for path, body := range map[string]string{"/v1/sessions": "", "/v1/login-links": "", "/v1/tokens": `{"scope":{"role":"viewer"}}`, "/v1/access/reset": ""} {
		if r := w.as(s.Secret, "POST", path, body); r.status != http.StatusForbidden && r.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}

	w.url = at
	wantRefused(t, "the session at another node", w.as(s.Secret, "GET", "/v1/tasks", ""), "only node node-b accepts")

	// Other users of the host administer the cluster too, but have to use a token of their own, which can be revoked.
	w.url = w.serveSocket("node-a", 1000)
	r := w.do(request{method: "POST", path: "/v1/login-links", noToken: true})
	wantStatus(t, "another user of the host", r, http.StatusForbidden, client.CodeForbidden)
	if !strings.Contains(r.Hint, "sudo carillon ui") {
		t.Errorf("the hint is %q", r.Hint)
	}
}

// The limits of sessions and links of root are those of one node: root of one host does not end what root of another has.
func TestLoginLink_OfRootIsCountedForEachNode(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	spare := w.rootLink("node-b")
	s, err := w.with(w.rootLink("node-a").Secret).Sessions.UseLink(ctx)
	must(t, err)

	at := w.url
	socket, err := client.New(client.Config{Server: w.serveSocket("node-b", 0)})
	must(t, err)
	w.url = w.serve("node-b")
	for range 20 {
		l, err := socket.Sessions.CreateLink(ctx)
		must(t, err)
		_, err = w.with(l.Secret).Sessions.UseLink(ctx)
		must(t, err)
	}

	wantStatus(t, "the first link of the node, after 20 links that were used", w.as(spare.Secret, "POST", "/v1/login-links:use", ""), http.StatusCreated, "")
	listed, err := w.Tokens.ListWithSessions(ctx, access.RootSubject)
	must(t, err)
	if len(listed) != 21 {
		t.Errorf("root has %d sessions, want 20 of node-b and 1 of node-a", len(listed))
	}

	w.url = at
	wantStatus(t, "the session of the other node", w.as(s.Secret, "GET", "/v1/tasks", ""), http.StatusOK, "")
}

// An administrator ends a session of root like any token, and no write of it commits afterwards.
//
// Verifies: G27
func TestLoginLink_OfRootCanBeRevoked(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s, err := w.with(w.rootLink("node-a").Secret).Sessions.UseLink(ctx)
	must(t, err)

	listed, err := w.Tokens.ListWithSessions(ctx, access.RootSubject)
	must(t, err)
	if len(listed) != 1 || listed[0].ID != s.ID {
		t.Errorf("listed %+v", listed)
	}

	var once atomic.Bool
	w.writes.set(func(kv.Txn) {
		if once.CompareAndSwap(false, true) {
			must(t, w.store.DeleteToken(ctx, s.ID, w.keeper.View().Created(s.ID)))
		}
	}, nil)

	r := w.as(s.Secret, "POST", "/v1/namespaces/default/tasks", `{"name":"late","schedule":"@daily","action":{"noop":{}}}`)
	w.writes.set(nil, nil)
	wantStatus(t, "a task", r, http.StatusUnauthorized, client.CodeUnauthorized)
	if _, err := w.store.Task(ctx, ref("default", "late")); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("the task was created: %v", err)
	}
}

// The audit records name the user of the socket who created the link, and what the session did.
func TestLoginLink_OfRootIsAudited(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	l := w.rootLink("node-a")
	w.clock.advance(time.Second) // records of one millisecond have no order
	s, err := w.with(l.Secret).Sessions.UseLink(ctx)
	must(t, err)
	w.clock.advance(time.Second)
	w.secretCreates(s.Secret, "a")

	var got []string
	for r, err := range w.AuditLog.List(ctx, client.AuditLogOptions{OldestFirst: true}) {
		must(t, err)
		if strings.HasPrefix(r.Subject, "unix:") {
			got = append(got, fmt.Sprintf("%s at %s by %s with %q", r.Operation, r.Node, r.Subject, r.Token))
		}
	}

	want := []string{
		`create-login-link at node-a by unix:uid=0 with ""`,
		fmt.Sprintf("use-login-link at node-a by unix:root with %q", l.ID),
		fmt.Sprintf("create-task at node-a by unix:root with %q", s.ID),
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit records are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
