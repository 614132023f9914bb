package embedded

import (
	"testing"
	"time"
)

func TestAges_KnowWhatIsOldEnough(t *testing.T) {
	at := func(minute int) time.Time { return time.Unix(0, 0).Add(time.Duration(minute) * time.Minute) }
	a := revisionAges{keep: 10 * time.Minute}
	if got := a.oldestKept(at(0)); got != 0 {
		t.Errorf("of nothing: %d", got)
	}

	for minute := range 60 {
		a.addSample(at(minute), int64(100+minute))
		want := int64(0) // the age of earlier revisions is not known
		if minute >= 10 {
			want = int64(100 + minute - 10)
		}

		if got := a.oldestKept(at(minute)); got != want {
			t.Errorf("in minute %d: %d, want %d", minute, got, want)
		}

		if len(a.known) > 11 {
			t.Fatalf("it remembers %d", len(a.known))
		}
	}

	if got := (&revisionAges{}).oldestKept(at(0)); got < 1<<62 {
		t.Errorf("without an age: %d", got)
	}
}
