package task

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Event is one change of a cluster, as etcd recorded it. Which fields are set
// follows from Kind and Action.
type Event struct {
	ID       string `json:"id" doc:"The position among all events: the revision, and the number of the event within that revision."`
	Revision int64  `json:"revision" doc:"The etcd revision at which it happened."`
	Time     Time   `json:"time,omitzero" doc:"When it happened, by the clock of the node that recorded it; absent if the record does not say."`
	Kind     string `json:"kind" doc:"task, run, shard, node, cluster, secret or gap."`
	Action   string `json:"action" doc:"What happened; docs/events.md lists the actions of each kind."`
	Actor    string `json:"actor,omitempty" doc:"The user or node that did it; absent if the record does not say."`

	Namespace     string `json:"namespace,omitempty"`
	Task          string `json:"task,omitempty"`
	Secret        string `json:"secret,omitempty" doc:"The name of the secret that it is about."`
	UID           string `json:"uid,omitempty"`
	Generation    int64  `json:"generation,omitempty" doc:"The new generation of the task or the secret."`
	Run           string `json:"run,omitempty"`
	State         string `json:"state,omitempty" doc:"The new state of the run or the node; absent if it no longer exists."`
	Reason        string `json:"reason,omitempty" doc:"For a run: one of the reasons in docs/why.md. For a pause or a freeze: what its author wrote."`
	Trigger       string `json:"trigger,omitempty"`
	ScheduledTime Time   `json:"scheduled_time,omitzero" doc:"The tick, or the first tick of a range."`
	Last          Time   `json:"last,omitzero" doc:"The last tick of a range."`
	Count         int64  `json:"count,omitempty" doc:"How many ticks the record covers, of a range."`
	Attempt       int    `json:"attempt,omitempty"`
	Dead          bool   `json:"dead,omitempty" doc:"The run has used up its attempts and waits for a user to retry or dismiss it."`
	Shard         *int   `json:"shard,omitempty"`
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
	EventGap     = "gap"
)

// EventKinds lists the kinds that can be asked for. A gap is always told.
func EventKinds() []string {
	return []string{EventTask, EventRun, EventShard, EventNode, EventCluster, EventSecret}
}

// The actions, by kind. Of a task there are also the Change words.
const (
	ActionDeleted = "deleted" // task; run: removed with its task, or by a repair

	ActionQueued     = "queued"     // it waits
	ActionWaiting    = "waiting"    // it waits on, for another reason
	ActionDispatched = "dispatched" // it is in a node's inbox
	ActionStarted    = "started"
	ActionCancelling = "cancelling"  // its node is asked to end it
	ActionPausing    = "pausing"     // its node is asked to have it stand still
	ActionPaused     = "paused"      // it does
	ActionUnpausable = "unpausable"  // it does not: Detail says why
	ActionResuming   = "resuming"    // its node is asked to let it go on
	ActionResumed    = "resumed"     // it does
	ActionRetrying   = "retrying"    // the attempt has ended, and another waits
	ActionHandedBack = "handed_back" // its node had not started it
	ActionEnded      = "ended"       // State says how
	ActionSkipped    = "skipped"     // a tick, or several, never to be a run
	ActionMissed     = "missed"
	ActionExtended   = "extended"  // the record of a range covers more ticks
	ActionDismissed  = "dismissed" // a dead run is taken off the list of dead runs
	ActionLate       = "late"      // the result of an attempt that was declared lost; it changes nothing

	ActionAssigned   = "assigned" // shard
	ActionUnassigned = "unassigned"

	ActionJoined  = "joined"  // node
	ActionLeft    = "left"    // its session is over
	ActionChanged = "changed" // node: its state or its description; cluster: its record

	ActionMade     = "made"   // cluster
	ActionLeader   = "leader" // another node leads, or none
	ActionFrozen   = "frozen"
	ActionUnfrozen = "unfrozen"

	ActionSet     = SecretSet     // secret; deleted, too
	ActionRotated = SecretRotated // its values are encrypted anew

	ActionCompacted = "compacted" // gap: etcd has forgotten these revisions
	ActionRestored  = "restored"  // gap: etcd holds an older state than was told of
)

// Place is a place in the order of all events: everything up to it is known. The
// zero Place is before all of them.
type Place struct {
	Revision int64
	Index    int // events of that revision; Whole: all of them
}

// Whole is the Index of a Place at the end of its revision.
const Whole = math.MaxInt32

// After is the place at the end of a revision.
func After(revision int64) Place { return Place{revision, Whole} }

// Before reports whether p comes before q.
func (p Place) Before(q Place) bool {
	return p.Revision < q.Revision || p.Revision == q.Revision && p.Index < q.Index
}

// String is p as an event's id has it: "1234.2", or "1234" for a whole revision.
func (p Place) String() string {
	if p.Index == Whole {
		return strconv.FormatInt(p.Revision, 10)
	}
	return fmt.Sprintf("%d.%d", p.Revision, p.Index)
}

// ParsePlace reads what String wrote.
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

// EventFilter says which events are wanted. Gaps always are.
type EventFilter struct {
	Namespace string   // "": all of them
	Task      string   // needs a Namespace; "": all
	Kinds     []string // none: all
}

// Wants reports whether the filter lets an event pass. With a Namespace, events
// that have none (of shards, nodes, the cluster) pass only if their kind is asked
// for; a freeze of the whole cluster always does.
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
