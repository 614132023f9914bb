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
	// What the test itself takes, which may be long, counts at most twice.
	if age := proctree.BootTime() - first; age < 3*time.Second || age > 4*time.Second+2*time.Since(began) {
		t.Errorf("a renewal of three seconds ago is %s old", age)
	}

	if again := r.lastRenewal(); again != first {
		t.Errorf("the same renewal moved by %s", again-first)
	}

	// The host sleeps for a minute after the look, and before it the session was
	// renewed once more: that renewal may be from before the sleep.
	r.slept -= time.Minute
	last = time.Now()

	if at := r.lastRenewal(); proctree.BootTime()-at < time.Minute {
		t.Errorf("a renewal that may be from before a minute's sleep counts as %s old", proctree.BootTime()-at)
	}

	// The next one is from after it.
	last = time.Now()

	if age := proctree.BootTime() - r.lastRenewal(); age > time.Second+2*time.Since(began) {
		t.Errorf("a renewal of just now is %s old", age)
	}
}
