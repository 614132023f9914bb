package sim

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A target refuses connections for ten minutes. The tasks have one attempt. When the target is back, the runs succeed
// within half a minute. No tick of a task that allows overlaps is lost, and the other one skips ticks as usual.
//
// Verifies: G54
func TestStory_TargetThatIsDownForTenMinutes(t *testing.T) {
	t.Parallel()
	const down, up = 5.0, 605.0
	requests := func(overlap string) func(*task.Spec) {
		return func(s *task.Spec) {
			s.Overlap, s.KillGrace, s.Target = overlap, task.Defaults().KillGrace, task.Defaults().Target
			s.Action = task.Action{HTTP: &task.HTTP{URL: "http://svc0.test/100ms/200", Method: "POST"}}
		}
	}

	s, events := runStory(t, Options{}, nil, func(s *story) {
		s.apply("allows", "0 * * * * *", 0, requests(task.OverlapAllow))
		s.apply("skips", "0 * * * * *", 0, requests(task.OverlapSkip))

		s.at(down)
		s.targets.setMode(0, targetRefuses)
		s.at(up)
		s.targets.setMode(0, targetUp)
		s.at(up + 35)
	})

	ran, waited := map[string]int{}, 0
	for _, e := range events {
		k, ok := s.admin.Keys().ParseShard(e.Key)
		if !ok || e.Deleted || k.Kind != record.KindEnded {
			continue
		}

		r, err := record.DecodeEnded(k, e.Value)
		if err != nil {
			t.Fatal(err)
		}

		if r.State == task.Skipped && r.Task == "skips" {
			continue
		}
		if r.State != task.Succeeded || len(r.Attempts) > 0 {
			t.Errorf("the run of %s at %s %s (%s)", r.Task, r.ScheduledTime, r.State, r.Reason)
		}
		if late := r.EndedAt.Sub(s.tick(up)); r.ScheduledTime.Before(s.tick(up)) && late > 31*time.Second {
			t.Errorf("the run of %s at %s ended %s after its target was back", r.Task, r.ScheduledTime, late)
		}

		ran[r.Task]++
		if r.Unsent != nil {
			waited++
		}
	}

	// One run of each task tried the target again and again, while the other ticks waited or were skipped.
	if ran["allows"] < 10 || ran["skips"] < 1 || waited != 2 {
		t.Errorf("%v runs, %d with attempts that were not sent", ran, waited)
	}
}
