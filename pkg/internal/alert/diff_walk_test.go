package alert

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// The walks below are random histories of the protocol between leaders and one receiver. The state in etcd is the alerts (open,
// closed, deleted later), silences, and what was sent. Leaders decide with Diff, from a snapshot that may be old, and
// their writes may arrive late and twice. The receiver fails, fails after a message has arrived, rejects the text of one alert for
// ever, is paused, and is created anew.
//
// The judge knows nothing of Diff. It checks that there is one message at a time, that a message is the difference between what
// was sent and the alerts at one revision (G59), and that when all is quiet, the receiver believes to be open what is open (G60).
// If each alert has a run of its own, the same holds for incidents that are identified by their keys. What is open is sent again, and
// the receiver's group changes.

const (
	walkStep   = time.Minute // the time that a step takes
	walkFor    = 2           // steps until an opening is due
	walkHold   = 6           // steps until a closing is due
	walkKeep   = 14          // steps until the record of a closed alert is deleted
	walkRepeat = 25          // steps until an alert of a group is sent again
	walkSteps  = 500
	walkSettle = 400 // further steps in which nothing changes and everything succeeds
)

var walkStart = time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)

// walkMutants are defects of the protocol that the judge must find: of the leader's writes, and of Diff.
var walkMutants = []string{
	"uncompared", "two-snapshots", "two-outstanding", "receiver-uncompared", "delivered-without-run", "lost-is-success", "revision-as-key",
	"silenced-is-delivered", "uncertain-cleared", "uncertain-forgotten", "failed-is-delivered", "poison-blocks", "close-forgotten",
	"horizon-too-high", "new-among-many", "reopened-below-horizon", "silenced-below-horizon", "runs-in-other-order", "room-ignored", "known-as-before",
}

// walkAlert is the record of an alert. at is the step of its last opening or closing.
type walkAlert struct {
	id   int64
	uid  int
	open bool
	at   int
}

// walkState is everything in etcd that a leader reads, at one revision.
type walkState struct {
	rev      int64
	alerts   map[int]walkAlert // by task
	silenced map[int]bool
	sent     task.AlertsSent
	receiver int // its uid
	each     bool
	paused   bool
	step     int
}

// walkRun is the run of a message.
type walkRun struct {
	state          string // queued, ok, failed or gone
	opened, closed task.AlertKeys
	ids            map[uint64]int64 // of the opened alerts
	counted        map[walkOpening]bool
	plain, each    bool
	receiver       int
}

// walkWrite is a transaction of a leader.
type walkWrite struct {
	mod      int64 // of the record that it replaces
	receiver int
	each     bool
	sent     task.AlertsSent
	base     task.AlertsSent // what was sent when the message was made
	runs     map[string]walkRun
	opened   task.AlertKeys
	closed   task.AlertKeys
	now      int
}

// walkIncident is what the receiver's service has open: an alert by its key, and with the mutant revision-as-key also its ID.
type walkIncident struct {
	key uint64
	id  int64
}

// walkOpening is the opening of an alert at a step.
type walkOpening struct {
	key uint64
	at  int
}

type walk struct {
	rng    *rand.Rand
	mutant string
	kind   walkKind

	walkState
	past      []walkState
	runs      map[string]*walkRun
	pending   []walkWrite
	believed  map[uint64]bool
	incidents map[walkIncident]bool
	left      map[uint64]bool      // what Delivered had no room for
	counted   map[walkOpening]bool // what delivered messages did not open, but counted
	faults    []string
}

func walkKey(name, uid int) uint64 { return uint64(name)<<32 | uint64(uid) }

func (w *walk) taskAlert(name int, a walkAlert) *task.Alert {
	at := task.At(walkStart.Add(time.Duration(a.at) * walkStep))
	alert := &task.Alert{Task: fmt.Sprint(name), ID: a.id, OpenedAt: at}
	if !a.open {
		alert.Closed = &task.AlertClose{At: at}
	}

	return alert
}

// difference is what a receiver that was sent this has to be told at a step. It is the judge's own reading of the rules.
func difference(s *walkState, sent *task.AlertsSent, now int) (opened, closed map[uint64]bool) {
	opened, closed = map[uint64]bool{}, map[uint64]bool{}
	byKey := map[uint64]walkAlert{}
	for name, a := range s.alerts {
		key := walkKey(name, a.uid)
		byKey[key] = a
		opening := walkStart.Add(time.Duration(a.at) * walkStep)
		delivered := slices.Contains(sent.Delivered, key) || a.id <= sent.Horizon && !opening.After(sent.HorizonAt.Time)
		if a.open && now-a.at >= walkFor && !s.silenced[name] && (!delivered || slices.Contains(sent.Uncertain, key)) {
			opened[key] = true
		}
	}

	for _, key := range slices.Concat(sent.Delivered, sent.Uncertain) {
		if a, is := byKey[key]; !is || !a.open && now-a.at >= walkHold {
			closed[key] = true
		}
	}

	return opened, closed
}

// repeatable is what a group may be sent again: what it knows of, and what is open for long enough.
func repeatable(s *walkState, sent *task.AlertsSent, now int) map[uint64]bool {
	again := map[uint64]bool{}
	for name, a := range s.alerts {
		if key := walkKey(name, a.uid); a.open && !s.silenced[name] && now-a.at >= walkRepeat && slices.Contains(sent.Delivered, key) {
			again[key] = true
		}
	}

	return again
}

func containsAll(set map[uint64]bool, keys task.AlertKeys) bool {
	return !slices.ContainsFunc(keys, func(key uint64) bool { return !set[key] })
}

func (w *walk) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// remember adds the present state to the snapshots from which leaders decide.
func (w *walk) remember(step int) {
	s := w.walkState
	s.alerts, s.silenced, s.step = maps.Clone(w.alerts), maps.Clone(w.silenced), step
	w.past = append(w.past, s)
}

// changed makes a new revision.
func (w *walk) changed(step int) { w.rev++; w.remember(step) }

// runWalk walks once, and returns what is wrong.
func runWalk(seed uint64, mutant string, kind walkKind) []string {
	w := &walk{
		rng: rand.New(rand.NewPCG(seed, 1)), mutant: mutant, kind: kind, runs: map[string]*walkRun{},
		believed: map[uint64]bool{}, incidents: map[walkIncident]bool{}, left: map[uint64]bool{}, counted: map[walkOpening]bool{},
	}
	w.alerts, w.silenced, w.each = map[int]walkAlert{}, map[int]bool{}, kind.each
	w.remember(0)

	for step := range walkSteps + walkSettle {
		quiet := step >= walkSteps
		w.changeAlerts(step, quiet)

		switch y := w.rng.Float64(); {
		case y < .35 && w.endRun(quiet):
		case y < .45 && len(w.pending) > 0:
			// A delayed write arrives, and perhaps again later.
			i := w.rng.IntN(len(w.pending))
			t := w.pending[i]
			w.pending = slices.Delete(w.pending, i, i+1)
			w.commit(t, step)
			if !quiet && w.rng.Float64() < .2 {
				w.pending = append(w.pending, t)
			}
		case y < .85:
			w.lead(step, quiet)
		}
	}

	w.judgeEnd()

	return w.faults
}

// changeAlerts is what others do in a step: the evaluator, and people.
func (w *walk) changeAlerts(step int, quiet bool) {
	x := w.rng.Float64()
	switch {
	case quiet && step == walkSteps && (len(w.silenced) > 0 || w.paused):
		w.silenced, w.paused = map[int]bool{}, false
		w.changed(step)
	case quiet:
	case x < .16:
		name := w.rng.IntN(5)
		w.rev++
		a, is := w.alerts[name]
		switch {
		case !is && name == 4: // a task that is deleted and created again
			a = walkAlert{id: w.rev, uid: int(w.rev), open: true}
		case !is:
			a = walkAlert{id: w.rev, open: true}
		default:
			a.open = !a.open
		}
		a.at = step
		w.alerts[name] = a
		w.remember(step)
	case x < .20:
		name := w.rng.IntN(5)
		if w.silenced[name] {
			delete(w.silenced, name)
		} else {
			w.silenced[name] = true
		}
		w.changed(step)
	case x < .22:
		w.paused = !w.paused
		w.changed(step)
	case x < .225: // the receiver is deleted and created again
		w.receiver++
		clear(w.believed)
		clear(w.counted)
		clear(w.incidents)
		w.changed(step)
	case x < .24 && w.kind.changes:
		w.each = !w.each
		w.changed(step)
	case x < .23: // a task is deleted with its record
		delete(w.alerts, 4)
		w.changed(step)
	}

	for name := range 5 {
		if a, is := w.alerts[name]; is && !a.open && step-a.at >= walkKeep {
			delete(w.alerts, name)
			w.changed(step)
		}
	}
}

// endRun ends a run of the receiver, if there is one.
func (w *walk) endRun(quiet bool) bool {
	var queued []string
	for id, r := range w.runs {
		if r.state == "queued" {
			queued = append(queued, id)
		}
	}
	if len(queued) == 0 {
		return false
	}

	slices.Sort(queued)
	r := w.runs[queued[w.rng.IntN(len(queued))]]
	rejected := !r.plain && slices.ContainsFunc(r.opened, func(key uint64) bool { return key>>32 == 0 })
	ok := !rejected && (quiet || w.rng.Float64() < .7)

	// A run may fail although the receiver has got its message.
	if arrived := ok || !rejected && w.rng.Float64() < .4; arrived && r.receiver == w.receiver {
		for _, key := range r.closed {
			delete(w.believed, key)
			if !r.each {
				continue
			}
			maps.DeleteFunc(w.incidents, func(i walkIncident, _ bool) bool { return i.key == key })
		}
		for _, key := range r.opened {
			w.believed[key] = true
			if r.each {
				w.incidents[walkIncident{key, r.ids[key]}] = true
			}
		}
	}

	switch {
	case ok:
		r.state = "ok"
		if r.receiver == w.receiver {
			maps.Copy(w.counted, r.counted)
		}
	case w.rng.IntN(2) == 0:
		r.state = "failed"
	default:
		r.state = "gone"
	}

	return true
}

// lead is one pass of a leader.
func (w *walk) lead(step int, quiet bool) {
	s := w.past[len(w.past)-1]
	now := step
	if !quiet {
		s = w.past[max(0, len(w.past)-1-w.rng.IntN(6))]
		now = s.step
	}
	if w.mutant == "two-snapshots" {
		s.sent, s.receiver = w.sent, w.receiver
	}

	in := Input{
		Limits: Limits{Hold: walkHold * walkStep, Keys: w.kind.keys, Uncertain: 1 << 20, Runs: 3}, Now: walkStart.Add(time.Duration(now) * walkStep),
		Revision: s.rev, Receiver: Receiver{UID: fmt.Sprint("r", s.receiver), For: walkFor * walkStep, Held: s.paused}, Sent: s.sent,
	}
	if s.each {
		in.Receiver.Group = task.GroupTask
	}
	if s.each && !w.kind.changes { // a repetition would repair what a change breaks
		in.Receiver.Repeat = walkRepeat * walkStep
	}
	ids, open := map[uint64]int64{}, task.AlertKeys{}
	for name, a := range s.alerts {
		key := walkKey(name, a.uid)
		ids[key] = a.id
		if a.open {
			open = append(open, key)
		}
		in.Alerts = append(in.Alerts, Addressed{Key: key, Alert: w.taskAlert(name, a), Silenced: s.silenced[name]})
	}

	before := s.sent
	if w.mutant == "two-outstanding" {
		in.Sent.Sending = nil
	}
	settled := in.Sent.Sending != nil && in.Sent.UID == in.Receiver.UID
	if settled {
		for _, id := range in.Sent.Sending.Runs {
			state := w.runs[id].state
			if state == "queued" {
				return
			}
			in.Ended = append(in.Ended, state == "ok" || w.mutant == "failed-is-delivered" || w.mutant == "lost-is-success" && state == "gone")
		}
	}

	d := w.decide(&in, settled, open)
	if settled {
		w.noteLeftOut(&before, &d.Sent, in.Ended)
	}
	if !d.Write {
		return
	}

	t := walkWrite{mod: before.Mod, receiver: s.receiver, each: s.each, sent: d.Sent, base: d.Sent, runs: map[string]walkRun{}, now: now}
	t.base.Sending = nil
	if d.Message {
		w.addRuns(&t, &d, ids, countedBy(&s, &t.base, now, d.Sent.Sending))
	}

	if !quiet && w.rng.Float64() < .25 {
		w.pending = append(w.pending, t)
	} else {
		w.commit(t, step)
	}
}

// decide calls Diff. Mutants see the record between the end of a message and the next one.
func (w *walk) decide(in *Input, settled bool, open task.AlertKeys) Decision {
	if w.mutant == "" {
		return Diff(in)
	}

	held := in.Receiver.Held
	in.Receiver.Held = true
	d := Diff(in)

	failed := slices.Contains(in.Ended, false)
	before := in.Sent
	if before.UID != in.Receiver.UID {
		before = task.AlertsSent{}
	}
	switch w.mutant {
	case "silenced-is-delivered":
		if settled && !failed {
			d.Sent.Delivered = sortedKeys(open)
		}
	case "uncertain-cleared":
		if settled && !failed {
			d.Sent.Uncertain = nil
		}
	case "uncertain-forgotten":
		if settled && failed {
			d.Sent.Uncertain = before.Uncertain
		}
	case "horizon-too-high":
		if d.Sent.Horizon > before.Horizon {
			d.Sent.Horizon, d.Sent.HorizonAt = in.Revision, task.At(in.Now)
		}
	case "known-as-before":
		if before.Group != in.Receiver.Group && before.UID == in.Receiver.UID && before.Sending == nil {
			d.Sent.Delivered, d.Sent.Uncertain = before.Delivered, before.Uncertain
		}
	case "reopened-below-horizon":
		d.Sent.HorizonAt = task.At(in.Now)
	case "silenced-below-horizon":
		if d.Sent.Horizon > before.Horizon || d.Sent.HorizonAt.After(before.HorizonAt.Time) {
			d.Sent.Uncertain = withoutSilenced(d.Sent.Uncertain, in.Alerts)
		}
	}

	again := *in
	again.Sent, again.Receiver.Held, again.Ended = d.Sent, held, nil
	next := Diff(&again)
	next.Write = next.Write || d.Write
	if !next.Message {
		return next
	}

	m := next.Sent.Sending
	switch w.mutant {
	case "room-ignored":
		if in.Receiver.hasEach() {
			again.Limits.Keys = 1 << 20
			next = Diff(&again)
			m = next.Sent.Sending
		}
	case "silenced-below-horizon":
		if m.Horizon != 0 {
			next.Sent.Uncertain = withoutSilenced(next.Sent.Uncertain, in.Alerts)
		}
	case "poison-blocks":
		m.Plain = false
	case "close-forgotten":
		m.Closed = slices.DeleteFunc(m.Closed, func(key uint64) bool {
			return !slices.ContainsFunc(in.Alerts, func(a Addressed) bool { return a.Key == key })
		})
	case "new-among-many":
		if len(open) > w.kind.keys {
			m.Opened = nil
		}
	}
	if len(m.Opened)+len(m.Closed) == 0 {
		next.Sent.Sending, next.Message, next.Write = nil, false, d.Write
	} else if in.Receiver.hasEach() {
		next.Runs = len(m.Opened) + len(m.Closed)
	}

	return next
}

// withoutSilenced returns a set without the keys of silenced alerts.
func withoutSilenced(set task.AlertKeys, alerts []Addressed) task.AlertKeys {
	return slices.DeleteFunc(slices.Clone(set), func(key uint64) bool {
		return slices.ContainsFunc(alerts, func(a Addressed) bool { return a.Key == key && a.Silenced })
	})
}

// noteLeftOut notes which alerts the record has no room for after a message that has ended.
func (w *walk) noteLeftOut(before, after *task.AlertsSent, ended []bool) {
	told := before.Delivered
	for i, ok := range ended {
		if ok {
			opened, closed := ofRun(before.Sending, i)
			told = addKeys(removeKeys(told, closed), opened)
		}
	}
	for _, key := range removeKeys(told, after.Delivered) {
		w.left[key] = true
	}
}

// countedBy returns the openings that a message counts, because they are more than it may open: those that the receiver has to be told
// of, and that are not in the message.
func countedBy(s *walkState, sent *task.AlertsSent, now int, m *task.AlertMessage) map[walkOpening]bool {
	counted := map[walkOpening]bool{}
	if m.Horizon == 0 {
		return counted
	}

	opened, _ := difference(s, sent, now)
	for name, a := range s.alerts {
		if key := walkKey(name, a.uid); opened[key] && !slices.Contains(m.Opened, key) {
			counted[walkOpening{key, a.at}] = true
		}
	}

	return counted
}

// addRuns adds the runs of a message to a write.
func (w *walk) addRuns(t *walkWrite, d *Decision, ids map[uint64]int64, counted map[walkOpening]bool) {
	m := *d.Sent.Sending
	for range d.Runs {
		m.Runs = append(m.Runs, fmt.Sprintf("run-%d-%d", w.rng.Uint64(), len(m.Runs)))
	}
	for i, id := range m.Runs {
		opened, closed := ofRun(&m, i)
		plain := m.Plain || t.each && slices.ContainsFunc(opened, func(key uint64) bool { return slices.Contains(t.base.Uncertain, key) })
		if w.mutant == "runs-in-other-order" && t.each {
			other := m
			other.Opened, other.Closed = m.Closed, m.Opened
			closed, opened = ofRun(&other, i)
		}
		r := walkRun{state: "queued", opened: opened, closed: closed, plain: plain, each: t.each, receiver: t.receiver, ids: map[uint64]int64{}, counted: counted}
		if w.mutant == "revision-as-key" {
			r.ids = ids
		}
		t.runs[id] = r
	}

	t.opened, t.closed, t.sent.Sending = m.Opened, m.Closed, &m
	if w.mutant == "delivered-without-run" {
		t.sent.Sending, t.sent.Delivered = nil, addKeys(removeKeys(t.sent.Delivered, m.Closed), m.Opened)
		if w.rng.Float64() < .1 {
			t.runs = nil
		}
	}
}

// commit applies a write if its comparisons hold, and judges it.
func (w *walk) commit(t walkWrite, step int) {
	if w.mutant != "uncompared" && t.mod != w.sent.Mod || w.mutant != "receiver-uncompared" && (t.receiver != w.receiver || t.each != w.each && len(t.runs) > 0) {
		return
	}

	if len(t.runs) > 0 {
		for _, r := range w.runs {
			if r.state == "queued" && r.receiver == w.receiver {
				w.fault("G59: two messages at a time")
			}
		}
		if t.receiver != w.receiver {
			w.fault("a message for a receiver that is gone")
		}

		one := slices.ContainsFunc(w.past, func(s walkState) bool {
			opened, closed := difference(&s, &t.base, t.now)
			if t.each {
				maps.Copy(opened, repeatable(&s, &t.base, t.now))
			}
			return s.rev >= w.sent.Mod && containsAll(opened, t.opened) && containsAll(closed, t.closed)
		})
		if !one {
			w.fault("G59: at no revision is this message the difference")
		}
		if known := addKeys(addKeys(t.base.Delivered, t.base.Uncertain), t.opened); t.each && len(known) > w.kind.keys {
			w.fault("a group with %d incidents, at most %d", len(known), w.kind.keys)
		}
	}

	if t.sent.Group != w.sent.Group {
		clear(w.incidents) // from here on, they are told in another way
	}
	w.sent = t.sent
	w.sent.Mod = w.rev + 1
	for id, r := range t.runs {
		w.runs[id] = &r
	}
	w.changed(step)
}

// judgeEnd compares what the receiver believes with what is open.
func (w *walk) judgeEnd() {
	want, wantIncidents := map[uint64]bool{}, map[walkIncident]bool{}
	for name, a := range w.alerts {
		if !a.open {
			continue
		}
		key := walkKey(name, a.uid)
		if want[key] = true; w.mutant == "revision-as-key" {
			wantIncidents[walkIncident{key, a.id}] = true
		} else {
			wantIncidents[walkIncident{key, 0}] = true
		}
		if counted := w.sent.Horizon != 0 && w.counted[walkOpening{key, a.at}]; !w.believed[key] && !counted && !w.hasNoRoom() {
			w.fault("G60: the receiver does not know of task %d", name)
		}
	}

	for key := range w.believed {
		if !want[key] && !w.left[key] {
			w.fault("G60: the receiver believes that task %d is open", key>>32)
		}
	}
	if w.hasNoRoom() {
		maps.DeleteFunc(wantIncidents, func(i walkIncident, _ bool) bool { return !w.incidents[i] })
	}
	if w.each && !maps.Equal(w.incidents, wantIncidents) {
		w.fault("G60: incidents %v, open %v", w.incidents, wantIncidents)
	}
}

// hasNoRoom reports whether a group has as many incidents as it may have.
func (w *walk) hasNoRoom() bool { return w.each && len(w.incidents) == w.kind.keys }

// walkKind is a kind of walks.
type walkKind struct {
	name          string
	each, changes bool // the receiver has a run for each alert; that changes
	keys          int  // Limits.Keys
}

var walkKinds = []walkKind{
	{"one run", false, false, 1 << 20}, {"a run for each", true, false, 1 << 20}, {"little room", false, false, 2},
	{"little room for incidents", true, false, 2}, {"the group changes", true, true, 1 << 20},
}

// Verifies: G59, G60
func TestDiff_TellsReceiversWhatIsOpen(t *testing.T) {
	walks := uint64(100) // of each kind
	if testing.Short() {
		walks = 20
	}

	for _, kind := range walkKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			for seed := range walks {
				if faults := runWalk(seed, "", kind); faults != nil {
					t.Fatalf("seed %d: %q", seed, faults)
				}
			}
		})
	}
}

func TestDiff_WalksFindEachMutant(t *testing.T) {
	for _, mutant := range walkMutants {
		t.Run(mutant, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2000) {
				for _, kind := range walkKinds {
					if faults := runWalk(seed, mutant, kind); faults != nil {
						t.Logf("seed %d, %s: %s", seed, kind.name, faults[0])
						return
					}
				}
			}
			t.Error("no walk has found a fault")
		})
	}
}
