package task

import "slices"

// State is the state of a run.
//
//	           ┌────────────── retry, handed back ─────────────┐
//	           ▼                                               │
//	        queued ──────────────► dispatched ──────────► running ◄──► paused
//	           │                        │                      │          │
//	           ▼                        ▼                      ▼          ▼
//	cancelled, skipped,     succeeded, failed, timed_out, cancelled, lost;
//	missed                  missed, if it has not started
//
// The state "running" is written some time after the start. A run that is paused before that goes directly from
// dispatched to paused. A paused run can reach every state that a running run can: it may be killed, and the
// write that it has resumed may come too late.
//
// A tick may also end at once as skipped or missed, without ever becoming a run. A run with parts is in no
// inbox; it is running from the time at which its parts begin until its end. Only a part whose node is gone
// becomes lost from the queue. A tick or a queued run becomes failed without a start only if its namespace no
// longer allows the task (ReasonNamespace).
type State string

// The states.
const (
	Queued     State = "queued"     // waits in its shard's queue
	Dispatched State = "dispatched" // in a node's inbox, not known to have started
	Running    State = "running"
	Paused     State = "paused" // its processes are stopped
	Succeeded  State = "succeeded"
	Failed     State = "failed"
	TimedOut   State = "timed_out"
	Cancelled  State = "cancelled"
	Lost       State = "lost"    // its node is gone, so the outcome is unknown
	Skipped    State = "skipped" // a tick that a policy did not run
	Missed     State = "missed"  // a tick that was processed too late to run
)

// nextStates contains all permitted transitions. A state without an entry is final.
var nextStates = map[State][]State{
	"":         {Queued, Dispatched, Running, Failed, Skipped, Missed},
	Queued:     {Dispatched, Running, Failed, Cancelled, Lost, Skipped, Missed},
	Dispatched: {Running, Paused, Succeeded, Failed, TimedOut, Cancelled, Lost, Missed, Queued},
	Running:    {Paused, Succeeded, Failed, TimedOut, Cancelled, Lost, Queued},
	Paused:     {Running, Succeeded, Failed, TimedOut, Cancelled, Lost, Queued},
}

// CanBecome reports whether a run may change from s to t in one step. The empty state is that of a tick that
// has not been decided.
func (s State) CanBecome(t State) bool { return slices.Contains(nextStates[s], t) }

// Final reports whether s has no next state.
func (s State) Final() bool { return s.Known() && len(nextStates[s]) == 0 }

// Active reports whether s is a state of an attempt in a node's inbox.
func (s State) Active() bool { return s == Dispatched || s == Running || s == Paused }

// Known reports whether s is a valid state.
func (s State) Known() bool { return slices.Contains(States(), s) }

// States returns all states, in the order of a run's life.
func States() []State {
	return []State{Queued, Dispatched, Running, Paused, Succeeded, Failed, TimedOut, Cancelled, Lost, Skipped, Missed}
}

// StateNames returns all states as strings.
func StateNames() []string {
	var names []string
	for _, s := range States() {
		names = append(names, string(s))
	}
	return names
}
