package record

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/carillonhq/carillon/pkg/task"
)

// DefaultPrefix separates the keys of Carillon from others in the same etcd.
const DefaultPrefix = "/carillon"

// Keys builds the keys of one cluster. Every prefix that it returns ends in '/', so that a
// range never includes the keys of another name that begins with the same letters (test and
// test-1).
type Keys struct {
	root string // ends in /
	AccessKeys
	AlertKeys
}

// NewKeys returns the keys below prefix, which must begin with '/' and must not end with it.
func NewKeys(prefix string) (Keys, error) {
	if len(prefix) < 2 || prefix[0] != '/' || strings.HasSuffix(prefix, "/") || strings.Contains(prefix, "//") ||
		strings.ContainsFunc(prefix, func(r rune) bool { return r <= ' ' || r > '~' }) || len(prefix) > 128 {
		return Keys{}, task.Invalid(task.CodeBadName, "prefix",
			"%s: begin with '/', do not end with it, use printable ASCII without spaces, at most 128 bytes", task.Quote(prefix))
	}

	root := prefix + "/"

	return Keys{root: root, AccessKeys: AccessKeys{root: root}, AlertKeys: AlertKeys{root: root}}, nil
}

// Root is the prefix of all keys.
func (k Keys) Root() string { return k.root }

// Cluster is the key of the cluster's record: its id, its settings and the format of records.
func (k Keys) Cluster() string { return k.root + "cluster" }

// Nodes is the prefix of the leased keys of the nodes that are present.
func (k Keys) Nodes() string { return k.root + "nodes/" }

// Node is the leased key of one node.
func (k Keys) Node(name string) string { return k.Nodes() + name }

// NodeRequest is the key of a request that a node takes a state.
func (k Keys) NodeRequest(name string) string { return k.root + "requests/" + name }

// Leader is the prefix of the keys of the election.
func (k Keys) Leader() string { return k.root + "leader/" }

// Owners is the prefix of the assignment: shard → node.
func (k Keys) Owners() string { return k.root + "owners/" }

// Owner is the key that names the owner of a shard. Its mod revision is the fence of the shard.
func (k Keys) Owner(shard int) string { return k.Owners() + ShardName(shard) }

// Handovers is the prefix of the handovers in progress.
func (k Keys) Handovers() string { return k.root + "moves/" }

// Handover is the key that names the node which loads a shard before it becomes the owner.
func (k Keys) Handover(shard int) string { return k.Handovers() + ShardName(shard) }

// Specs is the prefix of the specs of all tasks.
func (k Keys) Specs() string { return k.root + "tasks/" }

// SpecsOf is the prefix of the specs in one namespace.
func (k Keys) SpecsOf(namespace string) string { return k.Specs() + namespace + "/" }

// Spec is the key of the spec of a task.
func (k Keys) Spec(r Ref) string { return k.SpecsOf(r.Namespace) + r.Name }

// Shards is the prefix of all shards.
func (k Keys) Shards() string { return k.root + "shards/" }

// Shard is the prefix of everything in one shard.
func (k Keys) Shard(shard int) string { return k.Shards() + ShardName(shard) + "/" }

// Entries is the prefix of the entries in a shard.
func (k Keys) Entries(shard int) string { return k.Shard(shard) + "tasks/" }

// Entry is the key of a task's entry, the part of the task that the scheduler needs.
func (k Keys) Entry(r Ref) string { return k.Entries(r.Shard) + r.Namespace + "/" + r.Name }

// Queue is the prefix of the waiting runs of a shard.
func (k Keys) Queue(shard int) string { return k.Shard(shard) + "queue/" }

// QueueOf is the prefix of the waiting runs of a task.
func (k Keys) QueueOf(r Ref) string { return k.Queue(r.Shard) + r.Namespace + "/" + r.Name + "/" }

// Queued is the key of a waiting run.
func (k Keys) Queued(r Ref, run string) string { return k.QueueOf(r) + run }

// History is the prefix of the history of a shard.
func (k Keys) History(shard int) string { return k.Shard(shard) + "history/" }

// HistoryOf is the prefix of the history of a task.
func (k Keys) HistoryOf(r Ref) string { return k.History(r.Shard) + r.Namespace + "/" + r.Name + "/" }

// Ended is the key of the record of how a run ended, or of ticks that did not run. For a part,
// it is the key among the ended parts, because the history contains only the run to which the
// part belongs.
func (k Keys) Ended(r Ref, run string) string {
	if task.IsPart(run) {
		return k.Parts(r) + run
	}
	return k.inHistory(r, run)
}

// PartsIn is the prefix of the ended parts of a shard whose runs have not ended.
func (k Keys) PartsIn(shard int) string { return k.Shard(shard) + "parts/" }

// Parts is the prefix of the ended parts of a task whose runs have not ended.
func (k Keys) Parts(r Ref) string { return k.PartsIn(r.Shard) + r.Namespace + "/" + r.Name + "/" }

// inHistory is the key of a history record. It is built in one concatenation, because it is
// built often.
func (k Keys) inHistory(r Ref, run string) string {
	return k.root + "shards/" + ShardName(r.Shard) + "/history/" + r.Namespace + "/" + r.Name + "/" + run
}

// Ledgers is the prefix of the ledgers of all tasks. It is not below Shards, so owners neither load nor watch it.
func (k Keys) Ledgers() string { return k.root + "ledger/" }

// LedgerOf is the prefix of the chunks of a task's ledger.
func (k Keys) LedgerOf(r Ref) string {
	return k.Ledgers() + ShardName(r.Shard) + "/" + r.Namespace + "/" + r.Name + "/"
}

// AllRunData is the prefix of the data of all runs of workflows (task.RunData). It is not below Shards, so owners neither load nor
// watch it.
func (k Keys) AllRunData() string { return k.root + "rundata/" }

// RunDataOf is the prefix of the data of the runs of a task.
func (k Keys) RunDataOf(r Ref) string {
	return k.AllRunData() + ShardName(r.Shard) + "/" + r.Namespace + "/" + r.Name + "/"
}

// RunData is the key of the data of a run.
func (k Keys) RunData(r Ref, run string) string { return k.RunDataOf(r) + run }

// LedgerChunk is the key of a chunk. The keys of a task's chunks sort in the order in which they were begun.
func (k Keys) LedgerChunk(r Ref, id string) string { return k.LedgerOf(r) + id }

// Dead is the prefix of a task's dead runs, which have no attempt left and wait for a person.
func (k Keys) Dead(r Ref) string {
	return k.Shard(r.Shard) + "dead/" + r.Namespace + "/" + r.Name + "/"
}

// DeadRun is the key of a dead run.
func (k Keys) DeadRun(r Ref, run string) string { return k.Dead(r) + run }

// Subscribers is the prefix of the subscribers of a task: the tasks that run after it.
func (k Keys) Subscribers(source Ref) string {
	return k.Shard(source.Shard) + "subscribers/" + source.Namespace + "/" + source.Name + "/"
}

// SubscribersIn is the prefix of the subscribers of all tasks of a namespace in a shard.
func (k Keys) SubscribersIn(shard int, namespace string) string {
	return k.Shard(shard) + "subscribers/" + namespace + "/"
}

// Subscriber is the key that makes a task of the same namespace a dependent of source.
func (k Keys) Subscriber(source Ref, dependent string) string {
	return k.Subscribers(source) + dependent
}

// Sent is the key of the cursor of a task: up to which of its ended runs triggers were sent to its subscribers.
func (k Keys) Sent(source Ref) string {
	return k.Shard(source.Shard) + "sent/" + source.Namespace + "/" + source.Name
}

// Triggers is the prefix of the triggers of a task that have no outcome yet.
func (k Keys) Triggers(dependent Ref) string {
	return k.Shard(dependent.Shard) + "triggers/" + dependent.Namespace + "/" + dependent.Name + "/"
}

// Trigger is the key of a trigger: an ended run of a source.
func (k Keys) Trigger(dependent Ref, source, run string) string {
	return k.Triggers(dependent) + source + "~" + run
}

// Graph is the key that every transaction puts which adds a source to a task of a namespace. Its mod revision shows whether the
// links have changed since a cycle was looked for.
func (k Keys) Graph(namespace string) string { return k.root + "graph/" + namespace }

// AlertKeys builds the keys of alerts, of what was sent to their receivers, of rules and of silences. Keys embeds it.
type AlertKeys struct{ root string }

// Alerts is the prefix of everything about alerts: the alerts of each shard, those of the cluster, what was sent to
// receivers, rules and silences. It is not below Shards, so owners neither load nor watch it.
func (k AlertKeys) Alerts() string { return k.root + "alerts/" }

// AlertsIn is the prefix of the alerts of a shard.
func (k AlertKeys) AlertsIn(shard int) string { return k.Alerts() + ShardName(shard) + "/" }

// AlertsOf is the prefix of the alerts of a task.
func (k AlertKeys) AlertsOf(r Ref) string {
	return k.AlertsIn(r.Shard) + r.Namespace + "/" + r.Name + "/"
}

// Alert is the key of an alert of a task.
func (k AlertKeys) Alert(r Ref, kind task.AlertKind) string { return k.AlertsOf(r) + string(kind) }

// moreAlerts stands for the name of a task in the keys of AlertsMore. It is not a valid name.
const moreAlerts = "~more"

// AlertsMore is the key that counts the alerts of a shard and a namespace for one receiver, NAMESPACE/NAME, that have no
// record of their own.
func (k AlertKeys) AlertsMore(shard int, namespace, receiver string) string {
	return k.AlertsIn(shard) + namespace + "/" + moreAlerts + "/" + receiver
}

// ClusterAlerts is the prefix of the alerts about the cluster.
func (k AlertKeys) ClusterAlerts() string { return k.Alerts() + "cluster/" }

// ClusterAlert is the key of the alert about one problem of the cluster.
func (k AlertKeys) ClusterAlert(code string) string { return k.ClusterAlerts() + code }

// SentAlerts is the prefix of what was sent to receivers.
func (k AlertKeys) SentAlerts() string { return k.Alerts() + "sent/" }

// SentIn is the prefix of what was sent to the receivers of a namespace.
func (k AlertKeys) SentIn(namespace string) string { return k.SentAlerts() + namespace + "/" }

// SentTo is the key of what was sent to a receiver.
func (k AlertKeys) SentTo(receiver Ref) string {
	return k.SentIn(receiver.Namespace) + receiver.Name
}

// Heartbeat is the key with the time at which a leader was last able to write.
func (k AlertKeys) Heartbeat() string { return k.Alerts() + "heartbeat" }

// Silences is the prefix of all silences.
func (k AlertKeys) Silences() string { return k.Alerts() + "silences/" }

// SilencesOf is the prefix of the silences of a namespace.
func (k AlertKeys) SilencesOf(namespace string) string { return k.Silences() + namespace + "/" }

// Silence is the key of one silence.
func (k AlertKeys) Silence(namespace, id string) string { return k.SilencesOf(namespace) + id }

// AlertRules is the prefix of all rules of alerts.
func (k AlertKeys) AlertRules() string { return k.Alerts() + "rules/" }

// AlertRulesOf is the prefix of the rules of a namespace.
func (k AlertKeys) AlertRulesOf(namespace string) string { return k.AlertRules() + namespace + "/" }

// AlertRule is the key of one rule.
func (k AlertKeys) AlertRule(namespace, name string) string { return k.AlertRulesOf(namespace) + name }

// ParseAlertRule returns the namespace and the name in the key of a rule.
func (k AlertKeys) ParseAlertRule(key string) (namespace, name string, ok bool) {
	parts, ok := partsBelow(k.AlertRules(), key)
	if !ok || len(parts) != 2 {
		return "", "", false
	}

	return parts[0], parts[1], true
}

// ParseAlert returns the parts of the key of an alert as the fields of a task.Alert, with its shard, which is -1 for an
// alert about the cluster. It returns false for every other key.
func (k AlertKeys) ParseAlert(key string) (a task.Alert, shard int, ok bool) {
	rest, below := strings.CutPrefix(key, k.Alerts())
	parts := strings.Split(rest, "/")
	if !below || slices.Contains(parts, "") {
		return task.Alert{}, 0, false
	}

	if len(parts) == 2 && parts[0] == "cluster" {
		return task.Alert{Kind: task.AlertCluster, Code: parts[1]}, -1, true
	}

	if shard, ok = parseShardName(parts[0]); !ok {
		return task.Alert{}, 0, false
	}

	switch {
	case len(parts) == 4 && parts[2] != moreAlerts:
		return task.Alert{Namespace: parts[1], Task: parts[2], Kind: task.AlertKind(parts[3])}, shard, true
	case len(parts) == 5 && parts[2] == moreAlerts:
		return task.Alert{Namespace: parts[1], Kind: task.AlertMore, Receiver: parts[3] + "/" + parts[4]}, shard, true
	}

	return task.Alert{}, 0, false
}

// ParseSentTo returns the receiver in a key of SentTo.
func (k AlertKeys) ParseSentTo(key string) (receiver string, ok bool) {
	parts, ok := partsBelow(k.SentAlerts(), key)
	if !ok || len(parts) != 2 {
		return "", false
	}

	return parts[0] + "/" + parts[1], true
}

// ParseSilence returns the namespace and the ID in the key of a silence.
func (k AlertKeys) ParseSilence(key string) (namespace, id string, ok bool) {
	parts, ok := partsBelow(k.Silences(), key)
	if !ok || len(parts) != 2 {
		return "", "", false
	}

	return parts[0], parts[1], true
}

// Freezes is the key of the record of freezes. Every commit compares it (G21).
func (k Keys) Freezes() string { return k.root + "freezes" }

// LoginKey is the key of the random key that seals logins which are under way and the cookies of sessions.
func (k Keys) LoginKey() string { return k.root + "login-key" }

// Boots is the prefix of what concerns the schedule @reboot: the boots of nodes, and the tasks.
func (k Keys) Boots() string { return k.root + "boots/" }

// NodeBoots is the prefix of the boots of nodes.
func (k Keys) NodeBoots() string { return k.Boots() + "nodes/" }

// NodeBoot is the key of the last boot of a node.
func (k Keys) NodeBoot(node string) string { return k.NodeBoots() + node }

// BootTasks is the prefix of the names of the tasks that run at boot.
func (k Keys) BootTasks() string { return k.Boots() + "tasks/" }

// BootTask is the key that exists while a task runs at boot. Its create revision tells since when.
func (k Keys) BootTask(r Ref) string { return k.BootTasks() + r.Namespace + "/" + r.Name }

// IdempotencyRecords is the prefix of the records of requests with an idempotency key.
func (k Keys) IdempotencyRecords() string { return k.root + "idempotency/" }

// IdempotencyRecord is the key of the record of one request. digest identifies the request.
func (k Keys) IdempotencyRecord(digest string) string { return k.IdempotencyRecords() + digest }

// Versions is the prefix of the former versions of a task.
func (k Keys) Versions(r Ref) string { return k.root + "versions/" + r.Namespace + "/" + r.Name + "/" }

// Version is the key of a former version. The keys are ordered by generation.
func (k Keys) Version(r Ref, generation int64) string {
	return k.Versions(r) + fmt.Sprintf("%012d", generation)
}

// Tombstones is the prefix of the tombstones of deleted tasks.
func (k Keys) Tombstones() string { return k.root + "deleted/" }

// TombstonesIn is the prefix of the tombstones of the deleted tasks of a namespace.
func (k Keys) TombstonesIn(namespace string) string { return k.Tombstones() + namespace + "/" }

// Tombstone is the key of the tombstone of a deleted task.
func (k Keys) Tombstone(r Ref) string { return k.TombstonesIn(r.Namespace) + r.Name }

// Late is the key of a result that arrived after its attempt had been declared lost. The token
// distinguishes the attempts of a run.
func (k Keys) Late(r Ref, run string, token int64) string {
	return k.inHistory(r, run) + LateMark + strconv.FormatInt(token, 10)
}

// Watermark is the key of a shard's watermark, which every commit compares and writes.
func (k Keys) Watermark(shard int) string { return k.Shard(shard) + "watermark" }

// Revised is the key that an edit writes if it may give a task of the shard ticks that it did
// not have. A commit that moves the watermark's time compares it (G4).
func (k Keys) Revised(shard int) string { return k.Shard(shard) + "revised" }

// Runs is the prefix of the inboxes of all nodes.
func (k Keys) Runs() string { return k.root + "runs/" }

// Inbox is the prefix of the active attempts of a node.
func (k Keys) Inbox(node string) string { return k.Runs() + node + "/" }

// InboxOf is the prefix of the active attempts of a task on a node.
func (k Keys) InboxOf(node string, r Ref) string {
	return k.Inbox(node) + ShardName(r.Shard) + "/" + r.Namespace + "/" + r.Name + "/"
}

// Run is the key of an active attempt. It is built in one concatenation, because it is built
// often.
func (k Keys) Run(node string, r Ref, run string) string {
	return k.root + "runs/" + node + "/" + ShardName(r.Shard) + "/" + r.Namespace + "/" + r.Name + "/" + run
}

// Cleared is the key that records that no process of a dead instance is left (G17).
func (k Keys) Cleared(instance string) string { return k.root + "cleared/" + instance }

// LateMark separates the run id from the token in the key of a late result.
const LateMark = "~late~"

// Ref identifies a task and its shard. ShardOf computes the shard from the name.
type Ref struct {
	Namespace string
	Name      string
	Shard     int
}

// String returns namespace/name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// ShardOf returns the shard of a task, in a cluster with the given number of shards. It must never change, because it
// determines where the records of existing tasks are.
func ShardOf(namespace, name string, shards int) int {
	return int(xxhash.Sum64String(namespace+"/"+name) % uint64(shards))
}

// ShardName returns the number of a shard with four digits, as keys contain it. Larger numbers
// have more digits.
func ShardName(shard int) string {
	if shard > 9999 || shard < 0 {
		return fmt.Sprintf("%04d", shard)
	}
	return string([]byte{byte('0' + shard/1000), byte('0' + shard/100%10), byte('0' + shard/10%10), byte('0' + shard%10)})
}

// Kind is the kind of a record in a shard: the part of its key that follows the shard.
type Kind string

const (
	KindEntry     Kind = "tasks"
	KindQueued    Kind = "queue"
	KindEnded     Kind = "history"
	KindDead      Kind = "dead"
	KindPart      Kind = "parts" // the end of a part of a run that has not ended
	KindWatermark Kind = "watermark"
	// The kinds that connect a source with its dependents. They sort after the parts and before the watermark.
	KindSent       Kind = "sent"        // the cursor of a source
	KindSubscriber Kind = "subscribers" // a dependent of a source
	KindTrigger    Kind = "triggers"    // an end of a run of a source that the owner of the dependent has not decided

	KindRevised Kind = "revised" // its mod revision is that of the last edit that may have given a task new ticks
)

// ShardKey contains the parts of a key in a shard.
type ShardKey struct {
	Kind Kind
	Ref  Ref
	Run  string // the id of the run, without the suffix of a late result; empty for an entry and a cursor
	Peer string // the dependent of a subscriber, or the source of a trigger, whose Run is that of the source
	Late bool   // a late result
}

// ParseShard returns the parts of a key in a shard, or false if the key does not have the form
// of a record.
func (k Keys) ParseShard(key string) (ShardKey, bool) {
	sk, _, ok := k.ParseShardTask(key)
	return sk, ok
}

// ParseShardTask is like ParseShard. It also returns namespace/name of the task as a part of
// key, which saves an allocation.
func (k Keys) ParseShardTask(key string) (sk ShardKey, full string, ok bool) {
	rest, below := k.cutDirectory(key, "shards/")
	name, rest, inside := strings.Cut(rest, "/")
	shard, ok := parseShardName(name)
	if !below || !inside || !ok {
		return ShardKey{}, "", false
	}

	kind, rest, more := strings.Cut(rest, "/")
	sk = ShardKey{Kind: Kind(kind), Ref: Ref{Shard: shard}}
	if !more && (sk.Kind == KindWatermark || sk.Kind == KindRevised) {
		return sk, "", true
	}

	full = rest
	var found bool
	if sk.Ref.Namespace, rest, found = strings.Cut(rest, "/"); !found {
		return ShardKey{}, "", false
	}

	sk.Ref.Name, rest, more = strings.Cut(rest, "/")
	full = full[:len(sk.Ref.Namespace)+1+len(sk.Ref.Name)]

	// The kind determines whether a run id must follow. Only a history record may be a late result.
	switch {
	case sk.Ref.Namespace == "" || sk.Ref.Name == "" || len(sk.Ref.Namespace) > task.MaxName || len(sk.Ref.Name) > task.MaxName:
	case (sk.Kind == KindEntry || sk.Kind == KindSent) && !more:
		return sk, full, true
	case sk.Kind == KindSubscriber && more && rest != "" && !strings.Contains(rest, "/"):
		sk.Peer = rest
		return sk, full, true
	case sk.Kind == KindTrigger && more && !strings.Contains(rest, "/"):
		if sk.Peer, sk.Run, found = strings.Cut(rest, "~"); found && sk.Peer != "" && sk.Run != "" {
			return sk, full, true
		}
	case (sk.Kind == KindQueued || sk.Kind == KindEnded || sk.Kind == KindDead || sk.Kind == KindPart) && more && !strings.Contains(rest, "/"):
		sk.Run, _, sk.Late = strings.Cut(rest, LateMark)
		if sk.Run != "" && (sk.Kind == KindEnded || !sk.Late) {
			return sk, full, true
		}
	}

	return ShardKey{}, "", false // the parts of an unknown key must not be used
}

// RunKey contains the parts of the key of an active attempt.
type RunKey struct {
	Node string
	Ref  Ref
	Run  string
}

// ParseRun returns the parts of a key below runs/, or false if the key does not have the form
// of a record.
func (k Keys) ParseRun(key string) (RunKey, bool) {
	rest, below := k.cutDirectory(key, "runs/")
	var r RunKey
	var shard string
	r.Node, rest, _ = strings.Cut(rest, "/")
	shard, rest, _ = strings.Cut(rest, "/")
	r.Ref.Namespace, rest, _ = strings.Cut(rest, "/")
	r.Ref.Name, r.Run, _ = strings.Cut(rest, "/")
	var ok bool
	r.Ref.Shard, ok = parseShardName(shard)
	if !below || !ok || r.Node == "" || r.Ref.Namespace == "" || r.Ref.Name == "" || r.Run == "" || strings.Contains(r.Run, "/") {
		return RunKey{}, false
	}

	return r, true
}

// ParseOwner returns the shard of an owner key.
func (k Keys) ParseOwner(key string) (int, bool) { return parseShardBelow(k.Owners(), key) }

// ParseHandover returns the shard of the key of a handover.
func (k Keys) ParseHandover(key string) (int, bool) { return parseShardBelow(k.Handovers(), key) }

// parseShardBelow returns the shard of a key that consists of the prefix and a shard.
func parseShardBelow(prefix, key string) (int, bool) {
	parts, ok := partsBelow(prefix, key)
	if !ok || len(parts) != 1 {
		return 0, false
	}
	return parseShardName(parts[0])
}

// ParseSpec returns the namespace and the name in the key of a spec.
func (k Keys) ParseSpec(key string) (namespace, name string, ok bool) {
	rest, below := k.cutDirectory(key, "tasks/")
	namespace, name, ok = strings.Cut(rest, "/")
	if !below || !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", false
	}

	return namespace, name, true
}

// ParseTombstone returns the namespace and the name in the key of a tombstone.
func (k Keys) ParseTombstone(key string) (namespace, name string, ok bool) {
	parts, ok := partsBelow(k.Tombstones(), key)
	if !ok || len(parts) != 2 {
		return "", "", false
	}

	return parts[0], parts[1], true
}

// cutDirectory removes the root and a directory from a key. It returns false if the key does
// not begin with them.
func (k Keys) cutDirectory(key, dir string) (string, bool) {
	rest, ok := strings.CutPrefix(key, k.root)
	if !ok {
		return "", false
	}
	return strings.CutPrefix(rest, dir)
}

// partsBelow splits what follows the prefix in a key. It returns false if the key does not
// begin with the prefix, or if a part is empty.
func partsBelow(prefix, key string) ([]string, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	parts := strings.Split(rest, "/")
	return parts, ok && !slices.Contains(parts, "")
}

// parseShardName returns the number that ShardName has converted. It rejects every other
// spelling of the number.
func parseShardName(s string) (int, bool) {
	shard, err := strconv.Atoi(s)
	return shard, err == nil && shard >= 0 && ShardName(shard) == s
}

// AccessKeys builds the keys of access records and audit records, and of the gaps between these. Keys embeds it.
type AccessKeys struct{ root string }

// Access is the prefix of all access records: who may do what. The fence is one of them.
func (k AccessKeys) Access() string { return k.root + "access/" }

// Fence is the key whose mod revision each write of the API compares. Every write below
// Access puts it in the same transaction, except the creation and the deletion of a token.
func (k AccessKeys) Fence() string { return k.Access() + "fence" }

// TokenChanges is the key that each creation and deletion of a token puts in the same transaction. Its mod revision and that of
// the fence together show whether any access record has changed. A full etcd accepts no put, so the deletion of a token
// deletes this key instead. While the key is absent, it proves nothing.
func (k AccessKeys) TokenChanges() string { return k.Access() + "token-changes" }

// Roles is the prefix of the roles that are not built in.
func (k AccessKeys) Roles() string { return k.Access() + "roles/" }

// Role is the key of one role.
func (k AccessKeys) Role(name string) string { return k.Roles() + name }

// Bindings is the prefix of the bindings.
func (k AccessKeys) Bindings() string { return k.Access() + "bindings/" }

// Binding is the key of one binding.
func (k AccessKeys) Binding(name string) string { return k.Bindings() + name }

// Namespaces is the prefix of the records of namespaces.
func (k AccessKeys) Namespaces() string { return k.Access() + "namespaces/" }

// Namespace is the key of the record of one namespace.
func (k AccessKeys) Namespace(name string) string { return k.Namespaces() + name }

// NodeLimits is the prefix of the limits of what nodes may announce.
func (k AccessKeys) NodeLimits() string { return k.Access() + "nodes/" }

// NodeLimit is the key of the limit of one node, or of the nodes with a prefix.
func (k AccessKeys) NodeLimit(name string) string { return k.NodeLimits() + name }

// Tokens is the prefix of the API's tokens, stored as hashes.
func (k AccessKeys) Tokens() string { return k.Access() + "tokens/" }

// Token is the key of one token.
func (k AccessKeys) Token(id string) string { return k.Tokens() + id }

// DisabledSubjects is the prefix of the subjects that may do nothing.
func (k AccessKeys) DisabledSubjects() string { return k.Access() + "disabled/" }

// DisabledSubject is the key that disables one subject.
func (k AccessKeys) DisabledSubject(subject string) string {
	return k.DisabledSubjects() + url.PathEscape(subject)
}

// ParseDisabledSubject returns the subject that a key disables.
func (k AccessKeys) ParseDisabledSubject(key string) (subject string, ok bool) {
	escaped, below := strings.CutPrefix(key, k.DisabledSubjects())
	subject, err := url.PathUnescape(escaped)

	return subject, below && err == nil && subject != ""
}

// AuditRecords is the prefix of the audit records. They sort by time.
func (k AccessKeys) AuditRecords() string { return k.root + "audit/" }

// AuditRecord is the key of one audit record.
func (k AccessKeys) AuditRecord(id string) string { return k.AuditRecords() + id }

// AuditGaps is the prefix of the records that say which audit records were removed. It sorts right before AuditRecords.
func (k AccessKeys) AuditGaps() string { return k.root + "audit-gaps/" }

// AuditGap is the key of one of these records.
func (k AccessKeys) AuditGap(g *task.AuditGap) string {
	switch {
	case g.Why == task.GapAge:
		return k.AuditGaps() + "age"
	case g.Access:
		return k.AuditGaps() + "access/" + url.PathEscape(g.Subject)
	}

	return k.AuditGaps() + "changes/" + url.PathEscape(g.Subject)
}
