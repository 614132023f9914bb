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
