package task

import "slices"

// Why a run waits, a tick did not run, or an attempt ended as it did. The list is
// closed: every record that is not a success has one of these, and Reasons says
// which states each belongs to.
const (
	// Of what waits.
	ReasonManual   = "manual"           // waits for its shard's owner to take it
	ReasonRetry    = "retry"            // waits for its next attempt
	ReasonCatchUp  = "catch_up"         // waits for the catch-up run before it, or for its turn
	ReasonHandBack = "handed_back"      // its node drains and had not started it
	ReasonNoNode   = "no_matching_node" // no node that takes work matches the selector
	ReasonOverlap  = "overlap"          // waits for runs of the task that are active; skipped for them
	ReasonLimit    = "max_active"       // as many runs as max_active allows are active
	ReasonFrozen   = "frozen"           // its namespace, or the cluster, is frozen; skipped for that
	ReasonCount    = "number_of_nodes"  // fewer nodes match than target.count or succeed need, or more than MaxParts

	// Of ticks that were skipped.
	ReasonQueueFull = "queue_full" // too many runs of the task wait already
	ReasonDropped   = "dropped"    // it waited, and gave way to a newer tick (drop: oldest)
	ReasonShadow    = "shadow"     // its task starts nothing by its schedule

	// Of ticks that were missed.
	ReasonNoOwner         = "no_owner"           // its shard had no owner when it fell due, and missed.policy wants no more of it
	ReasonCameToLightLate = "came_to_light_late" // its owner came to it too late, and missed.policy wants no more of it
	ReasonWindow          = "past_window"        // older than missed.window when it came to light
	ReasonDeadline        = "start_deadline"     // it could not start before its deadline

	// Of attempts and runs that ended.
	ReasonCancelled = "cancelled_by_user"
	ReasonReplaced  = "replaced" // gave way to a newer tick (overlap: replace)
	ReasonDeleted   = "task_deleted"
	ReasonExit      = "exit_code"
	ReasonSignal    = "signal"
	ReasonTimeout   = "timeout"
	ReasonStart     = "could_not_start"
	ReasonHost      = "host"
	ReasonStuck     = "start_stuck" // its process did not get to execute its program
	ReasonOOM       = "oom"
	ReasonLimits    = "limit"  // of limits, but for memory
	ReasonSecret    = "secret" // env_from could not be had
	ReasonPolicy    = "policy" // its node's administrator does not allow it
	ReasonNodeLost  = "node_lost"
	ReasonShutdown  = "daemon_stopped"
	ReasonBadEntry  = "unreadable_entry"
	ReasonOutput    = "output_rule"
	ReasonParts     = "parts"     // too few of its parts succeeded
	ReasonNodeGone  = "node_gone" // the node of a part went, or took none, before it had started there
)

// A Reason is an entry of the closed list of reasons.
type Reason struct {
	Name   string
	States []State // with which it stands
	Means  string  // for a person: a clause that follows "because"
}

// Reasons lists all reasons there are.
func Reasons() []Reason { return slices.Clone(reasons) }

// ReasonOf is the reason with a name; false if there is none.
func ReasonOf(name string) (Reason, bool) {
	i := slices.IndexFunc(reasons, func(r Reason) bool { return r.Name == name })
	if i < 0 {
		return Reason{}, false
	}
	return reasons[i], true
}

// Explains reports whether the reason may stand with a state.
func (r Reason) Explains(s State) bool { return slices.Contains(r.States, s) }

var reasons = []Reason{
	{ReasonManual, []State{Queued}, "it waits for the owner of its shard to take it"},
	{ReasonRetry, []State{Queued}, "it waits for its next attempt"},
	{ReasonCatchUp, []State{Queued}, "it is caught up with after others of its task, at the pace of catching up"},
	{ReasonHandBack, []State{Queued}, "its node drained before it had started the run, and gave it back"},
	{ReasonNoNode, []State{Queued, Skipped, Missed}, "no node that takes work matches its selector"},
	{ReasonOverlap, []State{Queued, Skipped}, "another run of the task was active, or waited"},
	{ReasonLimit, []State{Queued}, "as many runs of the task were active as max_active allows"},
	{ReasonFrozen, []State{Queued, Skipped}, "its namespace, or the cluster, was frozen"},
	{ReasonCount, []State{Queued, Missed}, "fewer nodes matched its selector than target.count or target.succeed needs, or more than 1000"},
	{ReasonQueueFull, []State{Skipped}, "as many runs of the task were waiting as may"},
	{ReasonDropped, []State{Skipped}, "it was the oldest that waited, and a newer tick took its place"},
	{ReasonShadow, []State{Skipped}, "its task is a shadow: its ticks are recorded and start nothing"},
	{ReasonNoOwner, []State{Missed}, "its shard had no owner when it fell due, and missed.policy did not have it run afterwards"},
	{ReasonCameToLightLate, []State{Missed}, "its owner came to it too late, and missed.policy did not have it run afterwards"},
	{ReasonWindow, []State{Missed}, "it came to light after missed.window had passed"},
	{ReasonDeadline, []State{Missed}, "it could not start before its start deadline"},
	{ReasonCancelled, []State{Cancelled}, "somebody cancelled it"},
	{ReasonReplaced, []State{Cancelled}, "a newer tick replaced it"},
	{ReasonDeleted, []State{Cancelled}, "its task was deleted"},
	{ReasonExit, []State{Failed}, "its process ended with an exit code that is no success"},
	{ReasonSignal, []State{Failed}, "a signal ended its process"},
	{ReasonTimeout, []State{TimedOut}, "it took longer than its timeout"},
	{ReasonStart, []State{Failed}, "its process could not be started"},
	{ReasonStuck, []State{Failed}, "its program had not been executed after 30 s: its file, its directory or a file system did not answer"},
	{ReasonHost, []State{Failed}, "its node cannot enforce what the task asks for"},
	{ReasonOOM, []State{Failed}, "it needed more memory than limits.memory allows, or the host had"},
	{ReasonLimits, []State{Failed}, "it needed more than its limits allow"},
	{ReasonSecret, []State{Failed}, "what its env_from names could not be had"},
	{ReasonPolicy, []State{Failed}, "the policy of its node does not allow it"},
	{ReasonNodeLost, []State{Lost}, "its node was lost while it ran"},
	{ReasonShutdown, []State{Lost, Failed, Cancelled}, "its daemon was stopped"},
	{ReasonBadEntry, []State{Failed, Lost, Cancelled, Missed}, "its record could not be read"},
	{ReasonOutput, []State{Failed}, "its process ended well, and its output was not what success asks for"},
	{ReasonParts, []State{Failed}, "too few of its parts succeeded"},
	{ReasonNodeGone, []State{Lost}, "the node that it was for was gone, or took no runs, for too long"},
}
