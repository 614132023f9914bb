package node

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var paceStart = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

// In any period, there are at most as many tokens as the rate gives and the bucket holds at first, and no
// fewer if they are requested. Times may arrive late, and the clock may be set back.
func TestLimiter_KeepsItsRate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.SampledFrom([]float64{0.1, 1, 3, 100, 2500}).Draw(rt, "rate")
		p := NewCatchUpLimiter(func() float64 { return rate }).NewShare()

		now, taken := paceStart, 0
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			step := time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond
			now = now.Add(step)

			for i := rapid.IntRange(0, 5).Draw(rt, "wanted"); i > 0; i-- {
				at := now.Add(-time.Duration(rapid.IntRange(0, 2000).Draw(rt, "late")) * time.Millisecond)
				if p.Take(at) {
					taken++
				}
			}
		}

		if most := (now.Sub(paceStart).Seconds()+2)*rate + max(rate, 1) + 1e-3; float64(taken) > most {
			rt.Fatalf("%d tokens, at most %g", taken, most)
		}

		for p.Take(now) {
			taken++
		}

		for range 2 {
			if p.Take(now.Add(-time.Hour)) {
				rt.Fatal("a clock that was set back gives tokens")
			}
		}

		if got := p.Take(now.Add(-time.Hour + time.Duration(1.01/rate*float64(time.Second)))); !got {
			rt.Fatal("after the clock was set back there are no more tokens")
		}
	})
}

// Shards that wait take turns, and all tokens are used.
func TestLimiter_SharesAmongTheShardsOfANode(t *testing.T) {
	t.Parallel()
	const rate = 20
	l := NewCatchUpLimiter(func() float64 { return rate })

	p := l.NewShare()
	for p.Take(paceStart) {
	}

	shares := []*CatchUpShare{l.NewShare(), l.NewShare(), l.NewShare()}
	next, got := make([]time.Time, len(shares)), make([]int, len(shares))
	for ms := range 10_000 {
		now := paceStart.Add(time.Duration(ms) * time.Millisecond)

		for i, share := range shares { // the first share always comes first
			if now.Before(next[i]) {
				continue
			}

			n, again := share.Turn(now)
			next[i] = now.Add(again)
			for range n {
				if p.Take(now) {
					got[i]++
				}
			}
		}
	}

	total := got[0] + got[1] + got[2]
	if total < 10*rate*9/10 || total > 10*rate || slices.Min(got) < total/4 {
		t.Errorf("in 10 s, at %d per second: %v", rate, got)
	}
}
