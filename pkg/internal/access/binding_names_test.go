package access_test

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestCheckBinding_NamesBelongToOneScope(t *testing.T) {
	for _, c := range []struct {
		name       string
		namespaces []string // none: the cluster
		want       string   // part of the error; "": valid
	}{
		{"weekly-report", nil, ""},
		{"weekly-report", []string{"a"}, ""},
		{"weekly-report", []string{"a", "b"}, ""},
		{"a.x", []string{"a"}, ""},
		{"a.b.x", []string{"a.b"}, ""},
		{"a.b.x", []string{"a"}, "a.NAME, where NAME has no dot"},
		{"b.x", []string{"a"}, "a.NAME"},
		{"a.x", []string{"a", "b"}, "only the name of a binding in one namespace"},
		{"a.x", nil, "only the name of a binding in one namespace"},
		{"a-.x", []string{"a*"}, ""},
		{"a--.x", []string{"a-*"}, ""},
		{"a-.x", []string{"a-*"}, "a--.NAME"},
		{"a.x", []string{"a*"}, "a-.NAME"},
		{"all_.x", []string{"*"}, ""},
		{"all-.x", []string{"*"}, "all_.NAME"},
	} {
		b := task.Binding{Name: c.name, Role: access.RoleViewer, Subjects: []string{"user:ann"}, Namespaces: c.namespaces, Cluster: c.namespaces == nil}
		err := access.CheckBinding(&b)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in %v: %v; want %q", c.name, c.namespaces, err, c.want)
		}
	}
}
