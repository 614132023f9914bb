package executor

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/proctree"
)

func TestRenewals_AreNeverYoungerThanTheyWere(t *testing.T) {
	began := time.Now()
	last := began.Add(-3 * time.Second)
	r := newRenewals(clocksOf(nil), func() time.Time { return last })

	first := r.lastRenewal()
	// The time that the test itself takes may be long, and counts at most twice.
	if age := proctree.BootTime() - first; age < 3*time.Second || age > 4*time.Second+2*time.Since(began) {
		t.Errorf("a renewal of three seconds ago is %s old", age)
	}

	if again := r.lastRenewal(); again != first {
		t.Errorf("the same renewal moved by %s", again-first)
	}

	// The host was suspended for a minute after the previous reading, and the session was renewed once more before
	// that. The code cannot know whether the renewal came before or after the suspend.
	r.slept -= time.Minute
	last = time.Now()

	if at := r.lastRenewal(); proctree.BootTime()-at < time.Minute {
		t.Errorf("a renewal that may be from before a minute's sleep counts as %s old", proctree.BootTime()-at)
	}

	// The next renewal comes after the suspend.
	last = time.Now()

	if age := proctree.BootTime() - r.lastRenewal(); age > time.Second+2*time.Since(began) {
		t.Errorf("a renewal of just now is %s old", age)
	}
}
