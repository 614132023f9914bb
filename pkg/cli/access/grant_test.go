package access

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestNameOf_IsAlwaysValid(t *testing.T) {
	long := strings.Repeat("x", 200)
	for _, c := range []struct {
		b    task.Binding
		want string
	}{
		{task.Binding{Role: "editor", Subjects: []string{"user:ann"}, Namespaces: []string{"billing"}}, "billing.editor-user-ann"},
		{task.Binding{Role: "admin", Subjects: []string{"cert:spiffe://corp/Ops..1"}, Cluster: true}, "admin-cert-spiffe-corp-ops-1-cluster"},
		{task.Binding{Role: "viewer", Subjects: []string{"user:a", "user:b"}, Namespaces: []string{"team-*", "x"}}, "viewer-user-a-user-b-team-any-x"},
		{task.Binding{Role: "viewer", Subjects: []string{"user:a"}, Namespaces: []string{"x"}, Labels: map[string]string{"b": "2", "a": "1"}}, "x.viewer-user-a-a-1-b-2"},
		{task.Binding{Role: "viewer", Subjects: []string{"user:Ä"}, Namespaces: []string{"*"}}, "all_.viewer-user"},
		{task.Binding{Role: "viewer", Subjects: []string{"user:a.b"}, Namespaces: []string{"team-a*"}}, "team-a-.viewer-user-a-b"},
		{task.Binding{Role: "viewer", Subjects: []string{"user:a"}, Namespaces: []string{long[:120]}}, ""},
		{task.Binding{Role: "viewer", Subjects: []string{"user:" + long}, Namespaces: []string{"x"}}, ""},
	} {
		got := nameOf(c.b)
		if err := task.CheckName("name", got); err != nil || c.want != "" && got != c.want {
			t.Errorf("%q, want %q: %v", got, c.want, err)
		}
	}

	one := nameOf(task.Binding{Role: "viewer", Subjects: []string{"user:" + long}, Namespaces: []string{"x"}})
	other := nameOf(task.Binding{Role: "viewer", Subjects: []string{"user:" + long}, Namespaces: []string{"y"}})
	if one == other {
		t.Errorf("two bindings are named %s", one)
	}
}
