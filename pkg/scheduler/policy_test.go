package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// listed is a schedule that is a list of seconds after the start.
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

func policy(name string, grace, window time.Duration, limit int) task.MissedPolicy {
	return task.MissedPolicy{Policy: name, Grace: task.Duration(grace), Window: task.Duration(window), Limit: limit}
}

// tell is a catchUp in words.
func (c catchUp) tell() string {
	var parts []string
	if c.missed > 0 {
		parts = append(parts, fmt.Sprintf("missed %d from %g to %g: %s", c.missed, c.first.Sub(start).Seconds(), c.last.Sub(start).Seconds(), c.reason))
	}
	if len(c.run) > 0 {
		text := "run"
		for _, tick := range c.run {
			text += fmt.Sprintf(" %g", tick.Sub(start).Seconds())
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
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
		{"all within window and limit", policy(task.MissedAll, time.Second, 2*time.Minute, 2), minutes, 0, 300, 300, "missed 3 from 60 to 180: came_to_light_late; run 240 300"},
		{"only those after and up to", all, minutes, 60, 240, 300, "run 120 180 240"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := behind(c.policy, c.ticks, sec(c.after), sec(c.upTo), sec(c.now)).tell()
			if got != c.want {
				t.Errorf("\n got  %s\n want %s", got, c.want)
			}
		})
	}
}

// Every tick of (after, upTo] has one fate, whatever the schedule: the oldest
// are missed, as one exact range, the newest run, as the policy allows.
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
		c := behind(p, s, after, upTo, now)
		if int(c.missed)+len(c.run) != len(ticks) {
			rt.Fatalf("%d ticks: %s", len(ticks), c.tell())
		}
		older, newer := ticks[:c.missed], ticks[c.missed:]
		if !slices.EqualFunc(c.run, newer, time.Time.Equal) {
			rt.Fatalf("those that run are not the newest: %s", c.tell())
		}
		if c.missed > 0 && (!c.first.Equal(older[0]) || !c.last.Equal(older[len(older)-1])) {
			rt.Fatalf("the range is not exact: %s", c.tell())
		}
		most := map[string]int{task.MissedLatest: 1, task.MissedSkip: 1, task.MissedAll: p.Limit}[p.Policy]
		oldest := now.Add(-p.Window.Std())
		if p.Policy == task.MissedSkip {
			oldest = now.Add(-p.Grace.Std())
		}
		wanted := 0
		for i := len(ticks) - 1; i >= 0 && wanted < most && !ticks[i].Before(oldest); i-- {
			wanted++
		}
		if len(c.run) != wanted {
			rt.Fatalf("%d run, the policy wants %d: %s", len(c.run), wanted, c.tell())
		}
	})
}

func TestOverlap_SkipsOnlyTheBusyThatSkip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy string
		busy   bool
		want   fate
	}{
		{task.OverlapSkip, false, fires}, {task.OverlapSkip, true, skipped},
		{task.OverlapAllow, false, fires}, {task.OverlapAllow, true, fires},
	} {
		if got := overlap(c.policy, c.busy); got != c.want {
			t.Errorf("overlap(%s, %t) = %v", c.policy, c.busy, got)
		}
	}
}

func TestMayStart_HoldsBackWhatWouldOverlap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy        string
		active, begun int
		want          bool
	}{
		{task.OverlapSkip, 0, 0, true}, {task.OverlapSkip, 1, 0, false}, {task.OverlapSkip, 0, 1, false},
		{task.OverlapAllow, 0, 0, true}, {task.OverlapAllow, 5, 0, true}, {task.OverlapAllow, 0, 5, true},
	} {
		if got := mayStart(c.policy, c.active, c.begun); got != c.want {
			t.Errorf("mayStart(%s, %d, %d) = %t", c.policy, c.active, c.begun, got)
		}
	}
}

func TestTaskState_BusyWithWhatIsActiveAndWhatATickGaveRiseTo(t *testing.T) {
	t.Parallel()
	queued := func(trigger, reason string, attempt int) *waiting {
		return &waiting{Waiting: task.Waiting{Run: task.Run{ID: "r", Trigger: trigger, Reason: reason, Attempt: attempt}}}
	}
	for _, c := range []struct {
		name        string
		t           taskState
		busy        bool
		beganBefore int
	}{
		{"nothing", taskState{}, false, 0},
		{"active", taskState{live: &live{active: []*attempt{{}}}}, true, 0},
		{"a tick's run waits", taskState{live: &live{queue: []*waiting{queued(task.TriggerSchedule, task.ReasonNoNode, 1)}}}, true, 0},
		{"a manual run waits", taskState{live: &live{queue: []*waiting{queued(task.TriggerManual, task.ReasonManual, 1)}}}, false, 0},
		{"a manual run's retry waits", taskState{live: &live{queue: []*waiting{queued(task.TriggerManual, task.ReasonRetry, 2)}}}, true, 1},
		{"a manual run was handed back", taskState{live: &live{queue: []*waiting{queued(task.TriggerManual, task.ReasonHandBack, 1)}}}, true, 1},
	} {
		if c.t.busy() != c.busy || c.t.begun() != c.beganBefore {
			t.Errorf("%s: busy %t, begun %d", c.name, c.t.busy(), c.t.begun())
		}
	}
}
