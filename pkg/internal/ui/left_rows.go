package ui

import (
	"slices"
	"time"
)

// A viewer may still see a row that has left a list, because a held list keeps its rows until the viewer asks for the new
// ones. The page of a list therefore also has the rows that have left it, marked and with their present state. The script
// of the page drops those that its viewer does not see.
const (
	// leftKept is how long a list keeps a row that has left it, and mostLeft how many of them it keeps. Rows beyond these
	// limits are marked by the script, as they were last.
	leftKept = 2 * time.Minute
	mostLeft = 50
)

// leftRow is a row that has left a list.
type leftRow[T any] struct {
	item    T
	since   time.Time
	deleted bool // the item no longer exists
}

// leftRows returns the rows that have left a list: those that were shown before or had left it already, and are not shown
// now. The newest come first.
func leftRows[T any](now time.Time, before []T, left []leftRow[T], shown []T, keyOf func(T) string) []leftRow[T] {
	seen := make(map[string]bool, len(shown))
	for _, item := range shown {
		seen[keyOf(item)] = true
	}

	var all []leftRow[T]
	add := func(row leftRow[T]) {
		key := keyOf(row.item)
		if !seen[key] && now.Sub(row.since) < leftKept && len(all) < mostLeft {
			seen[key] = true
			all = append(all, row)
		}
	}
	for _, item := range before {
		add(leftRow[T]{item: item, since: now})
	}
	for _, row := range left {
		add(row)
	}

	return slices.Clip(all)
}
