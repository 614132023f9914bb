package executor

import (
	"sync"
	"sync/atomic"
)

// maxIdleGoroutines is the number of goroutines that an attemptPool keeps.
const maxIdleGoroutines = 128

// attemptPool runs HTTP attempts on goroutines that it keeps for later ones. A new goroutine has a small stack, which is
// copied several times until it is large enough for a request. That would cost more than all else that the executor does
// for the attempt. Processes are not worth it: they cost much more.
type attemptPool struct {
	attempts chan func()  // unbuffered, so that only idle goroutines receive
	idle     atomic.Int64 // goroutines that wait for an attempt
}

// newAttemptPool returns a pool without goroutines.
func newAttemptPool() attemptPool { return attemptPool{attempts: make(chan func())} }

// start runs an attempt on an idle goroutine, or on a new one, which it adds to wg. It does not wait.
func (p *attemptPool) start(wg *sync.WaitGroup, attempt func()) {
	select {
	case p.attempts <- attempt:
	default:
		wg.Go(func() { p.runAttempts(attempt) })
	}
}

// runAttempts runs an attempt, and then others until there are enough idle goroutines, or until the pool is closed.
func (p *attemptPool) runAttempts(attempt func()) {
	for open := true; open; {
		attempt()

		if p.idle.Add(1) > maxIdleGoroutines {
			open = false
		} else {
			attempt, open = <-p.attempts
		}
		p.idle.Add(-1)
	}
}

// close ends the idle goroutines, and the others after their attempts. start must not be called any more.
func (p *attemptPool) close() { close(p.attempts) }
