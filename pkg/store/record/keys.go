package record

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// DefaultPrefix separates Carillon from whatever else lives in an etcd.
const DefaultPrefix = "/carillon"

// Keys builds the keys of one cluster. Every prefix it returns ends in '/',
// so that no range reaches a neighbour (test and test-1).
type Keys struct{ root string }

// NewKeys makes the keys below prefix, which begins with '/' and has no '/' at
// its end.
func NewKeys(prefix string) (Keys, error) {
	if len(prefix) < 2 || prefix[0] != '/' || strings.HasSuffix(prefix, "/") || strings.Contains(prefix, "//") ||
		strings.ContainsFunc(prefix, func(r rune) bool { return r <= ' ' || r > '~' }) || len(prefix) > 128 {
		return Keys{}, task.Invalid(task.CodeBadName, "prefix",
			"%s: begin with '/', do not end with it, use printable ASCII without spaces, at most 128 bytes", task.Quote(prefix))
	}

	return Keys{root: prefix + "/"}, nil
}

// Root is the prefix of all keys.
func (k Keys) Root() string { return k.root }

// Cluster holds what all nodes agree on.
func (k Keys) Cluster() string { return k.root + "cluster" }

// Nodes is the prefix of the leased keys by which nodes are present.
func (k Keys) Nodes() string { return k.root + "nodes/" }

// Node is the leased key of one node.
func (k Keys) Node(name string) string { return k.Nodes() + name }

// NodeRequest asks one node to take a state.
func (k Keys) NodeRequest(name string) string { return k.root + "requests/" + name }

// Leader is the prefix below which etcd's election keeps its keys.
func (k Keys) Leader() string { return k.root + "leader/" }

// Tokens is the prefix of the API's tokens, kept as hashes.
func (k Keys) Tokens() string { return k.root + "tokens/" }

// Token is one of them.
func (k Keys) Token(id string) string { return k.Tokens() + id }

// Owners is the prefix of the assignment: shard → node.
func (k Keys) Owners() string { return k.root + "owners/" }

// Owner is the key whose mod revision is the shard's fence.
func (k Keys) Owner(shard int) string { return k.Owners() + ShardName(shard) }

// Handovers is the prefix of what is about to change of the assignment.
func (k Keys) Handovers() string { return k.root + "moves/" }

// Handover names the node that is to load a shard before it owns it.
func (k Keys) Handover(shard int) string { return k.Handovers() + ShardName(shard) }

// Specs is the prefix of all tasks as their users wrote them.
func (k Keys) Specs() string { return k.root + "tasks/" }

// SpecsOf is the part of Specs that belongs to one namespace.
func (k Keys) SpecsOf(namespace string) string { return k.Specs() + namespace + "/" }

// Spec is one task as its user wrote it.
func (k Keys) Spec(r Ref) string { return k.SpecsOf(r.Namespace) + r.Name }

// Shards is the prefix of all shards.
func (k Keys) Shards() string { return k.root + "shards/" }

// Shard is the directory of one shard.
func (k Keys) Shard(shard int) string { return k.Shards() + ShardName(shard) + "/" }

// Entries is the prefix of the entries in a shard.
func (k Keys) Entries(shard int) string { return k.Shard(shard) + "tasks/" }

// Entry is what firing needs of a task.
func (k Keys) Entry(r Ref) string { return k.Entries(r.Shard) + r.Namespace + "/" + r.Name }

// Queue is the prefix of the waiting runs of a shard.
func (k Keys) Queue(shard int) string { return k.Shard(shard) + "queue/" }

// QueueOf is the prefix of the waiting runs of one task.
func (k Keys) QueueOf(r Ref) string { return k.Queue(r.Shard) + r.Namespace + "/" + r.Name + "/" }

// Queued is one waiting run.
func (k Keys) Queued(r Ref, run string) string { return k.QueueOf(r) + run }

// History is the prefix of the ended runs of a shard.
func (k Keys) History(shard int) string { return k.Shard(shard) + "history/" }

// HistoryOf is the prefix of the ended runs of one task.
func (k Keys) HistoryOf(r Ref) string { return k.History(r.Shard) + r.Namespace + "/" + r.Name + "/" }

// Ended is where it is on record how a run, or a part, ended, or ticks that did not
// run.
func (k Keys) Ended(r Ref, run string) string {
	if task.IsPart(run) {
		return k.Parts(r) + run
	}
	return k.inHistory(r, run)
}

// PartsIn is the prefix of the parts that have ended, of runs of a shard that have
// not.
func (k Keys) PartsIn(shard int) string { return k.Shard(shard) + "parts/" }

// Parts is the prefix of those of one task.
func (k Keys) Parts(r Ref) string { return k.PartsIn(r.Shard) + r.Namespace + "/" + r.Name + "/" }

func (k Keys) inHistory(r Ref, run string) string {
	return k.root + "shards/" + ShardName(r.Shard) + "/history/" + r.Namespace + "/" + r.Name + "/" + run // in one piece: there are many
}

// Dead is the prefix of a task's dead runs: they have used up their attempts, and
// wait for a person.
func (k Keys) Dead(r Ref) string {
	return k.Shard(r.Shard) + "dead/" + r.Namespace + "/" + r.Name + "/"
}

// DeadRun is one of them.
func (k Keys) DeadRun(r Ref, run string) string { return k.Dead(r) + run }

// Freezes is the record of the switches that stop firing. Every commit compares it.
func (k Keys) Freezes() string { return k.root + "freezes" }

// Versions is the prefix of a task's former versions.
func (k Keys) Versions(r Ref) string { return k.root + "versions/" + r.Namespace + "/" + r.Name + "/" }

// Version is one of them; they sort by generation.
func (k Keys) Version(r Ref, generation int64) string {
	return k.Versions(r) + fmt.Sprintf("%012d", generation)
}

// Tombstones is the prefix of what is remembered of deleted tasks.
func (k Keys) Tombstones() string { return k.root + "deleted/" }

// Tombstone says who deleted a task, and when.
func (k Keys) Tombstone(r Ref) string { return k.Tombstones() + r.Namespace + "/" + r.Name }

// Late is the result of an attempt that came after it was declared lost.
func (k Keys) Late(r Ref, run string, token int64) string {
	return k.inHistory(r, run) + LateMark + strconv.FormatInt(token, 10)
}

// Watermark is the key that every commit of a shard writes.
func (k Keys) Watermark(shard int) string { return k.Shard(shard) + "watermark" }

// Revised is the key that an edit writes which may give a task of the shard ticks
// that it did not have. A commit that moves the watermark's time compares it.
func (k Keys) Revised(shard int) string { return k.Shard(shard) + "revised" }

// Runs is the prefix of all active attempts.
func (k Keys) Runs() string { return k.root + "runs/" }

// Inbox is the prefix of the attempts of one node.
func (k Keys) Inbox(node string) string { return k.Runs() + node + "/" }

// InboxOf is the prefix of a task's attempts on one node.
func (k Keys) InboxOf(node string, r Ref) string {
	return k.Inbox(node) + ShardName(r.Shard) + "/" + r.Namespace + "/" + r.Name + "/"
}

// Run is one active attempt.
func (k Keys) Run(node string, r Ref, run string) string {
	return k.root + "runs/" + node + "/" + ShardName(r.Shard) + "/" + r.Namespace + "/" + r.Name + "/" + run // in one piece: there are many
}

// Cleared says that no process of a dead instance is left.
func (k Keys) Cleared(instance string) string { return k.root + "cleared/" + instance }

const LateMark = "~late~"

// Ref is where a task lives. The shard is the caller's to compute (package shard).
type Ref struct {
	Namespace string
	Name      string
	Shard     int
}

// String returns namespace/name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// ShardName is a shard's number as keys have it.
func ShardName(shard int) string {
	if shard > 9999 || shard < 0 {
		return fmt.Sprintf("%04d", shard)
	}
	return string([]byte{byte('0' + shard/1000), byte('0' + shard/100%10), byte('0' + shard/10%10), byte('0' + shard%10)})
}

// The kinds of records in a shard.
type Kind string

const (
	KindEntry     Kind = "tasks"
	KindQueued    Kind = "queue"
	KindEnded     Kind = "history"
	KindDead      Kind = "dead"
	KindPart      Kind = "parts" // how a part of a run that is under way has ended
	KindWatermark Kind = "watermark"
	KindRevised   Kind = "revised" // an edit may have given a task new ticks
)

// ShardKey is a key below shards/, taken apart.
type ShardKey struct {
	Kind Kind
	Ref  Ref
	Run  string // of queue and history; with Late without its mark
	Late bool
}

// ParseShard takes a key below shards/ apart; false if it is none of ours.
func (k Keys) ParseShard(key string) (ShardKey, bool) {
	sk, _, ok := k.ParseShardTask(key)
	return sk, ok
}

// ParseShardTask is ParseShard, and also returns the part of the key that is
// namespace/name.
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

	switch {
	case sk.Ref.Namespace == "" || sk.Ref.Name == "" || len(sk.Ref.Namespace) > task.MaxName || len(sk.Ref.Name) > task.MaxName:
	case sk.Kind == KindEntry && !more:
		return sk, full, true
	case (sk.Kind == KindQueued || sk.Kind == KindEnded || sk.Kind == KindDead || sk.Kind == KindPart) && more && !strings.Contains(rest, "/"):
		sk.Run, _, sk.Late = strings.Cut(rest, LateMark)
		if sk.Run != "" && (sk.Kind == KindEnded || !sk.Late) {
			return sk, full, true
		}
	}

	return ShardKey{}, "", false // nothing of a strange key may be taken for a record's
}

// RunKey is a key below runs/, taken apart.
type RunKey struct {
	Node string
	Ref  Ref
	Run  string
}

// ParseRun takes a key below runs/ apart; false if it is none of ours.
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

// ParseOwner is the shard of a key below owners/.
func (k Keys) ParseOwner(key string) (int, bool) { return parseShardBelow(k.Owners(), key) }

// ParseHandover is the shard of a key below moves/.
func (k Keys) ParseHandover(key string) (int, bool) { return parseShardBelow(k.Handovers(), key) }

func parseShardBelow(prefix, key string) (int, bool) {
	parts, ok := partsBelow(prefix, key)
	if !ok || len(parts) != 1 {
		return 0, false
	}
	return parseShardName(parts[0])
}

// ParseSpec is the namespace and the name of a key below tasks/.
func (k Keys) ParseSpec(key string) (namespace, name string, ok bool) {
	parts, ok := partsBelow(k.Specs(), key)
	if !ok || len(parts) != 2 {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// ParseTombstone is the namespace and the name of a key below deleted/.
func (k Keys) ParseTombstone(key string) (namespace, name string, ok bool) {
	parts, ok := partsBelow(k.Tombstones(), key)
	if !ok || len(parts) != 2 {
		return "", "", false
	}

	return parts[0], parts[1], true
}

// cutDirectory cuts the root and a directory off a key; false if it is not there.
func (k Keys) cutDirectory(key, dir string) (string, bool) {
	rest, ok := strings.CutPrefix(key, k.root)
	if !ok {
		return "", false
	}
	return strings.CutPrefix(rest, dir)
}

// partsBelow splits what follows a prefix in a key; false if the key is not
// below it, or if a part is empty, which no key of ours has.
func partsBelow(prefix, key string) ([]string, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	parts := strings.Split(rest, "/")
	return parts, ok && !slices.Contains(parts, "")
}

// parseShardName reads what ShardName wrote: nothing else, and no number below 0.
func parseShardName(s string) (int, bool) {
	shard, err := strconv.Atoi(s)
	return shard, err == nil && shard >= 0 && ShardName(shard) == s
}
