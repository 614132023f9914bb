package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestCatchUp_ByPolicy(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name   string
		opts   []option
		want   []string
		second []string // after the first run has succeeded, if that starts another one
	}{
		{name: "latest", want: []string{"+60..+540 missed 9 came_to_light_late", "+600 dispatched"}},
		{name: "latest late", opts: []option{cronned("30 * * * * *")},
			want: []string{"+30..+510 missed 9 came_to_light_late", "+570 dispatched catch_up"}},
		{name: "skip", opts: []option{cronned("30 * * * * *"), missed(task.MissedSkip, 1)},
			want: []string{"+30..+570 missed 10 came_to_light_late"}},
		{name: "skip within grace", opts: []option{missed(task.MissedSkip, 1)},
			want: []string{"+60..+540 missed 9 came_to_light_late", "+600 dispatched"}},
		{name: "all with limit", opts: []option{missed(task.MissedAll, 3)},
			want:   []string{"+60..+420 missed 7 came_to_light_late", "+480 dispatched catch_up", "+540 queued catch_up", "+600 queued catch_up"},
			second: []string{"+60..+420 missed 7 came_to_light_late", "+480 succeeded catch_up", "+540 dispatched catch_up", "+600 queued catch_up"}},
		{name: "all and allow", opts: []option{missed(task.MissedAll, 3), allow},
			want: []string{"+60..+420 missed 7 came_to_light_late", "+480 dispatched catch_up", "+540 dispatched catch_up", "+600 dispatched"}},
		{name: "window", opts: []option{missed(task.MissedAll, 100), func(t *task.Task) { t.Missed.Window = task.Duration(2 * time.Minute) }},
			want: []string{"+60..+420 missed 7 past_window", "+480 dispatched catch_up", "+540 queued catch_up", "+600 queued catch_up"}},
		{name: "paused", opts: []option{paused}, want: nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", append([]option{cronned("0 * * * * *")}, c.opts...)...)
			h.decide(600)

			got := w.story("a")
			for i := range got { // a queued late tick differs from one on time only in its trigger
				if got[i] == "+600 queued schedule" {
					got[i] = "+600 queued catch_up"
				}
			}

			if !slices.Equal(got, c.want) {
				t.Errorf("\n got  %q\n want %q", got, c.want)
			}

			if len(c.want) > 0 && w.from("a") != 600 && w.from("a") != 570 {
				t.Errorf("from is +%g", w.from("a"))
			}

			if c.second != nil {
				w.finish("a", task.Succeeded)
				h.decide(601)
				w.want("a", c.second...)
			}
		})
	}
}

func TestCatchUp_OneLateTickWithinItsGraceFiresAsUsual(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("0 * * * * *"), missed(task.MissedSkip, 1))
	h.decide(70)
	w.want("a", "+60 dispatched")
	w.wantMark(70, "")
}

func TestCatchUp_WatermarkStaysUntilNobodyIsBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("z", every("100s"), allow)
	w.work("n1").decide(100)

	all := names(4)
	for _, n := range all {
		w.createAt(sec(100), n, allow, missed(task.MissedAll, 90))
	}

	// The catch-up takes several commits. The owner dies after each but the last.
	for i := 0; ; i++ {
		h := w.work([]string{"n2", "n1"}[i%2])
		h.gate.play(pass, h.dies)
		died := h.try(200) != nil

		behind := slices.Min(w.froms(all...)) < 200
		if m := w.mark(); behind && !m.Time.Equal(sec(100)) {
			t.Fatalf("the watermark is %s while some are behind", m.Time)
		}

		if !died {
			if i < 3 || behind {
				t.Fatalf("done after %d workers, behind: %t", i, behind)
			}
			break
		}
	}

	stories := w.stories()

	for _, n := range all {
		got := stories[n]
		if len(got) != 91 || !strings.HasPrefix(got[0], "+101..+110 missed 10 ") || w.from(n) != 200 {
			t.Fatalf("%s: from +%g, %q", n, w.from(n), got)
		}
	}

	w.want("z", "+100 dispatched", "+200 dispatched")
	w.wantMark(200, "")
}

// The outcome of a tick must not depend on how a catch-up is divided into commits.
func TestCatchUp_AllQueuesTheLastTickOfALongCatchUpToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")

	for ticks := 108; ticks < 120; ticks++ {
		name := fmt.Sprintf("a%d", ticks)
		w.createAt(sec(float64(-ticks)), name, missed(task.MissedAll, 300))
		h.decide(0)

		got := w.story(name)
		if len(got) != ticks || slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, "skipped") }) {
			t.Fatalf("%d ticks, %d runs: %q", ticks, len(got), got[max(0, len(got)-5):])
		}

		w.remove(name)
	}
}

func TestCatchUp_LateTickOfABusyTaskThatSkipsIsSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("0 * * * * *"))
	h.decide(60)
	h.decide(200)
	w.want("a", "+60 dispatched", "+120 missed came_to_light_late", "+180 skipped catch_up overlap")
}

func TestCatchUp_WithoutANodeAllWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.judged()
	w.create("a", cronned("0 * * * * *"), missed(task.MissedAll, 3), on("role = db"), allow)
	h.decide(300)
	w.join("db", "role=db")
	h.fleet()
	h.decide(301)
	w.want("a", "+60..+120 missed 2 came_to_light_late", "+180 dispatched catch_up", "+240 dispatched catch_up", "+300 dispatched")
}

// live lets time pass, and the owner decide every second. A run of the task takes as long as lasts returns.
func (h *testWorker) live(name string, from, until int, lasts func() int) {
	h.world.Helper()
	ends := map[string]int{}
	for s := from; s <= until; s++ {
		h.world.at(float64(s))
		for _, a := range h.world.active(name) {
			end, known := ends[a.ID]
			switch {
			case !known:
				ends[a.ID] = s - 1 + lasts() // it began when the owner decided last
			case end <= s && a.CancelRequested:
				h.world.end(a, task.Cancelled)
			case end <= s:
				h.world.end(a, task.Succeeded)
			}
		}
		h.decide(float64(s))
	}
}

// With missed all, every tick runs, also those that fall due while late ticks are caught up.
//
// Verifies: G24
func TestCatchUp_TicksOnTimeJoin(t *testing.T) {
	t.Parallel()

	for name, overlap := range map[string]option{"skip": func(*task.Task) {}, "replace": replaces} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, "n1").judged()
				h := w.work("n1")
				w.create("a", cronned("*/10 * * * * *"), missed(task.MissedAll, 60), overlap, func(t *task.Task) { t.History.Keep = 1000 })

				// Nobody owns the shard for five minutes. The runs take from one to eight seconds.
				r := rand.New(rand.NewPCG(seed, 0))
				h.live("a", 304, 700, func() int { return 1 + r.IntN(8) })

				var want []string
				for tick := 10; tick < 690; tick += 10 {
					want = append(want, fmt.Sprintf("+%d succeeded", tick))
				}
				got := w.story("a")
				for i := range got {
					got[i] = strings.TrimSuffix(got[i], " catch_up")
				}
				if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
					t.Errorf("%q", got)
				}
			})
		}
	}
}

// Runs that take longer than the period never catch up. The catch-up ends when too many ticks wait, and no late tick is replaced.
func TestCatchUp_EndsIfRunsTakeTooLong(t *testing.T) {
	t.Parallel()

	for name, overlap := range map[string]option{"skip": func(*task.Task) {}, "replace": replaces} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", cronned("*/2 * * * * *"), missed(task.MissedAll, 5), overlap, func(t *task.Task) { t.History.Keep, t.Missed.Grace = 1000, task.Duration(time.Second) })
			h.live("a", 31, 1100, func() int { return 3 })

			states := map[task.State]int{}
			waiting := 0
			runs, err := w.store.Runs(w.ctx, ref("a"))
			w.ok(err)
			for _, r := range runs {
				states[r.State] += int(max(r.Count, 1))
				if r.State == task.Queued {
					waiting++
				}
				if r.State == task.Cancelled && r.Trigger == task.TriggerCatchUp {
					t.Errorf("late tick %s was cancelled: %s", r.ID, r.Reason)
				}
			}
			if waiting > 1 || states[task.Skipped] < 100 || states[task.Succeeded] < 200 {
				t.Errorf("%d wait: %v", waiting, states)
			}
		})
	}
}

// Late ticks that wait take no room of those that are on time, also with max_active.
func TestCatchUp_LateTicksTakeNoRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("* * * * * *"), missed(task.MissedAll, 150), allow, func(t *task.Task) { t.MaxActive, t.History.Keep = 1, 1000 })
	h.decide(200) // one late tick starts, and 149 wait
	h.decide(201)
	if got := w.story("a"); got[len(got)-1] != "+201 queued max_active" {
		t.Errorf("%q", got[len(got)-3:])
	}
}

// A start deadline also ends late ticks, and ticks on time that have joined them.
func TestCatchUp_StartDeadlineEndsTicksThatWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("*/10 * * * * *"), missed(task.MissedAll, 100), func(t *task.Task) { t.Deadline = task.Duration(25 * time.Second) })
	h.decide(65)
	w.want("a", "+10..+30 missed 3 start_deadline", "+40 dispatched catch_up", "+50 queued catch_up", "+60 queued catch_up")
	h.decide(70)
	h.decide(100)
	w.want("a", "+10..+30 missed 3 start_deadline", "+40 dispatched catch_up", "+50 missed catch_up start_deadline", "+60 missed start_deadline", "+70 missed start_deadline",
		"+80 queued catch_up", "+90 queued catch_up", "+100 queued catch_up")
}

// A late tick whose turn has come, but for which there is no catch-up token or no node, does not keep the tick on
// time from starting.
func TestCatchUp_TurnThatALateTickCannotUse(t *testing.T) {
	t.Parallel()

	for name, obstruct := range map[string]func(h *testWorker){
		"no token": func(h *testWorker) {
			for h.state.ports.tokens.Take(h.world.clock()) {
			}
		},
		"frozen": func(h *testWorker) { h.world.freeze("") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", cronned("*/10 * * * * *"), missed(task.MissedAll, 3), func(t *task.Task) { t.Overlap, t.Queue.Limit = task.OverlapQueue, 10 })
			h.decide(55) // +30 starts, +40 and +50 wait
			w.finish("a", task.Succeeded)
			h.decide(60)
			w.finish("a", task.Succeeded)
			w.at(70)
			h.see()
			obstruct(h)
			h.decide(70)

			want := "+70 dispatched"
			if name == "frozen" {
				want = "+70 skipped frozen"
			}

			w.want("a", "+10..+20 missed 2 came_to_light_late", "+30 succeeded catch_up", "+40 queued catch_up", "+50 queued catch_up", "+60 succeeded", want)
		})
	}
}
