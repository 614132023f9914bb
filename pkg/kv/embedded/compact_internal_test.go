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

func TestGrowthGate_CompactsLargeDataWhenTheyHaveGrown(t *testing.T) {
	var g growthGate
	const mib = 1 << 20

	if !g.addSize(2000 * mib) {
		t.Error("large data are not compacted at first")
	}

	// Small data are compacted each time.
	for range 3 {
		if !g.addSize(100 * mib) {
			t.Error("small data are not compacted")
		}
		g.startOver()
	}

	// The size after the compaction decides, which deletes in the background.
	for _, c := range []struct {
		size int64
		want bool
	}{{2100, false}, {2000, false}, {2050, false}, {2099, false}, {2100, true}} {
		if got := g.addSize(c.size * mib); got != c.want {
			t.Errorf("with %d MiB: %v, want %v", c.size, got, c.want)
		}
	}

	g.startOver()
	if g.addSize(2100 * mib) {
		t.Error("compacts again although nothing has been written")
	}
}
