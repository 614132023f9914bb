package process

import (
	"time"

	"go.uber.org/zap"
)

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
func (s *runClock) timedOut() <-chan time.Time {
	if s.timer == nil {
		return nil
	}
	return s.timer.C
}

// pause stops the clock. It returns false if the attempt has already reached its timeout; the
// timer may then have fired, so the caller must not rely on timedOut.
func (s *runClock) pause(now time.Time) bool {
	s.Since = now
	s.left -= now.Sub(s.began)
	return s.timer == nil || s.timer.Stop() && s.left > 0
}

// resume continues a clock that pause has stopped. It does nothing to a clock that runs.
func (s *runClock) resume(now time.Time) {
	if s.Since.IsZero() {
		return
	}

	s.Sum += now.Sub(s.Since)
	s.Since, s.began = time.Time{}, now
	if s.timer != nil {
		s.timer.Reset(max(s.left, 0))
	}
}

// stop stops the clock for good and returns the total time that the attempt was paused.
func (s *runClock) stop(now time.Time) time.Duration {
	s.resume(now)
	if s.timer != nil {
		s.timer.Stop()
	}
	return s.Sum
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
