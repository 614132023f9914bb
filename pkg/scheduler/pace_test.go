package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// pace sets how many runs per second the worker's node may catch up.
func (tw *testWorker) pace(rate int) {
	tw.e.cfg.Cluster = func() task.Cluster { return task.Cluster{Shards: 1, CatchUpRate: rate} }
}

func TestEngine_TakesItsPartOfTheRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")

	h := w.startOwner("n1")
	if got := h.e.catchUpRate(); got != task.DefaultCatchUpRate {
		t.Errorf("alone: %g", got)
	}

	h.e.cfg.Cluster = func() task.Cluster { return task.Cluster{Shards: 8, CatchUpRate: 40} }
	if got := h.e.catchUpRate(); got != 5 {
		t.Errorf("of 8 shards one: %g", got)
	}

	for i := range 4 {
		h.e.workers[i] = &worker{}
	}

	if got := h.e.catchUpRate(); got != 20 {
		t.Errorf("of 8 shards four: %g", got)
	}
}

// count counts the lines in the stories of tasks that end with a text.
func (w *world) count(all []string, line string) (n int) {
	stories := w.stories()

	for _, name := range all {
		for _, l := range stories[name] {
			if strings.HasSuffix(l, line) {
				n++
			}
		}
	}

	return n
}

// Many tasks are behind at the same time. Their late ticks start at the catch-up rate, others on time. The
// watermark advances, and the next owner continues.
func TestPace_OfManyThatAreBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	all := names(30)
	w.createTogether(start, all, cronned("0 * * * * *"))
	w.create("z", cronned("31 1 * * * *"))
	h := w.work("n1")
	h.pace(5)
	h.decide(90)

	if n := w.count(all, "dispatched catch_up"); n != 5 {
		t.Fatalf("%d start at once", n)
	}

	w.want(all[29], "+60 queued catch_up")
	commits := h.gate.commits

	for ms := 0; ms < 1900; ms += 50 {
		h.decide(90.05 + float64(ms)/1000)
	}

	if n := w.count(all, "dispatched catch_up"); n != 14 {
		t.Errorf("%d have started after 1.9 s", n)
	}

	if n := h.gate.commits - commits; n > 11 {
		t.Errorf("%d commits for 9 starts and a tick", n)
	}

	w.want("z", "+91 dispatched")
	w.wantMark(91, "")
	h.decide(91.9)
	h = w.work("n2")
	h.pace(5)

	for s := 92.; s < 97; s++ {
		h.decide(s)
	}

	if n := w.count(all, "dispatched catch_up"); n != 30 {
		t.Errorf("%d have started in the end", n)
	}

	if _, turns := h.e.pace.Snapshot(w.clock()); h.state.line.Len() != 0 || turns != 0 {
		t.Errorf("%d in line, %d turns", h.state.line.Len(), turns)
	}
}

// A tick on time starts before late ticks of its task that wait for their turn, and none of these runs at
// the same time.
func TestPace_ATickOnTimeDoesNotWait(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		opt  option
		want []string
	}{
		"skip":    {func(*task.Task) {}, []string{"+60 queued catch_up", "+120 dispatched"}},
		"queue":   {queues(1, ""), []string{"+60 queued catch_up", "+120 dispatched"}},
		"allow":   {allow, []string{"+60 queued catch_up", "+120 dispatched"}},
		"two":     {atMost(2), []string{"+60 queued catch_up", "+120 dispatched"}},
		"replace": {replaces, []string{"+60 cancelled catch_up replaced", "+120 dispatched"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			h.pace(1)
			w.create("a", c.opt, cronned("0 * * * * *"))
			w.at(119)
			h.state.ports.tokens.Take(w.clock())
			h.decide(119)
			w.want("a", "+60 queued catch_up")
			w.at(120)
			h.state.ports.tokens.Take(w.clock())
			h.decide(120)
			h.see()
			h.blind(120)
			w.want("a", c.want...)

			if name == "replace" {
				return
			}

			h.decide(125)

			if name == "allow" || name == "two" {
				w.want("a", "+60 dispatched catch_up", "+120 dispatched")
				return
			}

			w.want("a", c.want...)
			w.finish("a", task.Succeeded)
			h.decide(126)
			w.want("a", "+60 dispatched catch_up", "+120 succeeded")
		})
	}
}

// No tokens are lost because of failed commits or absent nodes.
func TestPace_UnusedTokensGoBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	h.pace(1)
	w.create("b", on("role = db"), cronned("0 * * * * *"))
	h.decide(90)
	w.want("b", "+60 queued catch_up no_matching_node")
	h.gate.play(refused)
	w.create("a", cronned("0 * * * * *"))
	w.update("a", false, func(t *task.Task) { t.Timeout = task.Duration(time.Second) })
	h.see()
	w.createAt(start, "c", cronned("0 * * * * *"))
	h.decide(90)

	if got := w.story("c"); len(got) != 0 {
		t.Fatalf("refused, but %q", got)
	}

	h.decide(90.5)
	w.want("c", "+60 dispatched catch_up")
}

// However many tasks wait, a token costs the work for one task.
func TestLine_LooksAtNoMoreThanThereAreTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	h.pace(5)
	all := names(200)
	w.createTogether(start, all[:60], cronned("0 * * * * *"))
	w.createTogether(start, all[60:120], cronned("0 * * * * *"))
	h.decide(90)
	h.decide(90)

	if n := h.state.line.Len(); n != 115 {
		t.Fatalf("%d in line", n)
	}

	w.at(91)
	h.state.grantTokens(w.clock())

	if n := len(h.state.agenda.toExamine); n != 5 {
		t.Errorf("%d tasks are to be examined", n)
	}

	h.blind(92) // five of those, and five more

	if n := h.state.line.Len(); n != 110 {
		t.Errorf("%d in line", n)
	}

	w.remove(all[119])
	h.decide(92.1)

	for s := 93.; s < 120; s++ {
		h.decide(s)
	}

	if n := w.count(all, "dispatched catch_up"); n != 119 || h.state.line.Len() != 0 {
		t.Errorf("%d have started, %d in line", n, h.state.line.Len())
	}
}

// BenchmarkPace measures the work for one token while many tasks wait.
func BenchmarkPace(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d wait", n), func(b *testing.B) {
			w, now := benchWorker(b, n, "0 0 * * * *")
			w.e.cfg.Cluster = func() task.Cluster { return task.Cluster{Shards: 1, CatchUpRate: 10} }
			*now = now.Add(90 * time.Minute)

			if err := w.runRound(b.Context()); err != nil {
				b.Fatal(err)
			}

			for b.Loop() {
				*now = now.Add(100 * time.Millisecond)
				if err := w.runRound(b.Context()); err != nil {
					b.Fatal(err)
				}
			}

			b.ReportMetric(float64(w.state.line.Len()), "left")
		})
	}
}
