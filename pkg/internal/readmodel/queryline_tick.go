package readmodel

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// queryMinute is how a query line writes a minute, always in UTC.
const queryMinute = "2006-01-02T15:04Z07:00"

// parseTicks parses tick:MINUTE,MINUTE.
func parseTicks(t *queryTerm, w queryWord) error {
	if err := t.setValues(w); err != nil {
		return err
	}

	for i, v := range t.values {
		at, ok := parseMinute(v)
		if !ok {
			return task.Invalid(task.CodeBadValue, "", "%s is not a minute with a zone, such as 2026-11-27T03:00Z", task.Quote(v))
		}
		t.values[i] = at.Format(queryMinute)
	}

	return nil
}

// parseMinute parses a minute.
func parseMinute(text string) (at time.Time, ok bool) {
	for _, layout := range []string{queryMinute, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), at.Truncate(time.Minute).Equal(at)
		}
	}

	return time.Time{}, false
}

// matchTicks returns the matcher of tick:MINUTE: whether the task has a tick that may fall due in this minute. Of a schedule
// that combines @every with other expressions, only the next tick and those of the others are known.
func matchTicks(t *queryTerm) matcher {
	minutes := make([]int64, len(t.values))
	for i, v := range t.values {
		at, _ := parseMinute(v) // parseTicks has accepted it
		minutes[i] = at.UnixMilli()
	}

	return func(r *Row, _ int64) verdict {
		if r.Schedule == nil || r.Next == 0 {
			return fails
		}

		result := fails
		for _, from := range minutes {
			switch due, known := r.Schedule.MayFallDue(r.Next, from, from+minuteMS); {
			case due:
				return holds
			case !known:
				result = unknown
			}
		}

		return result
	}
}
