package api

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// policies are what a former version would pass by, each with what has it: a task
// would fire otherwise than its user said.
var policies = []struct {
	field string
	has   func(*task.Spec) bool
}{
	{"schedule", func(s *task.Spec) bool {
		return store.FormatOf(task.Spec{Schedule: s.Schedule, Overlap: task.OverlapSkip}) >= store.FormatPolicies
	}},
	{"overlap", func(s *task.Spec) bool { return s.Overlap == task.OverlapQueue || s.Overlap == task.OverlapReplace }},
	{"max_active", func(s *task.Spec) bool { return s.MaxActive != 0 }},
	{"start", func(s *task.Spec) bool { return !s.Start.IsZero() }},
	{"end", func(s *task.Spec) bool { return !s.End.IsZero() }},
	{"jitter", func(s *task.Spec) bool { return s.Jitter != 0 }},
	{"max_runs", func(s *task.Spec) bool { return s.MaxRuns != 0 }},
	{"ttl", func(s *task.Spec) bool { return s.TTL != 0 }},
	{"start_deadline", func(s *task.Spec) bool { return s.Deadline != 0 }},
	{"pause_after_failures", func(s *task.Spec) bool { return s.PauseAfter != 0 }},
	{"paused_until", func(s *task.Spec) bool { return !s.PausedUntil.IsZero() }},
	{"shadow", func(s *task.Spec) bool { return s.Shadow }},
	{"retry.exit_codes", func(s *task.Spec) bool { return len(s.Retry.ExitCodes) > 0 }},
}

// allowed refuses what the format of the cluster's records has no room for.
func (s *server) allowed(spec *task.Spec) error {
	writes := s.Store.Format()
	if writes >= store.NewestFormat {
		return nil
	}
	needs := store.FormatOf(*spec)
	if needs <= writes {
		return nil
	}
	f := fail(http.StatusConflict, client.CodeConflict, "this takes format %d of the cluster's records, and nodes write %d: some would fire the task otherwise",
		needs, writes).withHint("run this version on all nodes, then: carillon cluster upgrade")
	for _, p := range policies {
		if p.has(spec) && (needs < store.FormatShadow || p.field == "shadow") {
			return f.withField(p.field)
		}
	}
	return f
}
