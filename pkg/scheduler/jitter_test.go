package scheduler

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func jitter(d time.Duration) option { return func(t *task.Task) { t.Jitter = task.Duration(d) } }

func uid(uid string) option { return func(t *task.Task) { t.UID = uid } }

// dues returns the ticks of a task in etcd up to some time, and when they are due, in seconds after the
// start.
func (w *world) dues(name string, until float64) (ticks, dues []float64) {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)
	s, err := schedule.Parse(st.Entry.Timing(), st.Entry.Anchor.Time)
	w.ok(err)

	for at, ok := s.Next(start); ok && !at.After(sec(until)); at, ok = s.Next(at) {
		ticks, dues = append(ticks, at.Sub(start).Seconds()), append(dues, s.Due(at, st.Entry.UID).Sub(start).Seconds())
	}

	return ticks, dues
}

// bareWorker returns a worker that is given entries directly and has no etcd.
func bareWorker(tb interface{ Fatal(...any) }) *worker {
	keys, err := record.NewKeys("/bare")
	if err != nil {
		tb.Fatal(err)
	}

	e := New(Config{
		Node: "n1", Store: store.New(nil, &yes{revision: 1000}, keys), Fleet: placement.NewFleet("n1", func() int { return 1 << 30 }),
		Now: func() time.Time { return start }, Namespaces: openNamespaces, Logger: zap.NewNop(),
	})

	w := newWorker(e, 0, store.Fences{})
	w.discardState()

	return w
}

// give adds an entry to the worker's state.
func (w *worker) give(name string, e task.Entry, create int64) *state.Task {
	w.state.applyEntry(&store.ShardEvent{ShardKey: record.ShardKey{Kind: record.KindEntry, Ref: ref(name)}, Task: "default/" + name, Mod: create, Create: create, Value: written(e)})
	return w.state.records.TaskNamed("default/" + name)
}

// Computing the next tick and the bounds gives the same result as visiting tick by tick.
func TestJitter_NextTickAndBoundsAreThoseOfAWalkOverAllTicks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		moment := func(name string) time.Time { return sec(float64(rapid.IntRange(-40, 200).Draw(rt, name)) / 2) }
		spec := task.Task{Spec: task.Defaults(), UID: rapid.StringMatching("[a-z]{6}").Draw(rt, "uid")}
		spec.Schedule = task.Schedules{rapid.SampledFrom([]string{"*/7 * * * * *", "* * * * * *", "@every 11s", "@at 2026-01-02T12:00:20Z"}).Draw(rt, "schedule")}
		spec.Jitter = task.Duration(rapid.SampledFrom([]time.Duration{0, time.Second, 5 * time.Second, time.Minute}).Draw(rt, "jitter"))
		spec.Action = task.Action{Noop: &task.Noop{}}
		from := moment("from")
		e := task.NewEntry(spec, task.At(from), task.At(start.Add(-time.Minute)))
		silence := time.Time{}
		if rapid.Bool().Draw(rt, "paused") {
			silence = moment("silence")
			e.Paused, e.Own = true, &task.Own{Pauses: []task.Pause{{Since: task.At(from), Until: task.At(silence)}}}
		}

		mark := record.Watermark{Time: task.At(moment("mark")), Last: rapid.SampledFrom([]string{"", "default/a", "default/z"}).Draw(rt, "last"), Seen: 10}
		create := int64(rapid.IntRange(10, 11).Draw(rt, "create"))
		now := moment("now")

		w := bareWorker(t)
		w.state.records.Watermark = mark
		s := w.give("m", e, create)

		sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
		if err != nil {
			rt.Fatal(err)
		}

		var undecided, due []time.Time
		for at, ok := sched.Next(start.Add(-time.Hour)); ok && at.Before(start.Add(time.Hour)); at, ok = sched.Next(at) {
			d := sched.Due(at, e.UID)
			if !at.After(from) || !at.After(silence) || create <= mark.Seen && mark.Decided(task.At(d), "default/m") {
				continue
			}

			if undecided = append(undecided, at); !d.After(now) {
				due = append(due, at)
			}
		}

		want := int64(0)
		if len(undecided) > 0 {
			want = undecided[0].UnixMilli()
		}

		if s.Next != want {
			rt.Fatalf("the next tick is %s, want %s", state.Instant(s.Next), state.Instant(want))
		}

		if s.Next == 0 {
			return
		}

		if d := sched.Due(undecided[0], e.UID).UnixMilli(); s.DueAt() != d || w.state.due[0] != s {
			rt.Fatalf("it is due at %s, want %s", state.Instant(s.DueAt()), state.Instant(d))
		}

		late := len(due) > 0 && now.Sub(sched.Due(due[0], e.UID)) > e.Missed.Grace.Std()
		if behind := len(due) > 1 || late; s.IsBehind(now.UnixMilli()) != behind {
			rt.Fatalf("%d are due: behind %t", len(due), !behind)
		}

		if len(due) > 0 {
			bound := state.Instant(s.LastDue(now.UnixMilli()))
			_, last, n, _ := sched.Missed(state.Instant(s.Next-1), bound, 0)
			if n != int64(len(due)) || !last.Equal(due[len(due)-1]) {
				rt.Fatalf("%d up to %s are due, want %d up to %s", n, last, len(due), due[len(due)-1])
			}
		}
	})
}

func TestJitter_TicksAreDecidedWhenTheyFallDueInThatOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")

	all := []string{"a", "b", "c", "d"}
	for _, name := range all {
		w.create(name, cronned("0 * * * * *"), jitter(30*time.Second), allow)
	}

	var order []string
	at := map[string]float64{}
	for _, name := range all {
		_, dues := w.dues(name, 60)
		at[name] = dues[0]
		order = append(order, name)
	}

	slices.SortFunc(order, func(a, b string) int { return int(1000 * (at[a] - at[b])) })

	for i, name := range order {
		h.decide(at[name] - 0.001)

		if got := w.active(name); len(got) != 0 && (i == 0 || at[order[i-1]] < at[name]-0.001) {
			t.Fatalf("%s fires before it is due, at +%g", name, at[name])
		}

		h.decide(at[name])
		got := w.active(name)
		if len(got) != 1 || !got[0].ScheduledTime.Equal(sec(60)) || !got[0].DueAt.Equal(sec(at[name])) || got[0].ID[:20] != "20260102T120100.000Z" {
			t.Fatalf("%s, due at +%g: %+v", name, at[name], got)
		}
	}
}

// Between a tick and its due time, the owner changes, the entry is written, other tasks fire, and a
// schedule is replaced.
func TestJitter_BetweenATickAndItsDueTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", cronned("0 * * * * *"), jitter(50*time.Second), allow, uid("aaaa")) // due at +70.157
	w.create("b", cronned("0 * * * * *"), jitter(50*time.Second), allow, uid("bbbb"))
	w.create("z", every("13s"), allow)
	_, a := w.dues("a", 120)
	_, b := w.dues("b", 120)
	if min(a[0], b[0]) < 66 {
		t.Fatalf("nothing is between: %g, %g; choose others", a[0], b[0])
	}

	for _, at := range []float64{13, 26, 39, 52, 65} {
		h.decide(at)
	}

	w.wantMark(65, "") // between the tick and its due time
	w.want("a")
	w.update("a", false, func(t *task.Task) { t.Timeout = task.Duration(time.Hour) }) // keeps its ticks
	w.update("b", true, jitter(40*time.Second))                                       // has other ticks from now on
	w.createAt(sec(65.2), "late", cronned("0 * * * * *"), jitter(50*time.Second), allow)
	h2 := w.work("n2")
	h2.decide(a[0] - 0.001)
	w.want("a")
	h2.decide(a[0])
	w.want("a", "+60 dispatched")
	w.work("n1").decide(115)
	w.want("a", "+60 dispatched")
	w.want("b")
	w.want("late")
}

// An entry that the watermark does not cover gets each of its ticks once, although the watermark has passed
// them and some are not due yet.
func TestJitter_OfAnEntryThatIsNotCovered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	w.create("z", every("1s"), allow)
	w.work("n1").decide(100)
	w.createAt(sec(0.5), "a", cronned("*/10 * * * * *"), jitter(9*time.Second), allow, missed(task.MissedAll, 50))
	h := w.work("n2")
	h.decide(100.5)
	ticks, dues := w.dues("a", 100)
	var want []string
	for i, d := range dues {
		if d <= 100.5 {
			want = append(want, strings.Fields(tell(task.Run{ScheduledTime: task.At(sec(ticks[i])), Trigger: task.TriggerSchedule}))[0])
		}
	}

	got := w.story("a")
	for i := range got {
		got[i] = strings.Fields(got[i])[0]
	}

	if !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v; due %v", got, want, dues)
	}
}
