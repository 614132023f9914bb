package access_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// A session has what the bindings of its subject and those of its groups give.
func TestTable_GroupsOfASession(t *testing.T) {
	session := func(id string, groups ...string) task.Token {
		return task.Token{ID: id, Kind: task.TokenKindSession, Subject: "user:corp/1", Groups: groups, Until: task.At(now.Add(time.Hour))}
	}
	table := compile(t, access.Records{
		Bindings: []task.Binding{
			in(bind("own", "viewer", "user:corp/1"), "a"), in(bind("ops", "editor", "group:corp/ops", "user:bob"), "b"),
			in(bind("dev", "operator", "group:corp/dev"), "c"), bind("admins", "admin", "group:corp/admins"),
		},
		Tokens:   []task.Token{session("both", "group:corp/ops", "group:corp/dev"), session("none"), session("admin", "group:corp/admins"), {ID: "token", Subject: "user:corp/1"}},
		Disabled: []string{"user:corp/2"},
	})

	update := func(ns string) access.Need {
		return access.Need{Verb: access.Update, Kind: access.Tasks, Namespace: ns}
	}
	read := func(ns string) access.Need { return access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: ns} }
	for _, c := range []struct {
		token string
		need  access.Need
		want  bool
	}{
		{"both", read("a"), true}, {"both", update("a"), false}, {"both", update("b"), true}, {"both", read("c"), true}, {"both", update("c"), false},
		{"none", read("a"), true}, {"none", read("b"), false}, {"token", read("a"), true}, {"token", read("b"), false}, {"", read("b"), false},
		{"admin", update("x"), true}, {"both", access.Need{Verb: access.Grant, Kind: access.Access}, false},
	} {
		who := access.Caller{Subject: "user:corp/1", Token: c.token}
		if got := table.Allows(who, c.need, now); got != c.want {
			t.Errorf("with %q: %+v is allowed: %v", c.token, c.need, got)
		}
		if got := table.AllowsSomewhere(who, c.need, now); got != c.want {
			t.Errorf("with %q: %+v is allowed somewhere: %v", c.token, c.need, got)
		}
		if table.Allows(access.Caller{Subject: "user:bob", Token: c.token}, c.need, now) && c.token != "" {
			t.Errorf("the session %q gives rights to another subject", c.token)
		}
	}

	both, none := access.Caller{Subject: "user:corp/1", Token: "both"}, access.Caller{Subject: "user:corp/1", Token: "none"}
	if table.Digest(both, now) == table.Digest(none, now) {
		t.Error("sessions with different groups have one digest")
	}
	if got := table.Readable(both, access.Tasks, []string{"a", "b", "c", "d"}, now); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("it may read %v", got)
	}
	if admin := (access.Caller{Subject: "user:corp/1", Token: "admin"}); !table.Administers(admin, now) || !table.ReadsEveryNamespace(admin, access.Tasks, now) || table.Administers(both, now) {
		t.Error("the session of a group of administrators is no administrator, or another one is")
	}

	// What a session creates for its subject has nothing of the groups; what it gives to others may have all of it.
	for _, c := range []struct {
		caller access.Caller
		want   bool
	}{{both, true}, {none, false}} {
		excess, err := table.CoversBinding(c.caller, in(bind("new", "editor", "user:eve"), "b"), now)
		if err != nil || (excess == nil) != c.want {
			t.Errorf("%+v may grant editor in b: %+v, %v", c.caller, excess, err)
		}
	}

	if got := fmt.Sprint(names(table.BindingsOfCaller(both))); got != "[own [user:corp/1] ops [group:corp/ops] dev [group:corp/dev]]" {
		t.Errorf("bindings: %s", got)
	}
	if !table.LastAdmin(now, func(string, string) bool { return false }) {
		t.Error("a group counts as an administrator who can act without the provider")
	}
}

func names(list []task.Binding) (all []any) {
	for _, b := range list {
		all = append(all, b.Name, b.Subjects)
	}
	return all
}

func TestTable_HoldsSomething(t *testing.T) {
	ended := bind("ended", "viewer", "user:corp/2")
	ended.Until = task.At(now)
	table := compile(t, access.Records{Bindings: []task.Binding{bind("own", "viewer", "user:corp/1"), bind("ops", "editor", "group:corp/ops"), ended}})

	for _, c := range []struct {
		subject string
		groups  []string
		want    bool
	}{
		{"user:corp/1", nil, true}, {"user:corp/2", nil, false}, {"user:corp/3", []string{"group:corp/x", "group:corp/ops"}, true},
		{"user:corp/3", []string{"group:corp/x"}, false}, {"user:other/1", nil, false},
	} {
		if got := table.HoldsSomething(c.subject, c.groups, now); got != c.want {
			t.Errorf("%s with %v holds something: %v", c.subject, c.groups, got)
		}
	}
}

// Groups are taken from the session of a login only: a record that says otherwise allows nothing.
func TestTable_OnlyASessionOfALoginHasGroups(t *testing.T) {
	for what, edit := range map[string]func(*task.Token){
		"a token":               func(t *task.Token) { t.Kind = task.TokenKindToken },
		"a login link":          func(t *task.Token) { t.Kind = task.TokenKindLink },
		"a session of a token":  func(t *task.Token) { t.Parent = "parent" },
		"a session without end": func(t *task.Token) { t.Until = task.Time{} },
	} {
		token := task.Token{ID: "x", Kind: task.TokenKindSession, Subject: "user:corp/1", Groups: []string{"group:corp/ops"}, Until: task.At(now.Add(time.Hour))}
		edit(&token)
		table, problems := access.Compile(access.Records{
			Fence: 1, Created: map[string]int64{"parent": 1, "x": 2},
			Bindings: []task.Binding{bind("ops", "admin", "group:corp/ops")}, Tokens: []task.Token{token, {ID: "parent", Subject: "user:corp/1"}},
		})
		if len(problems) == 0 || table.Allows(access.Caller{Subject: "user:corp/1", Token: "x"}, access.Need{Verb: access.Read, Kind: access.Access}, now) {
			t.Errorf("%s has the rights of groups (problems: %v)", what, problems)
		}
	}
}

func TestCheckSubject_Groups(t *testing.T) {
	for subject, want := range map[string]bool{
		"group:corp/ops": true, "group:corp/a/b": true, "group:corp/Domain%20Admins": true, "group:corp/": false, "group:/ops": false, "group:ops": false,
		"group:": false, "group:corp/a b": false, "group:corp/*": false, "user:corp/1": true,
	} {
		if err := access.CheckSubject("s", subject); (err == nil) != want {
			t.Errorf("%s: %v", subject, err)
		}
		if err := access.CheckActor("s", subject); err == nil && subject != "user:corp/1" {
			t.Errorf("%s can act by itself", subject)
		}
	}
}
