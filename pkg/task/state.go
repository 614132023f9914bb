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
	Skipped    State = "skipped" // a tick, or an end of a source, that a policy did not run
	Missed     State = "missed"  // one that was processed too late to run
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

// Reasons why a run waits, a tick did not run, or an attempt ended in its state. The list is closed. Every
// record that is not a success has one of these reasons (G23), and Reasons lists the states to which each
// belongs.
const (
	// Reasons why a run waits.
	ReasonManual   = "manual"           // the owner of its shard has not picked it up yet
	ReasonRetry    = "retry"            // it waits for its next attempt
	ReasonCatchUp  = "catch_up"         // it waits for an earlier catch-up run of its task, or for a token of the catch-up rate
	ReasonHandBack = "handed_back"      // its node was draining and had not started it
	ReasonNoNode   = "no_matching_node" // no node that accepts runs matches the selector
	ReasonOverlap  = "overlap"          // it waits for active runs of its task, or was skipped because of them
	ReasonLimit    = "max_active"       // the task has as many active runs as max_active allows
	ReasonFrozen   = "frozen"           // its namespace or the cluster is frozen; it waits, or was skipped
	ReasonTarget   = "target_down"      // its next attempt waits, because the target of its request was unreachable or asked to wait
	ReasonCount    = "number_of_nodes"  // fewer nodes match than target.count or target.succeed require, or more than MaxParts

	ReasonPlan = "plan" // the steps of its workflow are being read

	// Reasons why a tick was skipped.
	ReasonQueueFull = "queue_full" // too many runs of the task are waiting
	ReasonDropped   = "dropped"    // it was waiting, and a newer tick or end of a source replaced it (drop: oldest)
	ReasonShadow    = "shadow"     // its task is a shadow

	// Reasons why the end of a source's run did not start its dependent.
	ReasonUnlinked  = "unlinked"   // the dependent has removed or changed the source since
	ReasonBadRecord = "bad_record" // the record of the trigger could not be read; a run: its plan could not
	ReasonPaused    = "paused"     // the dependent was paused

	// Reasons why a tick was missed.
	ReasonNoOwner         = "no_owner"           // its shard had no owner when it was due, and missed.policy does not run it
	ReasonCameToLightLate = "came_to_light_late" // its owner processed it too late, and missed.policy does not run it
	ReasonWindow          = "past_window"        // it was older than missed.window when it was processed
	ReasonDeadline        = "start_deadline"     // it could not start before its start deadline

	// ReasonRestored is the reason of everything that a history may have decided which a restore of the cluster has lost.
	ReasonRestored = "restored"

	// Reasons why an attempt or a run ended.
	ReasonCancelled  = "cancelled_by_user"
	ReasonReplaced   = "replaced" // a newer tick or end of a source replaced it (overlap: replace)
	ReasonDeleted    = "task_deleted"
	ReasonExit       = "exit_code"
	ReasonSignal     = "signal"
	ReasonTimeout    = "timeout"
	ReasonStart      = "could_not_start"
	ReasonHost       = "host"
	ReasonStuck      = "start_stuck" // its process did not begin to execute its program
	ReasonOOM        = "oom"
	ReasonLimits     = "limit"        // a limit other than memory
	ReasonSecret     = "secret"       // a value of env_from could not be read
	ReasonPolicy     = "policy"       // the policy of its node does not allow it
	ReasonNamespace  = "namespace"    // the record of its namespace does not allow it any more; it did not start
	ReasonAccept     = "not_accepted" // its task no longer accepts what the request for the run has given; it did not start
	ReasonNodeLost   = "node_lost"
	ReasonShutdown   = "daemon_stopped"
	ReasonBadEntry   = "unreadable_entry"
	ReasonOutput     = "output_rule"
	ReasonParts      = "parts"      // too few of its parts succeeded
	ReasonUnsent     = "unsent"     // nothing of its request was sent, or its target asked to wait
	ReasonAnswer     = "response"   // the response does not count as success
	ReasonUnanswered = "unanswered" // its request was sent, but no complete response arrived
	ReasonURL        = "url"        // a template or a redirect gave a URL that must not be requested
	ReasonTLS        = "tls"        // the certificate of the target could not be verified
	ReasonSteps      = "steps"      // a step of the workflow failed
	ReasonValues     = "results"    // a value to which a step refers does not exist, or is no list
	ReasonStopped    = "stopped"    // another step of the workflow has failed
	ReasonNeeds      = "needs"      // the steps that it needs did not do what its when requires
	ReasonNodeGone   = "node_gone"  // the node of a part was gone, or accepted no runs, before the part started
)

// Reason is an entry of the closed list of reasons.
type Reason struct {
	Name   string
	States []State // the states in which it can occur
	Means  string  // a clause for people that can follow "because"
}

// Reasons returns all reasons.
func Reasons() []Reason { return slices.Clone(allReasons) }

// ReasonOf returns the reason with this name, and false if there is none.
func ReasonOf(name string) (Reason, bool) {
	i := slices.IndexFunc(allReasons, func(r Reason) bool { return r.Name == name })
	if i < 0 {
		return Reason{}, false
	}
	return allReasons[i], true
}

// Explains reports whether the reason can occur in a state.
func (r Reason) Explains(s State) bool { return slices.Contains(r.States, s) }

var allReasons = []Reason{
	{ReasonManual, []State{Queued}, "the owner of its shard has not picked it up yet"},
	{ReasonRetry, []State{Queued}, "it is waiting for its next attempt"},
	{ReasonCatchUp, []State{Queued}, "it is waiting for earlier catch-up runs of its task, or for the rate limit on catch-up runs"},
	{ReasonHandBack, []State{Queued}, "its node was drained before the run started, and returned it to the queue"},
	{ReasonNoNode, []State{Queued, Skipped, Missed}, "no available node matches its selector"},
	{ReasonOverlap, []State{Queued, Skipped}, "another run of the task was active or waiting"},
	{ReasonLimit, []State{Queued}, "the task already had as many active runs as max_active allows"},
	{ReasonFrozen, []State{Queued, Skipped}, "its namespace or the cluster was frozen"},
	{ReasonTarget, []State{Queued}, "the target of its request was unreachable or asked to wait"},
	{ReasonCount, []State{Queued, Missed}, "the number of nodes that matched its selector was too low for target.count or target.succeed, or above 1000"},
	{ReasonPlan, []State{Queued}, "the steps of its workflow were being read"},
	{ReasonQueueFull, []State{Skipped}, "the task already had the maximum number of waiting runs"},
	{ReasonDropped, []State{Skipped}, "it was the oldest that waited, and a newer tick or ended run took its place"},
	{ReasonShadow, []State{Skipped}, "its task is a shadow: its ticks are recorded but start nothing"},
	{ReasonUnlinked, []State{Skipped}, "the task no longer ran after that source, or the source was changed in its spec, when the run of the source had ended"},
	{ReasonBadRecord, []State{Skipped, Failed, Cancelled}, "a record that it needs could not be read: that of the ended run of its source, or that of the steps of its workflow"},
	{ReasonPaused, []State{Skipped}, "its task was paused"},
	{ReasonNoOwner, []State{Missed}, "its shard had no owner when it was due, and missed.policy did not allow a catch-up run"},
	{ReasonCameToLightLate, []State{Missed}, "the owner of its shard processed it too late, and missed.policy did not allow a catch-up run"},
	{ReasonWindow, []State{Missed}, "it was older than missed.window when the owner of its shard processed it"},
	{ReasonDeadline, []State{Missed}, "it could not start before its start deadline"},
	{ReasonRestored, []State{Missed, Lost, Cancelled}, "the cluster was restored from a backup, and what was decided after the backup is lost: it may have run"},
	{ReasonCancelled, []State{Cancelled}, "a user cancelled it"},
	{ReasonReplaced, []State{Cancelled}, "a newer tick or ended run replaced it"},
	{ReasonDeleted, []State{Cancelled}, "its task was deleted"},
	{ReasonExit, []State{Failed}, "its process exited with a code that does not count as success"},
	{ReasonSignal, []State{Failed}, "a signal terminated its process"},
	{ReasonTimeout, []State{TimedOut, Cancelled}, "it exceeded its timeout, or that of the workflow of which it is a part"},
	{ReasonStart, []State{Failed}, "its process could not be started"},
	{ReasonStuck, []State{Failed}, "its program had not started after 30 s, because its file, its directory or a file system did not respond"},
	{ReasonHost, []State{Failed}, "its node cannot enforce a setting of the task"},
	{ReasonOOM, []State{Failed}, "it needed more memory than limits.memory allows or than the host had"},
	{ReasonLimits, []State{Failed}, "it exceeded one of its limits"},
	{ReasonSecret, []State{Failed}, "a value that its env_from names could not be read"},
	{ReasonPolicy, []State{Failed}, "the policy of its node does not allow it"},
	{ReasonNamespace, []State{Failed}, "its namespace no longer allows it"},
	{ReasonAccept, []State{Failed}, "its task no longer accepts the arguments, variables or node of the run"},
	{ReasonNodeLost, []State{Lost}, "its node was lost while it ran"},
	{ReasonShutdown, []State{Lost, Failed, Cancelled}, "the Carillon daemon on its node was stopped"},
	{ReasonBadEntry, []State{Failed, Lost, Cancelled, Missed}, "its record could not be read"},
	{ReasonOutput, []State{Failed}, "its process exited with a success code, but its output did not match the task's success rule"},
	{ReasonParts, []State{Failed}, "too few of its parts succeeded"},
	{ReasonUnsent, []State{Failed}, "nothing of its request was sent, or its target asked to wait"},
	{ReasonAnswer, []State{Failed}, "its target's response does not count as success"},
	{ReasonUnanswered, []State{Failed, TimedOut, Lost}, "its request was sent, but no complete response arrived"},
	{ReasonURL, []State{Failed}, "its URL must not be requested"},
	{ReasonTLS, []State{Failed}, "the certificate of its target could not be verified"},
	{ReasonSteps, []State{Failed}, "a step of its workflow failed"},
	{ReasonValues, []State{Failed}, "a value to which its step refers does not exist, or is not a list of items"},
	{ReasonStopped, []State{Skipped, Cancelled}, "another step of its workflow had failed"},
	{ReasonNeeds, []State{Skipped}, "the steps that it needs did not end as its when requires"},
	{ReasonNodeGone, []State{Lost}, "the node of this part was gone or accepted no runs for too long"},
}
