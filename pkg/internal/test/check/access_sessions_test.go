package check

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// sessionRecord returns the put of a session of a token of user:ann. edit may change it.
func (s *sim) sessionRecord(id, kind, parent string, age time.Duration, edit func(*task.Token)) op {
	t := record.Token{Token: task.Token{ID: id, Kind: kind, Parent: parent, Subject: "user:ann", Until: task.At(time.UnixMilli(s.now).Add(age))}}
	if edit != nil {
		edit(&t.Token)
	}

	return op{s.keys.Token(id), t}
}

// rootRecord returns the put of a session or a login link of root on the host of a node.
func (s *sim) rootRecord(id, kind, node string, age time.Duration) op {
	return s.sessionRecord(id, kind, "", age, func(t *task.Token) { t.Subject, t.Node = access.RootSubject, node })
}

// onNode sets the node of an audit record.
func onNode(name string) func(*task.AuditRecord) {
	return func(a *task.AuditRecord) { a.Node = name }
}

func TestCheck_Sessions(t *testing.T) {
	const session, link = task.TokenKindSession, task.TokenKindLink

	for _, c := range []struct {
		name, promise string
		happen        func(s *sim)
	}{
		{"a session of a token acts and ends", "", func(s *sim) {
			s.audited("create-session", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", 8*time.Hour, nil))
			s.audited("create-task", "user:ann", "s1", nil, s.spec("default", "x", nil))
			s.audited("delete-session", "user:ann", "s1", nil, op{s.keys.Token("s1"), nil})
		}},
		{"a link becomes a session", "", func(s *sim) {
			s.audited("create-login-link", "user:ann", "t1", nil, s.sessionRecord("l1", link, "t1", 10*time.Minute, nil))
			s.audited("use-login-link", "user:ann", "l1", nil, s.sessionRecord("s1", session, "t1", 8*time.Hour, nil), op{s.keys.Token("l1"), nil})
			s.audited("create-task", "user:ann", "s1", nil, s.spec("default", "x", nil))
		}},

		{"a link of root becomes a session", "", func(s *sim) {
			s.audited("create-login-link", "unix:uid=0", "", onNode("n1"), s.rootRecord("l1", link, "n1", 10*time.Minute))
			s.audited("use-login-link", root, "l1", onNode("n1"), s.rootRecord("s1", session, "n1", time.Hour), op{s.keys.Token("l1"), nil})
			s.audited("create-task", root, "s1", onNode("n1"), s.spec("default", "x", nil))
		}},

		{"another user creates a link of root", "G27", func(s *sim) {
			s.audited("create-login-link", "unix:uid=1000", "", onNode("n1"), s.rootRecord("l1", link, "n1", 10*time.Minute))
		}},
		{"another node uses a link of root", "G27", func(s *sim) {
			s.audited("create-login-link", "unix:uid=0", "", onNode("n1"), s.rootRecord("l1", link, "n1", 10*time.Minute))
			s.audited("use-login-link", root, "l1", onNode("n2"), s.rootRecord("s1", session, "n1", time.Hour), op{s.keys.Token("l1"), nil})
		}},
		{"a session of root lasts too long", "G27", func(s *sim) {
			s.audited("create-login-link", "unix:uid=0", "", onNode("n1"), s.rootRecord("l1", link, "n1", 10*time.Minute))
			s.audited("use-login-link", root, "l1", onNode("n1"), s.rootRecord("s1", session, "n1", 8*time.Hour), op{s.keys.Token("l1"), nil})
		}},
		{"a session of root acts after it was deleted", "G27", func(s *sim) {
			s.audited("create-login-link", "unix:uid=0", "", onNode("n1"), s.rootRecord("l1", link, "n1", 10*time.Minute))
			s.audited("use-login-link", root, "l1", onNode("n1"), s.rootRecord("s1", session, "n1", time.Hour), op{s.keys.Token("l1"), nil})
			s.audited("test", root, "", nil, op{s.keys.Token("s1"), nil})
			s.audited("create-task", root, "s1", onNode("n1"), s.spec("default", "x", nil))
		}},
		{"a session acts after its token was deleted", "G27", func(s *sim) {
			s.audited("create-session", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", time.Hour, nil))
			s.audited("test", root, "", nil, op{s.keys.Token("t1"), nil})
			s.audited("create-task", "user:ann", "s1", nil, s.spec("default", "x", nil))
		}},
		{"a session acts after its token was created again", "G27", func(s *sim) {
			s.audited("create-session", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", time.Hour, nil))
			s.audited("test", root, "", nil, op{s.keys.Token("t1"), nil})
			s.issue("t1", "user:ann", nil)
			s.audited("create-task", "user:ann", "s1", nil, s.spec("default", "x", nil))
		}},
		{"a session acts after it has ended", "G27", func(s *sim) {
			s.audited("create-session", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", time.Second, nil))
			s.pass(2)
			s.audited("create-task", "user:ann", "s1", nil, s.spec("default", "x", nil))
		}},
		{"a session is created after its token was deleted", "G27", func(s *sim) {
			s.audited("test", root, "", nil, op{s.keys.Token("t1"), nil})
			s.audited("create-session", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", time.Hour, nil))
		}},
		{"a session creates a session", "G27", func(s *sim) {
			s.audited("create-session", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", time.Hour, nil))
			s.audited("create-session", "user:ann", "s1", nil, s.sessionRecord("s2", session, "s1", time.Hour, nil))
		}},
		{"a session lasts too long", "G27", func(s *sim) {
			s.audited("create-session", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", 9*time.Hour, nil))
		}},
		{"a session ends after its token", "G27", func(s *sim) {
			s.issue("t3", "user:ann", func(t *task.Token) { t.Until = task.At(time.UnixMilli(s.now).Add(time.Minute)) })
			s.audited("create-session", "user:ann", "t3", nil, s.sessionRecord("s1", session, "t3", time.Hour, nil))
		}},
		{"a session is another subject's", "G27", func(s *sim) {
			s.audited("create-session", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", time.Hour, func(t *task.Token) { t.Subject = "user:bob" }))
		}},
		{"a session reaches further than its token", "G27", func(s *sim) {
			s.issue("t3", "user:ann", func(t *task.Token) { t.CIDRs = []string{"10.0.0.0/8"} })
			s.audited("create-session", "user:ann", "t3", nil, s.sessionRecord("s1", session, "t3", time.Hour, nil))
		}},
		{"another operation creates a session", "G27", func(s *sim) {
			s.audited("create-token", "user:ann", "t1", nil, s.sessionRecord("s1", session, "t1", time.Hour, nil))
		}},
		{"a link is used twice", "G27", func(s *sim) {
			s.audited("create-login-link", "user:ann", "t1", nil, s.sessionRecord("l1", link, "t1", 10*time.Minute, nil))
			s.audited("use-login-link", "user:ann", "l1", nil, s.sessionRecord("s1", session, "t1", time.Hour, nil), op{s.keys.Token("l1"), nil})
			s.audited("use-login-link", "user:ann", "l1", nil, s.sessionRecord("s2", session, "t1", time.Hour, nil))
		}},
		{"a link stays when it is used", "G27", func(s *sim) {
			s.audited("create-login-link", "user:ann", "t1", nil, s.sessionRecord("l1", link, "t1", 10*time.Minute, nil))
			s.audited("use-login-link", "user:ann", "l1", nil, s.sessionRecord("s1", session, "t1", time.Hour, nil))
		}},
		{"a link creates a task", "G27", func(s *sim) {
			s.audited("create-login-link", "user:ann", "t1", nil, s.sessionRecord("l1", link, "t1", 10*time.Minute, nil))
			s.audited("create-task", "user:ann", "l1", nil, s.spec("default", "x", nil))
		}},
		{"a link lasts too long", "G27", func(s *sim) {
			s.audited("create-login-link", "user:ann", "t1", nil, s.sessionRecord("l1", link, "t1", time.Hour, nil))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			c.happen(s)
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}

// loginRecord returns the put of the session of somebody who has signed in. edit may change it.
func (s *sim) loginRecord(edit func(*task.Token)) op {
	return s.sessionRecord("s1", task.TokenKindSession, "", 8*time.Hour, func(t *task.Token) {
		t.Subject, t.Groups = "user:corp/1", []string{"group:corp/ops"}
		if edit != nil {
			edit(t)
		}
	})
}

func TestCheck_Logins(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		happen        func(s *sim)
	}{
		{"somebody signs in and creates a task", "", func(s *sim) {
			s.audited("finish-web-login", "user:corp/1", "", nil, s.loginRecord(nil))
			s.audited("create-task", "user:corp/1", "s1", nil, s.spec("default", "x", nil))
			s.audited("delete-session", "user:corp/1", "s1", nil, op{s.keys.Token("s1"), nil})
		}},
		{"somebody signs in from the command line", "", func(s *sim) {
			s.audited("poll-device-login", "user:corp/1", "", nil, s.loginRecord(nil))
		}},

		{"no group has a binding", "G27", func(s *sim) {
			s.audited("finish-web-login", "user:corp/1", "", nil, s.loginRecord(func(t *task.Token) { t.Groups = []string{"group:corp/dev"} }))
		}},
		{"the binding is gone", "G27", func(s *sim) {
			s.audited("test", root, "", nil, op{s.keys.Binding("ops"), nil}, op{s.keys.Fence(), struct{}{}})
			s.audited("finish-web-login", "user:corp/1", "", nil, s.loginRecord(nil))
		}},
		{"the session acts after the binding is gone", "G27", func(s *sim) {
			s.audited("finish-web-login", "user:corp/1", "", nil, s.loginRecord(nil))
			s.audited("test", root, "", nil, op{s.keys.Binding("ops"), nil}, op{s.keys.Fence(), struct{}{}})
			s.audited("create-task", "user:corp/1", "s1", nil, s.spec("default", "x", nil))
		}},
		{"the groups are those of another provider", "G27", func(s *sim) {
			s.audited("finish-web-login", "user:other/1", "", nil, s.loginRecord(func(t *task.Token) { t.Subject = "user:other/1" }))
		}},
		{"the session is that of somebody else", "G27", func(s *sim) {
			s.audited("finish-web-login", "user:corp/2", "", nil, s.loginRecord(nil))
		}},
		{"the subject is that of no provider", "G27", func(s *sim) {
			s.audited("finish-web-login", "user:ann", "", nil, s.loginRecord(func(t *task.Token) { t.Subject, t.Groups = "user:ann", nil }))
		}},
		{"a login creates a token", "G27", func(s *sim) {
			s.audited("finish-web-login", "user:corp/1", "", nil, s.loginRecord(func(t *task.Token) { t.Kind, t.Groups = task.TokenKindToken, nil }))
		}},
		{"the session lasts too long", "G27", func(s *sim) {
			s.audited("finish-web-login", "user:corp/1", "", nil, s.loginRecord(func(t *task.Token) { t.Until = task.At(t.Until.Add(time.Hour)) }))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			s.audited("test", root, "", nil, op{s.keys.Fence(), struct{}{}}, op{s.keys.Binding("ops"), task.Binding{
				Name: "ops", Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{"group:corp/ops"}, Cluster: true,
			}})
			c.happen(s)
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}

// Verifies: G27
func TestCheck_ASweepDeletesExpiredTokensOnly(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		happen        func(s *sim)
	}{
		{"an expired token", "", func(s *sim) {
			s.issue("t3", "user:ann", func(t *task.Token) { t.Until = s.time() })
			s.pass(1)
			s.audited(sweepTokens, "node:n1", "", nil, op{s.keys.Token("t3"), nil})
		}},
		{"a token that has not expired", "G27", func(s *sim) {
			s.issue("t3", "user:ann", func(t *task.Token) { t.Until = task.At(s.time().Add(1 << 40)) })
			s.audited(sweepTokens, "node:n1", "", nil, op{s.keys.Token("t3"), nil})
		}},
		{"a token without an end", "G27", func(s *sim) {
			s.audited(sweepTokens, "node:n1", "", nil, op{s.keys.Token("t1"), nil})
		}},
		{"a task", "G27", func(s *sim) {
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			s.audited(sweepTokens, "node:n1", "", nil, op{s.spec("default", "x", nil).key, nil})
		}},
		{"a binding", "G27", func(s *sim) {
			s.audited(sweepTokens, "node:n1", "", nil, op{s.keys.Binding("editors"), nil}, op{s.keys.Fence(), record.Fence{}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			c.happen(s)
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}

// Verifies: G28
func TestCheck_AuditRecordsAreRemovedWithAGap(t *testing.T) {
	gap := func(s *sim, removed int64) op {
		g := task.AuditGap{Why: task.GapAge, Removed: removed}
		return op{s.keys.AuditGap(&g), g}
	}

	for _, c := range []struct {
		name, promise string
		happen        func(s *sim, key string)
	}{
		{"with a gap", "", func(s *sim, key string) { s.txn(op{key, nil}, gap(s, 1)) }},
		{"without a gap", "G28", func(s *sim, key string) { s.txn(op{key, nil}) }},
		{"with a gap of more", "G28", func(s *sim, key string) { s.txn(op{key, nil}, gap(s, 2)) }},
		{"a gap in another transaction", "G28", func(s *sim, key string) { s.txn(gap(s, 1)); s.txn(op{key, nil}) }},
		{"a gap that only replaces others", "", func(s *sim, _ string) { s.txn(gap(s, 0)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			s.audited("create-task", "user:ann", "t1", nil, s.spec("default", "x", nil))
			key := ""
			for _, ev := range s.events {
				if strings.HasPrefix(ev.Key, s.keys.AuditRecords()) {
					key = ev.Key
				}
			}
			c.happen(s, key)
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}
