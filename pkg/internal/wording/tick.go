package wording

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// TickNote explains what is special about a tick's time, and why its run could not start as things are now.
func TickNote(o client.Occurrence) string {
	var words []string

	switch o.Note {
	case "":
	case schedule.NoteGap:
		words = append(words, "after a gap: the clocks go forward")
	case schedule.NoteFold:
		words = append(words, "in a fold: the clocks go back")
	default:
		words = append(words, OneLine(o.Note))
	}

	switch o.Obstacle {
	case "":
	case task.ReasonNamespace:
		words = append(words, "will fail: its namespace does not allow the task")
	case task.ReasonNoNode:
		words = append(words, "no matching node is available")
	case task.ReasonCount:
		words = append(words, "too few matching nodes are available")
	default:
		words = append(words, OneLine(o.Obstacle))
	}

	return strings.Join(words, "; ")
}
