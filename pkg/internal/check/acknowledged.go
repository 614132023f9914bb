package check

import (
	"fmt"

	"github.com/carillonhq/carillon/pkg/store/record"
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
				Message: a.String() + " was acknowledged but is not in the history"})
		}
	}

	return lost
}
