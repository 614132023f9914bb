package executor

import (
	"time"

	"go.uber.org/zap"
)

// A pause goes this way: somebody asks for it in the record; the loop tells the
// attempt's goroutine, which has the processes stand still; the loop hears of that,
// and the record says so. Each step looks at how things are, not at what has
// happened: a pause that was taken back meanwhile is one that nobody wants. What
// ends an attempt comes before: it has the processes go on, to hear the signal.

// standing is how an attempt stands: still since an instant, or not.
type standing struct {
	since time.Time     // zero: it runs
	sum   time.Duration // how long it stood still before that
	err   error         // why it does not stand still
}

// stand says whether the attempt is to stand still.
func (o *orders) stand(still bool) {
	if o.still.Swap(still) != still {
		o.turn.Send()
	}
}

// stint is how long an attempt runs, and stands still: only the former counts for
// its timeout. Its times are monotonic.
type stint struct {
	standing
	began time.Time     // the present stretch of running
	left  time.Duration // until the timeout, at that moment
	timer *time.Timer   // nil: there is no timeout
}

func newStint(now time.Time, timeout time.Duration) *stint {
	s := &stint{began: now, left: timeout}
	if timeout > 0 {
		s.timer = time.NewTimer(timeout)
	}
	return s
}

// over is ready when the attempt has run for as long as it may.
func (s *stint) over() <-chan time.Time {
	if s.timer == nil {
		return nil
	}
	return s.timer.C
}

// pause stops the clock. false: it has run for as long as it may.
func (s *stint) pause(now time.Time) bool {
	s.since = now
	s.left -= now.Sub(s.began)
	return s.timer == nil || s.timer.Stop() && s.left > 0
}

// goOn lets the clock run again.
func (s *stint) goOn(now time.Time) {
	if s.since.IsZero() {
		return
	}
	s.sum += now.Sub(s.since)
	s.since, s.began = time.Time{}, now
	if s.timer != nil {
		s.timer.Reset(max(s.left, 0))
	}
}

// stop ends the stint, and returns how long the attempt stood still in all.
func (s *stint) stop(now time.Time) time.Duration {
	s.goOn(now)
	if s.timer != nil {
		s.timer.Stop()
	}
	return s.sum
}

// turn has the processes stand still or go on, as is wanted. false: the attempt
// has run for as long as it may.
func (p *running) turn(still bool, s *stint, tell func(standing)) bool {
	if still == !s.since.IsZero() {
		return true
	}
	s.err = nil
	inTime := true
	if still {
		if s.err = p.standStill(); s.err == nil {
			inTime = s.pause(time.Now())
		} else {
			p.thaw()
		}
	} else {
		p.thaw()
		s.goOn(time.Now())
	}
	if tell != nil { // tests do not listen
		tell(s.standing)
	}
	return inTime
}

func (p *running) standStill() error {
	if p.freeze != nil {
		return p.freeze(&p.tree)
	}
	return p.tree.Freeze()
}

// thaw has all processes go on. One that does not is killed at the latest when the
// attempt is made to end.
func (p *running) thaw() {
	if err := p.tree.Thaw(); err != nil {
		p.log.Warn("cannot have the processes of an attempt go on", zap.Int("pgid", p.pid), zap.Error(err))
	}
}
