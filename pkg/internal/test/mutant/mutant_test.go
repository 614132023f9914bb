package mutant

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the directory of the module.
const root = "../../../.."

// Each patch applies at exactly one place, asks for its own mutant, and changes nothing while all mutants are off.
func TestMutants_ChangeNothingWhileTheyAreOff(t *testing.T) {
	all := All()
	path, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}

	files, err := patchedFiles(path, all)
	if err != nil {
		t.Fatal(err)
	}

	asked := map[string]bool{}
	for path, patched := range files {
		for _, m := range regexp.MustCompile(`\bmutant\("([a-z-]+)"\)`).FindAllSubmatch(patched, -1) {
			asked[string(m[1])] = true
		}

		if filepath.Base(path) == helperName {
			continue
		}

		original, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		if same, err := isOriginalWhenOff(original, patched); err != nil || !same {
			t.Errorf("%s is changed while all mutants are off: %v", path, err)
		}
	}

	groups := []string{Simulation, Lists, Restores, Preparations, Authorization, Scheduler, Stories}
	for i, m := range all {
		if !asked[m.Name] {
			t.Errorf("the patch of %s does not ask whether it is on", m.Name)
		}
		if slices.ContainsFunc(all[:i], func(other Mutant) bool { return other.Name == m.Name }) {
			t.Errorf("two mutants are called %s", m.Name)
		}
		if !slices.Contains(groups, m.Group) {
			t.Errorf("%s is in group %q, want one of %q", m.Name, m.Group, groups)
		}
		delete(asked, m.Name)
	}
	for name := range asked {
		t.Errorf("a patch asks for %s, which is no mutant", name)
	}
}

const original = `package p

func f(a, b bool) int {
	if a || b { // a comment
		g(1,
			2)
	}
	return 1
}
`

func TestIsOriginalWhenOff(t *testing.T) {
	for name, c := range map[string]struct {
		old, patched string
		want         bool
	}{
		"a condition":                     {"a || b", `a && !mutant("x") || b || mutant("y") && c()`, true},
		"a statement":                     {"return 1", `if mutant("x") { return 2 } else if mutant("y") { g() } else { return 1 }`, true},
		"a case":                          {"return 1", `switch { case mutant("x"): return 2 }; return 1`, false},
		"a negated condition":             {"return 1", `if !mutant("x") { return 1 }`, true},
		"something else while it is off":  {"return 1", `if mutant("x") { return 1 }`, false},
		"something more while it is off":  {"return 1", `g(); if mutant("x") { return 2 }; return 1`, false},
		"a condition that stays stronger": {"a || b", `a || b && !a && !mutant("x")`, false},
	} {
		got, err := isOriginalWhenOff([]byte(original), []byte(strings.Replace(original, c.old, c.patched, 1)))
		if err != nil || got != c.want {
			t.Errorf("%s: got %t, %v", name, got, err)
		}
	}
}

// A place is found whatever its formatting, and only if there is one.
func TestHunk_FindsItsPlace(t *testing.T) {
	patch := func(lines ...string) (string, error) {
		var h hunk
		if err := h.parseLines(lines); err != nil {
			return "", err
		}

		f := &sourceFile{path: "p.go", source: []byte(original), tokens: tokensOf([]byte(original))}
		if _, err := h.apply([]*sourceFile{f}, map[string]*sourceFile{}); err != nil {
			return "", err
		}

		patched, err := f.patched()

		return string(patched), err
	}

	got, err := patch(" g(1, 2)", "+added()", " }", "-return 1", "+return 2")
	want := strings.NewReplacer("2)\n", "2)\nadded()\n", "return 1", "return 2").Replace(original)
	if err != nil || got != want {
		t.Errorf("got %s, %v", got, err)
	}

	for name, lines := range map[string][]string{
		"no such place": {" g(1, 3)", "+added()"},
		"two places":    {" b", "+added()"},
		"no change":     {" g(1, 2)"},
	} {
		if got, err := patch(lines...); err == nil {
			t.Errorf("%s: got %s", name, got)
		}
	}
}
