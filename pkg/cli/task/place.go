package task

import (
	"cmp"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// placeWords describes on which nodes a task runs.
func placeWords(t task.Target) string {
	words := cmp.Or(t.Selector, "any node")

	switch t.Strategy {
	case task.StrategyAuto, "":
	case task.StrategyHash:
		words += ", by the hash of " + cmp.Or(t.Key, "its name")
	case task.StrategyFirst:
		words += ", the first of " + strings.Join(t.Order, ", ")
	default:
		words += ", " + t.Strategy
	}

	return words
}
