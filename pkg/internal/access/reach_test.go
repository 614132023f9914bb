package access_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

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
