package task_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// decodeDependent decodes a task with the fields in text and a valid rest, and validates it.
func decodeDependent(text string) (task.Spec, error) {
	s, err := task.DecodeSpec([]byte(`{"name":"report","action":{"noop":{}},` + text + `}`))
	if err == nil {
		err = s.Validate()
	}

	return s, err
}

func TestSources_HaveShortForms(t *testing.T) {
	for text, want := range map[string]task.Sources{
		`"etl"`:                               {{Task: "etl"}},
		`["etl"]`:                             {{Task: "etl"}},
		`{"task":"etl"}`:                      {{Task: "etl"}},
		`{"task":"etl","when":"succeeded"}`:   {{Task: "etl"}},
		`["etl",{"task":"b","when":"ended"}]`: {{Task: "etl"}, {Task: "b", When: task.WhenEnded}},
		`{"task":"etl","results":["rows"]}`:   {{Task: "etl", Results: []string{"rows"}}},
	} {
		var got task.Sources
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, %v; want %+v", text, got, err, want)
			continue
		}

		stored, err := json.Marshal(got)
		var again task.Sources
		if err != nil || json.Unmarshal(stored, &again) != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%s is stored as %s, which is read as %+v (%v)", text, stored, again, err)
		}
	}
}

func TestDecodeSpec_DependentHasDefaultsOfItsOwn(t *testing.T) {
	s, err := decodeDependent(`"after":"etl"`)
	if err != nil {
		t.Fatal(err)
	}

	if !reflect.DeepEqual(s.Schedule, task.Schedules{task.ManualSchedule}) || s.Overlap != task.OverlapQueue || s.Queue.Limit != 100 {
		t.Errorf("schedule %v, overlap %s, queue %+v; want @manual, queue, limit 100", s.Schedule, s.Overlap, s.Queue)
	}

	// What was stored is read as the same task.
	stored, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := task.DecodeSpec(stored)
	if err != nil || !reflect.DeepEqual(again, s) {
		t.Errorf("read again: %+v, %v; want %+v", again, err, s)
	}
}

func TestDecodeSpec_RefusesBadSources(t *testing.T) {
	for text, want := range map[string]string{
		`"after":"report"`:                                            `after[0]: "report" is the task itself`,
		`"after":["a","a"],"join":"any"`:                              `after[1]: "a" is given twice`,
		`"after":["a","b"]`:                                           `join: is required with several sources`,
		`"after":["a","b"],"join":"all"`:                              `join: "all"`,
		`"join":"any","schedule":"@daily"`:                            `join: requires after`,
		`"after":"A"`:                                                 `after[0]: "A": use a-z`,
		`"after":{"task":"a","when":"always"}`:                        `after[0].when: "always"`,
		`"after":[{"task":"a","wen":"ended"}]`:                        `after[0].wen: is not a field`,
		`"after":7`:                                                   `after: must be the name of a task`,
		`"after":[null]`:                                              `after[0]: cannot be null`,
		`"after":{"task":"a","results":["x","x"]}`:                    `results[1]`,
		`"after":{"when":"ended"}`:                                    `after[0]: is required`,
		`"after":"a","schedule":"@daily"`:                             `overlap: is required for a task with a schedule and after`,
		`"after":"a","schedule":"@reboot"`:                            `after: cannot be combined with the schedule @reboot`,
		`"after":"a","missed":{"policy":"all"}`:                       `missed: applies to ticks`,
		`"after":"a","jitter":"5s"`:                                   `jitter: applies to ticks`,
		`"after":"a","max_runs":3`:                                    `max_runs: applies to ticks`,
		`"after":"a","start":"2026-01-01T00:00:00Z"`:                  `start: applies to ticks`,
		`"after":"a","queue":{"limit":1001}`:                          `queue.limit: 1001 is not between 1 and 1000`,
		`"schedule":"@daily","overlap":"queue","queue":{"limit":101}`: `queue.limit: 101 is not between 1 and 100`,
		`"after":["` + strings.Repeat(`a","`, 16) + `b"]`:             `after: has 17 elements`,
	} {
		if _, err := decodeDependent(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v; want one with %q", text, err, want)
		}
	}
}

func TestDecodeSpec_AcceptsTicksBesideSources(t *testing.T) {
	for _, text := range []string{
		`"after":"a","schedule":"@daily","overlap":"queue","missed":{"policy":"all"}`,
		`"after":"a","schedule":"@daily","overlap":"skip"`,
		`"after":"a","overlap":"allow","max_active":3`,
		`"after":"a","queue":{"limit":1000,"drop":"oldest"}`,
		`"after":["a",{"task":"b","when":"failed"}],"join":"any"`,
	} {
		if _, err := decodeDependent(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestWhen_MatchesEndsOfRuns(t *testing.T) {
	want := map[task.When][]task.State{
		"":                 {task.Succeeded},
		task.WhenSucceeded: {task.Succeeded},
		task.WhenFailed:    {task.Failed, task.TimedOut, task.Lost},
		task.WhenEnded:     {task.Succeeded, task.Failed, task.TimedOut, task.Cancelled, task.Lost},
	}

	for when, states := range want {
		var got []task.State
		for _, s := range task.States() {
			if when.Matches(s) {
				got = append(got, s)
			}
		}

		if !reflect.DeepEqual(got, states) {
			t.Errorf("%q matches %v; want %v", when, got, states)
		}
	}
}

func TestLinksOf_KeepsTheGenerationOfUnchangedSources(t *testing.T) {
	former := task.Sources{{Task: "a"}, {Task: "b", When: task.WhenEnded}, {Task: "gone"}, {Task: "c", Results: []string{"x", "y"}}}
	old := []task.Link{{Task: "a", Generation: 1}, {Task: "b", Generation: 2}, {Task: "gone", Generation: 1}, {Task: "c", Generation: 3}}

	next := task.Task{Generation: 5}
	next.After = task.Sources{{Task: "b"}, {Task: "a"}, {Task: "new"}, {Task: "c", Results: []string{"y", "x"}}}

	want := []task.Link{{Task: "b", Generation: 5}, {Task: "a", Generation: 1}, {Task: "new", Generation: 5}, {Task: "c", Generation: 3}}
	if got := task.LinksOf(next, former, old); !reflect.DeepEqual(got, want) {
		t.Errorf("links %v; want %v", got, want)
	}
}

func TestTriggeredRunID_TellsItsTrigger(t *testing.T) {
	at := time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC)
	id := task.TriggeredRunID(at, "k3f9abcdefgh", task.Cause{Task: "etl", Run: "20261120T220000.000Z-aaaa"})

	if got := task.TriggerOfRunID(id); got != task.TriggerAfter {
		t.Errorf("trigger of %s is %s", id, got)
	}
	if got := task.TriggerOfRunID(task.ManualRunID(at, "k3f9abcdefgh")); got != task.TriggerManual {
		t.Errorf("trigger of a manual run is %s", got)
	}
	if got := task.TriggerOfRunID(task.RunID(at, "k3f9abcdefgh")); got != task.TriggerSchedule {
		t.Errorf("trigger of a tick is %s", got)
	}
	if got, ok := task.TimeOfRunID(id); !ok || !got.Equal(at) || !task.RunBelongs(id, "k3f9abcdefgh") {
		t.Errorf("%s: time %v, %v", id, got, ok)
	}
}

// A source that is added, changed or removed is one change, in whichever form it is written.
func TestDifferences_NamesSources(t *testing.T) {
	with := func(sources ...task.Source) task.Spec { return task.Spec{After: sources} }

	for _, tt := range []struct {
		a, b task.Spec
		want string
	}{
		{with(), with(task.Source{Task: "etl"}), "after.etl: none → succeeded"},
		{with(task.Source{Task: "etl"}), with(task.Source{Task: "etl", When: task.WhenFailed}), "after.etl: succeeded → failed"},
		{with(task.Source{Task: "etl"}), with(task.Source{Task: "etl"}, task.Source{Task: "load", When: task.WhenEnded, Results: []string{"rows"}}),
			`after.load: none → ended; after.load.results: none → ["rows"]`},
		{with(task.Source{Task: "b"}, task.Source{Task: "a"}), with(task.Source{Task: "a"}, task.Source{Task: "b"}), ""},
	} {
		if got := strings.Join(task.Differences(tt.a, tt.b), "; "); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}
