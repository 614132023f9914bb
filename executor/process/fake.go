package process

import (
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Fake runs an attempt without a process. Tests in virtual time use it, because
// they must not wait for the kernel. token is the attempt's fencing token. killed is closed
// when a process would receive SIGKILL; Fake must return then. It returns the exit code.
type Fake func(killed <-chan struct{}, a task.Assigned, token int64) int

// runAttempt runs one attempt to its end, as Runner.RunAttempt does. It emulates a process that ignores its
// kill_signal: a kill takes effect only at the end of the grace period. While the attempt is
// paused, its end is not received.
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

	end := (<-chan int)(ended) // nil while the attempt is paused
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
		case <-o.PauseChanged():
			switch still := o.paused.Load(); {
			case why != CauseNone || still == !clock.Since.IsZero():
				continue
			case !still:
				clock.resume(time.Now())
				end = ended
			case clock.pause(time.Now()):
				end = nil
			default:
				// The timeout was reached just before the pause, so it takes precedence.
				clock.resume(time.Now())
				why, hard = causeTimeout, time.After(a.KillGrace.Std())
			}

			a.OnPause(clock.PauseState)
		case k := <-o.Killed():
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
