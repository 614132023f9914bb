package clock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
)

func TestSleep_EndsWithItsTimeOrItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()

		if !clock.Sleep(ctx, time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("slept %s of a minute", time.Since(began))
		}

		if !clock.Sleep(ctx, 0) || !clock.Sleep(ctx, -time.Second) {
			t.Error("no time was not slept to its end")
		}

		began = time.Now()
		time.AfterFunc(time.Second, cancel)

		if clock.Sleep(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("the context ended after a second, the sleep after %s", time.Since(began))
		}

		if clock.Sleep(ctx, 0) || clock.Sleep(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Error("slept although the context had ended")
		}
	})
}

func TestJitter_StaysWithinHalfOfItsDuration(t *testing.T) {
	lowest, highest := time.Hour, time.Duration(0)

	for range 10_000 {
		d := clock.Jitter(time.Second)
		lowest, highest = min(lowest, d), max(highest, d)
	}

	if lowest < time.Second/2 || highest > 3*time.Second/2 {
		t.Errorf("between %s and %s", lowest, highest)
	}

	if highest-lowest < 900*time.Millisecond {
		t.Errorf("only between %s and %s", lowest, highest)
	}

	if d := clock.Jitter(0); d != 0 {
		t.Errorf("%s for no time at all", d)
	}
}
