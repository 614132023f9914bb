package ask

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

func globsOf(t *testing.T, text string) (g Globs) {
	t.Helper()
	if err := g.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGlobs_Match(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		globs, name string
		want        bool
	}{
		{"web-1", "prod/web-1", true},
		{"prod/web-1", "prod/web-1", true},
		{"test/web-1", "prod/web-1", false},
		{"web-*", "prod/web-1", true},
		{"prod*", "prod/web-1", false},
		{"prod/web-*", "prod/web-1", true},
		{"p*/web-?", "prod/web-1", true},
		{"p*", "a/p", true},
		{"*", "prod/web-1", true},
		{"w[a-f]b-1", "prod/web-1", true},
		{"db,w*-2,web-[2-9],web-1", "prod/web-1", true},
		{"db,w*-2,web-[2-9]", "prod/web-1", false},
	} {
		if got := globsOf(t, c.globs).condition()(&readmodel.Row{Name: c.name}, 0); got != c.want {
			t.Errorf("%s matches %s: %t, want %t", c.globs, c.name, got, c.want)
		}
	}
}

// A key range is read only if all tasks in it match.
func TestGlobs_Range(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		globs, namespace string
		ns, prefix       string
		ok               bool
	}{
		{"", "", "", "", true},
		{"", "prod", "prod", "", true},
		{"*", "", "", "", true},
		{"web-*", "prod", "prod", "web-", true},
		{"web-*", "", "", "web-", false}, // in every namespace
		{"prod/web-*", "", "prod", "web-", true},
		{"prod/web-*", "prod", "prod", "web-", true},
		{"prod/*", "", "prod", "", true},
		{"test/web-*", "prod", "test", "web-", false},
		{"p*/web-*", "", "p*", "web-", false},
		{"web-1", "prod", "prod", "web-1", false}, // an exact name
		{"web-*,db", "prod", "", "", false},
		{"w?b*", "prod", "prod", "w?b", false},
		{"*b*", "prod", "prod", "*b", false},
	} {
		ns, prefix, ok := globsOf(t, c.globs).Range(c.namespace)
		if ok != c.ok || ok && (ns != c.ns || prefix != c.prefix) {
			t.Errorf("%s in %q: %q %q %t, want %q %q %t", c.globs, c.namespace, ns, prefix, ok, c.ns, c.prefix, c.ok)
		}
	}
}
