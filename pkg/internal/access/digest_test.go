package access_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// Callers share a digest exactly if the same bindings and scopes apply to them, however these are written down.
func TestTable_DigestIsThatOfTheRightsInForce(t *testing.T) {
	now := time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC)
	bind := func(name, subject, role string, edits ...func(*task.Binding)) task.Binding {
		b := task.Binding{Name: name, Role: role, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Namespaces: []string{"a"}}
		for _, edit := range edits {
			edit(&b)
		}
		return b
	}
	within := func(ns ...string) func(*task.Binding) { return func(b *task.Binding) { b.Namespaces = ns } }
	ends := func(at time.Time) func(*task.Binding) { return func(b *task.Binding) { b.Until = task.At(at) } }
	labels := func(l map[string]string) func(*task.Binding) { return func(b *task.Binding) { b.Labels = l } }

	table, problems := access.Compile(access.Records{
		Fence: 1,
		Bindings: []task.Binding{
			bind("b1", "user:ann", access.RoleViewer),
			bind("b2", "user:bob", access.RoleViewer), bind("b3", "user:bob", access.RoleViewer), // twice the same
			bind("b4", "user:cid", access.RoleViewer, within("b")),
			bind("b5", "user:dan", access.RoleViewer, within("a*")),
			bind("b6", "user:eve", "editor"),
			bind("b7", "user:fay", access.RoleViewer), bind("b8", "user:fay", "editor", ends(now.Add(time.Hour))),
			bind("b9", "user:gil", "operator", labels(map[string]string{"team": "x"})),
			bind("b10", "user:hal", "operator", labels(map[string]string{"team": "y"})),
			bind("b11", "user:ida", access.RoleViewer),
			bind("b12", "user:off", access.RoleViewer),
		},
		Disabled: []string{"user:off"},
		Tokens: []task.Token{
			{ID: "whole", Subject: "user:ann"},
			{ID: "scoped", Subject: "user:ann", Scope: &task.TokenScope{Role: access.RoleViewer, RoleUID: access.BuiltInUID, Namespaces: []string{"a"}}},
			{ID: "broken", Subject: "user:ann", Scope: &task.TokenScope{Role: "none"}},
			{ID: "ended", Subject: "user:ann", Until: task.At(now)},
		},
	})
	if len(problems) != 1 { // the broken scope
		t.Fatalf("problems: %v", problems)
	}

	of := func(subject, token string, at time.Time) access.Digest {
		return table.Digest(access.Caller{Subject: subject, Token: token}, at)
	}
	ann := of("user:ann", "", now)

	for _, c := range []struct {
		subject, token string
		at             time.Time
		same, nothing  bool
	}{
		{subject: "user:bob", same: true},
		{subject: "user:ida", same: true},
		{subject: "user:ann", token: "whole", same: true},
		{subject: "user:fay", at: now.Add(time.Hour), same: true},
		{subject: "user:fay"},
		{subject: "user:cid"},
		{subject: "user:dan"},
		{subject: "user:eve"},
		{subject: "user:gil"},
		{subject: "user:nobody"},
		{subject: "user:ann", token: "scoped"},
		{subject: "user:ann", token: "broken"},
		{subject: "user:ann", token: "ended", nothing: true},
		{subject: "user:bob", token: "whole", nothing: true},
		{subject: "user:off", nothing: true},
	} {
		at := c.at
		if at.IsZero() {
			at = now
		}

		got := of(c.subject, c.token, at)
		if (got == ann) != c.same || (got == access.Digest{}) != c.nothing {
			t.Errorf("%s with token %q: same as ann %v, nothing %v; want %v, %v", c.subject, c.token, got == ann, got == access.Digest{}, c.same, c.nothing)
		}
	}

	if of("user:gil", "", now) == of("user:hal", "", now) {
		t.Error("bindings with different labels have the same digest")
	}
	if of("user:ann", "broken", now) == of("user:nobody", "", now) {
		t.Error("a token whose scope allows nothing has the digest of a subject without bindings")
	}
}
