package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// judge holds what all judges share. A judge is responsible for one group of records. It compares each of them with
// the records that were read before, and adds a suspect for what does not fit together.
//
// A judge stores in the snapshot what later judges need to know about its records. It keeps what only it needs in
// its own fields.
type judge struct {
	*suspects
	reader  *reader   // reads at the audit's revision
	cluster *snapshot // what the stages so far have read
	keys    record.Keys
	ref     func(namespace, name string) record.Ref // returns the shard of a task
}

// checkFunc judges one record. An error ends the audit.
type checkFunc func(context.Context, *mvccpb.KeyValue) error

// seenRecord returns the key and the mod revision of a record, for later comparison.
func seenRecord(e *mvccpb.KeyValue) store.Seen {
	return store.Seen{Key: string(e.Key), Mod: e.ModRevision}
}

// suspectUnreadable suspects a record that cannot be decoded.
func (j judge) suspectUnreadable(e *mvccpb.KeyValue, what string, err error) {
	reason := strings.TrimPrefix(err.Error(), task.ErrInvalid.Error()+": ")
	j.addSuspect(kindUnreadable.newFinding(what+" cannot be read: "+reason, string(e.Key)), seenRecord(e))
}

// suspectUnknownKey suspects a key whose form Carillon does not use.
func (j judge) suspectUnknownKey(e *mvccpb.KeyValue) {
	j.addSuspect(kindUnknownKey.newFinding("not a key of Carillon", string(e.Key)), seenRecord(e))
}

// checkNoLease checks that a permanent record has no lease.
func (j judge) checkNoLease(e *mvccpb.KeyValue) {
	if e.Lease != 0 {
		j.addSuspect(kindLeased.newFinding(fmt.Sprintf("the record is attached to lease %x", e.Lease), string(e.Key)), seenRecord(e))
	}
}

// hasTask reports whether a record with this uid belongs to an entry of its shard, or to a spec without an entry. A
// missing entry is a separate finding, and a repair must not delete the other records of that task.
func (j judge) hasTask(s *shardState, ref record.Ref, uid string) bool {
	entry, ok := s.entries[ref.String()]
	return ok && (entry.unreadable || entry.uid == uid) || j.cluster.specs.mayBe(ref, uid)
}

// clearedPrefix is the prefix of the records of instances that are proved dead.
func clearedPrefix(keys record.Keys) string { return keys.Root() + "cleared/" }

// movesPrefix is the prefix of the records of handovers, one key for each shard.
func movesPrefix(keys record.Keys) string { return keys.Root() + "moves/" }

// versionsPrefix is the prefix of the former versions of all tasks.
func versionsPrefix(keys record.Keys) string { return keys.Root() + "versions/" }

// The groups of findings.
const (
	groupEtcd   = "etcd"
	groupAudit  = "audit log"
	groupNodes  = "nodes"
	groupShards = "shards"
	groupTasks  = "tasks"
	groupRuns   = "runs"
)

// groupOrder is the order in which the groups are shown.
var groupOrder = []string{groupEtcd, groupAudit, groupNodes, groupShards, groupTasks, groupRuns}

// kind holds what all findings of one kind have in common.
type kind struct {
	name, group, severity string // name is the finding's kind for programs
	why, do               string // why the finding matters; what a user can do
	repair                string // what Repair does; "": only a person can repair it
}

var (
	kindMember = kind{"etcd_member", groupEtcd, task.Grave,
		"Carillon cannot schedule without etcd: nothing runs while etcd is full or unavailable",
		"carillon cluster status shows what to do and the commands for it", ""}
	kindFilling = kind{"etcd_space", groupEtcd, task.Mild,
		"when etcd is full, it accepts no writes and nothing runs",
		"carillon cluster status shows the commands that free space", ""}

	kindUnaudited = kind{"change_without_audit_record", groupAudit, task.Grave,
		"Carillon writes the audit record of a change in the same transaction: somebody wrote to etcd directly, or deleted the audit record",
		"find out who can write to etcd, and check the record; if you wrote it yourself, write it again with carillon, which leaves an audit record", ""}
	kindRewritten = kind{"audit_record_rewritten", groupAudit, task.Grave,
		"Carillon never changes an audit record: somebody wrote to etcd directly, and what the record says is not what happened",
		"compare it with the copy of an audit sink, and find out who can write to etcd", ""}

	kindNoCluster = kind{"no_cluster", groupNodes, task.Grave,
		"without it, no node knows the number of shards, and the next node that starts creates a new cluster",
		"restore the key from a backup of etcd before any node restarts", ""}
	kindNoLeader = kind{"no_leader", groupNodes, task.Grave,
		"no shards are assigned: the shards of a node that leaves stop",
		"check that a node with the role scheduler is present (carillon node list), and look for the election in its log", ""}
	kindIneligible = kind{"node_ineligible", groupNodes, task.Mild,
		"the node owns no shards until it recovers; the other nodes take over its shards",
		"fix the problem that it names, or drain the node", ""}
	kindClock = kind{"clock", groupNodes, task.Grave,
		"a node decides ticks by its own clock: if the clock is ahead, runs start too early, and ticks in between count as decided without having run",
		"set the clock of its host (chronyc tracking, timedatectl), then run the audit again", ""}
	kindLeakedLease = kind{"leaked_lease", groupNodes, task.Mild,
		"a client keeps a lease alive that no node's record names: a leader key under it can block the election",
		"find the client that holds it; if you cannot, run etcdctl lease revoke LEASE", ""}
	kindLeased = kind{"leased_record", groupNodes, task.Grave,
		"the record disappears when that lease expires",
		"write it again without a lease: for a task, run carillon task update; for other records, etcdctl get KEY --print-value-only | etcdctl put KEY", ""}
	kindCleared = kind{"cleared_without_lease", groupNodes, task.Mild,
		"the record is never removed by itself, and no node waits for it longer than two days",
		"carillon audit --repair deletes it when it is two days old", "delete the record"}

	kindNoOwner = kind{"shard_without_owner", groupShards, task.Grave,
		"the ticks of its tasks wait until it has an owner",
		"the leader assigns one within half a minute, if there is a leader and a node that may own shards: see carillon node list", ""}
	kindOwnerAbsent = kind{"owner_absent", groupShards, task.Grave,
		"the ticks of its tasks wait until it has another owner",
		"the leader moves it within seconds, if there is one: see carillon cluster status", ""}
	kindTwoOwners = kind{"two_owners", groupShards, task.Grave,
		"a node decided a tick of a shard that it did not own: guarantee G1 is broken, and ticks may be decided twice",
		"keep the data of etcd and the logs of the nodes, and report a bug; drain the node that is not the owner", ""}
	kindStrayShard = kind{"stray_shard", groupShards, task.Mild,
		"the cluster has no such shard: no node reads these keys",
		"find out what wrote it; if you do not need it, run etcdctl del --prefix KEY", ""}
	kindWatermarkMissing = kind{"watermark_missing", groupShards, task.Grave,
		"it is unknown which ticks of the shard are decided, so no tick is decided",
		"restore the key from a backup of etcd; with an invented watermark, ticks are decided twice or not at all", ""}
	kindWatermarkDamaged = kind{"watermark_damaged", groupShards, task.Grave,
		"it is unknown which ticks of the shard are decided, so no tick is decided",
		"restore the key from a backup of etcd; with an invented watermark, ticks are decided twice or not at all", ""}
	kindWatermarkAhead = kind{"watermark_ahead", groupShards, task.Grave,
		"all ticks up to it count as decided: the tasks of the shard do not run before then",
		"a clock was wrong: stop the nodes and set the watermark back manually (etcdctl put KEY), with a time in the past and a new nonce", ""}
	kindWatermarkStalled = kind{"watermark_stalled", groupShards, task.Grave,
		"ticks are due but are not decided: guarantee G16 is broken",
		"see the log and /readyz of the shard's owner; if they do not help, restart that node", ""}
	kindMoveStalled = kind{"move_stalled", groupShards, task.Mild,
		"a handover that neither completes nor is cancelled keeps a second node busy with the shard",
		"carillon audit --repair deletes it; the leader starts a new handover if one is needed", "delete the record"}

	kindUnreadable = kind{"unreadable", groupTasks, task.Grave,
		"Carillon ignores records that it cannot read; everything else continues",
		"for a task, run carillon apply -f to rewrite its entry (if the spec is damaged, first carillon task delete NAME); for other records, restore a backup or run etcdctl del KEY", ""}
	kindSecret = kind{"unreadable_secret", groupTasks, task.Grave,
		"attempts of tasks that use it fail before they start",
		"carillon secret delete NAME, then carillon secret set NAME", ""}
	kindNoEntry = kind{"spec_without_entry", groupTasks, task.Grave,
		"the task is listed but never runs",
		"carillon task update NAME with any change, or carillon apply -f, rewrites the entry", ""}
	kindNoSpec = kind{"entry_without_spec", groupTasks, task.Grave,
		"the task runs, but you cannot see, change or pause it",
		"to keep the task, run carillon apply -f with its spec; to remove it, run carillon task delete NAME", ""}
	kindUIDs = kind{"uid_differs", groupTasks, task.Grave,
		"the spec and the entry belong to different tasks with the same name: the task that runs is not the one that is shown",
		"carillon task delete NAME, then create it again", ""}
	kindWrongShard = kind{"wrong_shard", groupTasks, task.Grave,
		"Carillon looks for the task in another shard: if it also runs there, it runs twice",
		"run etcdctl del KEY; if the task then does not run, carillon apply -f with its spec", ""}
	kindLinkMissing = kind{"link_missing", groupTasks, task.Grave,
		"the ends of the source start no run of the task",
		"carillon audit --repair writes the record; ends of the source before that start nothing", "write the record"}
	kindNoLinkInEntry = kind{"entry_without_link", groupTasks, task.Grave,
		"the ends of the source start no run of the task",
		"remove the source from the after of the task, and add it again", ""}
	kindLinkOrphan = kind{"orphan_link", groupTasks, task.Mild,
		"the ends of the source are sent to a task that does not run after it, and the source cannot be deleted without force",
		"carillon audit --repair deletes it", "delete the record"}
	kindCycle = kind{"cycle", groupTasks, task.Grave,
		"each run of one of these tasks can start runs of all of them, again and again",
		"remove one of the tasks from the after of the next one; somebody wrote to etcd directly", ""}
	kindUnknownKey = kind{"unknown_key", groupTasks, task.Mild,
		"this is not a valid Carillon key: no node reads it, and it may indicate a mistake",
		"find out what wrote it; if you do not need it, run etcdctl del KEY", ""}

	kindOrphan = kind{"orphan_attempt", groupRuns, task.Grave,
		"its node has been gone for longer than the lost_after in its record, but it was not declared lost: its task may wait for it forever",
		"the owner of its shard should declare it lost: see that node's log; carillon run cancel RUN requests its cancellation", ""}
	kindNoTask = kind{"attempt_without_task", groupRuns, task.Mild,
		"it is still running although its task was deleted, and its cancellation was not requested",
		"run carillon run cancel RUN, or kill it on its node; the owner of its shard should have cancelled it", ""}
	kindStuck = kind{"stuck_queue", groupRuns, task.Grave,
		"the run is due and a node could run it, but it is not dispatched",
		"see the log of the shard's owner; carillon run cancel RUN removes it from the queue", ""}
	kindQueueOrphan = kind{"orphan_queue", groupRuns, task.Mild,
		"the task was deleted: the run never starts and uses space",
		"carillon audit --repair deletes it", "delete the record"}
	kindHistoryOrphan = kind{"orphan_history", groupRuns, task.Mild,
		"the history of a deleted task uses space until a task with the same name is deleted",
		"carillon audit --repair deletes it", "delete the records"}
	kindLedgerOrphan = kind{"orphan_ledger", groupRuns, task.Mild,
		"the ledger of a deleted task uses space until a task with the same name is deleted",
		"carillon audit --repair deletes it", "delete the records"}
	kindCountedTwice = kind{"run_counted_twice", groupRuns, task.Mild,
		"guarantee G31 is broken: carillon task stats and why count the run twice",
		"keep the data of etcd and the logs of the nodes, and report a bug", ""}
	kindDeadOrphan = kind{"orphan_dead_run", groupRuns, task.Mild,
		"its task was deleted: you cannot retry the run, and it uses space",
		"carillon audit --repair deletes it", "delete the record"}
	kindRunDataOrphan = kind{"orphan_run_data", groupRuns, task.Mild,
		"the steps of a run that has ended use space; the owner of its shard removes them when it next trims the history of the task",
		"carillon audit --repair deletes them", "delete the record"}
	kindRunDataMissing = kind{"run_without_data", groupRuns, task.Grave,
		"a run keeps the steps with which it began: without them its owner ends it with the reason bad_record, and a dead run cannot be retried",
		"somebody deleted the record; start a new run: carillon task trigger TASK", ""}
	kindVersionOrphan = kind{"orphan_version", groupTasks, task.Mild,
		"an old version of a deleted task uses space, and would appear in the history of a new task with the same name",
		"carillon audit --repair deletes it", "delete the record"}
	kindStaleTombstone = kind{"stale_tombstone", groupTasks, task.Mild,
		"the record is out of date: the task exists again, or was deleted so long ago that the record should have been removed",
		"carillon audit --repair deletes it; a leader should have", "delete the record"}
)

// liveKinds are the kinds of findings that every cluster has in which nothing runs.
var liveKinds = map[string]bool{
	kindMember.name: true, kindFilling.name: true, kindNoLeader.name: true, kindIneligible.name: true, kindClock.name: true, kindLeakedLease.name: true,
	kindNoOwner.name: true, kindOwnerAbsent.name: true, kindWatermarkStalled.name: true, kindMoveStalled.name: true, kindOrphan.name: true, kindStuck.name: true,
}

// newFinding returns a finding of the kind about one record.
func (k kind) newFinding(message string, keys ...string) task.Finding {
	return task.Finding{Kind: k.name, Group: k.group, Severity: k.severity, Keys: keys, Count: 1, Message: message,
		Why: k.why, Do: k.do, Repair: k.repair}
}

// snapshot holds what the audit remembers of the first read. The judge that reads a record stores it here, and
// later judges compare with it.
type snapshot struct {
	shards  int                  // number of shards; 0: the cluster's record is missing or cannot be read
	nodes   map[string]nodeState // those that are present, by name
	owners  map[int]record.Owner // by shard
	cleared map[string]time.Time // by instance: when it was proved dead
	freezes task.Freezes         // what is frozen: its waiting runs are not stuck
	specs   specSet              // which tasks exist
	changes changeSet            // when access records, secrets and specs were written last
	active  map[uint64]bool      // hashes of the tasks that have attempts in inboxes

	namespaces map[string]*task.Namespace // their node selectors decide which nodes can run tasks
	limits     []task.NodeLimit           // and so do the labels that nodes may have
}

func newSnapshot() *snapshot {
	return &snapshot{
		nodes: map[string]nodeState{}, owners: map[int]record.Owner{}, cleared: map[string]time.Time{},
		active: map[uint64]bool{}, namespaces: map[string]*task.Namespace{},
	}
}

// nodeState is a node's record and its mod revision.
type nodeState struct {
	task.Node
	mod int64
}

// shardState holds what the audit knows about a shard while it reads it.
type shardState struct {
	id           int
	watermark    record.Watermark
	watermarkMod int64                 // 0: there is no watermark that can be read
	entries      map[string]entryState // by namespace/name
	ended        map[uint64]int64      // the mod revisions of history records, by the hash of the key
}

// entryState holds what the audit knows about an entry while it reads its shard.
type entryState struct {
	uid        string
	mod        int64
	target     task.Target // for which nodes can run the task
	needsKey   bool        // its attempts read a secret, so that the node needs a key
	unreadable bool        // the owner cannot read the entry, so that nothing is compared with it
}
