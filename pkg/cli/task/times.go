package task

import (
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// pauseUntil parses the end of a pause: a duration, an instant, a local time in the task's zone, or a time of
// day, which means its next occurrence there.
func pauseUntil(f *factory.Factory, text string, zone func() (string, error)) (client.PauseRequest, error) {
	var request client.PauseRequest

	if text == "" {
		return request, nil
	}

	if d, err := task.ParseDuration("until", text); err == nil {
		if request.For = d; request.For < task.Duration(time.Second) || request.For > task.MaxTimeout {
			return request, failure.Usage("--until: %s must be between 1s and %s", task.Quote(text), task.MaxTimeout)
		}
		return request, nil
	}

	if request.Until.UnmarshalText([]byte(text)) == nil {
		return request, nil
	}

	timezone, err := zone()
	if err != nil {
		return request, err
	}

	if request.Until, err = manifest.UpcomingInstant("until", text, timezone, f.Now()); err != nil {
		return request, failure.Usage("--%s", err.Error()).WithHint("use 2h, 18:00, \"2026-12-24 18:00\", or 2026-12-24T18:00:00Z")
	}

	return request, nil
}
