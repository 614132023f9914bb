package clockguard

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// guarded is a clock guard whose time the test controls.
type guarded struct {
	*Guard
	at     time.Duration // time since the beginning; the boot clock shows one hour more
	off    time.Duration // the error of its own clock
	others map[string]*told
}

// told is another node, which announces its clock every five seconds.
type told struct {
	off        time.Duration // the error of its clock
	late       time.Duration // the delay of its announcements
	ineligible bool
	mute       bool
	last       time.Duration
	clock      task.Time
}

// announceEvery is the interval at which the other nodes announce their clocks.
const announceEvery = 5 * time.Second

var epoch = time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)

func guard(others map[string]*told) *guarded {
	return &guarded{Guard: New(10*time.Second + announceEvery), others: others}
}

func (g *guarded) now() Reading { return Reading{epoch.Add(g.at + g.off), time.Hour + g.at} }

// pass advances the time in steps of half a second and returns the last verdict.
func (g *guarded) pass(d time.Duration) (err error) {
	for end := g.at + d; ; g.at += 500 * time.Millisecond {
		var nodes []task.Node
		for name, o := range g.others {
			if !o.mute && (o.clock.IsZero() || g.at-o.last >= announceEvery) {
				o.last, o.clock = g.at, task.At(epoch.Add(g.at+o.off-o.late))
			}
			n := task.Node{Name: name, Instance: "i", Clock: o.clock}
			if o.ineligible {
				n.Ineligible = task.IneligibleClock
			}
			nodes = append(nodes, n)
		}
		g.Hear(g.now(), nodes)
		if err = g.Look(g.now()); g.at >= end {
			return err
		}
	}
}

func TestClockGuard_AgreesWithTheMajority(t *testing.T) {
	const s, h, year = time.Second, time.Hour, 365 * 24 * time.Hour
	for _, c := range []struct {
		name   string
		own    time.Duration
		others []told
		after  time.Duration
		bad    bool
	}{
		{"alone", h, nil, 0, false},
		{"all agree", 0, []told{{off: s}, {off: -s}}, time.Minute, false},
		{"an hour ahead, at the very first look", h, []told{{}, {}}, 0, true},
		{"ten years ahead, at the very first look", 10 * year, []told{{}, {}}, 0, true},
		{"an hour behind", -h, []told{{}, {}}, 0, true},
		{"one other is wrong", 0, []told{{off: 10 * year}, {}}, time.Minute, false},
		{"the majority is wrong: it counts", 0, []told{{off: h}, {off: h + s}}, time.Minute, true},
		{"two, and this one is the faster", h, []told{{}}, 0, true},
		{"two, and this one is the slower", 0, []told{{off: h}}, time.Minute, false},
		{"two against two, and these are the faster", h, []told{{off: h}, {}, {}}, time.Minute, true},
		{"two against two, and these are the slower", 0, []told{{}, {off: h}, {off: h}}, time.Minute, false},
		{"three times: the slowest", 0, []told{{off: h}, {off: 2 * h}}, time.Minute, false},
		{"three times: not the slowest", h, []told{{}, {off: 2 * h}}, time.Minute, true},
		{"a few seconds, once announcements have been awaited", 6 * s, []told{{}, {}}, 30 * s, true},
		{"a few seconds, which the first announcement may be old", 6 * s, []told{{}, {}}, 0, false},
		{"announcements under way for long", 0, []told{{late: 1500 * time.Millisecond}, {late: 1500 * time.Millisecond}}, time.Minute, false},
		{"others who know that they are wrong have no say", 0, []told{{off: -h, ineligible: true}, {off: -h, ineligible: true}}, time.Minute, false},
	} {
		others := map[string]*told{}
		for i, o := range c.others {
			others[fmt.Sprint(i)] = &o
		}
		g := guard(others)
		g.off = c.own
		if err := g.pass(c.after); (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestClockGuard_NoticesAJumpBeforeTheNextCommit(t *testing.T) {
	for _, by := range []time.Duration{3 * time.Second, -3 * time.Second, 87600 * time.Hour} {
		g := guard(map[string]*told{"a": {}, "b": {}})
		if err := g.pass(time.Minute); err != nil {
			t.Fatal(err)
		}
		g.off = by
		if err := g.Step(g.now()); err == nil {
			t.Errorf("%s: may commit", by)
		}
		if err := g.pass(10 * time.Minute); err == nil {
			t.Errorf("%s: trusted again, though others say otherwise", by)
		}
		g.off = 0
		if err := g.pass(10 * time.Second); err != nil {
			t.Errorf("%s: set right, and not trusted: %v", by, err)
		}
	}
}

func TestClockGuard_ALoneNodeRestsAMinuteAfterAJump(t *testing.T) {
	g := guard(nil)
	g.pass(time.Minute)
	g.off = time.Hour
	if err := g.pass(59 * time.Second); err == nil {
		t.Error("trusted before a minute was over")
	}
	g.off = 2 * time.Hour
	if err := g.pass(59 * time.Second); err == nil {
		t.Error("trusted before a minute without a jump was over")
	}
	if err := g.pass(2 * time.Second); err != nil {
		t.Errorf("not trusted again: %v", err)
	}
}

// The adjustments of NTP, a suspended laptop and the delays of a busy machine do not count as a jump.
func TestClockGuard_LeavesWhatIsNormalAlone(t *testing.T) {
	g := guard(map[string]*told{"a": {}})
	for range 600 { // slewing
		g.off += 250 * time.Microsecond
		if err := g.pass(500 * time.Millisecond); err != nil {
			t.Fatalf("slewed by %s: %v", g.off, err)
		}
	}
	g.off += time.Second // a small step
	if err := g.pass(time.Minute); err != nil {
		t.Errorf("a small step: %v", err)
	}
	g.at += 8 * time.Hour // a suspend, which both clocks count; the other nodes continued
	if err := g.pass(time.Minute); err != nil {
		t.Errorf("a resumed laptop: %v", err)
	}
	g.others["a"].mute = true // the last announcement grows old
	if err := g.pass(time.Hour); err != nil {
		t.Errorf("a silent node: %v", err)
	}
	g.others["a"].mute = false
	g.others["a"].late = 10 * time.Second // announcements arrive again, at first late
	if err := g.pass(3 * time.Second); err != nil {
		t.Errorf("a node that is back: %v", err)
	}
}

// If two nodes disagree, the one that has just jumped is wrong, in either direction.
func TestClockGuard_OneOtherIsEnoughToDoubtAJump(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		g := guard(map[string]*told{"a": {}})
		g.pass(time.Minute)
		g.off = by
		if err := g.pass(10 * time.Minute); err == nil {
			t.Errorf("%s: trusted again", by)
		}
	}
	// A node whose announcements have stopped does not count.
	g := guard(map[string]*told{"a": {}})
	g.pass(time.Minute)
	g.others["a"].mute, g.off = true, time.Hour
	if err := g.pass(2 * clockRest); err != nil {
		t.Errorf("a silent node has a say: %v", err)
	}
}

// Near the tolerance the verdict does not alternate.
func TestClockGuard_ComesBackOnlyWhenItIsWellWithin(t *testing.T) {
	g := guard(map[string]*told{"a": {}, "b": {}})
	g.off = clockTolerance + time.Second
	if err := g.pass(time.Minute); err == nil {
		t.Fatal("it is trusted")
	}
	g.off = clockTolerance
	if err := g.pass(time.Minute); err == nil {
		t.Error("it is trusted again at the edge")
	}
	g.off = clockTolerance / 2
	if err := g.pass(time.Minute); err != nil {
		t.Errorf("it is not trusted again: %v", err)
	}
}

// A single late announcement does not make a right clock wrong.
func TestClockGuard_TheFastestAnnouncementIsNearestToTheTruth(t *testing.T) {
	g := guard(map[string]*told{"a": {}})
	g.pass(time.Minute)
	g.others["a"].late = 9 * time.Second
	if err := g.pass(10 * time.Second); err != nil {
		t.Errorf("two late announcements: %v", err)
	}
	for i := range 40 { // every second one
		g.others["a"].late = time.Duration(i%2) * 9 * time.Second
		if err := g.pass(announceEvery - 500*time.Millisecond); err != nil {
			t.Errorf("late now and then: %v", err)
		}
		g.at += 500 * time.Millisecond
	}
	g.others["a"].late, g.others["a"].off = 0, -time.Hour // this clock was set back
	if err := g.pass(10 * time.Second); err == nil {
		t.Error("the slower of two has no say")
	}
}

// After a pause of the whole process, all announcements that have arrived meanwhile are processed at once, the
// oldest first.
func TestClockGuard_WaitsForTheRestOfABacklog(t *testing.T) {
	g := guard(map[string]*told{"a": {}, "b": {}})
	g.pass(time.Minute)
	for late := 40 * time.Second; late >= 0; late -= 10 * time.Second {
		for _, o := range g.others {
			o.late, o.last = late, -time.Hour
		}
		if err := g.pass(0); err != nil {
			t.Errorf("an announcement %s old: %v", late, err)
		}
		g.at += 10 * time.Millisecond
	}
	if err := g.pass(time.Minute); err != nil {
		t.Error(err)
	}
}

func TestClockGuard_DriftIsFoundByTheOthers(t *testing.T) {
	g := guard(map[string]*told{"a": {}, "b": {}})
	for range 3600 {
		g.off += time.Millisecond
		if g.pass(500*time.Millisecond) != nil {
			break
		}
	}
	if g.bad == nil || g.off > 2*clockTolerance {
		t.Errorf("%s ahead: %v", g.off, g.bad)
	}
}

// The first announcement of a node may be old. For a clock that jumped, it counts only after the second one.
func TestClockGuard_OneAnnouncementDoesNotPutAJumpRight(t *testing.T) {
	g := guard(map[string]*told{"a": {}})
	if err := g.pass(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	g.off = time.Hour
	if g.pass(time.Second) == nil {
		t.Fatal("a jump of an hour goes unnoticed")
	}
	g.others["b"], g.others["c"] = &told{off: time.Hour}, &told{off: time.Hour}
	if g.pass(2*time.Second) == nil {
		t.Error("right again by what two nodes have said once")
	}
	if err := g.pass(10 * time.Second); err != nil {
		t.Errorf("most say the same, again and again: %v", err)
	}
}
