// Package listcheck judges lists of tasks that the owners of shards have answered (G30): a list is never wrong and
// complete at once. It compares what an observer was shown with the history of etcd.
//
// A list says as of when it contains all changes, and it was shown a little later. Whatever is between the two may be
// in the list or not. So for each task there are two answers: whether it belonged in the list at some time in this
// window (possibly), and whether it did at all times (certainly).
//
//   - Each row is a task that possibly belongs in the list, and is of a shard that answers.
//   - The count is at least the number of tasks that certainly belong in the list, and at most the number of those
//     that possibly do, without the tasks of the shards that are named as missing.
//   - All tasks that certainly belong in the list are on it, up to its last row, or all if there is no next page.
//   - The pages of a list by name contain each task at most once, and each that certainly belongs there.
//
// While the owners still read how runs have ended before, a list of failing tasks may lack some, but has no others.
//
// The observer may report when a watch has delivered something late. An owner knows when it has last received
// something, but not how long that was under way. For such a moment, the window begins earlier by this delay.
package listcheck

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
)

// Promise is the number of the guarantee that the violations name.
const Promise = "G30"

// Filter selects the tasks of a list.
type Filter string

// The filters.
const (
	All     Filter = "all"
	Paused  Filter = "paused"
	Failing Filter = "failing"
)

// List is a page of a list that an observer was shown. All times are of the observer's clock.
type List struct {
	Asker  string // who asked, for messages
	Filter Filter
	ByName bool   // the list is sorted by name
	After  string // with ByName: the page contains only names after this one
	Asked  time.Time
	Shown  time.Time

	// What the list says.
	AsOf       time.Time // the list contains all changes up to this time
	Count      int       // on all pages together
	Missing    []int     // shards whose tasks are not in the list
	Collecting bool      // the owners still read how runs have ended before
	Names      []string  // namespace/name of each row
	More       bool      // another page follows
}

// resolution is by how much the times of a list may be wrong, because it contains them in milliseconds.
const resolution = time.Millisecond

// window is the time between as of when a list is and when it was shown.
type window struct{ from, to time.Time }

// windowOf returns the window of a list.
func (h *History) windowOf(l *List) window {
	w := window{l.AsOf.Add(-resolution), l.Shown}
	w.from = w.from.Add(-h.delayIn(w))

	return w
}

// CheckList returns how a list contradicts the history.
func (h *History) CheckList(l *List) (violations []check.Violation) {
	report := func(format string, args ...any) {
		violations = append(violations, check.Violation{Promise: Promise, Revision: h.revisionAt(l.Shown), Message: fmt.Sprintf(
			"%s asked for %s tasks at %s, after %q, and was shown at %s a list as of %s: ", l.Asker, l.Filter, clockTime(l.Asked), l.After, clockTime(l.Shown), clockTime(l.AsOf)) +
			fmt.Sprintf(format, args...) + fmt.Sprintf("; count %d, more %t, rows %v", l.Count, l.More, l.Names)})
	}

	if l.ByName && !slices.IsSortedFunc(l.Names, strings.Compare) {
		report("it is not sorted by name: %v", l.Names)
	}

	shown := map[string]bool{}
	for _, name := range l.Names {
		if shown[name] {
			report("it contains %s twice", name)
		}
		if l.ByName && name <= l.After {
			report("it contains %s, which is on an earlier page", name)
		}
		shown[name] = true
	}

	w := h.windowOf(l)
	least, most := 0, 0
	for _, t := range h.tasks {
		certainly, possibly := t.belongsToList(l, w)
		missing := slices.Contains(l.Missing, t.shard)

		switch {
		case shown[t.name] && missing:
			report("it contains %s, although it says that shard %d is missing", t.name, t.shard)
		case shown[t.name] && !possibly:
			report("it contains %s, which did not belong there", t.name)
		case !shown[t.name] && !missing && certainly && l.mustContain(t.name):
			report("%s of shard %d is not on it, and only the shards %v are missing", t.name, t.shard, l.Missing)
		}

		delete(shown, t.name)

		if missing {
			continue
		}
		if certainly {
			least++
		}
		if possibly {
			most++
		}
	}

	for name := range shown {
		report("it contains %s, which never existed", name)
	}

	if l.Count < least || l.Count > most {
		report("it counts %d tasks without the shards %v, want %d to %d", l.Count, l.Missing, least, most)
	}

	return violations
}

// mustContain reports whether a page must contain a task that certainly belongs in the list.
func (l *List) mustContain(name string) bool {
	switch {
	case l.ByName && name <= l.After:
		return false
	case !l.More:
		return true
	}

	return l.ByName && len(l.Names) > 0 && name <= l.Names[len(l.Names)-1]
}

// CheckWalk returns how the pages of a list by name, from the first one to the last one, contradict the history: each
// task that certainly belonged into the list all the time is on exactly one page, and no task is on two. CheckWalk does
// not judge the pages one by one.
func (h *History) CheckWalk(pages []List) (violations []check.Violation) {
	last := &pages[len(pages)-1]
	whole := List{Asker: last.Asker, Filter: last.Filter, Asked: pages[0].Asked, Shown: last.Shown, AsOf: pages[0].AsOf}

	var names []string
	for i := range pages {
		names = append(names, pages[i].Names...)
		whole.Missing = append(whole.Missing, pages[i].Missing...)
		whole.Collecting = whole.Collecting || pages[i].Collecting
		if pages[i].AsOf.Before(whole.AsOf) {
			whole.AsOf = pages[i].AsOf
		}
	}

	report := func(format string, args ...any) {
		violations = append(violations, check.Violation{Promise: Promise, Revision: h.revisionAt(last.Shown), Message: fmt.Sprintf(
			"%s read %d pages of %s tasks from %s to %s: ", whole.Asker, len(pages), whole.Filter, clockTime(whole.Asked), clockTime(whole.Shown)) + fmt.Sprintf(format, args...)})
	}

	slices.Sort(names)
	for i := 1; i < len(names); i++ {
		if names[i] == names[i-1] {
			report("%s is on two pages", names[i])
		}
	}

	w := h.windowOf(&whole)
	for _, t := range h.tasks {
		certainly, _ := t.belongsToList(&whole, w)
		_, found := slices.BinarySearch(names, t.name)
		if certainly && !found && !slices.Contains(whole.Missing, t.shard) {
			report("%s is on none of them", t.name)
		}
	}

	return violations
}

// belongsToList returns whether a task belongs in a list at all times of a window, and whether it does at some time.
func (t *taskHistory) belongsToList(l *List, w window) (certainly, possibly bool) {
	// The version in force when the window begins. One that begins just then counts together with the one before:
	// nobody knows the order of what happens at the same time.
	first, _ := slices.BinarySearchFunc(t.versions, w.from, func(v version, at time.Time) int { return v.since.Compare(at) })
	if certainly = first > 0; certainly {
		first--
	}

	for _, v := range t.versions[first:] {
		if v.since.After(w.to) {
			break
		}

		must, may := v.belongsToList(l, w)
		certainly, possibly = certainly && must, possibly || may
	}

	return certainly && possibly, possibly
}

// belongsToList returns whether a version of a task must be in a list, and whether it may be.
func (v *version) belongsToList(l *List, w window) (must, may bool) {
	switch {
	case !v.exists:
		return false, false
	case l.Filter == Paused:
		// Nothing is written when a pause ends by itself.
		lasts := func(at time.Time) bool { return v.pausedUntil.IsZero() || v.pausedUntil.After(at) }
		return v.paused && lasts(w.to), v.paused && lasts(w.from)
	case l.Filter == Failing:
		return v.failing && !l.Collecting, v.failing
	}

	return true, true
}

// delayIn returns by how much the watches were late that have delivered something in a window.
func (h *History) delayIn(w window) (longest time.Duration) {
	first, _ := slices.BinarySearchFunc(h.delays, w.from, func(d Delay, at time.Time) int { return d.At.Compare(at) })
	for _, d := range h.delays[first:] {
		if d.At.After(w.to) {
			break
		}
		longest = max(longest, d.By)
	}

	return longest
}

// revisionAt returns the newest revision at a time.
func (h *History) revisionAt(at time.Time) int64 {
	i, _ := slices.BinarySearchFunc(h.written, at, func(r revisionTime, at time.Time) int { return cmp.Or(r.at.Compare(at), -1) })
	if i == 0 {
		return 0
	}

	return h.written[i-1].revision
}

func clockTime(t time.Time) string { return t.UTC().Format("15:04:05.000") }
