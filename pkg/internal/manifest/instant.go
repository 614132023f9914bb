package manifest

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Instant parses a time as users write it: RFC 3339, or a date with or without a time of day by the clocks of a
// zone. It rejects a local time that does not exist, or exists twice. The error contains what to write instead.
func Instant(field, text, timezone string) (task.Time, error) {
	m, err := schedule.ReadLocal(text, timezone)
	var fault *task.Error
	if errors.As(err, &fault) && fault.Field == "at" {
		return task.Time{}, task.Invalid(fault.Code, field, "%s", fault.Message)
	}
	if err != nil {
		return task.Time{}, err
	}

	// A local time is valid only if it is exactly one instant.
	switch len(m.Instants) {
	case 1:
		return task.At(m.Instants[0]), nil
	case 0:
		return task.Time{}, task.Invalid(task.CodeBadTime, field, "%s does not exist in %s: the clocks go forward then", task.Quote(text), timezone)
	}

	zone, err := schedule.Location(timezone)
	if err != nil {
		return task.Time{}, err
	}

	var both []string
	for _, at := range m.Instants {
		both = append(both, at.In(zone).Format(time.RFC3339))
	}

	return task.Time{}, task.Invalid(task.CodeBadTime, field, "%s exists twice in %s: write %s", task.Quote(text), timezone, strings.Join(both, " or "))
}

// timeFields are the fields of a task that contain times.
var timeFields = []string{"start", "end", "paused_until"}

// localTimes replaces local times, which are in the task's zone, by RFC 3339.
func (n *node) localTimes() error {
	zone := task.Defaults().Timezone

	if z := n.valueOf("timezone"); z != nil && z.kind == kindString {
		_ = json.Unmarshal([]byte(z.scalar), &zone) // valid JSON: it was parsed as a string
	}

	for i, p := range n.pairs {
		for _, field := range timeFields {
			if p.key != field || p.value.kind != kindString {
				continue
			}

			var text string
			_ = json.Unmarshal([]byte(p.value.scalar), &text)

			at, err := Instant(field, text, zone)
			if err != nil {
				return err
			}

			// Replace the value in a copy, because nodes may be shared.
			written, err := json.Marshal(at)
			if err != nil {
				return err
			}

			value := *p.value
			value.scalar = string(written)
			n.pairs[i].value = &value
		}
	}

	return nil
}
