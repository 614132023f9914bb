package check

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

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
