package schedule_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// 1-7/7 is Monday, like 1, also next to days of the month.
func TestParse_KeepsTheOneDayThatAStepLeaves(t *testing.T) {
	for expr, want := range map[string]string{"0 0 * * 1-7/7": "2026-01-05", "0 0 L * 1-7/7": "2026-01-05", "0 0 31 * 1": "2026-01-05"} {
		s, err := schedule.Parse(task.Timing{Schedule: []string{expr}}, anchor)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}

		if next, _ := s.Next(anchor); next.Format(time.DateOnly) != want {
			t.Errorf("%s ticks at %s, want %s", expr, next, want)
		}
	}
}
