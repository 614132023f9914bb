package executor

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestAttemptPool_RunsAllAtOnceAndKeepsSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 2 * maxIdleGoroutines

		p := newAttemptPool()
		var wg sync.WaitGroup
		var running, ended atomic.Int64

		for round := range 2 {
			release := make(chan struct{})
			for range count {
				p.start(&wg, func() {
					running.Add(1)
					<-release
					running.Add(-1)
					ended.Add(1)
				})
			}

			synctest.Wait()
			if n := running.Load(); n != count {
				t.Errorf("round %d: %d attempts run, want %d", round, n, count)
			}

			close(release)
			synctest.Wait()
			if idle := p.idle.Load(); idle != maxIdleGoroutines {
				t.Errorf("round %d: %d goroutines are idle, want %d", round, idle, maxIdleGoroutines)
			}
		}

		p.close()
		wg.Wait()

		if n := ended.Load(); n != 2*count {
			t.Errorf("%d attempts have ended, want %d", n, 2*count)
		}
	})
}

func TestAttemptPool_CloseWaitsForAttempts(t *testing.T) {
	p := newAttemptPool()
	var wg sync.WaitGroup
	var ended atomic.Bool
	release := make(chan struct{})

	p.start(&wg, func() { <-release; ended.Store(true) })
	p.close()
	close(release)
	wg.Wait()

	if !ended.Load() {
		t.Error("the attempt has not ended")
	}
}
