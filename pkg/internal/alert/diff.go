package alert

import (
	"cmp"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Receiver is what Diff has to know about a receiver.
type Receiver struct {
	UID    string        // of its task
	For    time.Duration // only alerts that have been open for so long are sent
	Repeat time.Duration // open alerts are sent again after this time; 0: never
	// RepeatAll also sends again what is acknowledged.
	RepeatAll bool
	Group     string // task.GroupTask: a run for each alert, instead of one for all
	Held      bool   // it is paused or frozen, and gets no messages
}

// hasEach reports whether each alert has a run of its own.
func (r *Receiver) hasEach() bool { return r.Group == task.GroupTask }

// Addressed is an alert for a receiver.
type Addressed struct {
	Key      uint64 // KeyOf
	Alert    *task.Alert
	Silenced bool
}

// Input is what Diff decides from. Alerts, silences and Sent are those of one revision.
type Input struct {
	Limits   Limits
	Now      time.Time
	Revision int64
	Receiver Receiver
	Sent     task.AlertsSent
	// Ended says for each run of Sent.Sending whether it has succeeded. It is nil until all of them have ended.
	Ended  []bool
	Alerts []Addressed
}

// Decision is what follows for a receiver. If Write is set, Sent has to be written, with the runs of Sent.Sending if Message is set.
type Decision struct {
	Sent    task.AlertsSent
	Write   bool
	Message bool // Sent.Sending is a new message, whose Runs the caller sets
	Runs    int  // how many runs the message has

	// Opened, Closed and Repeated are the keys of the new message, the newest first. Closed also has keys of alerts that are
	// gone or no longer addressed to the receiver.
	Opened, Closed, Repeated []uint64
	// Due is how many alerts are due, if the receiver is held.
	Due int
	// NoRoom is how many openings of a group are due that the receiver is not told of, because it knows of Limits.Keys alerts.
	NoRoom int
}

// Diff decides what follows for one receiver: whether a message has been delivered, and what the next one contains.
//
//   - A receiver has one message at a time. While its runs have not ended, nothing follows.
//   - What a message has told is delivered if its run has succeeded. Otherwise it is uncertain, because a run may have failed after
//     the receiver had got it. What is uncertain is told again. After a failure, the message is plain, so that a text that
//     the receiver rejects blocks nothing.
//   - An alert that has opened is told when it has been open for a while, unless it is silenced. One that has closed is told
//     when it has been closed for a while, and at once if its record is gone.
//   - If more alerts are delivered than the record may contain, older ones count as delivered by their IDs and their last openings
//     (AlertsSent.Horizon). Those that the receiver was not told of become uncertain then.
//
// A message of a group has a run for each alert, so that a service that keeps an incident for each can be told of it by its key. All
// of the above holds for its alerts one by one: what one run has told is delivered, and what another one has is uncertain. A group has
// no horizon, because each closing needs its key. Instead, it opens nothing more while its record is full.
func Diff(in *Input) Decision {
	s := in.Sent
	changed := false

	// Another task has the name now. It has been told nothing.
	if s.UID != in.Receiver.UID {
		changed = s.Mod != 0
		s = task.AlertsSent{UID: in.Receiver.UID, Group: in.Receiver.Group, Receiver: s.Receiver, Mod: s.Mod}
	}

	ids := make(map[uint64]int64, len(in.Alerts))
	open := 0
	for i := range in.Alerts {
		ids[in.Alerts[i].Key] = in.Alerts[i].Alert.ID
		if in.Alerts[i].Alert.IsOpen() {
			open++
		}
	}

	if s.Sending != nil {
		if in.Ended == nil {
			return Decision{Sent: in.Sent}
		}
		s = settle(s, in, ids)
		changed = true
	}

	// A message about several alerts opens no incident of each, and the other way round. So the receiver may believe either of what it
	// was told before its group changed.
	if s.Group != in.Receiver.Group {
		known, _ := keepNewest(addKeys(s.Delivered, s.Uncertain), ids, in.Limits.Keys)
		s.Group, s.Delivered, s.Uncertain = in.Receiver.Group, nil, known
		s.Horizon, s.HorizonAt, changed = 0, task.Time{}, true
	}

	// An outage is over when receivers are told of it, so nothing follows when its alert closes. But an incident has to be
	// resolved.
	for i := range in.Alerts {
		if a := &in.Alerts[i]; !in.Receiver.hasEach() && isPast(a.Alert) && hasKey(addKeys(s.Delivered, s.Uncertain), a.Key) {
			told := task.AlertKeys{a.Key}
			s.Delivered, s.Uncertain, changed = removeKeys(s.Delivered, told), removeKeys(s.Uncertain, told), true
		}
	}

	// Few are open again, so all of them can be in Delivered. Those that only counted as delivered are told once more.
	if s.Horizon != 0 && open <= in.Limits.Keys/2 {
		s.Horizon, s.HorizonAt, changed = 0, task.Time{}, true
	}

	d := Decision{Sent: s, Write: changed}
	opened, repeated := dueOpenings(in, &s)
	closed := dueClosings(in, &s)
	if in.Receiver.hasEach() {
		opened, d.NoRoom = keepRoom(&s, opened, in.Limits.Keys)
	}

	switch {
	case len(opened)+len(closed)+len(repeated) == 0:
	case in.Receiver.Held:
		d.Due = len(opened) + len(closed)
	case in.Limits.mayWrite(&s, in.Now, !in.Receiver.hasEach() || haveFailed(&s, opened, closed, repeated)):
		d.writeMessage(in, opened, closed, repeated)
	}

	return d
}

// isPast reports whether an alert is about an outage, and closed.
func isPast(a *task.Alert) bool {
	return a.Kind == task.AlertCluster && a.Code == task.WarnOutage && !a.IsOpen()
}

// writeMessage makes a message of what is due.
func (d *Decision) writeMessage(in *Input, opened, closed, repeated []*Addressed) {
	m := &task.AlertMessage{Revision: in.Revision, At: task.At(in.Now)}
	if d.Runs = 1; in.Receiver.hasEach() {
		opened, closed, repeated = pickRuns(&d.Sent, opened, closed, repeated, in.Limits.Runs)
		d.Runs = len(closed) + len(opened) + len(repeated)

		if n := len(repeated); n > 0 {
			// The first of a round follows the last one of all.
			if repeated[0].Key <= d.Sent.RepeatedTo || d.Sent.RepeatedAt.IsZero() {
				d.Sent.RepeatedAt = m.At
			}
			d.Sent.RepeatedTo = repeated[n-1].Key
		}
	} else if n := in.Limits.Keys; len(opened) > n {
		// The oldest ones are only counted.
		told := sortedKeys(keysOf(opened))
		for _, a := range opened[n:] {
			m.Horizon, m.HorizonAt = raisedTo(m.Horizon, m.HorizonAt, a.Alert)
		}
		opened = opened[:n]

		d.Sent.Uncertain = addUntold(in, d.Sent.Uncertain, m.Horizon, m.HorizonAt, func(a *Addressed) bool {
			return hasKey(told, a.Key) || isDelivered(&d.Sent, a)
		})
	}

	d.Opened, d.Closed, d.Repeated = keysOf(opened), keysOf(closed), keysOf(repeated)
	m.Opened, m.Closed, m.Repeats = sortedKeys(d.Opened), sortedKeys(d.Closed), len(repeated) > 0
	if in.Receiver.hasEach() {
		m.Opened = addKeys(m.Opened, d.Repeated)
		m.Named = addKeys(m.Opened, m.Closed)
	} else {
		m.Plain = d.Sent.FailedInARow > 0
	}

	d.Message, d.Write = true, true
	d.Sent.Sending, d.Sent.Recent = m, in.Limits.recent(&d.Sent, in.Now)+1
}

// keepPast is how many messages AlertsSent.Past contains.
const keepPast = 10

// settle returns the record after the runs of its message have ended.
func settle(s task.AlertsSent, in *Input, ids map[uint64]int64) task.AlertsSent {
	m, before := *s.Sending, s
	for i, ok := range in.Ended {
		opened, closed := ofRun(&m, i)
		if ok {
			s.Delivered = addKeys(removeKeys(s.Delivered, closed), opened)
			s.Uncertain = removeKeys(removeKeys(s.Uncertain, closed), opened)
		} else {
			s.Uncertain = addKeys(addKeys(s.Uncertain, closed), opened)
		}
	}

	// A message of a group that has delivered something shows that the receiver answers.
	m.Failed = slices.Contains(in.Ended, false)
	if m.Failed && (s.Group != task.GroupTask || !slices.Contains(in.Ended, true)) {
		if s.FailedInARow == 0 {
			s.FailingSince = m.At
		}
		// Only retries make the next retry come later.
		isRetry := len(removeKeys(addKeys(m.Opened, m.Closed), before.Uncertain)) == 0
		if s.FailedInARow == 0 || s.Group != task.GroupTask || isRetry {
			s.FailedInARow++
		}
	} else {
		s.FailedInARow, s.FailingSince = 0, task.Time{}
		s.Horizon, s.HorizonAt = max(s.Horizon, m.Horizon), laterOf(s.HorizonAt, m.HorizonAt)
		if m.Repeats && s.Group != task.GroupTask {
			s.RepeatedAt = m.At
		}
	}
	if slices.Contains(in.Ended, true) {
		s.LastDelivered = task.At(in.Now)
	}

	// The receiver was told of all that is left out of Delivered here, so it counts as delivered as long as it is open.
	told := s.Delivered
	var left task.AlertKeys
	s.Delivered, left = keepNewest(s.Delivered, ids, in.Limits.Keys)
	for i := range in.Alerts {
		if a := &in.Alerts[i]; hasKey(left, a.Key) {
			s.Horizon, s.HorizonAt = raisedTo(s.Horizon, s.HorizonAt, a.Alert)
		}
	}

	// The horizon may have passed alerts that the receiver was not told of: they were silenced, or not yet due.
	if s.Horizon != before.Horizon || s.HorizonAt != before.HorizonAt {
		s.Uncertain = addUntold(in, s.Uncertain, s.Horizon, s.HorizonAt, func(a *Addressed) bool {
			return hasKey(told, a.Key) || isDelivered(&before, a) || !m.Failed && isBelow(a.Alert, m.Horizon, m.HorizonAt)
		})
	}

	s.Uncertain, _ = keepNewest(s.Uncertain, ids, in.Limits.Uncertain)

	// Of past messages, the record has only the alerts that they named.
	named := removeKeys(m.Named, m.Closed)
	m.Opened, m.Closed, m.Named = named, removeKeys(m.Named, named), nil

	s.Past = append([]task.AlertMessage{m}, s.Past[:min(len(s.Past), keepPast-1)]...)
	s.Sending = nil

	return s
}

// isBelow reports whether an alert has an ID up to a horizon, and has last opened by its time.
func isBelow(a *task.Alert, horizon int64, at task.Time) bool {
	return a.ID <= horizon && !a.OpenedAt.After(at.Time)
}

// raisedTo returns the lowest horizon that is not below another one, and that has an alert below it.
func raisedTo(horizon int64, at task.Time, a *task.Alert) (int64, task.Time) {
	return max(horizon, a.ID), laterOf(at, a.OpenedAt)
}

func laterOf(a, b task.Time) task.Time {
	if b.After(a.Time) {
		return b
	}
	return a
}

// isDelivered reports whether the receiver knows that an open alert is open.
func isDelivered(s *task.AlertsSent, a *Addressed) bool {
	return (hasKey(s.Delivered, a.Key) || isBelow(a.Alert, s.Horizon, s.HorizonAt)) && !hasKey(s.Uncertain, a.Key)
}

// addUntold adds to the uncertain alerts those that are open and below a horizon, although the receiver was not told of them. An
// alert that opens later is not below the horizon, because that has the time of an opening.
func addUntold(in *Input, uncertain task.AlertKeys, horizon int64, at task.Time, isTold func(*Addressed) bool) task.AlertKeys {
	var untold []uint64
	for i := range in.Alerts {
		if a := &in.Alerts[i]; a.Alert.IsOpen() && isBelow(a.Alert, horizon, at) && !isTold(a) {
			untold = append(untold, a.Key)
		}
	}

	return addKeys(uncertain, untold)
}

// dueOpenings returns the alerts whose opening is due, and those that are due to be repeated, the newest first.
func dueOpenings(in *Input, s *task.AlertsSent) (opened, repeated []*Addressed) {
	repeat := false
	for i := range in.Alerts {
		a := &in.Alerts[i]
		if !a.Alert.IsOpen() || a.Silenced {
			continue
		}

		delivered := isDelivered(s, a)
		switch {
		case !delivered && hasElapsed(a.Alert.OpenedAt, in.Receiver.For, in.Now):
			opened = append(opened, a)
		case delivered && in.Receiver.Repeat > 0 && (a.Alert.Acknowledged == nil || in.Receiver.RepeatAll):
			isOld := hasElapsed(a.Alert.OpenedAt, in.Receiver.Repeat, in.Now)
			if isOld || !in.Receiver.hasEach() {
				repeated = append(repeated, a)
			}
			repeat = repeat || isOld
		}
	}

	if in.Receiver.hasEach() {
		slices.SortFunc(opened, newerOpening)
		return opened, dueInRound(s, repeated, in)
	}

	// One message repeats all of them, so that alerts that opened at different times do not each cause one.
	if !repeat || !hasElapsed(s.RepeatedAt, in.Receiver.Repeat, in.Now) {
		repeated = nil
	}

	slices.SortFunc(opened, newerOpening)
	slices.SortFunc(repeated, newerOpening)

	return opened, repeated
}

// dueClosings returns the alerts whose closing is due, the newest first, then those that are gone.
func dueClosings(in *Input, s *task.AlertsSent) (closed []*Addressed) {
	known := addKeys(s.Delivered, s.Uncertain)
	if len(known) == 0 {
		return nil
	}

	present := make(task.AlertKeys, 0, len(in.Alerts))
	for i := range in.Alerts {
		a := &in.Alerts[i]
		present = append(present, a.Key)
		if !a.Alert.IsOpen() && hasKey(known, a.Key) && hasElapsed(a.Alert.Closed.At, in.Limits.holdOf(a.Alert), in.Now) {
			closed = append(closed, a)
		}
	}
	slices.SortFunc(closed, func(a, b *Addressed) int {
		return cmp.Or(b.Alert.Closed.At.Compare(a.Alert.Closed.At.Time), cmp.Compare(a.Key, b.Key))
	})

	for _, key := range removeKeys(known, sortedKeys(present)) {
		closed = append(closed, &Addressed{Key: key})
	}

	return closed
}

// newerOpening orders alerts by their last opening, the newest first.
func newerOpening(a, b *Addressed) int {
	return cmp.Or(b.Alert.OpenedAt.Compare(a.Alert.OpenedAt.Time), cmp.Compare(b.Alert.ID, a.Alert.ID), cmp.Compare(a.Key, b.Key))
}

// Sets of keys are sorted, as in records.

func hasKey(set task.AlertKeys, key uint64) bool {
	_, found := slices.BinarySearch(set, key)
	return found
}

// sortedKeys returns a set with these keys.
func sortedKeys(keys []uint64) task.AlertKeys {
	set := slices.Clone(keys)
	slices.Sort(set)

	return slices.Compact(set)
}

// addKeys returns the union of two sets. It does not modify them.
func addKeys(set, more task.AlertKeys) task.AlertKeys {
	if len(more) == 0 {
		return set
	}
	return sortedKeys(slices.Concat(set, more))
}

// removeKeys returns a set without the keys of another one. It does not modify them.
func removeKeys(set, gone task.AlertKeys) task.AlertKeys {
	if len(set) == 0 || len(gone) == 0 {
		return set
	}
	return slices.DeleteFunc(slices.Clone(set), func(key uint64) bool { return hasKey(gone, key) })
}

// keepNewest returns at most as many keys of a set, those with the highest IDs, and the others.
func keepNewest(set task.AlertKeys, ids map[uint64]int64, most int) (kept, left task.AlertKeys) {
	if len(set) <= most {
		return set, nil
	}

	byID := slices.SortedFunc(slices.Values(set), func(a, b uint64) int {
		return cmp.Or(cmp.Compare(ids[b], ids[a]), cmp.Compare(a, b))
	})

	return sortedKeys(byID[:most]), sortedKeys(byID[most:])
}

// keysOf returns the keys of alerts in their order.
func keysOf(list []*Addressed) []uint64 {
	keys := make([]uint64, len(list))
	for i, a := range list {
		keys[i] = a.Key
	}

	return keys
}
