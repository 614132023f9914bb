package check

import (
	"testing"
	"time"

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
