package readmodel

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// watchMark is what an Index keeps of a task with expectations, in 4 bytes: a number that stands for the expectations, and for
// how long there has been no verdict about them. 0: nothing is expected of the task.
type watchMark uint32

const (
	maxWaiting  = 0x7f // minutes
	unknownMark = 0x80 // WatchedRow.Unknown
	numberShift = 8
)

// watches are the expectations of the tasks of an Index, by number. Many tasks have the same. A number is one more than an index
// in list.
type watches struct {
	list    []sharedAlerts
	numbers map[*task.Alerts]uint32
	free    []uint32
	tasks   int // with expectations
	rules   Rules
}

// Rules says what is expected of tasks that do not say so themselves.
type Rules interface {
	// AlertsOf returns what is expected of a task; nil: nothing. It is the same pointer while that does not change.
	AlertsOf(namespace string, labels map[string]string) *task.Alerts
}

// sharedAlerts are the expectations of some tasks.
type sharedAlerts struct {
	alerts *task.Alerts
	byRule bool // a rule expects it, not the task
	tasks  int  // 0: the number is free
}

// alertsOf returns the expectations of a task, or nil.
func (w *watches) alertsOf(m watchMark) *task.Alerts {
	if m == 0 {
		return nil
	}
	return w.list[m>>numberShift-1].alerts
}

// ofRule returns what a rule expects of the task with a row; nil: nothing.
func (w *watches) ofRule(r *Row) *task.Alerts {
	if w.rules == nil || r.Name == "" || r.Flags.Has(Gone) {
		return nil
	}
	namespace, _, _ := strings.Cut(r.Name, "/")

	return w.rules.AlertsOf(namespace, r.Labels)
}

// add counts a task with expectations, and returns its mark.
func (w *watches) add(a *task.Alerts, byRule bool) watchMark {
	number, known := w.numbers[a]
	if !known {
		if n := len(w.free); n > 0 {
			number, w.free = w.free[n-1], w.free[:n-1]
		} else {
			w.list = append(w.list, sharedAlerts{})
			number = uint32(len(w.list))
		}

		if w.numbers == nil {
			w.numbers = map[*task.Alerts]uint32{}
		}
		w.numbers[a], w.list[number-1] = number, sharedAlerts{alerts: a, byRule: byRule}
	}

	w.list[number-1].tasks++
	w.tasks++

	return watchMark(number << numberShift)
}

// remove removes a task with a mark.
func (w *watches) remove(m watchMark) {
	number := uint32(m >> numberShift)
	shared := &w.list[number-1]
	w.tasks--

	if shared.tasks--; shared.tasks == 0 {
		delete(w.numbers, shared.alerts)
		shared.alerts = nil
		w.free = append(w.free, number)
	}
}

// setWatch sets what is expected of the task in a slot, before its row becomes r. If its ticks or its expectations may have changed, it
// must be judged again.
func (in *Index) setWatch(slot int32, r *Row, alerts *task.Alerts, byRule bool) {
	c, i := in.chunks[slot/chunkRows], slot%chunkRows
	if c.watched == nil && alerts == nil {
		return
	}

	if c.watched == nil {
		c.watched = new([chunkRows]watchMark)
	}

	mark, row := &c.watched[i], &c.rows[i]
	was := in.watches.alertsOf(*mark)
	if was == alerts && row.Schedule == r.Schedule && row.Flags&Paused == r.Flags&Paused {
		return
	}

	c.setJudgeAt(i, 0)
	if was == alerts {
		return
	}

	if was != nil {
		in.watches.remove(*mark)
		*mark = 0
	}
	if alerts != nil {
		*mark = in.watches.add(alerts, byRule)
	}
}

// JudgeAgain requests that the task in a slot is judged at the next visit, because its entry has changed.
func (in *Index) JudgeAgain(slot int32) {
	in.mu.Lock()
	defer in.mu.Unlock()

	in.chunks[slot/chunkRows].setJudgeAt(slot%chunkRows, 0)
}

// SetRules sets what is expected of tasks that do not say so themselves. nil: nothing. The rules must not change afterwards.
func (in *Index) SetRules(rules Rules) {
	in.mu.Lock()
	in.watches.rules = rules
	in.mu.Unlock()

	for from := int32(0); in.applyRules(from); from += chunkRows {
	}
}

// applyRules applies the rules to the rows of the chunk that begins at a slot. It returns false if there is none.
func (in *Index) applyRules(from int32) bool {
	in.mu.Lock()
	defer in.mu.Unlock()

	if int(from) >= in.used {
		return false
	}

	c := in.chunks[from/chunkRows]
	for i := range min(int32(in.used)-from, chunkRows) {
		if c.watched != nil {
			if m := c.watched[i]; m != 0 && !in.watches.list[m>>numberShift-1].byRule {
				continue // the task says so itself
			}
		}

		row := &c.rows[i]
		alerts := in.watches.ofRule(row)
		in.setWatch(from+i, row, alerts, true)
		if alerts == nil {
			row.Flags &^= AlertFlags
		}
	}

	return true
}

// setJudgeAt sets when to judge the task in a slot again. The memory for it is allocated when a task of the chunk needs it.
func (c *chunk) setJudgeAt(i int32, at uint32) {
	if c.judgeAt == nil {
		if at == 0 {
			return
		}
		c.judgeAt = new([chunkRows]uint32)
	}

	c.judgeAt[i] = at
}

// WatchedRow is the row of a task with expectations, for the evaluator of alerts, who may change the fields of the second group.
type WatchedRow struct {
	Slot   int32
	Row    *Row         // must not be changed or kept
	Alerts *task.Alerts // must not be changed

	// NotMet has the flags of the expectations that are not met (AlertFlags).
	NotMet Flags
	// JudgeAt is when an expectation may stop being met without a change of the row, in Unix seconds. It is 0 if the task has changed.
	JudgeAt uint32
	// Waiting is for how many minutes there has been no verdict, at most 127. Unknown is set if the records did not tell.
	Waiting uint8
	Unknown bool

	index *Index
}

// Runs returns the waiting and active runs of the task; nil: there are none. They must not be changed, but may be kept.
func (w *WatchedRow) Runs() *Runs {
	if w.index == nil {
		return nil
	}

	c := w.index.chunks[w.Slot/chunkRows]
	if !c.isDetailed(int(w.Slot % chunkRows)) {
		return nil
	}

	return w.index.details[w.Slot].Runs
}

// Watched returns of how many tasks something is expected.
func (in *Index) Watched() int {
	in.mu.RLock()
	defer in.mu.RUnlock()

	return in.watches.tasks
}

// EachWatched calls visit with the row of each task with expectations. visit must not block, and must not keep the row.
func (in *Index) EachWatched(visit func(w *WatchedRow)) {
	var w WatchedRow
	for from := int32(0); in.visitWatched(from, &w, visit); from += chunkRows {
	}
}

// visitWatched visits the tasks with expectations in the chunk that begins at a slot. It returns false if there is none. The
// visitor gets w, so that nothing is allocated for each row.
func (in *Index) visitWatched(from int32, w *WatchedRow, visit func(w *WatchedRow)) bool {
	in.mu.Lock()
	defer in.mu.Unlock()

	if int(from) >= in.used {
		return false
	}

	c := in.chunks[from/chunkRows]
	if c.watched == nil {
		return true
	}

	for i := range min(int32(in.used)-from, chunkRows) {
		if c.watched[i] != 0 {
			in.visitOne(c, i, from+i, w, visit)
		}
	}

	return true
}

// visitOne visits the task in a slot, which has expectations.
func (in *Index) visitOne(c *chunk, i, slot int32, w *WatchedRow, visit func(w *WatchedRow)) {
	row, mark := &c.rows[i], &c.watched[i]
	notMet, waiting, isUnknown, judgeAt := row.Flags&AlertFlags, uint8(*mark&maxWaiting), *mark&unknownMark != 0, uint32(0)
	if c.judgeAt != nil {
		judgeAt = c.judgeAt[i]
	}

	w.index, w.Slot, w.Row, w.Alerts = in, slot, row, in.watches.alertsOf(*mark)
	w.NotMet, w.JudgeAt, w.Waiting, w.Unknown = notMet, judgeAt, waiting, isUnknown
	visit(w)

	// Most visits change nothing. Then nothing is written, so that a scan of a million rows leaves them in the caches of others.
	if w.NotMet != notMet {
		row.Flags = row.Flags&^AlertFlags | w.NotMet&AlertFlags
	}
	if w.JudgeAt != judgeAt {
		c.setJudgeAt(i, w.JudgeAt)
	}
	if w.Waiting != waiting || w.Unknown != isUnknown {
		*mark = *mark>>numberShift<<numberShift | watchMark(min(w.Waiting, maxWaiting))
		if w.Unknown {
			*mark |= unknownMark
		}
	}
}

// ChangeWatched calls change with the row of a task with expectations. It returns false if the slot has another task by now, or one
// without expectations. NoSlot is allowed. change must not block, and must not keep the row.
func (in *Index) ChangeWatched(slot int32, name string, change func(w *WatchedRow)) bool {
	in.mu.Lock()
	defer in.mu.Unlock()

	if slot == NoSlot || int(slot) >= in.used {
		return false
	}

	c, i := in.chunks[slot/chunkRows], slot%chunkRows
	if c.watched == nil || c.watched[i] == 0 || c.rows[i].Name != name {
		return false
	}

	var w WatchedRow
	in.visitOne(c, i, slot, &w, change)

	return true
}
