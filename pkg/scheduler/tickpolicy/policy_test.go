package tickpolicy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// listed is a schedule that ticks at a list of seconds after the start.
type listed []int

func (l listed) Missed(after, upTo time.Time, newest int) (first, last time.Time, count int64, ticks []time.Time) {
	for _, s := range l {
		if at := sec(float64(s)); at.After(after) && !at.After(upTo) {
			if count++; count == 1 {
				first = at
			}
			last = at
			ticks = append(ticks, at)
		}
	}

	return first, last, count, ticks[max(0, len(ticks)-newest):]
}

// DueBy returns at: there is no jitter.
func (l listed) DueBy(at time.Time) time.Time { return at }

// unjittered is a schedule whose ticks are due at their time.
type unjittered struct{ *schedule.Schedule }

func (unjittered) DueBy(at time.Time) time.Time { return at }

func policy(name string, grace, window time.Duration, limit int) task.MissedPolicy {
	return task.MissedPolicy{Policy: name, Grace: task.Duration(grace), Window: task.Duration(window), Limit: limit}
}

// tell describes a lateDecision.
func (d lateDecision) tell() string {
	var parts []string
	for _, m := range d.Missed {
		parts = append(parts, fmt.Sprintf("missed %d from %g to %g: %s", m.Count, m.First.Sub(start).Seconds(), m.Last.Sub(start).Seconds(), m.Reason))
	}

	if len(d.Run) > 0 {
		text := "run"
		for _, tick := range d.Run {
			text += fmt.Sprintf(" %g", tick.Sub(start).Seconds())
		}
		parts = append(parts, text)
	}

	return strings.Join(parts, "; ")
}

// What a lost history may have decided is missed before the policy is asked, by when it is due.
func TestBehind_MissesWhatALostHistoryMayHaveDecided(t *testing.T) {
	t.Parallel()
	minutes := listed{60, 120, 180, 240, 300}
	latest := policy(task.MissedLatest, 10*time.Second, time.Hour, 100)
	all := policy(task.MissedAll, 10*time.Second, time.Hour, 100)
	for _, c := range []struct {
		name     string
		policy   task.MissedPolicy
		deadline time.Duration
		until    float64
		want     string
	}{
		{"none of them", latest, 0, 59, "missed 4 from 60 to 240: came_to_light_late; run 300"},
		{"some of them", latest, 0, 180, "missed 3 from 60 to 180: restored; missed 1 from 240 to 240: came_to_light_late; run 300"},
		{"all but the newest", latest, 0, 299, "missed 4 from 60 to 240: restored; run 300"},
		{"all of them", latest, 0, 300, "missed 5 from 60 to 300: restored"},
		{"longer than now", latest, 0, 1000, "missed 5 from 60 to 300: restored"},
		{"each must run", all, 0, 120, "missed 2 from 60 to 120: restored; run 180 240 300"},
		{"before all other reasons", policy(task.MissedAll, time.Second, time.Minute, 100), 30 * time.Second, 120,
			"missed 2 from 60 to 120: restored; missed 2 from 180 to 240: start_deadline; run 300"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := Lateness{Policy: c.policy, Deadline: c.deadline, Opened: sec(0), LostUntil: sec(c.until)}
			d := DecideLate(l, minutes, sec(0), sec(310), sec(310))
			if got := d.tell(); got != c.want {
				t.Errorf("\n got  %s\n want %s", got, c.want)
			}
			if last := d.Missed[len(d.Missed)-1].Last; !d.Last.Equal(last) {
				t.Errorf("the last missed tick is %s, not %s", d.Last, last)
			}
		})
	}
}

func TestBehind_GivesTicksTheirFateByPolicy(t *testing.T) {
	t.Parallel()
	minutes := listed{60, 120, 180, 240, 300}
	latest := policy(task.MissedLatest, 10*time.Second, time.Hour, 100)
	skip := policy(task.MissedSkip, 10*time.Second, time.Hour, 100)
	all := policy(task.MissedAll, 10*time.Second, time.Hour, 100)
	for _, c := range []struct {
		name             string
		policy           task.MissedPolicy
		ticks            listed
		after, upTo, now float64
		want             string
	}{
		{"latest runs the newest", latest, minutes, 0, 300, 300, "missed 4 from 60 to 240: came_to_light_late; run 300"},
		{"latest runs the newest, late", latest, minutes, 0, 330, 330, "missed 4 from 60 to 240: came_to_light_late; run 300"},
		{"latest runs one at the window's edge", latest, minutes, 240, 300, 300 + 3600, "run 300"},
		{"latest does not run one past the window", latest, minutes, 240, 300, 300.001 + 3600, "missed 1 from 300 to 300: past_window"},
		{"past the window all are missed", latest, minutes, 0, 400, 4000, "missed 5 from 60 to 300: past_window"},
		{"latest alone", latest, minutes, 240, 300, 320, "run 300"},
		{"skip runs the newest within its grace", skip, minutes, 0, 310, 310, "missed 4 from 60 to 240: came_to_light_late; run 300"},
		{"skip misses all past their grace", skip, minutes, 0, 311, 310.001, "missed 5 from 60 to 300: came_to_light_late"},
		{"skip runs one of several within their grace", skip, listed{1, 2, 3}, 0, 3, 3, "missed 2 from 1 to 2: came_to_light_late; run 3"},
		{"all runs all", all, minutes, 0, 300, 300, "run 60 120 180 240 300"},
		{"all runs its limit", policy(task.MissedAll, time.Second, time.Hour, 2), minutes, 0, 300, 300, "missed 3 from 60 to 180: came_to_light_late; run 240 300"},
		{"all with a limit of just as many", policy(task.MissedAll, time.Second, time.Hour, 5), minutes, 0, 300, 300, "run 60 120 180 240 300"},
		{"all within the window", policy(task.MissedAll, time.Second, 2*time.Minute, 100), minutes, 0, 300, 300, "missed 2 from 60 to 120: past_window; run 180 240 300"},
		{"all within window and limit", policy(task.MissedAll, time.Second, 2*time.Minute, 2), minutes, 0, 300, 300,
			"missed 2 from 60 to 120: past_window; missed 1 from 180 to 180: came_to_light_late; run 240 300"},
		{"only those after and up to", all, minutes, 60, 240, 300, "run 120 180 240"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := Lateness{Policy: c.policy, Opened: sec(c.after)}
			got := DecideLate(l, c.ticks, sec(c.after), sec(c.upTo), sec(c.now)).tell()
			if got != c.want {
				t.Errorf("\n got  %s\n want %s", got, c.want)
			}
		})
	}
}

// The reasons of missed ticks are in the order of their thresholds: past the start deadline, past the
// window, before the owner opened the shard, and the rest.
func TestBehind_SaysWhyTicksAreMissed(t *testing.T) {
	t.Parallel()
	minutes := listed{60, 120, 180, 240, 300, 360, 420, 480, 540, 600}

	all := policy(task.MissedAll, time.Second, 5*time.Minute, 1)
	for _, c := range []struct {
		name             string
		policy           task.MissedPolicy
		deadline, opened float64
		now              float64
		want             string
	}{
		{"nobody owned the shard", policy(task.MissedLatest, time.Second, time.Hour, 1), 0, 605, 610,
			"missed 9 from 60 to 540: no_owner; run 600"},
		{"somebody did, for the last part", policy(task.MissedLatest, time.Second, time.Hour, 1), 0, 300, 610,
			"missed 4 from 60 to 240: no_owner; missed 5 from 300 to 540: came_to_light_late; run 600"},
		{"window, owner and limit", all, 0, 450, 610,
			"missed 5 from 60 to 300: past_window; missed 2 from 360 to 420: no_owner; missed 2 from 480 to 540: came_to_light_late; run 600"},
		{"the deadline is later than the window", all, 480, 450, 610, "missed 2 from 60 to 120: start_deadline; " +
			"missed 3 from 180 to 300: past_window; missed 2 from 360 to 420: no_owner; missed 2 from 480 to 540: came_to_light_late; run 600"},
		{"the deadline is earlier than the window", all, 60, 450, 610,
			"missed 9 from 60 to 540: start_deadline; run 600"},
		{"at the deadline one still runs", all, 10, 450, 610, "missed 9 from 60 to 540: start_deadline; run 600"},
		{"none runs past the deadline", all, 10, 450, 610.001, "missed 10 from 60 to 600: start_deadline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := Lateness{Policy: c.policy, Deadline: time.Duration(c.deadline * float64(time.Second)), Opened: sec(c.opened)}
			if got := DecideLate(l, minutes, start, sec(c.now), sec(c.now)).tell(); got != c.want {
				t.Errorf("\n got  %s\n want %s", got, c.want)
			}
		})
	}
}

// whyMissed computes the reason of one missed tick independently.
func (l Lateness) whyMissed(tick, now time.Time) string {
	switch late := now.Sub(tick); {
	case l.Deadline > 0 && late > l.Deadline:
		return task.ReasonDeadline
	case late > l.Policy.Window.Std():
		return task.ReasonWindow
	case tick.Before(l.Opened):
		return task.ReasonNoOwner
	}

	return task.ReasonCameToLightLate
}

// Each tick in (after, upTo] has one outcome, whatever the schedule. The oldest are missed, as exact
// ranges, and the newest run, as the policy allows.
func TestBehind_DecidesEachTickOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		exprs := rapid.SampledFrom([][]string{
			{"* * * * * *"}, {"*/7 * * * * *"}, {"30 2 * * *"}, {"@every 13s"}, {"@every 500ms"},
			{"*/5 * * * *", "@every 90s"}, {"@at 2026-01-02T12:30:00Z"}, {"* 2 * * *", "0 0 1 * *"},
		}).Draw(rt, "schedule")
		s, err := schedule.Parse(task.Timing{Schedule: exprs, Timezone: "Europe/Berlin"}, start)
		if err != nil {
			rt.Fatal(err)
		}

		p := policy(rapid.SampledFrom([]string{task.MissedLatest, task.MissedSkip, task.MissedAll}).Draw(rt, "policy"),
			time.Duration(rapid.IntRange(1, 60).Draw(rt, "grace"))*time.Second,
			time.Duration(rapid.IntRange(60, 4000).Draw(rt, "window"))*time.Second,
			rapid.IntRange(1, 50).Draw(rt, "limit"))
		after := start.Add(time.Duration(rapid.IntRange(0, 7200_000).Draw(rt, "after")) * time.Millisecond)
		upTo := after.Add(time.Duration(rapid.IntRange(0, 1500_000).Draw(rt, "span")) * time.Millisecond)
		now := upTo.Add(time.Duration(rapid.IntRange(0, 5000_000).Draw(rt, "later")) * time.Millisecond)

		var ticks []time.Time
		for tick, ok := s.Next(after); ok && !tick.After(upTo); tick, ok = s.Next(tick) {
			ticks = append(ticks, tick)
		}

		l := Lateness{Policy: p, Deadline: time.Duration(rapid.IntRange(0, 3000).Draw(rt, "deadline")) * time.Second,
			Opened: after.Add(time.Duration(rapid.IntRange(-10, 7000).Draw(rt, "opened")) * time.Second)}
		c := DecideLate(l, unjittered{s}, after, upTo, now)
		older, newer := ticks[:len(ticks)-len(c.Run)], ticks[len(ticks)-len(c.Run):]
		if !slices.EqualFunc(c.Run, newer, time.Time.Equal) {
			rt.Fatalf("those that run are not the newest: %s", c.tell())
		}

		for i, m := range c.Missed {
			if int(m.Count) > len(older) || !m.First.Equal(older[0]) || !m.Last.Equal(older[m.Count-1]) || i > 0 && c.Missed[i-1].Reason == m.Reason {
				rt.Fatalf("the ranges are not exact: %s", c.tell())
			}

			for _, tick := range older[:m.Count] {
				if why := l.whyMissed(tick, now); why != m.Reason {
					rt.Fatalf("the tick of %s is missed for %s: %s", tick, why, c.tell())
				}
			}

			older = older[m.Count:]
		}

		if len(older) > 0 || len(c.Missed) > 0 && !c.Last.Equal(c.Missed[len(c.Missed)-1].Last) {
			rt.Fatalf("%d ticks: %s", len(ticks), c.tell())
		}

		most := map[string]int{task.MissedLatest: 1, task.MissedSkip: 1, task.MissedAll: p.Limit}[p.Policy]
		oldest := now.Add(-p.Window.Std())
		if p.Policy == task.MissedSkip {
			oldest = now.Add(-p.Grace.Std())
		}

		if expired := now.Add(-l.Deadline); l.Deadline > 0 && expired.After(oldest) {
			oldest = expired
		}

		wanted := 0
		for i := len(ticks) - 1; i >= 0 && wanted < most && !ticks[i].Before(oldest); i-- {
			wanted++
		}

		if len(c.Run) != wanted {
			rt.Fatalf("%d run, the policy wants %d: %s", len(c.Run), wanted, c.tell())
		}
	})
}

func rule(overlap string, change ...func(*task.Entry)) OverlapRule {
	e := task.Entry{Overlap: overlap}
	for _, c := range change {
		c(&e)
	}
	return NewOverlapRule(e)
}

func missedAll(limit int) func(*task.Entry) {
	return func(e *task.Entry) { e.Missed = task.MissedPolicy{Policy: task.MissedAll, Limit: limit} }
}
func most(n int) func(*task.Entry) { return func(e *task.Entry) { e.MaxActive = n } }
func queueOf(n int, drop string) func(*task.Entry) {
	return func(e *task.Entry) { e.Queue = task.QueuePolicy{Limit: n, Drop: drop} }
}

func TestOverlapRule_DecidesATickByWhatItsTaskDoes(t *testing.T) {
	t.Parallel()
	skip, queue, replace, all := rule(task.OverlapSkip), rule(task.OverlapQueue, queueOf(2, "")), rule(task.OverlapReplace), rule(task.OverlapAllow)
	oldest, two := rule(task.OverlapQueue, queueOf(2, task.DropOldest)), rule(task.OverlapAllow, most(2))
	skipAll, replaceAll := rule(task.OverlapSkip, missedAll(5)), rule(task.OverlapReplace, missedAll(5))
	for _, c := range []struct {
		name     string
		rule     OverlapRule
		Activity Activity
		want     TickFate
		reason   string
	}{
		{"skip, idle", skip, Activity{}, Fire, ""},
		{"skip, active", skip, Activity{Active: 1}, Skip, ""},
		{"skip, a retry waits", skip, Activity{Begun: 1, All: 1}, Skip, ""},
		{"skip, a tick waits for a node", skip, Activity{Ticks: 1, All: 1}, Skip, ""},
		{"skip, a late tick waits for its turn", skip, Activity{Ticks: 1, Late: 1, All: 1}, Fire, ""},
		{"skip, a manual run waits", skip, Activity{All: 1}, Fire, ""},
		{"queue, idle", queue, Activity{}, Fire, ""},
		{"queue, active", queue, Activity{Active: 1}, Wait, task.ReasonOverlap},
		{"queue, a retry waits", queue, Activity{Begun: 1, All: 1}, Wait, task.ReasonOverlap},
		{"queue, others wait for a node", queue, Activity{Ticks: 1, All: 1}, Wait, ""},
		{"queue, late ticks wait for their turn", queue, Activity{Ticks: 7, Late: 7, All: 7}, Fire, ""},
		{"queue, manual runs do not count", queue, Activity{Active: 1, Ticks: 1, All: 9}, Wait, task.ReasonOverlap},
		{"queue, ticks that are caught up with take no room", queue, Activity{Active: 1, Ticks: 7, Late: 7, All: 7}, Wait, task.ReasonOverlap},
		{"queue is full, beside late ticks", queue, Activity{Active: 1, Ticks: 9, Held: 2, Late: 7, All: 9}, QueueFull, task.ReasonOverlap},
		{"queue is full", queue, Activity{Active: 1, Ticks: 2, Held: 2, All: 2}, QueueFull, task.ReasonOverlap},
		{"queue is full, the oldest goes", oldest, Activity{Active: 1, Ticks: 2, Held: 2, All: 2}, WaitDropOldest, task.ReasonOverlap},
		{"replace, idle", replace, Activity{}, Fire, ""},
		{"replace, active", replace, Activity{Active: 1}, Wait, task.ReasonOverlap},
		{"replace, whatever waits", replace, Activity{Ticks: 1, Late: 1, All: 400}, Wait, task.ReasonOverlap},
		{"replace, a manual run waits", replace, Activity{All: 1}, Fire, ""},
		{"replace, a run after another task waits", replace, Activity{After: 1, All: 1}, Wait, task.ReasonOverlap},
		{"skip, a run after another task waits", skip, Activity{After: 1, All: 1}, Fire, ""},
		{"allow", all, Activity{Active: 7, Begun: 3, Ticks: 4, Held: 4, All: 7}, Fire, ""},
		{"two, one active", two, Activity{Active: 1}, Fire, ""},
		{"two, both active", two, Activity{Active: 1, Begun: 1, All: 1}, Wait, task.ReasonLimit},
		{"two, behind one that waits", two, Activity{Active: 1, Ticks: 1, Held: 1, All: 1}, Wait, ""},
		{"two, beside late ones", two, Activity{Active: 1, Ticks: 1, Late: 1, All: 1}, Fire, ""},
		{"allow, the target is down", all, Activity{Begun: 1, All: 1, TargetDown: true}, Wait, task.ReasonTarget},
		{"allow, an attempt tries the target again", all, Activity{Active: 1, TargetDown: true}, Wait, task.ReasonTarget},
		{"allow, the target is down, full", all, Activity{Begun: 1, Ticks: 99, Held: 99, All: MaxWaiting, TargetDown: true}, QueueFull, task.ReasonTarget},
		{"allow, ticks have waited for the target", all, Activity{Ticks: 9, Held: 9, All: 9}, Fire, ""},
		{"two, the target is down", two, Activity{Begun: 1, All: 1, TargetDown: true}, Wait, task.ReasonTarget},
		{"two, both are active, the target is down", two, Activity{Active: 1, Begun: 1, All: 1, TargetDown: true}, Wait, task.ReasonLimit},
		{"skip, the target is down", skip, Activity{Begun: 1, All: 1, TargetDown: true}, Skip, ""},
		{"queue, the target is down", queue, Activity{Begun: 1, All: 1, TargetDown: true}, Wait, task.ReasonOverlap},
		{"replace, the target is down", replace, Activity{Begun: 1, All: 1, TargetDown: true}, Wait, task.ReasonOverlap},
		{"skip and all, idle", skipAll, Activity{}, Fire, ""},
		{"skip and all, active", skipAll, Activity{Active: 1}, Skip, ""},
		{"skip and all, a tick waits for a node", skipAll, Activity{Ticks: 1, All: 1}, Skip, ""},
		{"skip and all, late ticks wait", skipAll, Activity{Active: 1, Ticks: 3, Late: 3, All: 3}, Join, task.ReasonOverlap},
		{"skip and all, late ticks wait for a token", skipAll, Activity{Ticks: 3, Late: 3, All: 3}, Join, ""},
		{"skip and all, the last late tick runs", skipAll, Activity{Active: 1, Catching: true}, Join, task.ReasonOverlap},
		{"skip and all, too many late ticks", skipAll, Activity{Active: 1, Ticks: 105, Late: 105, All: 105}, Skip, ""},
		{"skip and all, until the late ticks have run", skipAll, Activity{Active: 1, Ticks: 3, Late: 3, All: 3, Skipping: true}, Skip, ""},
		{"skip and all, until the last late tick has run", skipAll, Activity{Active: 1, Catching: true, Skipping: true}, Skip, ""},
		{"skip and all, until they have run, and none runs now", skipAll, Activity{Ticks: 3, Late: 3, All: 3, Skipping: true}, Skip, ""},
		{"skip and all, too many wait for a token", skipAll, Activity{Ticks: 105, Late: 105, All: 105}, Fire, ""},
		{"replace and all, idle", replaceAll, Activity{}, Fire, ""},
		{"replace and all, active", replaceAll, Activity{Active: 1}, Wait, task.ReasonOverlap},
		{"replace and all, late ticks wait", replaceAll, Activity{Active: 1, Ticks: 3, Late: 3, All: 3}, Join, task.ReasonOverlap},
		{"replace and all, the last late tick runs", replaceAll, Activity{Active: 1, Catching: true}, Join, task.ReasonOverlap},
		{"replace and all, too many late ticks", replaceAll, Activity{Active: 1, Ticks: 105, Late: 105, All: 105}, Skip, ""},
		{"replace and all, until the late ticks have run", replaceAll, Activity{Active: 1, Catching: true, Skipping: true}, Skip, ""},
		{"replace and all, a run after another task waits", replaceAll, Activity{After: 1, All: 1}, Wait, task.ReasonOverlap},
		{"replace and all, too many late ticks behind a run after another task", replaceAll, Activity{After: 1, Ticks: 105, Late: 105, All: 106}, Skip, ""},
		{"two, beside many late ticks", two, Activity{Active: 2, Ticks: 400, Late: 400, All: 400}, Wait, task.ReasonLimit},
		{"two, full", two, Activity{Active: 2, Ticks: MaxWaiting, Held: MaxWaiting, All: MaxWaiting}, QueueFull, task.ReasonLimit},
	} {
		got := c.rule.DecideTick(c.Activity)
		if got != c.want || got != Fire && got != Skip && c.rule.Reason(c.Activity) != c.reason {
			t.Errorf("%s: fate %d, reason %q", c.name, got, c.rule.Reason(c.Activity))
		}
	}

	if n := oldest.TicksToDrop(Activity{Ticks: 9, Late: 8}); n != 0 {
		t.Errorf("%d ticks are dropped although one of two waits, beside those that are caught up with", n)
	}

	if n := oldest.TicksToDrop(Activity{Ticks: 2}); n != 1 {
		t.Errorf("a full queue drops %d", n)
	}

	if n := oldest.TicksToDrop(Activity{Ticks: 100}); n != maxDropsPerTick || rule(task.OverlapQueue).TicksToDrop(Activity{Ticks: 100}) != 0 {
		t.Errorf("a queue whose limit was lowered drops %d", n)
	}
}

// With the replace policy, a run that waits after another task would cancel a late tick that starts before it. If each late tick must run,
// it replaces none of those that wait, either.
func TestOverlapRule_LateTicksWaitForRunsAfterOthers(t *testing.T) {
	t.Parallel()
	skipAll, replace, replaceAll := rule(task.OverlapSkip, missedAll(5)), rule(task.OverlapReplace), rule(task.OverlapReplace, missedAll(5))

	for _, c := range []struct {
		name        string
		rule        OverlapRule
		Activity    Activity
		first, turn bool // LateGoesFirst, HasOneTurn
	}{
		{"replace", replaceAll, Activity{}, true, false},
		{"replace, late ticks wait", replaceAll, Activity{Ticks: 2, Late: 2, All: 2}, false, true},
		{"replace, a run after another task waits", replaceAll, Activity{After: 1, All: 1}, false, false},
		{"replace, it waits beside late ticks", replaceAll, Activity{After: 1, Ticks: 2, Late: 2, All: 3}, false, false},
		{"skip, a run after another task waits", skipAll, Activity{After: 1, All: 1}, true, false},
		{"skip, it waits beside late ticks", skipAll, Activity{After: 1, Ticks: 2, Late: 2, All: 3}, false, true},
	} {
		if first, turn := c.rule.LateGoesFirst(c.Activity), c.rule.HasOneTurn(c.Activity); first != c.first || turn != c.turn {
			t.Errorf("%s: the first late tick starts at once: %t, late ticks have a turn: %t", c.name, first, turn)
		}
	}

	late := Candidate{Late: true}
	if got := replaceAll.DecideWaitingRun(late, true, 0, 0); got != TurnWait {
		t.Errorf("with missed all, a late tick beside a replacement has the turn %d", got)
	}
	if got := replace.DecideWaitingRun(late, true, 0, 0); got != TurnReplaced {
		t.Errorf("with missed latest, a late tick beside a replacement has the turn %d", got)
	}
}

// Verifies: G8
func TestOverlapRule_MayStartHoldsBackWhatWouldOverlap(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		most, active, begun int
		want                bool
	}{
		{1, 0, 0, true}, {1, 1, 0, false}, {1, 0, 1, false},
		{0, 0, 0, true}, {0, 5, 0, true}, {0, 0, 5, true},
		{3, 2, 0, true}, {3, 1, 1, true}, {3, 2, 1, false}, {3, 0, 3, false},
	} {
		if got := mayStart(c.most, c.active, c.begun); got != c.want {
			t.Errorf("mayStart(%d, %d, %d) = %t", c.most, c.active, c.begun, got)
		}
	}
}

// Whatever waits, one of the runs that were dispatched before continues if none is active. A replacement
// ends all others that were dispatched before, and no manual run that was not.
func TestOverlapRule_TurnsNeverLock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := rapid.SampledFrom([]OverlapRule{
			rule(task.OverlapSkip), rule(task.OverlapQueue), rule(task.OverlapReplace), rule(task.OverlapAllow), rule(task.OverlapAllow, most(2)),
		}).Draw(rt, "rule")
		queue := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) Candidate {
			c := Candidate{Manual: rapid.Bool().Draw(rt, "manual"), Begun: rapid.Bool().Draw(rt, "begun")}
			c.Expired = !c.Begun && !c.Manual && rapid.Bool().Draw(rt, "expired")
			return c
		}), 1, 6).Draw(rt, "queue")

		replacing := false
		if r.policy == task.OverlapReplace {
			for i := len(queue) - 1; i >= 0 && !replacing; i-- {
				if c := &queue[i]; !c.Begun && !c.Manual && !c.Expired {
					c.Replacer, replacing = true, true
				}
			}
		}

		begun, moves := 0, 0
		for _, c := range queue {
			if c.Begun {
				begun++
			}
		}

		// A run that waits for its target has begun.
		targetDown := begun > 0 && rapid.Bool().Draw(rt, "target down")

		before := 0
		for _, c := range queue {
			c.TargetDown = targetDown
			others := begun
			if c.Begun {
				others = before
				before++
			}

			what := r.DecideWaitingRun(c, replacing, 0, others)
			if what != TurnWait {
				moves++
			}

			switch {
			case what == TurnReplaced && (!replacing || c.Replacer || c.Manual && !c.Begun):
				rt.Fatalf("%+v gives way", c)
			case what == TurnStart && (c.Expired || replacing && !c.Replacer):
				rt.Fatalf("%+v starts", c)
			case what == TurnStart && r.Most > 0 && !c.Begun && begun >= r.Most:
				rt.Fatalf("%+v starts beside %d that have begun", c, begun)
			case what == TurnStart && targetDown && !c.Begun && !c.Manual && !replacing:
				rt.Fatalf("%+v starts although the target is down", c)
			}
		}

		if moves == 0 {
			rt.Fatalf("all wait for each other: %+v", queue)
		}
	})
}

// A task that ticks every second and was not decided for ten years takes a few calls to its schedule,
// whatever the policy.
func TestMissed_TenYearsOfSecondsAreArithmetic(t *testing.T) {
	t.Parallel()
	s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{"* * * * * *"}, Timezone: "Europe/Berlin"}, start)
	if err != nil {
		t.Fatal(err)
	}

	after, now := start.AddDate(-10, 0, 0), start
	want := int64(now.Sub(after) / time.Second)

	for _, p := range []task.MissedPolicy{policy(task.MissedLatest, time.Second, time.Hour, 1), policy(task.MissedAll, time.Second, 1000*time.Hour, 10_000)} {
		calls := &counted{Ticks: unjittered{s}}
		c := DecideLate(Lateness{Policy: p, Deadline: 900 * time.Hour, Opened: now.Add(-time.Hour)}, calls, after, now, now)
		n := int64(len(c.Run))
		for _, m := range c.Missed {
			n += m.Count
		}

		if n != want || len(c.Missed) > 4 || calls.n > 5 {
			t.Errorf("%s: %d ticks of %d, in %d records, by %d questions", p.Policy, n, want, len(c.Missed), calls.n)
		}
	}
}

// counted counts the calls to a schedule. None of them asks for many ticks.
type counted struct {
	Ticks
	n int
}

func (c *counted) Missed(after, upTo time.Time, newest int) (first, last time.Time, count int64, ticks []time.Time) {
	c.n++
	return c.Ticks.Missed(after, upTo, newest)
}

// start is the time of all tests.
var start = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// sec returns an instant some seconds after the start.
func sec(s float64) time.Time {
	return start.Add(time.Duration(s * float64(time.Second)).Round(time.Microsecond))
}
