package check

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The limits of messages to a receiver, and to one with a run for each alert.
const (
	messageLimit  = 3
	messagePeriod = 6 * time.Minute
	groupPeriod   = time.Minute
	groupRuns     = 10
)

// messageJudge judges the messages to receivers of alerts (G59): one at a time, with what is different at one revision, and not too many.
// It does not judge whether a message comes in time, nor what its text says.
type messageJudge struct {
	judge
	clusterID string
	sent      map[string]*task.AlertsSent // by receiver
	begun     map[string][]time.Time      // when the last messages began, by the uid of their receiver
	records   map[string]uint64           // the alerts that exist, by the key of their record
	// versions has those of each alert by the key of its record, in the order of their revisions. Several shards can have a record
	// of what is one alert to a receiver.
	versions map[uint64]map[string][]alertVersion
}

// alertVersion is an alert from a revision on; nil: it does not exist.
type alertVersion struct {
	revision int64
	alert    *task.Alert
}

func newMessageJudge(base judge) *messageJudge {
	return &messageJudge{
		judge: base, sent: map[string]*task.AlertsSent{}, begun: map[string][]time.Time{}, records: map[string]uint64{}, versions: map[uint64]map[string][]alertVersion{},
	}
}

// keyOf returns the key by which the records of receivers name an alert.
func (j *messageJudge) keyOf(a *task.Alert) uint64 {
	sum := sha256.Sum256([]byte(strings.Join([]string{j.clusterID, a.Namespace, a.Task, a.UID, string(a.Kind), a.Receiver, a.Code}, "\x00")))
	return binary.BigEndian.Uint64(sum[:])
}

// checkRevision judges the messages that a revision begins or ends, and applies its changes.
func (j *messageJudge) checkRevision(d *delta) {
	for _, receiver := range slices.Sorted(maps.Keys(d.sent)) {
		if ch := d.sent[receiver]; ch.sent != nil {
			j.checkSent(d, receiver, ch)
		}
	}

	j.applyChanges(d)
}

// applyChanges applies the alerts and the records of receivers that a revision writes.
func (j *messageJudge) applyChanges(d *delta) {
	if d.cluster != nil {
		j.clusterID = d.cluster.ID
	}

	for key, ch := range d.alerts {
		former, existed := j.records[key]
		delete(j.records, key)

		var short uint64
		if ch.alert != nil {
			short = j.keyOf(ch.alert)
			j.records[key] = short
			j.addVersion(short, key, ch.alert)
		}
		if existed && (ch.alert == nil || short != former) {
			j.addVersion(former, key, nil)
		}
	}

	for receiver, ch := range d.sent {
		if ch.sent == nil {
			if former := j.sent[receiver]; former != nil && d.cluster != nil {
				delete(j.begun, former.UID) // a restore: all that is open is sent again, at once
			}
			delete(j.sent, receiver)
		} else {
			j.sent[receiver] = ch.sent
		}
	}
}

// addVersion notes a version of the record of an alert.
func (j *messageJudge) addVersion(alert uint64, key string, a *task.Alert) {
	if j.versions[alert] == nil {
		j.versions[alert] = map[string][]alertVersion{}
	}
	j.versions[alert][key] = append(j.versions[alert][key], alertVersion{j.cluster.revision, a})
}

// checkSent judges a new version of what was sent to a receiver.
func (j *messageJudge) checkSent(d *delta, receiver string, ch *sentChange) {
	before, after := j.sent[receiver], ch.sent
	if before != nil && before.UID != after.UID {
		before = nil // another task has the name now
	}

	m := after.Sending
	if before != nil && before.Sending != nil {
		if m != nil && slices.Equal(m.Runs, before.Sending.Runs) {
			return
		}
		j.checkMessageEnded(receiver, before.Sending, ch.key)
	}

	if m == nil {
		return
	}

	for _, run := range m.Runs {
		if !d.queues(receiver, run) {
			j.addViolation("G59", ch.key, "a message begins with run %s, which this revision does not queue", run)
		}
	}

	j.checkDifference(receiver, after, ch.key)
	j.checkPace(after, ch.key)
}

// checkPace checks that a message does not begin too soon after others, and has as many runs as it may have.
func (j *messageJudge) checkPace(after *task.AlertsSent, key string) {
	m, limit, period := after.Sending, messageLimit, messagePeriod
	if after.Group != "" {
		limit, period = 1, groupPeriod
		if told := len(m.Opened) + len(m.Closed); len(m.Runs) != told || told > groupRuns {
			j.addViolation("G59", key, "a message has %d runs for %d alerts; a group has one for each, and at most %d", len(m.Runs), told, groupRuns)
		}
	}

	if j.opts.wasWrong(m.At.Time) {
		return
	}

	begun := append(j.begun[after.UID], m.At.Time)
	begun = begun[max(0, len(begun)-limit-1):]
	if len(begun) > limit {
		if passed := m.At.Sub(begun[0]); passed < period-2*j.opts.Skew-time.Second {
			j.addViolation("G59", key, "this is message %d within %s", limit+1, passed)
		}
	}
	j.begun[after.UID] = begun
}

// checkMessageEnded checks that the runs of a message have ended, or are gone with their task.
func (j *messageJudge) checkMessageEnded(receiver string, m *task.AlertMessage, key string) {
	for ref, t := range j.cluster.tasks {
		if ref.String() != receiver {
			continue
		}

		for _, run := range m.Runs {
			if r := t.runs[run]; r != nil && !r.ended && !r.purged {
				j.addViolation("G59", key, "run %s of the last message has not ended", run)
			}
		}
	}
}

// checkDifference checks that a message which begins opens what is open at its revision and was not told yet, and closes what was told and
// is not open.
func (j *messageJudge) checkDifference(receiver string, after *task.AlertsSent, key string) {
	m := after.Sending

	for _, k := range m.Opened {
		switch {
		case !j.isOpenFor(receiver, k, m.Revision):
			j.addViolation("G59", key, "a message opens alert %016x, which is not open for this receiver at revision %d", k, m.Revision)
		case slices.Contains(after.Delivered, k) && !slices.Contains(after.Uncertain, k) && (after.Group == "" || !m.Repeats):
			j.addViolation("G59", key, "a message opens alert %016x, which was delivered before", k)
		}
	}

	for _, k := range m.Closed {
		switch {
		case j.isOpenFor(receiver, k, m.Revision):
			j.addViolation("G59", key, "a message closes alert %016x, which is open at revision %d", k, m.Revision)
		case !slices.Contains(after.Delivered, k) && !slices.Contains(after.Uncertain, k):
			j.addViolation("G59", key, "a message closes alert %016x, of which the receiver was not told", k)
		}
	}
}

// isOpenFor reports whether an alert was open at a revision and named a receiver.
func (j *messageJudge) isOpenFor(receiver string, key uint64, revision int64) bool {
	for _, versions := range j.versions[key] {
		for _, v := range slices.Backward(versions) {
			if v.revision > revision {
				continue
			}
			if v.alert != nil && v.alert.IsOpen() && (slices.Contains(v.alert.Notify, receiver) || v.alert.Receiver == receiver) {
				return true
			}
			break
		}
	}

	return false
}

// queues reports whether a revision queues a run of a task.
func (d *delta) queues(name, run string) bool {
	for k, r := range d.runs {
		if k.id == run && k.ref.String() == name && r.queued != nil {
			return true
		}
	}

	return false
}

// isMessage reports whether a run is a message that a revision writes to a receiver.
func (d *delta) isMessage(ref record.Ref, run string) bool {
	s := d.sent[ref.String()]
	return s != nil && s.sent != nil && s.sent.Sending != nil && slices.Contains(s.sent.Sending.Runs, run)
}
