package kv_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
)

func TestPendingDiffs_EndWithAReplayedEventOrAreLost(t *testing.T) {
	var d kv.PendingDiffs
	d.Resolve("none", 9)

	for _, key := range []string{"told", "told too early", "never told"} {
		d.Add(key, 5)
	}

	d.Resolve("told", 5)
	d.Resolve("told too early", 4)

	if n := d.Lost(time.Hour); n != 0 {
		t.Errorf("%d are lost at once", n)
	}

	if n := d.Lost(0); n != 2 {
		t.Errorf("%d are lost, want 2", n)
	}

	if n := d.Lost(0); n != 0 {
		t.Errorf("%d are lost twice", n)
	}

	d.Add("a", 1)
	d.Clear()

	if n := d.Lost(0); n != 0 {
		t.Errorf("%d are lost that a new watch cannot tell of", n)
	}
}
