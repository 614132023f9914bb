package clockguard

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// clockTolerance is how far a clock may be off, or step at once. Clocks that
	// are kept by NTP are within milliseconds, and it steps by at most 128 ms
	// unless something is wrong; what a busy machine adds between reading a clock
	// and announcing it is below a second. A tick two seconds early or late is
	// within the grace of any task.
	clockTolerance = 2 * time.Second
	// clockRest is how long a node without others trusts its clock no more after a jump.
	clockRest = time.Minute
	// clockPatience is for how long a clock must differ from the others' before
	// that counts: announcements may arrive late, all at once.
	clockPatience = time.Second
	// clockWindow is how long an announcement of a clock is good for, at least.
	clockWindow = 30 * time.Second
)

// Guard judges a node's wall clock: it is not to be trusted after a jump,
// or when it differs from the majority of the nodes' clocks. It is pure: what it
// knows it was told, and time passes only as its readings say.
//
// All clocks are kept as their difference to the host's boot clock, which runs
// evenly and counts suspend: a clock that is right has a constant one. A clock
// that was announced is late by an unknown while (it was read, written, watched),
// so that a node seems slower than it is, and never faster: of several
// announcements the one that seems fastest is nearest to the truth.
type Guard struct {
	first time.Duration // how old an announcement may be whose arrival was not seen

	begun  bool
	offset time.Duration // wall − boot at the last look
	jumped time.Duration // by how much; 0 if it did not, or is right again
	rested time.Duration // on the boot clock: when it jumped last
	bad    error         // the verdict
	since  time.Duration // on the boot clock: since when it differs; 0 if it does not
	others map[string]*otherClock
}

// Reading is both clocks at one moment.
type Reading struct {
	Wall time.Time
	Boot time.Duration
}

func (r Reading) offset() time.Duration { return time.Duration(r.Wall.UnixNano()) - r.Boot }

// otherClock is what is known of another node's clock.
type otherClock struct {
	instance   string
	told       task.Time     // the last announcement, which came
	at         time.Duration // then, on the boot clock
	seen       int           // announcements whose arrival was seen
	ineligible bool          // the node says itself that its clock is wrong

	// The largest differences to the boot clock: in the present window, and in the one before.
	best, before time.Duration
	window       time.Duration // when the present window began
}

// lowerBound is where the clock is at least.
func (o *otherClock) lowerBound() time.Duration { return max(o.best, o.before) }

// uncertainty is how much faster than that it may be. Each announcement that was
// awaited makes it less likely that all of them were late.
func (o *otherClock) uncertainty(first time.Duration) time.Duration {
	return max(first>>o.seen, 500*time.Millisecond)
}

// New returns a guard that has heard of no clock. An announcement whose
// arrival was not seen may be as old as oldest.
func New(oldest time.Duration) *Guard {
	return &Guard{first: oldest, others: map[string]*otherClock{}}
}

// Err is the verdict of the last look or step: why the clock is not to be trusted.
func (g *Guard) Err() error { return g.bad }

// Hear takes the records of the other nodes, as they are known now.
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
			o.ineligible = n.Ineligible == task.IneligibleClock
			continue
		case o == nil || o.instance != n.Instance:
			// Nobody waited for it: it may be old.
			o = &otherClock{instance: n.Instance, best: offset, before: offset, window: r.Boot}
			g.others[n.Name] = o
		case offset < o.lowerBound()-g.first:
			// No announcement is so late: the clock was set back.
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

// Step is an error from a jump of the clock on, until look finds it right
// again: what is asked before each commit. It costs two subtractions.
func (g *Guard) Step(r Reading) error {
	offset := r.offset()
	if g.begun && (offset-g.offset).Abs() > clockTolerance {
		g.jumped, g.rested, g.since = offset-g.offset, r.Boot, 0
		g.bad = fmt.Errorf("the wall clock has jumped by %s", g.jumped.Round(time.Millisecond))
		g.offset = offset
	}

	return g.bad
}

// Look judges the clock anew. It is called now and then: steps and drifts below
// the tolerance between two looks are the clock's keeper's affair, as long as
// others agree.
func (g *Guard) Look(r Reading) error {
	_ = g.Step(r) // part of the verdict
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
	case first || g.bad != nil || r.Boot-g.since >= clockPatience:
		g.bad = fmt.Errorf("the wall clock differs by %s from that of other nodes", by.Round(time.Millisecond))
	}

	return g.bad
}

// rightAgain reports whether a clock that jumped may be trusted: most nodes say
// the same as it does, or there is no other and it has been steady for a while.
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

// findDifference reports whether more nodes agree on another time than on this clock's,
// or as many on an earlier one; and by how much this clock is ahead of them.
// Nodes that know that their clocks are wrong have no say.
func (g *Guard) findDifference(r Reading) (by time.Duration, yes bool) {
	tolerance := clockTolerance
	if g.bad != nil {
		tolerance /= 2 // near the edge the verdict stays as it is
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

// largestAgreement is the largest number of clocks that agree with each other, and where
// the slowest of them is; of several such groups it is the slowest one.
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

// agreesWith reports whether this clock and another may show the same time.
func (g *Guard) agreesWith(o *otherClock, tolerance time.Duration) bool {
	low := o.lowerBound()
	return low-tolerance <= g.offset && g.offset <= low+o.uncertainty(g.first)+tolerance
}

// recentClocks are the clocks of which something was heard of late.
func (g *Guard) recentClocks(r Reading) []*otherClock {
	var list []*otherClock
	for _, o := range g.others {
		if r.Boot-o.at <= clockWindow {
			list = append(list, o)
		}
	}

	return list
}
