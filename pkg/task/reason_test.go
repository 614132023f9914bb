package task

import "testing"

func TestReasons_AreDistinctAndEachExplainsAState(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Reasons() {
		if seen[r.Name] || r.Name == "" || r.Means == "" || len(r.States) == 0 {
			t.Errorf("%+v", r)
		}

		seen[r.Name] = true
		for _, s := range r.States {
			if !s.Known() || !r.Explains(s) || s == Succeeded {
				t.Errorf("%s with %s", r.Name, s)
			}
		}

		if got, ok := ReasonOf(r.Name); !ok || got.Means != r.Means {
			t.Errorf("%s is not found by its name", r.Name)
		}
	}

	if _, ok := ReasonOf("because"); ok {
		t.Error("a reason that is not in the list")
	}
}
