package selection

import (
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
