package node

import (
	"testing"
	"time"
)

var recentStart = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

func TestRecent_ForgetsWhatIsOlderThanAMinute(t *testing.T) {
	var r Recent
	sec := func(s float64) time.Time { return recentStart.Add(time.Duration(s * float64(time.Second))) }
	claim := func(at float64, late time.Duration) {
		r.AddDecided(sec(at), 2, []time.Duration{late})
	}

	claim(0, 40*time.Millisecond)
	claim(31, time.Millisecond)

	if got := r.Tally(sec(32)).Recent(); got.Fired != 2 || got.MaxMS != 40 || got.Skipped != 4 || len(got.Rate) != recentSlots-1 || got.Rate[6] != 1 {
		t.Errorf("after half a minute: %+v", got)
	}

	if got := r.Tally(sec(66)).Recent(); got.Fired != 1 || got.MaxMS != 1 {
		t.Errorf("after a minute: %+v", got)
	}

	if got := r.Tally(sec(600)).Recent(); got.Fired != 0 || got.Rate[3] != 0 {
		t.Errorf("after ten: %+v", got)
	}
}
