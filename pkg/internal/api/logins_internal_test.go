package api

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

func TestLogins_BoundsWhatItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogins(zap.NewNop())

		for range loginBurst {
			if !l.mayTry("10.0.0.1") {
				t.Fatal("refused within the burst")
			}
		}

		if l.mayTry("10.0.0.1") {
			t.Error("allowed beyond the burst")
		}

		if !l.mayTry("10.0.0.2") {
			t.Error("another client is refused")
		}

		time.Sleep(time.Second)

		if !l.mayTry("10.0.0.1") {
			t.Error("still refused a second later")
		}

		for i := range 3 * maxLoginClients {
			l.mayTry(fmt.Sprint("client", i))
		}

		if n := len(l.clients); n > maxLoginClients {
			t.Errorf("%d clients are remembered", n)
		}
	})
}
