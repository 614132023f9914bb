package overview

import (
	"cmp"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// SortAlerts sorts alerts as people need them: open ones before closed ones; of the open ones, the most severe first, and of equal
// ones, the newest; of the closed ones, those that were closed last.
func SortAlerts(list []task.AlertStatus) {
	rank := func(a *task.AlertStatus) int { return slices.Index(task.AlertSeverities(), a.Severity) }

	slices.SortStableFunc(list, func(a, b task.AlertStatus) int {
		byName := strings.Compare(a.FullName(), b.FullName())
		switch {
		case a.IsOpen() && b.IsOpen():
			return cmp.Or(cmp.Compare(rank(&a), rank(&b)), b.Since.Compare(a.Since.Time), byName)
		case a.IsOpen():
			return -1
		case b.IsOpen():
			return 1
		}

		return cmp.Or(b.Closed.At.Compare(a.Closed.At.Time), byName)
	})
}

// SeveritiesText says how many alerts of each severity are open, the most severe first: "1 critical, 2 error". It is "" if none is.
func SeveritiesText(bySeverity map[string]int) string {
	var words []string
	for _, severity := range task.AlertSeverities() {
		if n := bySeverity[severity]; n > 0 {
			words = append(words, wording.Grouped(n)+" "+severity)
		}
	}

	return strings.Join(words, ", ")
}
