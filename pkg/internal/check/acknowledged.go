package check

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Acknowledged is a change that the API has acknowledged. The fields that are set determine its kind: a trigger of
// a run, a cancel of a run, a deletion of a task, or else a write of a task's spec.
type Acknowledged struct {
	Namespace, Name string
	// Revision is the task's revision in the answer to a create, an update, a pause or a resume: its spec was
	// written at that revision. With Deleted it is the last known revision before: the spec was deleted later.
	Revision int64
	UID      string // the task's uid; "" if it is not known
	Deleted  bool   // the task was deleted
	Run      string // the run that was triggered, or with Cancelled the run that was cancelled
	// Cancelled means that the run was asked to end, or had ended.
	Cancelled bool
}

// String describes the change for messages.
func (a Acknowledged) String() string {
	switch {
	case a.Cancelled:
		return "the cancel of run " + a.Run
	case a.Run != "":
		return "the trigger of run " + a.Run
	case a.Deleted:
		return fmt.Sprintf("the delete after revision %d", a.Revision)
	}

	return fmt.Sprintf("the change at revision %d", a.Revision)
}

// CheckAcknowledged checks that every acknowledged change is in the history (G13). The history must begin before
// the first of the calls.
func CheckAcknowledged(keys record.Keys, events []Event, calls []Acknowledged) []Violation {
	type write struct {
		key string
		rev int64
	}

	// Collect from the history everything that a call can have caused.
	specs := map[write]string{}   // the uid of each spec that was written
	deletes := map[string]int64{} // the latest deletion of each spec
	runs := map[string]bool{}     // runs that had any record, by task and id
	ends := map[string]bool{}     // runs that ended, or whose cancel was requested
	alive := map[string]string{}  // the uid of each spec that exists
	for _, ev := range events {
		if ns, name, ok := keys.ParseSpec(ev.Key); ok {
			if ev.Deleted {
				deletes[ev.Key] = ev.Revision
				delete(alive, ev.Key)
				continue
			}

			t, _ := record.DecodeTask(ev.Value, ev.ModRevision)
			alive[ev.Key], specs[write{keys.Spec(record.Ref{Namespace: ns, Name: name}), ev.ModRevision}] = t.UID, t.UID
			continue
		}

		// A run exists if any inbox, queue or history record of it was written. A cancel is visible as a request in
		// an inbox, or as the run's end.
		if k, ok := keys.ParseRun(ev.Key); ok && !ev.Deleted {
			a, _ := record.DecodeAssigned(k, ev.CreateRevision, ev.Value)
			id := k.Ref.String() + "/" + k.Run
			runs[id] = true
			ends[id] = ends[id] || a.CancelRequested
		}

		if k, ok := keys.ParseShard(ev.Key); ok && !ev.Deleted && k.Run != "" {
			id := k.Ref.String() + "/" + k.Run
			runs[id] = true
			ends[id] = ends[id] || k.Kind == record.KindEnded
		}
	}

	// Every call must have left its trace. Deleting a task also deletes its queue, so a cancel of a run of a
	// deleted task is fulfilled.
	var lost []Violation
	for _, a := range calls {
		ref := record.Ref{Namespace: a.Namespace, Name: a.Name}
		key, id := keys.Spec(ref), ref.String()+"/"+a.Run
		uid, written := specs[write{key, a.Revision}]
		gone := deletes[key] > 0 // the runs of a deleted task are deleted with it
		var there bool

		switch {
		case a.Cancelled:
			there = ends[id] || gone
		case a.Run != "":
			there = runs[id]
		// The spec was deleted after the last revision that the caller knew, and a spec that exists now belongs to
		// another task.
		case a.Deleted:
			there = deletes[key] > a.Revision && (a.UID == "" || alive[key] != a.UID)
		default:
			there = written && (a.UID == "" || uid == a.UID)
		}

		if !there {
			lost = append(lost, Violation{Promise: "G13", Revision: a.Revision, Key: key, Task: ref.String(),
				Message: a.String() + " was acknowledged, and is not in the history"})
		}
	}

	return lost
}

// Matches checks that replaying a history up to the revision of a list yields exactly the keys of that list, with
// their mod revisions: no write is lost, and no key exists that the history does not explain (G13). The history
// must cover the revision of the list.
func Matches(events, list []Event) []Violation {
	if len(list) == 0 {
		return nil
	}

	// Replay the history up to the revision of the list.
	at := list[0].Revision
	live := map[string]int64{}
	for _, ev := range events {
		if ev.Revision > at {
			break
		}

		if live[ev.Key] = ev.ModRevision; ev.Deleted {
			delete(live, ev.Key)
		}
	}

	var wrong []Violation
	add := func(key string, rev int64, format string, args ...any) {
		wrong = append(wrong, Violation{Promise: "G13", Revision: rev, Key: key, Message: fmt.Sprintf(format, args...)})
	}

	// Compare each listed key with the replay. Keys that remain in live afterwards are missing from the list.
	for _, e := range list {
		switch mod, known := live[e.Key]; {
		case !known:
			add(e.Key, e.ModRevision, "it is there, and the history does not lead to it")
		case mod != e.ModRevision:
			add(e.Key, e.ModRevision, "it is at revision %d, and the history leads to %d", e.ModRevision, mod)
		}

		delete(live, e.Key)
	}

	for key, mod := range live {
		add(key, mod, "the history leads to it, and it is not there")
	}

	return wrong
}

// lostAttempts returns at which revision each attempt was declared lost. A history record and a queue record can
// both state this of an attempt. The earliest counts.
func lostAttempts(keys record.Keys, events []Event) map[attemptID]int64 {
	lost := map[attemptID]int64{}
	note := func(run string, token, rev int64) {
		id := attemptID{token, run}
		if before, known := lost[id]; token != 0 && (!known || rev < before) {
			lost[id] = rev
		}
	}

	// Decoding is expensive, so first search the value for the state.
	for _, ev := range events {
		k, ok := keys.ParseShard(ev.Key)
		if !ok || ev.Deleted || k.Run == "" || k.Late || !strings.Contains(string(ev.Value), string(task.Lost)) {
			continue
		}

		var r task.Run
		if k.Kind == record.KindEnded {
			r, _ = record.DecodeEnded(k, ev.Value)
		} else {
			w, _ := record.DecodeWaiting(k, ev.Value)
			r = w.Run
		}

		if r.State == task.Lost {
			note(k.Run, r.Token, ev.ModRevision)
		}

		for _, a := range r.Attempts {
			if a.State == task.Lost {
				note(k.Run, a.Token, ev.ModRevision)
			}
		}
	}

	return lost
}
