package process

import (
	"time"

	"go.uber.org/zap"
)

// A pause goes this way: somebody asks for it in the record; the loop tells the
// attempt's goroutine, which has the processes stand still; the loop hears of that,
// and the record says so. Each step looks at how things are, not at what has
// happened: a pause that was taken back meanwhile is one that nobody wants. What
// ends an attempt comes before: it has the processes go on, to hear the signal.

// PauseState is how an attempt stands: still since an instant, or not.
type PauseState struct {
	Since time.Time     // zero: it runs
	Sum   time.Duration // how long it stood still before that
	Err   error         // why it does not stand still
}

// SetPaused says whether the attempt is to stand still.
func (o *Orders) SetPaused(still bool) {
	if o.paused.Swap(still) != still {
		o.pauseChanged.Send()
	}
}

// runClock is how long an attempt runs, and stands still: only the former counts for
// its timeout. Its times are monotonic.
type runClock struct {
	PauseState
	began time.Time     // the present stretch of running
	left  time.Duration // until the timeout, at that moment
	timer *time.Timer   // nil: there is no timeout
}

func newRunClock(now time.Time, timeout time.Duration) *runClock {
	s := &runClock{began: now, left: timeout}
	if timeout > 0 {
		s.timer = time.NewTimer(timeout)
	}
	return s
}

// timedOut is ready when the attempt has run for as long as it may.
func (s *runClock) timedOut() <-chan time.Time {
	if s.timer == nil {
		return nil
	}
	return s.timer.C
}

// pause stops the clock. false: it has run for as long as it may.
func (s *runClock) pause(now time.Time) bool {
	s.Since = now
	s.left -= now.Sub(s.began)
	return s.timer == nil || s.timer.Stop() && s.left > 0
}

// resume lets the clock run again.
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

// stop ends the stint, and returns how long the attempt stood still in all.
func (s *runClock) stop(now time.Time) time.Duration {
	s.resume(now)
	if s.timer != nil {
		s.timer.Stop()
	}
	return s.Sum
}

// setPaused has the processes stand still or go on, as is wanted. false: the attempt
// has run for as long as it may.
func (p *running) setPaused(still bool, s *runClock, tell func(PauseState)) bool {
	if still == !s.Since.IsZero() {
		return true
	}

	s.Err = nil
	inTime := true
	if still {
		if s.Err = p.freezeTree(); s.Err == nil {
			inTime = s.pause(time.Now())
		} else {
			p.thawTree()
		}
	} else {
		p.thawTree()
		s.resume(time.Now())
	}

	if tell != nil { // tests do not listen
		tell(s.PauseState)
	}

	return inTime
}

func (p *running) freezeTree() error {
	if p.freeze != nil {
		return p.freeze(&p.tree)
	}
	return p.tree.Freeze()
}

// thawTree has all processes go on. One that does not is killed at the latest when the
// attempt is made to end.
func (p *running) thawTree() {
	if err := p.tree.Thaw(); err != nil {
		p.log.Warn("cannot resume the processes of an attempt", zap.Int("pgid", p.pid), zap.Error(err))
	}
}
