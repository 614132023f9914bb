package selection

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestParseRunWord(t *testing.T) {
	cases := map[string]RunWord{
		"backup":                               {Task: "backup"},
		"20261120":                             {Task: "20261120"},
		"backup@-1":                            {Task: "backup", back: 1},
		"backup@-0":                            {Task: "backup"},
		"ns/backup@-12":                        {Task: "ns/backup", back: 12},
		"backup@02:30":                         {Task: "backup", Tick: "02:30"},
		"backup@02:30:05":                      {Task: "backup", Tick: "02:30:05"},
		"backup@2026-03-29T02:30":              {Task: "backup", Tick: "2026-03-29T02:30"},
		"backup@2026-03-29T02:30:00Z":          {Task: "backup", Tick: "2026-03-29T02:30:00Z"},
		"backup@2026-03-29T02:30:00.500+02:00": {Task: "backup", Tick: "2026-03-29T02:30:00.500+02:00"},
		"20261120T220500.000Z-k3f9":            {ID: "20261120T220500.000Z-k3f9"},
		"20261120T22":                          {ID: "20261120T22"},
		"20261120T220500.000Z-k3f9-ab2c":       {ID: "20261120T220500.000Z-k3f9-ab2c"},
		"backup@20261120T22":                   {Task: "backup", ID: "20261120T22"},
	}
	for word, want := range cases {
		if got, err := ParseRunWord(word); err != nil || got != want {
			t.Errorf("%q: %+v, %v", word, got, err)
		}
	}

	for _, word := range []string{"@", "a@", "@-1", "a@-", "a@--1", "a@-x", "a@-+1", "a@+1", "a@2:3", "a@25:00", "a@2026-13-01T00:00", "a@yesterday", "a@-99999999999999999999"} {
		if got, err := ParseRunWord(word); err == nil {
			t.Errorf("%q is %+v", word, got)
		} else if factorytest.New("").Report(err) != failure.ExitUsage {
			t.Errorf("%q: %v is no usage error", word, err)
		}
	}
}

func TestRunAtTick(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}

	run := func(id, tick string) task.Run {
		return task.Run{ID: id, ScheduledTime: factorytest.At(tick), Trigger: task.TriggerSchedule}
	}

	missed := run("range", "2026-10-20T00:30:00Z")
	missed.Last, missed.Count = factorytest.At("2026-10-22T00:30:00Z"), 3
	manual := run("manual", "2026-10-28T01:30:00Z")
	manual.Trigger = task.TriggerManual
	runs := []task.Run{manual, run("c", "2026-10-27T01:30:00Z"), run("b", "2026-10-25T01:30:00Z"), run("a", "2026-10-25T00:30:00Z"), missed}
	cases := []struct {
		tick, want string
		exit       int
	}{
		{"02:30", "c", 0},
		{"2026-10-27T02:30", "c", 0},
		{"2026-10-27T02:30:00", "c", 0},
		{"2026-10-25T02:30", "", failure.ExitConflict}, // exists twice on that day
		{"2026-10-25T01:30:00Z", "b", 0},
		{"2026-10-25T02:30:00+02:00", "a", 0},
		{"2026-10-21T02:30", "range", 0},
		{"2026-10-28T02:30", "", failure.ExitNotFound}, // a manual run has no tick
		{"2026-10-23T02:30", "", failure.ExitNotFound},
	}
	for _, c := range cases {
		d := factorytest.New("")
		got, err := runAtTick(d.Factory, Ref{"default", "x"}, runs, c.tick, berlin)
		if got.ID != c.want || d.Report(err) != c.exit {
			t.Errorf("%s: %q, %v", c.tick, got.ID, err)
		}
	}
}
