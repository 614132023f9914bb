package executor

import (
	"fmt"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Act carries out an attempt in place of a process: for tests in virtual time,
// where nothing may wait for the kernel. token is the attempt's. killed is closed
// when a process would be killed, and Act returns then. It returns an exit code.
type Act func(killed <-chan struct{}, a task.Assigned, token int64) int

// act sees one attempt to its end, as launcher.run does. Until its grace is over
// it takes no notice of an order to end, like the worst of processes.
func (e *Executor) act(a task.Assigned, token int64, may func() error, o *orders, onStarted func(time.Time)) Result {
	select {
	case <-o.given:
		return notStarted(errCalledOff)
	default:
	}
	if err := may(); err != nil {
		return notStarted(err)
	}
	killed := make(chan struct{})
	kill := sync.OnceFunc(func() { close(killed) })
	r := Result{StartedAt: time.Now()}
	onStarted(r.StartedAt)
	ended := make(chan int, 1)
	go func() { ended <- e.cfg.Act(killed, a, token) }()

	var why cause
	var timeout, hard <-chan time.Time
	if d := a.Timeout.Std(); d > 0 {
		timeout = time.After(d)
	}
	for {
		select {
		case code := <-ended:
			r.EndedAt, r.ExitCode, r.State = time.Now(), &code, task.Succeeded
			if code != 0 {
				r.State, r.Reason, r.Message = task.Failed, task.ReasonExit, fmt.Sprintf("exited with code %d", code)
			}
			r.blame(why, a.Timeout.Std())
			return r
		case <-timeout:
			why, hard = causeTimeout, time.After(a.KillGrace.Std())
		case k := <-o.c:
			if why == causeNone {
				why = k.cause
			}
			hard = time.After(k.grace)
		case <-hard:
			kill()
		}
	}
}
