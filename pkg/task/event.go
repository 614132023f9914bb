package task

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Event is one change of a cluster, as recorded in etcd. Kind and Action determine which fields are set.
type Event struct {
	ID          string `json:"id" doc:"The position among all events: the revision, and the number of the event within that revision."`
	Revision    int64  `json:"revision" doc:"The etcd revision at which it happened."`
	Time        Time   `json:"time,omitzero" doc:"When it happened, by the clock of the node that recorded it. If the record does not say, the latest clock that a node had announced before; absent only if no node was present."`
	Approximate bool   `json:"approximate,omitempty" doc:"The time is a clock that was announced a few seconds earlier."`
	Kind        string `json:"kind" doc:"task, run, alert, shard, node, cluster, secret or gap." enum:"task,run,alert,shard,node,cluster,secret,gap"`
	Action      string `json:"action" doc:"What happened; docs/events.md lists the actions of each kind."`
	Actor       *Actor `json:"actor,omitempty" doc:"The user or node that caused it; absent if the record does not say."`

	Namespace     string `json:"namespace,omitempty" doc:"The namespace that it is about."`
	Task          string `json:"task,omitempty" doc:"The task that it is about."`
	Secret        string `json:"secret,omitempty" doc:"The name of the secret that it is about."`
	Alert         string `json:"alert,omitempty" doc:"The kind of the alert: failures, success_within, success_by, max_lateness, max_duration, max_pause, more (alerts that are counted together) or cluster; silence for a silence; rule for a rule, which detail names."`
	UID           string `json:"uid,omitempty" doc:"The uid of the task or the alert."`
	Generation    int64  `json:"generation,omitempty" doc:"The new generation of the task or the secret."`
	Run           string `json:"run,omitempty" doc:"The id of the run that it is about."`
	State         string `json:"state,omitempty" doc:"The new state of the run or the node; absent if it no longer exists."`
	Reason        string `json:"reason,omitempty" doc:"For a run: one of the reasons in docs/why.md. For a pause, a freeze or a silence: what its author wrote. For an alert: why it was closed, or the problem of the cluster."`
	Trigger       string `json:"trigger,omitempty" doc:"What made the run: schedule, manual, catch_up, part or after." enum:"schedule,manual,catch_up,part,after"`
	ScheduledTime Time   `json:"scheduled_time,omitzero" doc:"The tick, or the first tick of a range."`
	Last          Time   `json:"last,omitzero" doc:"The last tick of a range."`
	Count         int64  `json:"count,omitempty" doc:"How many ticks the record covers, of a range."`
	Attempt       int    `json:"attempt,omitempty" doc:"The number of the attempt."`
	Dead          bool   `json:"dead,omitempty" doc:"The run waits for a user to retry or dismiss it: it has used up its attempts, or it is a cancelled run of a workflow."`
	Shard         *int   `json:"shard,omitempty" doc:"The shard that it is about."`
	Node          string `json:"node,omitempty" doc:"The node that it is about: of a run, where it is; of a shard, its owner; of the leader, itself."`
	Previous      string `json:"previous,omitempty" doc:"The owner, leader or state before."`
	Detail        string `json:"detail,omitempty" doc:"More about it, for a person."`

	From int64 `json:"from,omitempty" doc:"For a gap: the first revision whose events are lost; absent if it is unknown."`
	To   int64 `json:"to,omitempty" doc:"For a gap: the last revision whose events are lost."`
}

// The kinds of events.
const (
	EventTask    = "task"
	EventRun     = "run"
	EventShard   = "shard"
	EventNode    = "node"
	EventCluster = "cluster"
	EventSecret  = "secret"
	EventAlert   = "alert"
	EventGap     = "gap"
)

// EventKinds returns the kinds that a request can select. Gaps are always included.
func EventKinds() []string {
	return []string{EventTask, EventRun, EventAlert, EventShard, EventNode, EventCluster, EventSecret}
}

// The actions of events, by kind. Tasks also have the Change constants as actions.
const (
	ActionDeleted  = "deleted"  // task; run: deleted with its task, or by a repair
	ActionRepaired = "repaired" // task: its cursor was damaged, so runs of it that had ended start no dependents; see Detail

	ActionQueued     = "queued"     // the run waits in the queue
	ActionWaiting    = "waiting"    // the run still waits, for another reason
	ActionDispatched = "dispatched" // the run is in a node's inbox
	ActionStarted    = "started"
	ActionCancelling = "cancelling"  // the node has been requested to end the run
	ActionPausing    = "pausing"     // the node has been requested to pause the run
	ActionPaused     = "paused"      // the node has paused the run
	ActionUnpausable = "unpausable"  // the node could not pause the run: Detail contains the reason
	ActionResuming   = "resuming"    // the node has been requested to resume the run
	ActionResumed    = "resumed"     // the node has resumed the run
	ActionRetrying   = "retrying"    // the attempt has ended, and another one is queued
	ActionHandedBack = "handed_back" // the node has returned the run to the queue unstarted
	ActionEnded      = "ended"       // State contains how
	ActionSkipped    = "skipped"     // one or several ticks that never become runs
	ActionMissed     = "missed"
	ActionExtended   = "extended"  // the record of a range covers more ticks than before
	ActionDismissed  = "dismissed" // a dead run was removed from the list of dead runs
	ActionLate       = "late"      // the result of an attempt that had been declared lost; it changes nothing

	ActionAssigned   = "assigned" // shard
	ActionUnassigned = "unassigned"

	ActionJoined  = "joined"  // node
	ActionLeft    = "left"    // the node's session has ended
	ActionChanged = "changed" // node: its state or its description; cluster: its record

	ActionMade     = "made"   // cluster
	ActionLeader   = "leader" // another node leads, or none
	ActionFrozen   = "frozen"
	ActionUnfrozen = "unfrozen"

	ActionSet = SecretSet // secret, rule of alerts; ActionDeleted also applies

	ActionOpened       = "opened"       // alert: an expectation is not met
	ActionReopened     = "reopened"     // alert: it was closed a short time ago
	ActionAcknowledged = "acknowledged" // alert: Actor works on it
	ActionClosed       = "closed"       // alert: Reason says why
	ActionSilenced     = "silenced"     // alert: messages about some tasks are held back
	ActionUnsilenced   = "unsilenced"   // alert: a user has ended the silence

	ActionCompacted = "compacted" // gap: etcd has compacted these revisions
	ActionRestored  = "restored"  // gap: etcd was restored, and contains an older state than was reported
)

// Place is a position in the order of all events. A reader at a place has received everything up to it. The
// zero Place is before all events.
type Place struct {
	Revision int64
	Index    int // the number of events of that revision; Whole means all of them
}

// Whole is the Index of a Place after all events of its revision.
const Whole = math.MaxInt32

// After returns the place at the end of a revision.
func After(revision int64) Place { return Place{revision, Whole} }

// Before reports whether p comes before q.
func (p Place) Before(q Place) bool {
	return p.Revision < q.Revision || p.Revision == q.Revision && p.Index < q.Index
}

// String formats p as the id of an event: "1234.2", or "1234" for a whole revision.
func (p Place) String() string {
	if p.Index == Whole {
		return strconv.FormatInt(p.Revision, 10)
	}
	return fmt.Sprintf("%d.%d", p.Revision, p.Index)
}

// ParsePlace parses the result of String.
func ParsePlace(s string) (Place, error) {
	rev, index, has := strings.Cut(s, ".")
	p := Place{Index: Whole}
	var err error
	if p.Revision, err = strconv.ParseInt(rev, 10, 64); err == nil && has {
		p.Index, err = strconv.Atoi(index)
	}

	if err != nil || p.Revision < 0 || p.Index < 1 || p.Index > Whole || p.String() != s {
		return Place{}, Invalid(CodeBadValue, "after", "%s is not the id of an event, such as 1234 or 1234.2", Quote(s))
	}

	return p, nil
}

// EventFilter selects events. Gaps are always included.
type EventFilter struct {
	Namespace string   // "": all namespaces
	Task      string   // requires Namespace; "": all tasks
	Kinds     []string // empty: all kinds
}

// Wants reports whether the filter includes an event. With a Namespace, events without a namespace (of shards,
// nodes and the cluster) are included only if their kind is selected. A freeze of the whole cluster is always
// included.
func (f EventFilter) Wants(e *Event) bool {
	asked := slices.Contains(f.Kinds, e.Kind)
	switch {
	case e.Kind == EventGap:
		return true
	case len(f.Kinds) > 0 && !asked:
		return false
	case f.Task != "":
		return e.Namespace == f.Namespace && e.Task == f.Task
	case f.Namespace == "" || e.Namespace == f.Namespace:
		return true
	case e.Namespace != "":
		return false
	}

	return asked || e.Action == ActionFrozen || e.Action == ActionUnfrozen
}
