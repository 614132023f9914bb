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

func TestBindingsInScope_KeepsWhatAppliesThere(t *testing.T) {
	bindings := []task.Binding{{Name: "cluster", Cluster: true}, {Name: "b", Namespaces: []string{"ops", "web-*", "team-a"}}, {Name: "c", Namespaces: []string{"other"}}}

	for _, c := range []struct {
		scope *task.TokenScope
		want  string
	}{
		{nil, "cluster[] b[ops web-* team-a] c[other] "},
		{&task.TokenScope{Role: "viewer"}, "cluster[] b[ops web-* team-a] c[other] "},
		{&task.TokenScope{Namespaces: []string{"team-a"}}, "cluster[] b[team-a] "},
		{&task.TokenScope{Namespaces: []string{"web-1", "o*"}}, "cluster[] b[ops web-*] c[other] "},
		{&task.TokenScope{Namespaces: []string{"none"}}, "cluster[] "},
	} {
		got := ""
		for _, b := range access.BindingsInScope(c.scope, bindings) {
			got += fmt.Sprint(b.Name, b.Namespaces, " ")
		}
		if got != c.want {
			t.Errorf("scope %+v: %q, want %q", c.scope, got, c.want)
		}
	}

	if len(bindings[1].Namespaces) != 3 {
		t.Error("the bindings have changed")
	}
}

func TestHoldsOutsideGrant_ComparesPlaces(t *testing.T) {
	ending := in(bind("ending", "namespace-admin", "user:eve"), "team-b")
	ending.Until = task.At(now.Add(time.Hour))
	past := in(bind("past", "viewer", "service:past"), "team-c")
	past.Until = task.At(now.Add(-time.Hour))
	table := compile(t, access.Records{Bindings: []task.Binding{
		in(bind("eve", "namespace-admin", "user:eve"), "team-a"), ending, past,
		in(bind("ed", "editor", "user:ed"), "team-a"), bind("admin", "admin", "user:ann"),
		in(bind("one", "viewer", "service:one"), "team-a"), in(bind("two", "viewer", "service:two"), "team-a", "team-b"),
		in(bind("more", "viewer", "service:more"), "team-a", "team-c"), in(bind("prefix", "viewer", "service:prefix"), "team-*"),
		bind("all", "node-operator", "service:all"),
	}})

	for _, c := range []struct {
		caller, subject string
		outside         bool
	}{
		{"user:eve", "service:one", false},
		{"user:eve", "service:two", false},
		{"user:eve", "service:none", false},
		{"user:eve", "service:past", false},
		{"user:eve", "service:more", true},
		{"user:eve", "service:prefix", true},
		{"user:eve", "service:all", true},
		{"user:ed", "service:one", true},
		{"user:ann", "service:all", false},
	} {
		if got := table.HoldsOutsideGrant(access.Caller{Subject: c.caller}, c.subject, now); got != c.outside {
			t.Errorf("%s for %s: %v, want %v", c.caller, c.subject, got, c.outside)
		}
	}
}
