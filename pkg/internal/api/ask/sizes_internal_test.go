package ask

import (
	"testing"
	"time"
)

// If a node hangs, it takes longer to ask the owners than an answer is shared. Those that have waited meanwhile share it.
func TestSizeCache_IsFreshAfterASlowAnswer(t *testing.T) {
	t.Parallel()

	began := time.Now()
	after := func(d time.Duration) time.Time { return began.Add(d) }
	c := sizeCache{asked: began, answered: after(2 * time.Second), needed: Revisions{1: 10}}

	for _, tt := range []struct {
		what       string
		now, wrote time.Time
		needed     Revisions
		want       bool
	}{
		{"waited meanwhile", after(2 * time.Second), time.Time{}, nil, true},
		{"a second later", after(3*time.Second + 1), time.Time{}, nil, false},
		{"has written before", after(2 * time.Second), after(-time.Second), Revisions{1: 9}, true},
		{"has written meanwhile", after(2 * time.Second), after(time.Second), nil, false},
		{"has written to another shard", after(2 * time.Second), after(-time.Second), Revisions{2: 9}, false},
	} {
		if got := c.isFresh(tt.now, tt.wrote, tt.needed); got != tt.want {
			t.Errorf("%s: %t", tt.what, got)
		}
	}

	if (&sizeCache{}).isFresh(began, time.Time{}, nil) {
		t.Error("an empty cache is fresh")
	}
}
