package wording

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// ScheduleText returns the schedules of a task with the last part of the name of its zone, unless that is UTC.
func ScheduleText(s task.Spec) string {
	words := OneLine(strings.Join(s.Schedule, ", "))
	if s.Timezone == "" || s.Timezone == "UTC" {
		return words
	}
	return words + " " + strings.ReplaceAll(OneLine(s.Timezone[strings.LastIndex(s.Timezone, "/")+1:]), "_", " ")
}

// IsManual reports whether a task runs only when it is triggered.
func IsManual(s task.Spec) bool { return len(s.Schedule) == 1 && s.Schedule[0] == "@manual" }

// PausedBy names who has paused a task, or what: "ann", "after failures". It returns "" if that is not known.
func PausedBy(p *task.Pause) string {
	switch {
	case p == nil:
		return ""
	case p.By == task.PausedByFailures:
		return "after failures"
	}

	return OneLine(task.ActorName(p.By))
}
