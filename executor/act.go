package executor

import (
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Act carries out an attempt in place of a process: for tests in virtual time,
// where nothing may wait for the kernel. token is the attempt's. killed is closed
// when a process would be killed, and Act returns then. It returns an exit code.
type Act func(killed <-chan struct{}, a task.Assigned, token int64) int

// run sees one attempt to its end, as launcher.runAttempt does. Until its grace is over
// it takes no notice of an order to end, like the worst of processes. While it is
// to stand still its end is not heard of.
func (f Act) run(a attemptSpec, o *orders) Result {
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

	var why cause
	var hard <-chan time.Time
	clock := newStint(r.StartedAt, a.Timeout.Std())
	end := (<-chan int)(ended) // nil while it stands still
	for {
		select {
		case code := <-end:
			r.EndedAt = time.Now()
			r.Paused = clock.stop(r.EndedAt)
			r.exited(code, &rule{Success: task.Success{ExitCodes: a.Success.ExitCodes}})
			r.blame(why, a.Timeout.Std())
			return r
		case <-clock.over():
			why, hard = causeTimeout, time.After(a.KillGrace.Std())
		case <-o.turn:
			switch still := o.still.Load(); {
			case why != causeNone || still == !clock.since.IsZero():
				continue
			case !still:
				clock.goOn(time.Now())
				end = ended
			case clock.pause(time.Now()):
				end = nil
			default:
				clock.goOn(time.Now())
				why, hard = causeTimeout, time.After(a.KillGrace.Std())
			}
			a.OnPause(clock.standing)
		case k := <-o.c:
			clock.goOn(time.Now())
			end = ended
			if why == causeNone {
				why = k.cause
			}
			hard = time.After(k.grace)
		case <-hard:
			kill()
		}
	}
}
