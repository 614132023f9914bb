package process

import (
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Fake carries out an attempt in place of a process: for tests in virtual time,
// where nothing may wait for the kernel. token is the attempt's. killed is closed
// when a process would be killed, and Fake returns then. It returns an exit code.
type Fake func(killed <-chan struct{}, a task.Assigned, token int64) int

// runAttempt sees one attempt to its end, as Runner.RunAttempt does. Until its grace is over
// it takes no notice of an order to end, like the worst of processes. While it is
// to stand still its end is not heard of.
func (f Fake) runAttempt(a Attempt, o *Orders) Result {
	select {
	case <-o.given:
		return notStarted(errCalledOff)
	default:
	}

	if err := a.MayStart(); err != nil {
		return notStarted(err)
	}

	killed := make(chan struct{})
	kill := sync.OnceFunc(func() { close(killed) })
	r := Result{StartedAt: time.Now()}
	a.OnStarted(r.StartedAt)
	ended := make(chan int, 1)
	go func() { ended <- f(killed, a.Assigned, a.Token) }()

	var why Cause
	var hard <-chan time.Time
	clock := newRunClock(r.StartedAt, a.Timeout.Std())

	end := (<-chan int)(ended) // nil while it stands still
	for {
		select {
		case code := <-end:
			r.EndedAt = time.Now()
			r.Paused = clock.stop(r.EndedAt)
			r.setExited(code, &successRule{Success: task.Success{ExitCodes: a.Success.ExitCodes}})
			r.SetCause(why, a.Timeout.Std())

			return r
		case <-clock.timedOut():
			why, hard = causeTimeout, time.After(a.KillGrace.Std())
		case <-o.pauseChanged:
			switch still := o.paused.Load(); {
			case why != CauseNone || still == !clock.Since.IsZero():
				continue
			case !still:
				clock.resume(time.Now())
				end = ended
			case clock.pause(time.Now()):
				end = nil
			default:
				clock.resume(time.Now())
				why, hard = causeTimeout, time.After(a.KillGrace.Std())
			}

			a.OnPause(clock.PauseState)
		case k := <-o.c:
			clock.resume(time.Now())
			end = ended

			if why == CauseNone {
				why = k.Cause
			}

			hard = time.After(k.Grace)
		case <-hard:
			kill()
		}
	}
}
