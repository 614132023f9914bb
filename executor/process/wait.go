package process

import (
	"cmp"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
)

const (
	// lingerLimit is how long processes that the main process left behind may take to end
	// by themselves, such as the last commands of a pipeline.
	lingerLimit = 200 * time.Millisecond
	// maxLeftoverGrace is the longest grace period for processes that were left behind. The
	// outcome is known by then, and the task's next run may be waiting.
	maxLeftoverGrace = 10 * time.Second
	// drainLimit is how long output is read after the whole group has ended. Only a
	// process that left the group can still hold the pipe then.
	drainLimit = 250 * time.Millisecond
)

// waitForMain waits for the main process, ends what it has left behind, and returns the result when
// nothing of the attempt is left.
func (p *runningProcess) waitForMain(what preparedAttempt, o *Orders) Result {
	var pidfd *os.File
	if p.pidfd >= 0 && setNonblocking(p.pidfd) == nil {
		pidfd = os.NewFile(uintptr(p.pidfd), "pidfd")
		defer pidfd.Close()
	}

	exited := make(chan error, 1)
	go func() { exited <- awaitExit(p.pid, pidfd) }()

	timeout := what.timeout
	if timeout > 0 { // the timeout includes the time that a slow start took
		timeout = max(1, timeout-time.Since(p.started))
	}

	clock := newRunClock(time.Now(), timeout)
	why, killAt := p.waitMain(exited, clock, what, o)
	if why.Cause == CauseNone {
		why = p.killedAtStart
	}

	r := Result{StartedAt: p.started, EndedAt: time.Now()}

	if !clock.Since.IsZero() {
		p.thawTree() // processes that the main process has left behind, so that they can handle signals
	}

	r.Paused = clock.stop(r.EndedAt)
	// Reap under the lock of orphans: once the zombie is gone, its process number may be given to another process,
	// and orphans would take that for this one.
	p.orphans.Lock()
	status, took, err := reapProcess(p.pid)
	p.orphans.Reaped(p.pid)
	p.orphans.Unlock()

	p.tree.MainReaped(took)

	// End the processes that are left (G20). In an attempt that was killed, they have the rest of its grace period. In
	// one that ended by itself, they get lingerLimit to end by themselves, then the signal and a grace period.
	if why.Cause != CauseNone {
		if p.tree.Group == nil {
			p.tree.SignalOthers(what.signal) // orphans of the main process are known only now
		}
		p.endGroup(killAt, o)
	} else if lingering := cmp.Or(p.lingering, lingerLimit); !p.waitEmpty(r.EndedAt.Add(lingering)) {
		p.tree.Signal(what.signal)
		p.endGroup(r.EndedAt.Add(lingering+min(what.grace, maxLeftoverGrace)), o)
	}

	if why.Cause != CauseNone {
		// A search of all processes is too expensive after every attempt. It is required after a kill, because the
		// attempt may have a successor elsewhere.
		p.killLeftovers(what.guarded.Mark)
	}

	// Only a process outside the tree can still hold the pipe. Do not wait for it longer than drainLimit.
	select {
	case <-p.drained:
	default:
		_ = p.pipe.SetReadDeadline(time.Now().Add(drainLimit))
		<-p.drained
	}

	p.pipe.Close()
	used, counts := p.tree.Usage()
	// The order matters: a guardian that still watched this attempt would kill the next one in its control group.
	p.guarded.Ended()
	p.endTree()
	p.out.EndStreams()

	r.Usage = used
	r.setOutcome(status, err, what.success)
	r.explainLimits(what.process.Limits, counts, p.tree.MainCPU())
	r.SetCause(why.Cause, what.timeout)

	return r
}

// waitMain waits for the main process to exit, and executes kills and pauses until then. When
// it returns, the process is a zombie, so its process number cannot have been reused.
func (p *runningProcess) waitMain(exited <-chan error, clock *runClock, what preparedAttempt, o *Orders) (why Kill, killAt time.Time) {
	var hard <-chan time.Time // fires when the grace period is over; nil before the first kill
	// obey executes a kill. Later kills may only shorten the grace period of the first.
	obey := func(k Kill) {
		at := time.Now().Add(max(k.Grace, 0))

		if why.Cause == CauseNone {
			why, killAt = k, at
			p.tree.Signal(what.signal)
			p.tree.Signal(unix.SIGCONT) // a stopped process handles the signal only after it continues
			p.setPaused(false, clock, what.onPause)
		} else if at.Before(killAt) {
			killAt = at
		}

		hard = time.After(time.Until(killAt))
	}

	for {
		select {
		case <-exited:
			return why, killAt
		case <-clock.timedOut():
			obey(Kill{causeTimeout, what.grace})
		case k := <-o.Killed():
			obey(k)
		case <-o.PauseChanged():
			if why.Cause == CauseNone && !p.setPaused(o.paused.Load(), clock, what.onPause) {
				obey(Kill{causeTimeout, what.grace})
			}
		case <-hard:
			// SIGKILL may miss a process that forks at this moment; waitForMain repeats it.
			p.tree.Kill()
		}
	}
}

// waitEmpty waits until at for the group to end by itself, and reports whether it has.
func (p *runningProcess) waitEmpty(at time.Time) (ended bool) {
	for pause := time.Millisecond; !p.tree.Empty(); pause = min(2*pause, 50*time.Millisecond) {
		if !time.Now().Before(at) {
			return p.tree.Empty() // on a busy node, the last check may be from long before at
		}
		time.Sleep(min(pause, time.Until(at)))
	}

	return true
}

// endGroup waits for processes that the main process left behind. They have already received
// the kill signal; at killAt they receive SIGKILL.
func (p *runningProcess) endGroup(killAt time.Time, o *Orders) {
	for !p.waitEmpty(earlierOf(killAt, time.Now().Add(100*time.Millisecond))) {
		// Orders that arrive meanwhile still count, for example when the node falls silent during a long grace
		// period (G17).
		select {
		case k := <-o.Killed():
			killAt = earlierOf(killAt, time.Now().Add(k.Grace))
		default:
		}

		if time.Now().Before(killAt) {
			continue
		}

		if !p.killUntil(time.Now().Add(proctree.KillLimit)) {
			p.log.Error("processes of an attempt survived SIGKILL", zap.Int("pgid", p.pid))
			return
		}
	}
}

// killUntil kills until the tree is empty or at has passed. It repeats the kill because a
// process may fork before it dies.
func (p *runningProcess) killUntil(at time.Time) (ended bool) {
	for time.Now().Before(at) {
		p.tree.Kill()
		if p.waitEmpty(earlierOf(at, time.Now().Add(50*time.Millisecond))) {
			return true
		}
	}

	return false
}

// earlierOf returns the earlier of two times.
func earlierOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// endTree returns the control group of the tree, which should be empty. A group that is not empty
// is quarantined and not reused. Without a group, it ends orphans that could also belong to
// attempts that have ended since the tree was found to be empty.
func (p *runningProcess) endTree() {
	if p.tree.Group != nil {
		p.groups.Release(p.tree.Group)
	}

	for !p.tree.Orphans.ForgetEnded(&p.tree) {
		if !p.killUntil(time.Now().Add(proctree.KillLimit)) {
			p.log.Error("orphans of an attempt survived SIGKILL", zap.Int("pgid", p.pid))
			p.tree.Orphans.Forget(&p.tree)
			return
		}
	}
}

// killLeftovers kills processes that have left the process group, if the attempt has no control group.
// It finds them by the mark in their environment.
func (p *runningProcess) killLeftovers(l proctree.Mark) {
	if p.tree.Group != nil {
		return
	}

	killed, err := p.sweeper.KillMarked(l)
	if killed > 0 || err != nil {
		p.log.Info("killed processes that had left their process group", zap.String("run", l.RunID), zap.Int("processes", killed), zap.Error(err))
	}
}

// A pause takes these steps: the API sets pause_requested in the attempt's record; the executor's loop
// passes it to the attempt's goroutine, which stops the processes and reports that; the loop
// writes it to the record. Each step compares the desired state with the actual one and keeps no list of
// requests. A pause that is revoked before it takes effect therefore does nothing. A kill takes
// precedence: it resumes the processes, so that they can handle the signal.

// PauseState describes whether an attempt is paused, as its goroutine reports it.
type PauseState struct {
	Since time.Time     // when the present pause began; zero: the attempt runs
	Sum   time.Duration // total length of the earlier pauses
	Err   error         // why the last request to pause failed; nil: it did not
}

// SetPaused requests that the attempt is paused or runs. It does not wait. If it is called several times, the last
// call counts.
func (o *Orders) SetPaused(still bool) {
	if o.paused.Swap(still) != still {
		o.makeChannels()
		o.pauseChanged.Send()
		o.noteOrder()
	}
}

// runClock measures how long an attempt runs and how long it is paused. Only the former counts
// towards its timeout. Its times have a monotonic reading. The attempt's goroutine owns it.
type runClock struct {
	PauseState
	began time.Time     // when the attempt last began to run, or resumed
	left  time.Duration // the time until the timeout, measured from began
	timer *time.Timer   // nil: there is no timeout
}

// newRunClock returns a clock that runs from now on. A timeout of 0 means none.
func newRunClock(now time.Time, timeout time.Duration) *runClock {
	s := &runClock{began: now, left: timeout}
	if timeout > 0 {
		s.timer = time.NewTimer(timeout)
	}
	return s
}

// timedOut returns a channel that receives when the attempt has reached its timeout. It is nil without a timeout.
func (r *runClock) timedOut() <-chan time.Time {
	if r.timer == nil {
		return nil
	}
	return r.timer.C
}

// pause stops the clock. It returns false if the attempt has already reached its timeout; the
// timer may then have fired, so the caller must not rely on timedOut.
func (r *runClock) pause(now time.Time) bool {
	r.Since = now
	r.left -= now.Sub(r.began)
	return r.timer == nil || r.timer.Stop() && r.left > 0
}

// resume continues a clock that pause has stopped. It does nothing to a clock that runs.
func (r *runClock) resume(now time.Time) {
	if r.Since.IsZero() {
		return
	}

	r.Sum += now.Sub(r.Since)
	r.Since, r.began = time.Time{}, now
	if r.timer != nil {
		r.timer.Reset(max(r.left, 0))
	}
}

// stop stops the clock for good and returns the total time that the attempt was paused.
func (r *runClock) stop(now time.Time) time.Duration {
	r.resume(now)
	if r.timer != nil {
		r.timer.Stop()
	}
	return r.Sum
}

// setPaused stops or resumes the processes, updates the clock, and reports the new state to tell. It does nothing
// if the state is already as requested. It returns false if the attempt has reached its timeout, which
// then takes precedence over the pause.
func (p *runningProcess) setPaused(still bool, s *runClock, tell func(PauseState)) bool {
	if still == !s.Since.IsZero() {
		return true
	}

	s.Err = nil
	inTime := true
	if still {
		if s.Err = p.freezeTree(); s.Err == nil {
			inTime = s.pause(time.Now())
		} else {
			// Some of the processes may have been stopped.
			p.thawTree()
		}
	} else {
		p.thawTree()
		s.resume(time.Now())
	}

	if tell != nil { // nil in some tests
		tell(s.PauseState)
	}

	return inTime
}

// freezeTree stops all processes of the attempt.
func (p *runningProcess) freezeTree() error {
	if p.freeze != nil {
		return p.freeze(&p.tree)
	}
	return p.tree.Freeze()
}

// thawTree resumes all processes. It logs an error and continues: a process that stays stopped is killed
// when the attempt ends or is killed, because SIGKILL works on stopped processes.
func (p *runningProcess) thawTree() {
	if err := p.tree.Thaw(); err != nil {
		p.log.Warn("cannot resume the processes of an attempt", zap.Int("pgid", p.pid), zap.Error(err))
	}
}
