package access_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// A session may do what its token may, for as long as both are accepted.
func TestTable_ASessionIsValidOnlyWithItsParent(t *testing.T) {
	ann := access.Caller{Subject: "user:ann", Token: "session"}
	need := access.Need{Verb: access.Update, Kind: access.Tasks, Namespace: "default"}
	binding := task.Binding{Name: "b", Role: "editor", RoleUID: access.BuiltInUID, Subjects: []string{"user:ann", "user:bob"}, Namespaces: []string{"default"}}
	parent := task.Token{ID: "parent", Subject: "user:ann"}
	session := task.Token{ID: "session", Kind: task.TokenKindSession, Subject: "user:ann", Parent: "parent", Until: task.At(now.Add(time.Hour))}

	for _, c := range []struct {
		name string
		edit func(r *access.Records)
		want string
	}{
		{"with its parent", func(*access.Records) {}, ""},
		{"the parent was deleted", func(r *access.Records) { r.Tokens = r.Tokens[1:] }, "the token with which the session was created has been deleted"},
		{"the parent was created again", func(r *access.Records) { r.Created["parent"] = 9 }, "the token with which the session was created has been deleted"},
		{"the parent has expired", func(r *access.Records) { r.Tokens[0].Until = task.At(now) }, "the token with which the session was created has expired"},
		{"the parent is another subject's", func(r *access.Records) { r.Tokens[0].Subject = "user:bob" }, "the token with which the session was created has been deleted"},
		{"the parent is a session", func(r *access.Records) {
			r.Tokens[0].Kind, r.Tokens[0].Until = task.TokenKindSession, session.Until
		}, "the token with which the session was created has been deleted"},
		{"the session has ended", func(r *access.Records) { r.Tokens[1].Until = task.At(now) }, "the session has ended"},
		{"the link has expired", func(r *access.Records) { r.Tokens[1].Kind, r.Tokens[1].Until = task.TokenKindLink, task.At(now) }, "the login link has expired"},
		{"the kind is unknown", func(r *access.Records) { r.Tokens[1].Kind = "x" }, "the token is not known"},
		{"a token has no parent", func(r *access.Records) { r.Tokens[1].Kind = task.TokenKindToken }, "the token is not known"},
		{"a session has an end", func(r *access.Records) { r.Tokens[1].Until = task.Time{} }, "the token is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := access.Records{
				Bindings: []task.Binding{binding}, Tokens: []task.Token{parent, session}, Fence: 1,
				Created: map[string]int64{"parent": 5, "session": 6},
			}
			c.edit(&r)
			table, _ := access.Compile(r)

			if got := table.TokenProblem(ann, now); got != c.want {
				t.Errorf("the problem is %q, want %q", got, c.want)
			}
			if got := table.Allows(ann, need, now); got != (c.want == "") {
				t.Errorf("it is allowed: %v", got)
			}
			if got := table.AllowsSomewhere(ann, need, now); got != (c.want == "") {
				t.Errorf("it is allowed somewhere: %v", got)
			}
		})
	}
}

// A session is no token with which an administrator can act later.
func TestTable_ASessionMakesNoAdmin(t *testing.T) {
	table, problems := access.Compile(access.Records{
		Bindings: []task.Binding{{Name: "b", Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{"user:ann"}, Cluster: true}},
		Tokens:   []task.Token{{ID: "s", Kind: task.TokenKindSession, Subject: "user:ann", Until: task.At(now.Add(time.Hour))}},
		Fence:    1, Created: map[string]int64{"s": 5},
	})
	if len(problems) > 0 || !table.LastAdmin(now, func(string, string) bool { return false }) {
		t.Errorf("the session counts as an administrator's token; problems %v", problems)
	}
}

// The scope of a session whose parent was deleted is no problem to report, also if its role was deleted, too.
func TestCompile_AnOrphanedSessionIsNoProblem(t *testing.T) {
	_, problems := access.Compile(access.Records{
		Tokens: []task.Token{{ID: "s", Kind: task.TokenKindSession, Subject: "user:ann", Parent: "gone", Scope: &task.TokenScope{Role: "gone"}, Until: task.At(now)}},
		Fence:  1, Created: map[string]int64{"s": 5},
	})
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}
