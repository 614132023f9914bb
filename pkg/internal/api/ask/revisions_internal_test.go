package ask

import (
	"maps"
	"testing"
	"time"
)

func TestRevisions_ReadWhatTheyWrite(t *testing.T) {
	t.Parallel()

	for _, r := range []Revisions{nil, {3: 7}, {0: 1, 12: 1 << 40, 5: 2}} {
		var got Revisions
		if err := got.UnmarshalText([]byte(r.String())); err != nil || !maps.Equal(got, r) {
			t.Errorf("%q: %v, %v", r.String(), got, err)
		}
	}

	for _, text := range []string{"3", "3:", ":7", "-1:7", "3:-7", "3:7,", "3:7:8"} {
		if err := new(Revisions).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// An answer is shared only with those whose writes it contains.
func TestEntry_SharesOnlyWhatContainsTheWrites(t *testing.T) {
	t.Parallel()
	var e entry
	_, first, mine := e.shared(time.Time{}, Revisions{3: 7})

	if _, same, mine := e.shared(time.Time{}, Revisions{3: 6}); mine || same != first {
		t.Error("a question that needs less was not shared")
	}
	_, second, mineToo := e.shared(time.Time{}, Revisions{3: 6, 4: 1})
	if !mine || !mineToo || second == first {
		t.Error("a question that needs more was shared")
	}

	e.finish(second, Answer{needed: second.needed}, nil)
	if answer, _, _ := e.shared(time.Time{}, Revisions{4: 1}); answer == nil {
		t.Error("an answer that contains more was not shared")
	}
	if answer, _, _ := e.shared(time.Time{}, Revisions{3: 7}); answer != nil {
		t.Error("an answer that lacks a write was shared")
	}
}
