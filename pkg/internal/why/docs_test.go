package why_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// The lists in docs/why.md match the closed lists, entry by entry.
func TestDocs_HaveEveryReasonAndEveryVerdict(t *testing.T) {
	b, err := os.ReadFile("../../../docs/why.md")
	if err != nil {
		t.Fatal(err)
	}

	var reasons, verdicts strings.Builder

	for _, r := range task.Reasons() {
		states := make([]string, len(r.States))
		for i, s := range r.States {
			states[i] = string(s)
		}
		fmt.Fprintf(&reasons, "| `%s` | %s | %s |\n", r.Name, strings.Join(states, ", "), r.Means)
	}

	for _, v := range task.Verdicts() {
		fmt.Fprintf(&verdicts, "| `%s` | %s |\n", v.Verdict, v.Means)
	}

	for _, list := range []string{"| reason | states | because |\n|---|---|---|\n" + reasons.String() + "\n", "| verdict | means |\n|---|---|\n" + verdicts.String() + "\n"} {
		if !strings.Contains(string(b), list) {
			t.Errorf("docs/why.md does not have just this list:\n%s", list)
		}
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
