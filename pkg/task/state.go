package task

import "slices"

// State is where a run is in its life.
//
//	           ┌────────────── retry, handed back ─────────────┐
//	           ▼                                               │
//	        queued ──────────────► dispatched ──────────► running ◄──► paused
//	           │                        │                      │          │
//	           ▼                        ▼                      ▼          ▼
//	cancelled, skipped,     succeeded, failed, timed_out, cancelled, lost;
//	missed                  missed, if it has not started
//
// A run that is paused soon after its start goes from dispatched to paused: that it
// runs is written late. All that a running one may become, a paused one may, too:
// it may be killed, and a write that it goes on may come too late to be made.
// A tick may also end at once as skipped or missed, without ever being a run. A run
// with parts is in no inbox: it is running from when it has them to its end. Only a
// part whose node is gone is lost out of the queue.
type State string

// The states.
const (
	Queued     State = "queued"     // waits in its shard's queue
	Dispatched State = "dispatched" // in a node's inbox, not known to have started
	Running    State = "running"
	Paused     State = "paused" // its processes stand still
	Succeeded  State = "succeeded"
	Failed     State = "failed"
	TimedOut   State = "timed_out"
	Cancelled  State = "cancelled"
	Lost       State = "lost"    // its node is gone: nobody knows how it ended
	Skipped    State = "skipped" // a tick that policy did not want to run
	Missed     State = "missed"  // a tick that came to light too late to run
)

// nextStates is the one table of legal transitions. A state without a row is final.
var nextStates = map[State][]State{
	"":         {Queued, Dispatched, Running, Skipped, Missed},
	Queued:     {Dispatched, Running, Cancelled, Lost, Skipped, Missed},
	Dispatched: {Running, Paused, Succeeded, Failed, TimedOut, Cancelled, Lost, Missed, Queued},
	Running:    {Paused, Succeeded, Failed, TimedOut, Cancelled, Lost, Queued},
	Paused:     {Running, Succeeded, Failed, TimedOut, Cancelled, Lost, Queued},
}

// CanBecome reports whether a run may go from s to t in one step. The empty
// state is that of a tick which nobody has decided yet.
func (s State) CanBecome(t State) bool { return slices.Contains(nextStates[s], t) }

// Final reports whether nothing follows s.
func (s State) Final() bool { return s.Known() && len(nextStates[s]) == 0 }

// Active reports whether s is that of an attempt in a node's inbox.
func (s State) Active() bool { return s == Dispatched || s == Running || s == Paused }

// Known reports whether s is one of the states.
func (s State) Known() bool { return slices.Contains(States(), s) }

// States lists all states, in the order of a run's life.
func States() []State {
	return []State{Queued, Dispatched, Running, Paused, Succeeded, Failed, TimedOut, Cancelled, Lost, Skipped, Missed}
}

// StateNames are the states as texts.
func StateNames() []string {
	var names []string
	for _, s := range States() {
		names = append(names, string(s))
	}
	return names
}
