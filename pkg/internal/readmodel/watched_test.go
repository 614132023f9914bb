package readmodel

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// A random sequence of changes leaves the expectations and the marks of tasks as in a map.
func TestIndex_HoldsExpectations(t *testing.T) {
	t.Parallel()

	expectations := []*task.Alerts{nil, nil, {Notify: []string{"a"}}, {Notify: []string{"b"}}, {Notify: []string{"c"}}}
	schedules := []*schedule.Schedule{{}, {}}

	rapid.Check(t, func(t *rapid.T) {
		type watchedTask struct {
			row     Row
			alerts  *task.Alerts
			judgeAt uint32
			waiting uint8
			unknown bool
		}
		var x Index
		tasks := map[int32]*watchedTask{}

		for n := range rapid.IntRange(1, 300).Draw(t, "changes") {
			slots := slices.Sorted(maps.Keys(tasks))
			slot := rapid.SampledFrom(append(slots, NoSlot)).Draw(t, "slot")
			alerts := rapid.SampledFrom(expectations).Draw(t, "alerts")
			known := tasks[slot]

			switch change := rapid.SampledFrom([]string{"put", "put", "mark", "remove", "end"}).Draw(t, "change"); {
			case change == "put":
				r := Row{Name: fmt.Sprintf("default/t%d", n), Schedule: rapid.SampledFrom(schedules).Draw(t, "schedule"), Flags: rapid.SampledFrom([]Flags{0, Paused, Failing}).Draw(t, "flags")}
				if known != nil {
					r.Name = known.row.Name
				}
				slot = x.Put(slot, r, Details{}, alerts)

				next := &watchedTask{row: r, alerts: alerts}
				if known != nil && alerts != nil {
					next.row.Flags |= known.row.Flags & AlertFlags
					if alerts == known.alerts {
						next.waiting, next.unknown = known.waiting, known.unknown
						if known.row.Schedule == r.Schedule && known.row.Flags&Paused == r.Flags&Paused {
							next.judgeAt = known.judgeAt
						}
					}
				}
				tasks[slot] = next
			case known == nil:
				if x.ChangeWatched(NoSlot, "default/t0", func(*WatchedRow) {}) {
					t.Fatal("no slot has a task")
				}
			case change == "mark":
				flags := rapid.SampledFrom([]Flags{0, AlertFailures, AlertSuccessWithin | AlertSuccessBy}).Draw(t, "not met")
				at, waiting := rapid.Uint32().Draw(t, "at"), rapid.Uint8Range(0, maxWaiting).Draw(t, "waiting")
				ok := x.ChangeWatched(slot, known.row.Name, func(w *WatchedRow) {
					w.NotMet, w.JudgeAt, w.Waiting, w.Unknown = flags, at, waiting, waiting%2 == 1
				})
				if ok != (known.alerts != nil) || x.ChangeWatched(slot, "default/other", func(*WatchedRow) { t.Fatal("it changes another task") }) {
					t.Fatalf("slot %d is changed: %t", slot, ok)
				}
				if ok {
					known.row.Flags = known.row.Flags&^AlertFlags | flags
					known.judgeAt, known.waiting, known.unknown = at, waiting, waiting%2 == 1
				}
			case change == "remove":
				x.Remove(slot)
				delete(tasks, slot)
			case change == "end":
				x.Change(slot, func(r *Row) { r.LastEnd++ })
				known.row.LastEnd++
			}
		}

		var got, want []string
		watched := 0
		for slot, k := range tasks {
			if r := x.Row(slot); fmt.Sprint(r) != fmt.Sprint(k.row) {
				t.Fatalf("row %d is %v, want %v", slot, r, k.row)
			}
			if k.alerts != nil {
				watched++
				want = append(want, fmt.Sprint(slot, k.row.Name, k.alerts, k.row.Flags&AlertFlags, k.judgeAt, k.waiting, k.unknown))
			}
		}
		x.EachWatched(func(w *WatchedRow) {
			got = append(got, fmt.Sprint(w.Slot, w.Row.Name, w.Alerts, w.NotMet, w.JudgeAt, w.Waiting, w.Unknown))
		})

		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || x.Watched() != watched {
			t.Fatalf("%d watched tasks\n%q, want\n%q", x.Watched(), got, want)
		}

		shared := 0
		for _, s := range x.watches.list {
			shared += s.tasks
		}
		if shared != watched || len(x.watches.list)-len(x.watches.free) != len(x.watches.numbers) {
			t.Fatalf("%+v, want %d tasks", x.watches, watched)
		}
	})
}

func TestQueryLine_Alerts(t *testing.T) {
	t.Parallel()

	var x Index
	put := func(name string, flags Flags, a *task.Alerts) {
		slot := x.Put(NoSlot, Row{Name: name, Flags: flags &^ AlertFlags}, Details{}, a)
		x.ChangeWatched(slot, name, func(w *WatchedRow) { w.NotMet = flags & AlertFlags })
	}
	put("shop/sync", History|AlertFailures, &task.Alerts{Notify: []string{"slack", "ops/pager"}})
	put("shop/backup", History|AlertSuccessBy, &task.Alerts{Notify: []string{"ops/pager"}})
	put("ops/fine", History, &task.Alerts{Notify: []string{"slack"}})
	put("ops/unread", 0, &task.Alerts{})
	put("ops/plain", History, nil)

	for line, want := range map[string][]string{
		"alert:failures":                      {"shop/sync"},
		"alert:success_within,success_by":     {"shop/backup"},
		"alert:any":                           {"shop/backup", "shop/sync"},
		"-alert:any":                          {"ops/fine", "ops/plain"},
		"notify:ops/pager":                    {"shop/backup", "shop/sync"},
		"notify:ops/slack":                    {"ops/fine"},
		"notify:shop/slack,ops/slack":         {"ops/fine", "shop/sync"},
		"-notify:ops/pager -name:unread":      {"ops/fine", "ops/plain"},
		"notify:ops/pager -notify:shop/slack": {"shop/backup"},
		"notify:ops/pager alert:failures":     {"shop/sync"},
	} {
		q, err := ParseQueryLine(line)
		if err != nil {
			t.Fatal(err)
		}
		if text := q.String(); text != line {
			t.Errorf("%q became %q", line, text)
		}
		if about := q.AboutRuns(); about != slices.Contains([]string{"alert:failures", "alert:success_within,success_by", "alert:any", "-alert:any", "notify:ops/pager alert:failures"}, line) {
			t.Errorf("%q: about runs: %t", line, about)
		}

		query := Query{Filter: Filter{Conditions: q.Conditions(), Receivers: q.Receivers()}, Order: ByName, Limit: 10}
		first := NewFirst(&query)
		counts := x.Scan(&query, 0, first)
		var got []string
		for _, p := range first.Sorted() {
			got = append(got, p.Name)
		}
		if !slices.Equal(got, want) || counts.Tasks != len(want) {
			t.Errorf("%q finds %q, want %q", line, got, want)
		}
	}

	for line, want := range map[string]string{
		"alert:late":    `term "alert:late": "late" is not one of any, failures, success_within, success_by, max_lateness, max_duration, max_pause`,
		"alert:":        `term "alert:": a value is missing`,
		"notify:slack":  `term "notify:slack": "slack" is not a receiver: use NAMESPACE/NAME, such as ops/slack`,
		"notify:ops/a*": `term "notify:ops/a*": "ops/a*" is not a receiver: use NAMESPACE/NAME, such as ops/slack`,
	} {
		if _, err := ParseQueryLine(line); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
}

// byLabel are rules about tasks with a label.
type byLabel map[string]*task.Alerts

func (r byLabel) AlertsOf(namespace string, labels map[string]string) *task.Alerts {
	return r[namespace+"/"+labels["team"]]
}

// Rules watch the tasks that expect nothing themselves, whether they come before or after the rule.
func TestIndex_SetRules(t *testing.T) {
	t.Parallel()

	var x Index
	own, rule := &task.Alerts{}, &task.Alerts{}
	put := func(name, team string, flags Flags, a *task.Alerts) int32 {
		return x.Put(NoSlot, Row{Name: name, Labels: map[string]string{"team": team}, Flags: flags}, Details{}, a)
	}
	watched := func() map[string]*task.Alerts {
		all := map[string]*task.Alerts{}
		x.EachWatched(func(w *WatchedRow) { all[w.Row.Name] = w.Alerts })
		return all
	}
	same := func(what string, want map[string]*task.Alerts) {
		t.Helper()
		if got := watched(); !maps.Equal(got, want) || x.Watched() != len(want) {
			t.Errorf("%s: %d are watched, as %v, want %v", what, x.Watched(), got, want)
		}
	}

	put("shop/own", "data", 0, own)
	first := put("shop/first", "data", 0, nil)
	put("shop/web", "web", 0, nil)
	put("ops/data", "data", 0, nil)
	put("shop/gone", "data", Gone, nil)
	same("before", map[string]*task.Alerts{"shop/own": own})

	x.SetRules(byLabel{"shop/data": rule})
	second := put("shop/second", "data", 0, nil)
	same("with a rule", map[string]*task.Alerts{"shop/own": own, "shop/first": rule, "shop/second": rule})

	x.ChangeWatched(first, "shop/first", func(w *WatchedRow) { w.NotMet = AlertFailures })
	x.Put(first, Row{Name: "shop/first", Labels: map[string]string{"team": "data"}}, Details{}, nil)
	if !x.Row(first).Flags.Has(AlertFailures) {
		t.Error("a change of the row clears what is not met")
	}
	x.Put(second, Row{Name: "shop/second", Labels: map[string]string{"team": "web"}}, Details{}, nil)
	same("another label", map[string]*task.Alerts{"shop/own": own, "shop/first": rule})

	x.SetRules(byLabel{"shop/web": rule})
	same("another selector", map[string]*task.Alerts{"shop/own": own, "shop/web": rule, "shop/second": rule})
	if x.Row(first).Flags&AlertFlags != 0 {
		t.Error("a task that is not watched has an expectation that is not met")
	}

	x.SetRules(byLabel{})
	same("no rules", map[string]*task.Alerts{"shop/own": own})
}
