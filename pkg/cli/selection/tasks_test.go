package selection

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/failure"
)

func TestApprove_AsksOnlyWhereSomebodyAnswers(t *testing.T) {
	many := Tasks{Refs: []Ref{{"default", "a"}, {"default", "b"}}, Broad: true}
	cases := []struct {
		name, in string
		ch       Tasks
		severe   bool
		edit     func(*factorytest.TestFactory)
		ok       bool
		exit     int
	}{
		{"one", "", Tasks{Refs: many.Refs[:1]}, true, nil, true, 0},
		{"named", "", Tasks{Refs: many.Refs}, true, nil, true, 0},
		{"yes", "y\n", many, false, nil, true, 0},
		{"yes in full", "YES\n", many, false, nil, true, 0},
		{"no", "n\n", many, false, nil, false, failure.ExitFailure},
		{"nothing typed", "\n", many, false, nil, false, failure.ExitFailure},
		{"nobody there after all", "", many, false, nil, false, failure.ExitFailure},
		{"severe, yes", "y\n", many, true, nil, false, failure.ExitFailure},
		{"severe, the number", "2\n", many, true, nil, true, 0},
		{"severe, another number", "3\n", many, true, nil, false, failure.ExitFailure},
		{"--yes", "", many, true, func(d *factorytest.TestFactory) { d.Yes = true }, true, 0},
		{"--no-input", "y\n", many, false, func(d *factorytest.TestFactory) { d.NoInput = true }, false, failure.ExitUsage},
		{"no terminal", "y\n", many, false, func(d *factorytest.TestFactory) { d.Terminal = func(any) (int, bool) { return 0, false } }, false, failure.ExitUsage},
	}

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := factorytest.New(c.in)
			d.Terminal = func(any) (int, bool) { return 80, true }
			d.Color = "never"

			if c.edit != nil {
				c.edit(d)
			}

			ok, err := Approve(t.Context(), d.Factory, "delete", c.ch, Flags{}, c.severe)
			if ok != c.ok || d.Report(err) != c.exit {
				t.Errorf("%v, %v", ok, err)
			}

			if d.Out.Len() > 0 {
				t.Errorf("%q on the standard output", d.Out.String())
			}
		})
	}
}

func TestQuery_WritesFlagsAndNamesAsTerms(t *testing.T) {
	f := factorytest.New("").Factory
	for _, c := range []struct {
		words            []string
		selector         string
		terms            []string
		namespace, query string
		err              string
	}{
		{nil, "", nil, "default", "", ""},
		{nil, "", []string{"", "state:failing", ""}, "default", "state:failing", ""},
		{[]string{"web-*", "db"}, "team=data", []string{"state:paused", "next:<1h dump"}, "default", "name:web-*,db selector:team=data state:paused next:<1h dump", ""},
		{[]string{"web-1", "prod/db"}, "team in (a, b)", nil, "", `name:default/web-1,prod/db selector:"team in (a, b)"`, ""},
		{[]string{`w" b*`}, "", nil, "default", `name:"w\" b*"`, ""},
		{[]string{"[z"}, "", nil, "", "", `"[z" is not a pattern; use *, ? and [a-z]`},
		{[]string{"a b"}, "", nil, "", "", `name: "a b": use a-z`},
		{[]string{"team=data"}, "", nil, "", "", `"team=data" is not the name of a task`}, // "team-data" would be another one
		{nil, "team ~ a", nil, "", "", "selector: "},
		{nil, " ", nil, "", "", `selector: " " has no terms`}, // not all tasks
	} {
		namespace, query, err := Query(f, c.words, c.selector, c.terms...)
		switch {
		case c.err != "" && (err == nil || !strings.HasPrefix(err.Error(), c.err)):
			t.Errorf("%q, %q: %v, want %s", c.words, c.selector, err, c.err)
		case c.err == "" && (err != nil || namespace != c.namespace || query != c.query):
			t.Errorf("%q, %q: %q in %q, %v, want %q in %q", c.words, c.selector, query, namespace, err, c.query, c.namespace)
		}
	}
}
