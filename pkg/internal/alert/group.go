package alert

import (
	"cmp"
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// A message of a group has a run for each alert, see Diff.

// keepRoom returns the openings of a group for which its record has room, and how many there are in addition.
func keepRoom(s *task.AlertsSent, opened []*Addressed, most int) (kept []*Addressed, noRoom int) {
	known := addKeys(s.Delivered, s.Uncertain)
	room := most - len(known)
	for _, a := range opened {
		switch {
		case hasKey(known, a.Key):
		case room <= 0:
			noRoom++
			continue
		default:
			room--
		}
		kept = append(kept, a)
	}

	return kept, noRoom
}

// pickRuns returns what the next message of a group tells, at most so many alerts: closings first, then openings, then what is sent
// again. What has failed before comes last, has at most half of the runs as long as others need them, and takes turns. So an alert that
// the service rejects delays no other one.
func pickRuns(s *task.AlertsSent, opened, closed, repeated []*Addressed, most int) (opens, closes, repeats []*Addressed) {
	isUntried := func(a *Addressed) bool { return !hasKey(s.Uncertain, a.Key) }
	var untried, failed []*Addressed
	for _, a := range slices.Concat(closed, opened) {
		if isUntried(a) {
			untried = append(untried, a)
		} else {
			failed = append(failed, a)
		}
	}

	// Past has the newest message untried.
	lastTold := func(a *Addressed) int {
		i := slices.IndexFunc(s.Past, func(m task.AlertMessage) bool { return hasKey(m.Opened, a.Key) || hasKey(m.Closed, a.Key) })
		if i < 0 {
			return len(s.Past)
		}
		return i
	}
	slices.SortStableFunc(failed, func(a, b *Addressed) int { return cmp.Compare(lastTold(b), lastTold(a)) })

	untried = untried[:min(len(untried), most-min(len(failed), most/2))]
	failed = failed[:min(len(failed), most-len(untried))]

	for _, a := range slices.Concat(untried, failed) {
		if a.Alert != nil && a.Alert.IsOpen() {
			opens = append(opens, a)
		} else {
			closes = append(closes, a)
		}
	}

	return opens, closes, repeated[:min(len(repeated), most-len(untried)-len(failed))]
}

// dueInRound returns which alerts of a group are due to be sent again. Few of them fit into a message, so a round sends them in the order of
// their keys. The next round begins when this one is complete and the time for it has come.
func dueInRound(s *task.AlertsSent, old []*Addressed, in *Input) []*Addressed {
	slices.SortFunc(old, func(a, b *Addressed) int { return cmp.Compare(a.Key, b.Key) })

	next, _ := slices.BinarySearchFunc(old, s.RepeatedTo, func(a *Addressed, key uint64) int {
		if a.Key <= key {
			return -1
		}
		return 1
	})
	if next == len(old) && hasElapsed(s.RepeatedAt, in.Receiver.Repeat, in.Now) {
		next = 0
	}

	return old[next:]
}

// ofRun returns what the i-th run of a message has told.
func ofRun(m *task.AlertMessage, i int) (opened, closed task.AlertKeys) {
	switch n := len(m.Closed); {
	case len(m.Runs) == 1:
		return m.Opened, m.Closed
	case i < n:
		return nil, m.Closed[i : i+1]
	case i-n < len(m.Opened):
		return m.Opened[i-n : i-n+1], nil
	}

	return nil, nil
}

// haveFailed reports whether the receiver was told of all these alerts before, by runs that have failed.
func haveFailed(s *task.AlertsSent, lists ...[]*Addressed) bool {
	return !slices.ContainsFunc(slices.Concat(lists...), func(a *Addressed) bool { return !hasKey(s.Uncertain, a.Key) })
}
