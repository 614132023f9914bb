package view

import (
	"fmt"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// NextText returns the end of a sentence that states when the task runs next.
func NextText(f *factory.Factory, t client.Task) string {
	var words string

	switch {
	case t.Paused:
		words = PausedText(f, t)
	case t.Next.IsZero():
		words = "no next tick"
		if IsManual(t.Spec) {
			words = "runs when triggered"
		} else if t.NoNext != "" {
			words = "no more ticks: " + t.NoNext
		}
	default:
		left := f.TimeLeft(t.Next)
		if left != "now" {
			left = "in " + left
		}
		words = fmt.Sprintf("next %s (%s)", f.DateTime(t.Next, t.Timezone), left)
	}

	return f.Plain(" · ") + words
}

// IsManual reports whether a task runs only when it is triggered.
func IsManual(s task.Spec) bool { return wording.IsManual(s) }

// PausedText describes a pause briefly enough for a list: "paused until 18:00 (ann)".
func PausedText(f *factory.Factory, t client.Task) string {
	words, by := "paused", wording.PausedBy(t.Pause)

	if !t.PausedUntil.IsZero() {
		words += " until " + soonText(f, t.PausedUntil, t.Timezone)
	}

	if by != "" {
		words += " (" + by + ")"
	}

	return words
}

// soonText formats a time in the task's zone, without the day if it is today.
func soonText(f *factory.Factory, t task.Time, timezone string) string {
	zone := f.Zone(timezone)
	if local, now := t.In(zone), f.Now().In(zone); f.TimeMode == output.TimeRelative && local.YearDay() == now.YearDay() && local.Year() == now.Year() {
		if local.Second() != 0 {
			return local.Format("15:04:05")
		}
		return local.Format("15:04")
	}

	return f.FutureTime(t, timezone)
}
