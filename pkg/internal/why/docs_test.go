package why_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

var update = flag.Bool("update", false, "write the lists in docs/why.md anew")

// The page lists every reason and every verdict, with their meanings.
func TestDocs_HaveEveryReasonAndEveryVerdict(t *testing.T) {
	const file = "../../../docs/why.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	var reasons, verdicts strings.Builder

	reasons.WriteString("| reason | states | because |\n|---|---|---|\n")
	for _, r := range task.Reasons() {
		states := make([]string, len(r.States))
		for i, s := range r.States {
			states[i] = string(s)
		}
		fmt.Fprintf(&reasons, "| `%s` | %s | %s |\n", r.Name, strings.Join(states, ", "), r.Means)
	}

	verdicts.WriteString("| verdict | means |\n|---|---|\n")
	for _, v := range task.Verdicts() {
		fmt.Fprintf(&verdicts, "| `%s` | %s |\n", v.Verdict, v.Means)
	}

	want := string(b)
	for name, list := range map[string]string{"reasons": reasons.String(), "verdicts": verdicts.String()} {
		before, rest, begins := strings.Cut(want, "<!-- "+name+" -->\n")
		_, after, ends := strings.Cut(rest, "<!-- end of "+name+" -->\n")
		if !begins || !ends {
			t.Fatalf("%s has no place for the %s", file, name)
		}

		want = before + "<!-- " + name + " -->\n" + list + "<!-- end of " + name + " -->\n" + after
	}

	switch {
	case want == string(b):
	case *update:
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("the lists in docs/why.md do not agree with the code; run go test ./pkg/internal/why -run Docs -update")
	}
}

// Each state has a verdict, and each verdict that is used is on the list.
func TestVerdicts_CoverAllStates(t *testing.T) {
	for _, s := range task.States() {
		a := nightly().run("02:30:00", s, nil).ask(t, "02:30")
		if a.Verdict == "" || a.Verdict == task.VerdictUnreadable || a.Sentence == "" {
			t.Errorf("%s: %q %q", s, a.Verdict, a.Sentence)
		}
	}

	known := map[task.Verdict]bool{}
	for _, v := range task.Verdicts() {
		known[v.Verdict] = true
	}

	told := map[task.Verdict]bool{task.VerdictRange: true, task.VerdictInGap: true}
	for _, c := range stories {
		told[c.verdict] = true
		if !known[c.verdict] {
			t.Errorf("%s: %s is on no list", c.name, c.verdict)
		}
	}

	for v := range known {
		if !told[v] {
			t.Errorf("no story ends with %s", v)
		}
	}
}

// Every reason appears in the answer about a run with that reason.
func TestFor_SaysEveryReason(t *testing.T) {
	for _, reason := range task.Reasons() {
		for _, s := range reason.States {
			a := nightly().run("02:30:00", s, func(r *task.Run) { r.Reason = reason.Name }).ask(t, "02:30")
			said := a.Sentence
			for _, l := range a.Lines {
				said += "\n" + l.Says
			}

			if !strings.Contains(said, reason.Means) && !strings.Contains(said, "("+reason.Name+")") {
				t.Errorf("%s, %s: %s", s, reason.Name, said)
			}
		}
	}
}
