package check

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// intent is an inbox record, identified by its token.
type intent struct {
	task.Assigned
	name string // namespace/name of the task
	// activated is the revision at which the run became active: the token of its first attempt, or for a part the
	// revision at which its parent got its parts. overlapPolicy is the policy in force at that revision. Both are
	// zero if the events do not show it.
	activated int64
	overlapPolicy
}

// overlapPolicy is the part of an entry that determines which runs may be active together.
type overlapPolicy struct {
	overlap   string // skip, queue, replace or allow; "": not known
	maxActive int    // with allow: how many runs may be active; 0: no limit
}

// forbidsOverlap reports whether no other run of the task was allowed to be active when the run became active.
func (in intent) forbidsOverlap() bool { return in.overlap != "" && in.overlap != task.OverlapAllow }

// incarnation identifies the task. A task that is deleted and created again under the same name is another one.
func (in intent) incarnation() string { return in.name + "/" + in.UID }

// laterActivated returns the intent whose run became active later. Its policy determines whether the two may be
// active together.
func laterActivated(a, b intent) intent {
	if b.activated > a.activated {
		return b
	}
	return a
}

// AttemptID identifies an attempt of a run by its token.
type AttemptID struct {
	Task  string // namespace/name
	Run   string
	Token int64
}

// Activation states since when a run is active, and under which policy it became active.
type Activation struct {
	Revision  int64  // of the dispatch that made the run active
	Overlap   string // in force at that revision; "" if the events do not show it
	MaxActive int    // in force at that revision; 0: no limit
}

// Activations returns for each attempt in a history how its run became active: by the attempt's dispatch, or by
// that of an earlier attempt, because a run stays active while it waits for its next attempt.
func Activations(keys record.Keys, events []Event) map[AttemptID]Activation {
	all := map[AttemptID]Activation{}
	for id, same := range readIntents(keys, events) {
		for _, in := range same {
			all[AttemptID{in.name, id.run, id.token}] = Activation{in.activated, in.overlap, in.maxActive}
		}
	}

	return all
}

// readIntents collects the inbox records of a history, with the policy under which each run became active. Within a
// revision, new records count under the policy before that revision: an edit and a dispatch cannot share a
// revision, because the dispatch compares the entry.
func readIntents(keys record.Keys, events []Event) map[attemptID][]intent {
	all := map[attemptID][]intent{}
	inForce := map[record.Ref]overlapPolicy{}

	// first holds how each run became active.
	first := map[runRef]intent{}
	for at := 0; at < len(events); {
		end := at + 1
		for end < len(events) && events[end].Revision == events[at].Revision && events[end].Listed == events[at].Listed {
			end++
		}

		// Runs of the first list may have been dispatched under a policy that the history does not show. Use the
		// one in force.
		if events[at].Listed {
			applyOverlapPolicies(keys, events[at:end], inForce)
		}

		for _, ev := range events[at:end] {
			if k, ok := keys.ParseShard(ev.Key); ok && k.Kind == record.KindQueued && !ev.Deleted {
				run := runRef{k.Ref, k.Run}
				w, err := record.DecodeWaiting(k, ev.Value)
				_, known := first[run]
				switch {
				case err != nil:
				case w.UnderWay() && !known: // parts become active with their parent
					first[run] = intent{activated: ev.ModRevision, overlapPolicy: inForce[k.Ref]}
				case !w.UnderWay() && len(w.Attempts)+w.UnsentCount() == 0: // handed back before it started: its next dispatch activates it again
					delete(first, run)
				}
			}

			k, ok := keys.ParseRun(ev.Key)
			if !ok || ev.Deleted || (ev.CreateRevision != ev.ModRevision && !ev.Listed) {
				continue
			}

			a, err := record.DecodeAssigned(k, ev.CreateRevision, ev.Value)
			if err != nil {
				continue
			}

			run := runRef{k.Ref, k.Run}
			if parent, _, part := task.ParentOf(k.Run); part {
				run.id = parent
			}

			if _, known := first[run]; !known {
				first[run] = intent{activated: ev.CreateRevision, overlapPolicy: inForce[k.Ref]}
			}

			in := first[run]
			in.Assigned, in.name = a, k.Ref.String()
			id := attemptID{ev.CreateRevision, k.Run}
			all[id] = append(all[id], in)
		}

		applyOverlapPolicies(keys, events[at:end], inForce)
		at = end
	}

	return all
}

// applyOverlapPolicies applies the overlap policies of the entries that the events write.
func applyOverlapPolicies(keys record.Keys, events []Event, inForce map[record.Ref]overlapPolicy) {
	for _, ev := range events {
		if k, ok := keys.ParseShard(ev.Key); ok && k.Kind == record.KindEntry && !ev.Deleted {
			if e, err := record.DecodeEntry(ev.Value); err == nil {
				inForce[k.Ref] = overlapPolicy{e.Overlap, e.MaxActive}
			}
		}
	}
}

// lostAttempts is Losses for a log, which does not contain the names of tasks.
func lostAttempts(keys record.Keys, events []Event) map[attemptID]int64 {
	lost := map[attemptID]int64{}
	for id, rev := range Losses(keys, events) {
		lost[attemptID{id.Token, id.Run}] = rev
	}

	return lost
}

// Losses returns at which revision each attempt was declared lost. A history record and a queue record can both state this
// of an attempt. The earliest counts.
func Losses(keys record.Keys, events []Event) map[AttemptID]int64 {
	lost := map[AttemptID]int64{}
	note := func(ref record.Ref, run string, token, rev int64) {
		id := AttemptID{ref.String(), run, token}
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
			note(k.Ref, k.Run, r.Token, ev.ModRevision)
		}

		for _, a := range r.Attempts {
			if a.State == task.Lost {
				note(k.Ref, k.Run, a.Token, ev.ModRevision)
			}
		}
	}

	return lost
}

// unsentAttempts returns the attempts that are recorded as not sent: by the queue record that counts them, or by the final
// record of their run.
func unsentAttempts(keys record.Keys, events []Event) map[attemptID]bool {
	unsent := map[attemptID]bool{}
	last := map[runRef]task.Assigned{} // the latest inbox record of a run

	for _, ev := range events {
		if ev.Deleted {
			continue
		}

		if k, ok := keys.ParseRun(ev.Key); ok {
			if a, err := record.DecodeAssigned(k, ev.CreateRevision, ev.Value); err == nil && a.Action.HTTP != nil {
				last[runRef{k.Ref, k.Run}] = a
			}
			continue
		}

		k, ok := keys.ParseShard(ev.Key)
		a, known := last[runRef{k.Ref, k.Run}]
		if !ok || !known || k.Late {
			continue
		}

		switch k.Kind {
		case record.KindQueued:
			w, err := record.DecodeWaiting(k, ev.Value)
			if err == nil && w.UnsentCount() > a.UnsentCount() {
				unsent[attemptID{a.Token, k.Run}] = true
			}
		case record.KindEnded, record.KindPart:
			if r, err := record.DecodeEnded(k, ev.Value); err == nil && r.Reason == task.ReasonUnsent {
				unsent[attemptID{r.Token, k.Run}] = true
			}
		}
	}

	return unsent
}
