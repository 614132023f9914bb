// Package clockguard judges whether a node's wall clock can be trusted.
//
// It is pure: it reads no clock and waits for nothing. Its input are readings of the
// node's own clocks and the clocks that other nodes announce.
//
// Guaranteed: after a jump, a clock is not trusted until it is right again. If the clocks of
// two halves of a cluster differ, the half that is ahead does
// not decide ticks. Not guaranteed: that the majority is right. If most clocks are wrong, they count as right.
package clockguard

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// clockTolerance is how far a clock may differ from others or step at once. NTP keeps clocks
	// within milliseconds, and steps by at most 128 ms
	// unless something is wrong. On a busy machine, less than a second passes between reading a clock
	// and announcing it. A tick that is two seconds early or late is
	// within the grace of any task.
	clockTolerance = 2 * time.Second
	// clockRest is how long a node without other nodes does not trust its clock after a jump.
	clockRest = time.Minute
	// clockTimeout is how long a clock must differ from the others before
	// that counts, because several announcements may arrive late together.
	clockTimeout = time.Second
	// clockWindow is how long an announcement of a clock is used at least.
	clockWindow = 30 * time.Second
)

// Guard judges a node's wall clock. The clock is not trusted after a jump,
// or while it differs from the majority of the nodes' clocks. A Guard is pure: time passes only
// through the readings that its methods receive. It is not safe for concurrent use.
//
// All clocks are stored as their offset from the host's boot clock, which runs
// evenly and counts suspend. The offset of a right clock is constant. An announced clock
// is late by an unknown time (it was read, written to etcd, and reported by a watch),
// so another clock seems slower than it is, and never faster. Of several
// announcements, the one with the largest offset is the most exact.
type Guard struct {
	first time.Duration // maximum age of an announcement whose arrival was not observed

	begun  bool          // there was a reading
	offset time.Duration // wall − boot at the last reading
	jumped time.Duration // the size of the jump; 0: there was none, or the clock is right again
	rested time.Duration // boot time of the last jump
	bad    error         // why the clock is not trusted; nil: it is
	since  time.Duration // boot time since which the clock differs from the others; 0: it does not
	others map[string]*otherClock
}

// Reading contains both clocks of the node, read at the same moment.
type Reading struct {
	Wall time.Time
	Boot time.Duration
}

// offset returns wall − boot.
func (r Reading) offset() time.Duration { return time.Duration(r.Wall.UnixNano()) - r.Boot }

// otherClock is the knowledge about another node's clock.
type otherClock struct {
	instance   string
	told       task.Time     // the last announcement
	at         time.Duration // boot time at which it arrived
	seen       int           // number of announcements whose arrival was observed
	ineligible bool          // the node itself announces that its clock is wrong

	// The largest offsets: in the present window and in the one before.
	best, before time.Duration
	window       time.Duration // boot time at which the present window began
}

// lowerBound returns the smallest offset that the clock can have.
func (o *otherClock) lowerBound() time.Duration { return max(o.best, o.before) }

// uncertainty returns how much larger than lowerBound the offset may be. With each observed announcement it becomes
// less likely that all of them were late, so it is halved, but it is at least 0.5 s.
func (o *otherClock) uncertainty(first time.Duration) time.Duration {
	return max(first>>o.seen, 500*time.Millisecond)
}

// New returns a guard without any knowledge of clocks. An announcement whose
// arrival was not observed, because it was there at the start, may be as old as oldest.
func New(oldest time.Duration) *Guard {
	return &Guard{first: oldest, others: map[string]*otherClock{}}
}

// Err returns the verdict of the last Look or Step: why the clock cannot be trusted, or nil.
func (g *Guard) Err() error { return g.bad }

// Hear updates the other clocks from the current records of the other nodes.
func (g *Guard) Hear(r Reading, nodes []task.Node) {
	present := map[string]bool{}
	for _, n := range nodes {
		if n.Clock.IsZero() {
			continue
		}

		present[n.Name] = true
		offset := Reading{n.Clock.Time, r.Boot}.offset()
		o := g.others[n.Name]
		switch {
		case o != nil && o.instance == n.Instance && o.told.Equal(n.Clock.Time):
			// The same announcement as before. Only its eligibility may have changed.
			o.ineligible = n.Ineligible == task.IneligibleClock
			continue
		case o == nil || o.instance != n.Instance:
			// The arrival was not observed, so the announcement may be old.
			o = &otherClock{instance: n.Instance, best: offset, before: offset, window: r.Boot}
			g.others[n.Name] = o
		case offset < o.lowerBound()-g.first:
			// No announcement is that late, so the other clock was set back.
			o.best, o.before, o.window, o.seen = offset, offset, r.Boot, 1
		default:
			if r.Boot-o.window > clockWindow {
				o.before, o.best, o.window = o.best, offset, r.Boot
			}
			o.best = max(o.best, offset)
			o.seen = min(o.seen+1, 30)
		}

		o.told, o.at, o.ineligible = n.Clock, r.Boot, n.Ineligible == task.IneligibleClock
	}

	for name := range g.others {
		if !present[name] {
			delete(g.others, name)
		}
	}
}

// Step returns an error from a jump of the clock on, until Look finds that the clock is right
// again. It is called before each commit, and costs two subtractions.
func (g *Guard) Step(r Reading) error {
	offset := r.offset()
	if g.begun && (offset-g.offset).Abs() > clockTolerance {
		g.jumped, g.rested, g.since = offset-g.offset, r.Boot, 0
		g.bad = fmt.Errorf("the wall clock has jumped by %s", g.jumped.Round(time.Millisecond))
		g.offset = offset
	}

	return g.bad
}

// Look judges the clock and returns the verdict. It is called at short intervals. Steps and drifts below
// the tolerance between two calls are accepted, as long as the other clocks
// agree.
func (g *Guard) Look(r Reading) error {
	_ = g.Step(r) // the result is in g.bad
	first := !g.begun

	g.begun, g.offset = true, r.offset()
	switch {
	case g.jumped != 0 && !g.rightAgain(r):
		return g.bad
	case g.jumped != 0:
		g.jumped, g.bad = 0, nil
	}

	by, differs := g.findDifference(r)
	switch {
	case !differs:
		g.since, g.bad = 0, nil
	case g.since == 0 && !first && g.bad == nil:
		g.since = r.Boot
	case first || g.bad != nil || r.Boot-g.since >= clockTimeout:
		g.bad = fmt.Errorf("the wall clock differs by %s from that of other nodes", by.Round(time.Millisecond))
	}

	return g.bad
}

// rightAgain reports whether a clock that jumped can be trusted again: more than half of all nodes agree with it,
// or there are no other nodes and it has not jumped for clockRest.
func (g *Guard) rightAgain(r Reading) bool {
	all, same := 1, 1
	for _, o := range g.recentClocks(r) {
		all++
		if o.seen >= 2 && g.agreesWith(o, clockTolerance) {
			same++
		}
	}

	if all == 1 {
		return r.Boot-g.rested >= clockRest
	}

	return 2*same > all
}

// findDifference reports whether more nodes agree on another time than on this clock's time,
// or as many on an earlier time, and by how much this clock is ahead of them.
// Nodes that announce that their clocks are wrong do not count.
func (g *Guard) findDifference(r Reading) (by time.Duration, yes bool) {
	tolerance := clockTolerance
	if g.bad != nil {
		tolerance /= 2 // a hysteresis, so that the verdict does not alternate
	}

	same := 1
	var others []*otherClock
	for _, o := range g.recentClocks(r) {
		switch {
		case o.ineligible:
		case g.agreesWith(o, tolerance):
			same++
		default:
			others = append(others, o)
		}
	}

	if same > len(others) {
		return 0, false
	}

	slowest, most := g.largestAgreement(others)
	if most < same || most == same && slowest > g.offset {
		return 0, false
	}

	return g.offset - slowest, true
}

// largestAgreement returns the size of the largest group of clocks that agree with each other, and the
// offset of the slowest clock in it. Of several such groups, it uses the slowest.
func (g *Guard) largestAgreement(others []*otherClock) (slowest time.Duration, most int) {
	slices.SortFunc(others, func(a, b *otherClock) int { return cmp.Compare(a.lowerBound(), b.lowerBound()) })

	for i, low := range others {
		n := 0
		for _, o := range others[i:] {
			if o.lowerBound()-low.lowerBound() <= clockTolerance+low.uncertainty(g.first) {
				n++
			}
		}

		if n > most {
			slowest, most = low.lowerBound(), n
		}
	}

	return slowest, most
}

// agreesWith reports whether this clock and another one may show the same time, within the tolerance.
func (g *Guard) agreesWith(o *otherClock, tolerance time.Duration) bool {
	low := o.lowerBound()
	return low-tolerance <= g.offset && g.offset <= low+o.uncertainty(g.first)+tolerance
}

// recentClocks returns the clocks whose last announcement arrived within clockWindow.
func (g *Guard) recentClocks(r Reading) []*otherClock {
	var list []*otherClock
	for _, o := range g.others {
		if r.Boot-o.at <= clockWindow {
			list = append(list, o)
		}
	}

	return list
}
