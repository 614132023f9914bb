package access_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestTable_LastAdminWithABindingReplaced(t *testing.T) {
	table := compile(t, access.Records{
		Bindings: []task.Binding{bind("admins", "admin", "user:ann"), in(bind("b", "admin", "user:bob"), "team-a"), bind("out", "admin", "user:out")},
		Tokens:   []task.Token{{ID: "1", Subject: "user:ann"}, {ID: "2", Subject: "user:bob"}, {ID: "3", Subject: "user:out"}, {ID: "4", Subject: "user:tim", Until: task.At(now)}},
		Disabled: []string{"user:out"},
	})

	ending := bind("admins", "admin", "user:ann")
	ending.Until = task.At(now.Add(time.Hour))
	labelled := bind("admins", "admin", "user:ann")
	labelled.Labels = map[string]string{"a": "b"}

	for what, c := range map[string]struct {
		b    task.Binding
		want bool
	}{
		"the same":                  {bind("admins", "admin", "user:ann"), false},
		"another with a token":      {bind("admins", "admin", "user:bob"), false},
		"another binding":           {bind("new", "viewer", "user:ann"), false},
		"a certificate":             {bind("admins", "admin", "cert:root"), false},
		"nobody with a token":       {bind("admins", "admin", "user:zoe"), true},
		"only a token that expired": {bind("admins", "admin", "user:tim"), true},
		"a disabled subject":        {bind("admins", "admin", "user:out"), true},
		"a lesser role":             {bind("admins", "auditor", "user:ann"), true},
		"a namespace":               {in(bind("admins", "admin", "user:ann"), "*"), true},
		"an end":                    {ending, true},
		"labels":                    {labelled, true},
		"the last, beside a second": {bind("second", "admin", "cert:root"), false},
	} {
		if got := table.LastAdminWith(now, c.b); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}

	if b, ok := table.Binding("b"); !ok || b.Namespaces[0] != "team-a" {
		t.Errorf("the table has changed: %+v, %v", b, ok)
	}
}

func TestTable_UnneededBootstrapToken(t *testing.T) {
	const month = 30 * 24 * time.Hour
	old := task.Token{ID: "1", Subject: "service:bootstrap", CreatedAt: task.At(now.Add(-month))}
	young, ends, scoped := old, old, old
	young.CreatedAt = task.At(now.Add(-month + time.Second))
	ends.Until = task.At(now.Add(time.Hour))
	scoped.Scope = &task.TokenScope{Role: "viewer", RoleUID: access.BuiltInUID}
	ann := task.Token{ID: "2", Subject: "user:ann", Until: task.At(now.Add(time.Hour))}

	for what, c := range map[string]struct {
		tokens []task.Token
		admins []string
		want   bool
	}{
		"an old one":                         {[]task.Token{old, ann}, []string{"service:bootstrap", "user:ann"}, true},
		"beside a certificate":               {[]task.Token{old}, []string{"service:bootstrap", "cert:safe"}, true},
		"the only administrator":             {[]task.Token{old}, []string{"service:bootstrap"}, false},
		"another administrator has no token": {[]task.Token{old}, []string{"service:bootstrap", "user:ann"}, false},
		"a young one":                        {[]task.Token{young, ann}, []string{"service:bootstrap", "user:ann"}, false},
		"one that ends":                      {[]task.Token{ends, ann}, []string{"service:bootstrap", "user:ann"}, false},
		"one with a scope":                   {[]task.Token{scoped, ann}, []string{"service:bootstrap", "user:ann"}, false},
	} {
		table := compile(t, access.Records{Bindings: []task.Binding{bind("admins", "admin", c.admins...)}, Tokens: c.tokens})
		if token, got := table.UnneededBootstrapToken(now); got != c.want || got && token.ID != "1" {
			t.Errorf("%s: %+v, %v", what, token, got)
		}
	}
}

func TestTable_ClusterRightsAreThoseOfAllows(t *testing.T) {
	table := compile(t, access.Records{
		Bindings: []task.Binding{bind("a", "auditor", "user:ann"), bind("n", "node-operator", "user:ned"), in(bind("x", "admin", "user:bob"), "*")},
		Tokens:   []task.Token{{ID: "1", Subject: "user:ned", Scope: &task.TokenScope{Role: "viewer", RoleUID: access.BuiltInUID}}},
	})

	for _, c := range []struct {
		caller access.Caller
		want   string
	}{
		{access.Caller{Subject: "user:ann"}, "[{[read] [namespaces] map[]} {[read] [nodes] map[]} {[read] [cluster] map[]} {[read] [access] map[]} {[read] [audit] map[]}]"},
		{access.Caller{Subject: "user:ned"}, "[{[read operate] [nodes] map[]} {[read] [cluster] map[]}]"},
		{access.Caller{Subject: "user:ned", Token: "1"}, "[{[read] [nodes] map[]} {[read] [cluster] map[]}]"},
		{access.Caller{Subject: "user:bob"}, "[]"},
		{access.Caller{Subject: "user:nobody"}, "[]"},
	} {
		if got := fmt.Sprint(table.ClusterRights(c.caller, now)); got != c.want {
			t.Errorf("%+v may do %s", c.caller, got)
		}
	}
}
