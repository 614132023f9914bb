package alert

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// ReceiverFacts is what decides what a receiver knows, and whether it gets messages.
type ReceiverFacts struct {
	Name   string           // NAMESPACE/NAME
	Entry  *task.Entry      // nil: there is no such task
	Sent   *task.AlertsSent // nil: nothing was sent to it
	Freeze *task.Freeze     // the freeze of its namespace, or of the cluster; nil: none
}

// Block returns why the receiver gets no messages about alerts of a namespace; nil: it gets them. An alert about the cluster has no
// namespace, and every receiver takes it.
func (f *ReceiverFacts) Block(namespace string, now time.Time) *task.AlertBlock {
	e := f.Entry
	if e == nil || e.Receiver == nil {
		return &task.AlertBlock{Why: task.BlockMissing}
	}

	own, _, _ := strings.Cut(f.Name, "/")
	if namespace != "" && !e.Receiver.Accepts(own, namespace) {
		return &task.AlertBlock{Why: task.BlockForbidden}
	}

	if p := e.Pause(); e.Paused && (p == nil || !p.Over(now)) {
		b := &task.AlertBlock{Why: task.BlockPaused}
		if p != nil {
			b.By, b.Since, b.Until, b.Reason = p.By, p.Since, p.Until, p.Reason
		}

		return b
	}

	if z := f.Freeze; z != nil {
		return &task.AlertBlock{Why: task.BlockFrozen, By: z.By, Since: z.Since, Reason: z.Reason}
	}

	return nil
}

// Status returns what the receiver knows of an alert, and whether it gets messages. key is that of the alert (KeyOf).
func (f *ReceiverFacts) Status(a *task.Alert, key uint64, now time.Time) task.AlertReceiver {
	r := task.AlertReceiver{Receiver: f.Name, Blocked: f.Block(a.Namespace, now)}

	// What was sent to a task that was deleted since is not known to the one that has its name now.
	s := f.Sent
	if s == nil || f.Entry == nil || s.UID != f.Entry.UID {
		s = &task.AlertsSent{}
	}

	contains := func(m *task.AlertMessage) bool {
		if a.IsOpen() {
			return slices.Contains(m.Opened, key)
		}
		return slices.Contains(m.Closed, key)
	}
	// mention names the newest message about the alert that ended in one way, if it is still on record. Of a message with several runs,
	// only some may have failed. Then the newest message about the alert is the one that decided what is known of it.
	mention := func(failed bool) (found bool) {
		for i := range s.Past {
			if m := &s.Past[i]; contains(m) && (m.Failed == failed || len(m.Runs) > 1) {
				r.Run, r.At = runOf(m, key), m.At
				return true
			}
		}

		return false
	}

	_, uncertain := slices.BinarySearch(s.Uncertain, key)
	_, delivered := slices.BinarySearch(s.Delivered, key)
	delivered = delivered || s.Horizon > 0 && isBelow(a, s.Horizon, s.HorizonAt)
	// Without a failed message, an uncertain alert is one that was silenced or not due when the horizon passed it.
	hasFailed := len(s.Past) > 0 && s.Past[0].Failed || s.Group == task.GroupTask && mention(true)
	r.Run, r.At = "", task.Time{}

	switch {
	case s.Sending != nil && contains(s.Sending):
		r.State, r.Run, r.At = task.ReceiverSending, runOf(s.Sending, key), s.Sending.At
	case uncertain && hasFailed:
		r.State = task.ReceiverFailed
		mention(true)
	case a.IsOpen() && delivered && !uncertain:
		r.State = task.ReceiverNotified
		mention(false)
	case a.IsOpen() || delivered || uncertain: // of a closed alert: the receiver still takes it for open
		r.State = task.ReceiverWaiting
	default:
		r.State = task.ReceiverSettled
		mention(false)
	}

	return r
}

// runOf returns the run of a message about an alert.
func runOf(m *task.AlertMessage, key uint64) string {
	for i, run := range m.Runs {
		if opened, closed := ofRun(m, i); hasKey(opened, key) || hasKey(closed, key) {
			return run
		}
	}

	return ""
}
