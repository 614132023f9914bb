package task_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestDifferences_SaysWhatChangedInFewWords(t *testing.T) {
	a := task.Defaults()
	a.Name, a.Schedule, a.Labels = "a", task.Schedules{"@daily"}, map[string]string{"old": "1", "same": "x"}
	a.Action.Process = &task.Process{Command: []string{"true"}}
	if d := task.Differences(a, a); len(d) != 0 {
		t.Errorf("of the same: %q", d)
	}

	b := a
	b.Timeout, b.Paused, b.Labels = task.Duration(time.Minute), true, map[string]string{"same": "x", "team": "data"}
	b.Retry.Attempts, b.Description = 3, strings.Repeat("ä", 100)
	b.Action.Process = &task.Process{Command: []string{"pg_dump", "x"}}
	want := []string{
		`action.process.command: ["true"] → ["pg_dump","x"]`,
		"description: none → " + strings.Repeat("ä", 30) + "…",
		"labels.old: 1 → none", "labels.team: none → data",
		"paused: none → true", "retry.attempts: 1 → 3", "timeout: none → 1m",
	}
	if got := task.Differences(a, b); !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}
