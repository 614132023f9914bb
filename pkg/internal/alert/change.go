package alert

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// KeepClosed is how long a closed alert is kept. In this time it can open again, as the same alert.
const KeepClosed = 2 * time.Hour

// maxFormer is how many alerts of former tasks of its name an alert remembers.
const maxFormer = 2

// maxOpened is how many openings before the last one an alert remembers. Three within an hour show that it flaps.
const maxOpened = 2

// Change is a new version of the record of an alert.
type Change struct {
	Alert task.Alert
	// Opens is set if the alert opens, for the first time or again.
	Opens bool
	// Dead is a dead run that must be unchanged when the record is written; nil: none.
	Dead *Dead
	// Guard is a waiting or active run that must be unchanged; nil: none.
	Guard *Guard
}

// Decide returns the change of the record of an alert of a kind that follows from a verdict, or nil. current is the record; nil:
// there is none. The verdict must be that of the same evidence and record.
func Decide(e *Evidence, kind task.AlertKind, current *task.Alert, v Verdict, now time.Time) *Change {
	isOpen := current != nil && current.IsOpen()
	isFormer := isOpen && e.Entry != nil && current.UID != e.Entry.UID

	switch {
	case isUnreadable(current):
		return nil
	case isFormer:
		// The task was deleted and created again. The next evaluation judges the new one.
		return closed(current, now, task.AlertClose{Why: task.AlertDeleted})
	case isOpen && v.State == NotExpected:
		return closed(current, now, task.AlertClose{Why: v.Why, By: v.By})
	case isOpen && v.State == Met:
		return e.closeMet(kind, current, v, now)
	case isOpen && v.State != Unknown:
		return e.rewrite(current)
	case !isOpen && v.State == NotMet:
		return e.open(kind, current, v, now)
	}

	return nil
}

// open returns the opening of an alert.
func (e *Evidence) open(kind task.AlertKind, current *task.Alert, v Verdict, now time.Time) *Change {
	a := task.Alert{
		Namespace: e.Namespace, Task: e.Task, Kind: kind, UID: e.Entry.UID,
		OpenedAt: task.At(now), Since: task.At(earlier(v.Since, now)), Run: v.Run, Failures: v.Failures, Deadline: task.At(v.Deadline), Base: v.Base,
		Notify: e.receivers(), Labels: e.labels(), Rule: e.rule(), Openings: 1,
	}
	if v.Since.IsZero() {
		a.Since = a.OpenedAt
	}

	if current == nil {
		return &Change{Alert: a, Opens: true, Dead: v.Dead, Guard: v.Guard}
	}

	a.ID, a.Mod = current.ID, current.Mod
	a.Former = slices.DeleteFunc(slices.Clone(current.Former), func(f task.FormerAlert) bool { return now.Sub(f.Closed.At.Time) >= KeepClosed })
	if current.UID == a.UID {
		CountOpening(&a, current)
	} else if current.UID != "" {
		// The former alert has another key. Without it, an incident that a receiver has opened with that key would stay open.
		a.Former = append(a.Former, task.FormerAlert{UID: current.UID, Since: current.Since, Closed: *current.Closed})
		a.Former = a.Former[max(0, len(a.Former)-maxFormer):]
	}

	return &Change{Alert: a, Opens: true, Dead: v.Dead, Guard: v.Guard}
}

// CountOpening counts the opening of an alert that was open before, as current.
func CountOpening(a, current *task.Alert) {
	a.Openings = current.Openings + 1
	a.Opened = append(slices.Clone(current.Opened), current.OpenedAt)
	a.Opened = a.Opened[max(0, len(a.Opened)-maxOpened):]
}

// FormerOf returns the alerts of former tasks whose record an alert has taken. All of them are closed.
func FormerOf(a *task.Alert) []task.Alert {
	list := make([]task.Alert, len(a.Former))
	for i, f := range a.Former {
		list[i] = task.Alert{
			ID: a.ID, Mod: a.Mod, Namespace: a.Namespace, Task: a.Task, Kind: a.Kind, UID: f.UID,
			Since: f.Since, OpenedAt: f.Since, Closed: &f.Closed, Notify: a.Notify, Labels: a.Labels,
		}
	}

	return list
}

// closeMet returns the closing of an alert whose expectation is met, or nil if it has to wait. Without a success, there are no
// failed runs any more because somebody dismissed them, or because somebody started them again: then a run is active or waiting, and
// its end decides.
func (e *Evidence) closeMet(kind task.AlertKind, current *task.Alert, v Verdict, now time.Time) *Change {
	c := task.AlertClose{Why: cmp.Or(v.Why, task.AlertSucceeded), By: v.By, Run: v.Run, Failures: v.Failures}
	if v.Success != nil {
		c.Run = v.Success.ID
	}

	if kind == task.AlertFailures && v.Base <= current.Base {
		if !e.Idle {
			return e.rewrite(current)
		}
		c = task.AlertClose{Why: task.AlertDismissed}
	}

	return closed(current, now, c)
}

// closed returns the closing of an alert.
func closed(current *task.Alert, now time.Time, c task.AlertClose) *Change {
	a := *current
	c.At = task.At(now)
	a.Closed = &c

	return &Change{Alert: a}
}

// rewrite returns an open alert with the present receivers, labels and rule of the task, or nil if it has them.
func (e *Evidence) rewrite(current *task.Alert) *Change {
	a := *current
	a.Notify, a.Labels, a.Rule = e.receivers(), e.labels(), e.rule()
	if slices.Equal(a.Notify, current.Notify) && maps.Equal(a.Labels, current.Labels) && a.Rule == current.Rule {
		return nil
	}

	return &Change{Alert: a}
}
