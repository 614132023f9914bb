package audit

import "github.com/carillonhq/carillon/pkg/task"

// The groups of findings.
const (
	groupEtcd   = "etcd"
	groupNodes  = "nodes"
	groupShards = "shards"
	groupTasks  = "tasks"
	groupRuns   = "runs"
)

// groupOrder is the order in which the groups are shown.
var groupOrder = []string{groupEtcd, groupNodes, groupShards, groupTasks, groupRuns}

// kind is what all findings of one kind have in common.
type kind struct {
	name, group, severity string
	why, do               string
	repair                string // "": a person has to repair it
}

var (
	kindMember = kind{"etcd_member", groupEtcd, task.Grave,
		"what etcd does not take does not happen: nothing fires while it is full or away",
		"carillon cluster status says what to do, with the command lines", ""}
	kindFilling = kind{"etcd_space", groupEtcd, task.Mild,
		"when etcd is full it takes no writes, and nothing fires",
		"carillon cluster status has the command lines that make space", ""}

	kindNoCluster = kind{"no_cluster", groupNodes, task.Grave,
		"without it no node knows how many shards there are, and the next that starts makes a new cluster",
		"restore the key from a backup of etcd before any node restarts", ""}
	kindNoLeader = kind{"no_leader", groupNodes, task.Grave,
		"nobody gives shards to nodes: those of a node that goes stand still",
		"see that a node with the role scheduler is present (carillon node list), and what its log says of the election", ""}
	kindUnfit = kind{"node_unfit", groupNodes, task.Mild,
		"the node owns no shards as long as it says so; the others do its part",
		"mend what it names, or drain the node", ""}
	kindClock = kind{"clock", groupNodes, task.Grave,
		"a node decides ticks by its own clock: one that is ahead fires too early, and seals the time in between",
		"set the clock of its host (chronyc tracking, timedatectl), then look again", ""}
	kindLeakedLease = kind{"leaked_lease", groupNodes, task.Mild,
		"somebody keeps alive a lease that no node's record names: a leader key under it can hold up the election",
		"find who holds it; if nobody is known to, etcdctl lease revoke LEASE", ""}
	kindLeased = kind{"leased_record", groupNodes, task.Grave,
		"the record vanishes when that lease ends, and with it what it says",
		"write it again without a lease: for a task, carillon task update; else etcdctl get KEY --print-value-only | etcdctl put KEY", ""}
	kindCleared = kind{"cleared_without_lease", groupNodes, task.Mild,
		"it never goes by itself; nobody waits for it longer than two days",
		"carillon audit --repair deletes it once it is two days old", "delete the record"}

	kindNoOwner = kind{"shard_without_owner", groupShards, task.Grave,
		"the ticks of its tasks wait until it has an owner",
		"the leader gives it one within half a minute, if there is a leader and a node that may own shards: see carillon node list", ""}
	kindOwnerAbsent = kind{"owner_absent", groupShards, task.Grave,
		"the ticks of its tasks wait until it has another owner",
		"the leader moves it within seconds, if there is one: see carillon cluster status", ""}
	kindTwoOwners = kind{"two_owners", groupShards, task.Grave,
		"a node decided a tick of a shard that was not its own: G1 is broken, and ticks may be decided twice",
		"keep the data of etcd and the nodes' logs, and report it; drain the node that is not the owner", ""}
	kindStray = kind{"stray_shard", groupShards, task.Mild,
		"the cluster has no such shard: nobody reads what is there",
		"see what wrote it; if it is of no use, delete it with etcdctl del --prefix KEY", ""}
	kindNoMark = kind{"watermark_missing", groupShards, task.Grave,
		"nobody knows which ticks of the shard are decided, so none is",
		"restore the key from a backup of etcd; a watermark made up decides ticks twice, or not at all", ""}
	kindBadMark = kind{"watermark_damaged", groupShards, task.Grave,
		"nobody knows which ticks of the shard are decided, so none is",
		"restore the key from a backup of etcd; a watermark made up decides ticks twice, or not at all", ""}
	kindMarkAhead = kind{"watermark_ahead", groupShards, task.Grave,
		"all ticks up to it count as decided: the shard's tasks do not fire before then",
		"a clock was wrong. Stop the nodes, and write the watermark back by hand (etcdctl put KEY), with a time that is past and a new nonce", ""}
	kindMarkStands = kind{"watermark_stands", groupShards, task.Grave,
		"ticks are due and nobody decides them: G16 is broken",
		"see the log and /readyz of the shard's owner; restart that node if they do not help", ""}
	kindMoveStands = kind{"move_stands", groupShards, task.Mild,
		"a hand-over that neither ends nor is given up keeps a second node busy with the shard",
		"carillon audit --repair deletes it; the leader asks again if it wants to", "delete the record"}

	kindUnreadable = kind{"unreadable", groupTasks, task.Grave,
		"what cannot be read is not done; all else goes on",
		"a task: carillon apply -f writes its entry anew, a damaged spec wants carillon task delete NAME first; else restore the record from a backup, or etcdctl del KEY", ""}
	kindSecret = kind{"unreadable_secret", groupTasks, task.Grave,
		"attempts of tasks that name it fail before they start",
		"carillon secret delete NAME, then carillon secret set NAME", ""}
	kindNoEntry = kind{"spec_without_entry", groupTasks, task.Grave,
		"the task is listed, and never fires",
		"carillon task update NAME with any change, or carillon apply -f, writes the entry anew", ""}
	kindNoSpec = kind{"entry_without_spec", groupTasks, task.Grave,
		"the task fires, and nobody can see, change or pause it",
		"carillon apply -f with its spec makes it whole; carillon task delete NAME ends it. Nobody but you knows which", ""}
	kindUIDs = kind{"uid_differs", groupTasks, task.Grave,
		"spec and entry are of two tasks of one name: what is shown is not what fires",
		"carillon task delete NAME, then create it again", ""}
	kindWrongShard = kind{"wrong_shard", groupTasks, task.Grave,
		"the task is looked up elsewhere: if it fires there, too, it fires twice",
		"etcdctl del KEY, then carillon apply -f with its spec if the task does not fire", ""}
	kindStrange = kind{"strange_key", groupTasks, task.Mild,
		"no key of Carillon looks so: nobody reads it, and it may hide a mistake",
		"see what wrote it; if it is of no use, etcdctl del KEY", ""}

	kindOrphan = kind{"orphan_attempt", groupRuns, task.Grave,
		"its node is gone for longer than the lost_after in its record, and nobody has ended it: its task may wait for it for ever",
		"its shard's owner ends it as lost: see its log. carillon run cancel RUN asks for an end", ""}
	kindNoTask = kind{"attempt_without_task", groupRuns, task.Mild,
		"it runs on for a task that is deleted, and nobody has asked it to end",
		"carillon run cancel RUN, or kill it on its node; its shard's owner should have asked", ""}
	kindStuck = kind{"stuck_queue", groupRuns, task.Grave,
		"the run is due, a node could take it, and nobody dispatches it",
		"see the log of the shard's owner; carillon run cancel RUN takes it out of the queue", ""}
	kindQueueOrphan = kind{"orphan_queue", groupRuns, task.Mild,
		"the run's task is gone: it never runs, and takes space",
		"carillon audit --repair deletes it", "delete the record"}
	kindHistoryOrphan = kind{"orphan_history", groupRuns, task.Mild,
		"history of a task that is gone takes space until a task of that name is deleted",
		"carillon audit --repair deletes it", "delete the records"}
	kindDeadOrphan = kind{"orphan_dead_run", groupRuns, task.Mild,
		"its task is gone: nobody can have it run again, and it takes space",
		"carillon audit --repair deletes it", "delete the record"}
	kindVersionOrphan = kind{"orphan_version", groupTasks, task.Mild,
		"a former version of a task that is gone takes space, and a task of that name would have it among its own",
		"carillon audit --repair deletes it", "delete the record"}
	kindStaleTombstone = kind{"stale_tombstone", groupTasks, task.Mild,
		"what it says is not so any more: the task is there, or so long gone that nobody was to remember it",
		"carillon audit --repair deletes it; a leader should have", "delete the record"}
)

// of makes a finding of the kind.
func (k kind) of(message string, keys ...string) task.Finding {
	return task.Finding{Kind: k.name, Group: k.group, Severity: k.severity, Keys: keys, Count: 1, Message: message,
		Why: k.why, Do: k.do, Repair: k.repair}
}
