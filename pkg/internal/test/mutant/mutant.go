// Package mutant breaks Carillon on purpose, to test the tests: a checker that never fails proves nothing.
//
// A mutant is a small patch of Carillon's own source, in mutants.patch. The overlay of the go command puts all patches into
// one build (go test -overlay), which `make mutants` runs. The product's source contains no trace of them:
//
//	mutants.patch ──▶ patched copies of the source ──▶ overlay.json ──▶ go test -overlay
//
// Each patch asks whether its mutant is on, with the function mutant, which each patched package gets from the overlay.
// The variable CARILLON_MUTANT of the process's environment names the mutant that is on. So one build has all mutants, and
// each of them has a process of its own (see InProcess).
//
// Two things are proved without a build. Each patch applies at exactly one place. And with all mutants off, the patched
// source is the original one: if every mutant("name") is replaced by false, and what follows from that is simplified, the
// syntax tree is that of the original.
//
// The package is only for tests.
package mutant

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Variable is the environment variable that names the mutant that is on.
const Variable = "CARILLON_MUTANT"

// Mutant breaks one rule of Carillon.
type Mutant struct {
	Name   string
	Breaks string // describes the defect in one sentence
	Group  string // one of the groups below
	hunks  []hunk
}

// The groups of mutants, by the test that catches them.
const (
	Simulation    = "simulation"    // TestMutants_AreCaught of package sim
	Lists         = "lists"         // TestMutants_OfListsAreCaught of package sim
	Restores      = "restores"      // TestMutants_OfRestoresAreCaught of package sim
	Preparations  = "preparations"  // TestMutants_OfPreparationsAreCaught of package restore
	Authorization = "authorization" // TestMutants_OfAuthorizationAreCaught of package authority
	Scheduler     = "scheduler"     // TestMutants_OfTheSchedulerAreCaught of package scheduler
	Stories       = "stories"       // a story of package sim, which names the mutant
)

// hunk changes one place of the source, or adds declarations to the package of the hunk before it.
type hunk struct {
	mutant string
	dir    string // the place is in the files of this directory, or of one below it
	// old are the tokens of the place. edits replace some of them. Without old, added are declarations.
	old   []token
	edits []edit
	added []string
}

// edit replaces the tokens of a hunk from one index until before another by a text.
type edit struct {
	from, until int
	text        string
}

//go:embed mutants.patch
var patches string

// All returns the mutants, in the order of mutants.patch.
func All() []Mutant {
	all, err := parse(patches)
	if err != nil {
		panic(err)
	}

	return all
}

// Names returns the names of a group's mutants.
func Names(group string) []string {
	var names []string
	for _, m := range All() {
		if m.Group == group {
			names = append(names, m.Name)
		}
	}

	return names
}

// The format of mutants.patch:
//
//	=== group
//	== name: the defect in one sentence
//	@ directory
//	 a line of the place, unchanged
//	-a line that is removed
//	+a line that is added
//
// A mutant may have several hunks, which begin with @. Lines that begin with # are comments. The place is compared token by
// token, without comments, so gofmt and moves between the files below a directory do not matter. A hunk that begins with
// "@ declarations" adds imports and declarations to the package of the hunk before it.
func parse(text string) (all []Mutant, err error) {
	group := ""
	var lines []string // of the hunk that is read
	endHunk := func() error {
		if len(lines) == 0 {
			return nil
		}

		m := &all[len(all)-1]
		h := &m.hunks[len(m.hunks)-1]
		if err := h.parseLines(lines); err != nil {
			return fmt.Errorf("mutant %s: %w", m.Name, err)
		}
		lines = nil

		return nil
	}

	for number, line := range strings.Split(text, "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "=== "):
			group = line[4:]
		case strings.HasPrefix(line, "== "):
			if err := endHunk(); err != nil {
				return nil, err
			}

			name, breaks, ok := strings.Cut(line[3:], ": ")
			if !ok {
				return nil, fmt.Errorf("line %d: a mutant needs a name and a sentence", number+1)
			}
			all = append(all, Mutant{Name: name, Breaks: breaks, Group: group})
		case strings.HasPrefix(line, "@ ") && len(all) > 0:
			if err := endHunk(); err != nil {
				return nil, err
			}

			m := &all[len(all)-1]
			m.hunks = append(m.hunks, hunk{mutant: m.Name, dir: line[2:]})
		case strings.ContainsAny(line[:1], " \t+-") && len(all) > 0 && len(all[len(all)-1].hunks) > 0:
			lines = append(lines, line)
		default:
			return nil, fmt.Errorf("line %d: %q is not part of a patch", number+1, line)
		}
	}

	return all, endHunk()
}

// declarations is in the place of the directory of a hunk that adds declarations.
const declarations = "declarations"

// parseLines reads the lines of the hunk.
func (h *hunk) parseLines(lines []string) error {
	if h.dir == declarations {
		for _, line := range lines {
			h.added = append(h.added, line[1:])
		}
		return nil
	}

	var open *edit // the edit to which changed lines belong; nil after an unchanged line
	for _, line := range lines {
		if line[0] == ' ' || line[0] == '\t' {
			h.old, open = append(h.old, tokensOf([]byte(line))...), nil
			continue
		}

		if open == nil {
			h.edits = append(h.edits, edit{from: len(h.old), until: len(h.old)})
			open = &h.edits[len(h.edits)-1]
		}

		if line[0] == '+' {
			open.text += line[1:] + "\n"
		} else {
			h.old = append(h.old, tokensOf([]byte(line[1:]))...)
			open.until = len(h.old)
		}
	}

	if len(h.old) == 0 || len(h.edits) == 0 {
		return errors.New("a hunk needs a place and a change")
	}

	return nil
}

// Overlay writes a patched copy of the source below root to a directory, and the file overlay.json, which the go command
// takes with -overlay. root must be absolute.
func Overlay(root, dir string) error {
	files, err := patchedFiles(root, All())
	if err != nil {
		return err
	}

	// The package that starts processes with mutants must know that it can.
	files[filepath.Join(root, "pkg/internal/test/mutant", helperName)] = []byte("package mutant\n\nfunc init() { isBuiltIn = true }\n")

	replace := map[string]string{}
	for i, path := range slices.Sorted(maps.Keys(files)) {
		name := filepath.Join(dir, fmt.Sprintf("%03d-%s", i, filepath.Base(path)))
		if err := os.WriteFile(name, files[path], 0o600); err != nil {
			return fmt.Errorf("write overlay: %w", err)
		}
		replace[path] = name
	}

	text, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write overlay: %w", err)
	}

	return nil
}

// isBuiltIn is true if the program was built with the overlay.
var isBuiltIn bool

// Name returns the mutant that is on in this process; "" if none is.
func Name() string { return os.Getenv(Variable) }

// Suspend turns the mutant off until resume is called. What judges a history uses the product's code, too.
func Suspend() (resume func()) {
	name := Name()
	_ = os.Unsetenv(Variable)

	return func() { _ = os.Setenv(Variable, name) }
}

// InProcess reports whether the test t runs in a process in which the mutant is on. In any other process, it starts that
// process, with this test only, fails t if the test fails there, and returns what it has logged.
//
// It skips the test if the program was built without the mutants.
func InProcess(t *testing.T, name string) (is bool, log string) {
	t.Helper()
	if !isBuiltIn {
		t.Skip("the mutants are not part of this build; run make mutants")
	}
	if Name() == name {
		return true, ""
	}

	out, err := runTest(t, name, t.Name())
	if err != nil {
		t.Errorf("mutant %s: %v\n%s", name, err, out)
	}

	return false, out
}

// FailsTest fails t unless another test of the program, which passes without the mutant, fails in a process in which the mutant is on. It
// skips t as InProcess does.
func FailsTest(t *testing.T, name, test string) {
	t.Helper()
	if !isBuiltIn {
		t.Skip("the mutants are not part of this build; run make mutants")
	}

	if out, err := runTest(t, name, test); err == nil || !strings.Contains(out, "--- FAIL: "+test+" ") {
		t.Errorf("%q does not catch the mutant %s: %v\n%s", test, name, err, out)
	}
}

// runTest runs a test of this program in a process in which a mutant is on, and returns its output.
func runTest(t *testing.T, name, test string) (out string, err error) {
	var parts []string
	for _, part := range strings.Split(test, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}

	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run", strings.Join(parts, "/"), "-test.v", "-test.timeout", "10m")
	c.Env = append(os.Environ(), Variable+"="+name)
	text, err := c.CombinedOutput()

	return string(text), err
}
