package record

import "strings"

// knownKinds are the kinds of all keys that this version of Carillon uses. KeyKind returns them.
var knownKinds = makeSet(
	"cluster", "nodes", "requests", "leader", "owners", "moves", "freezes", "login-key", "idempotency",
	"boots/nodes", "boots/tasks", "cleared",
	"access/fence", "access/token-changes", "access/roles", "access/bindings", "access/namespaces", "access/nodes",
	"access/tokens", "access/disabled",
	"audit", "audit-gaps",
	"tasks", "versions", "deleted", "secrets", "ledger", "rundata", "graph", "runs",
	"shards/tasks", "shards/queue", "shards/history", "shards/dead", "shards/parts", "shards/watermark", "shards/sent",
	"shards/subscribers", "shards/triggers", "shards/revised",
	"alerts/tasks", "alerts/cluster", "alerts/heartbeat", "alerts/sent", "alerts/rules", "alerts/silences",
)

func makeSet(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// KeyKind returns the kind of a key: its directory below the prefix, without the number of a shard, such as "tasks" or
// "shards/history". The alerts of tasks are "alerts/tasks". It reports whether this version uses such keys. The key must be below
// the prefix. A kind is a part of the key and can be kept without a copy of it.
func (k Keys) KeyKind(key string) (kind string, known bool) {
	rest := strings.TrimPrefix(key, k.root)
	first, below, _ := strings.Cut(rest, "/")

	switch first {
	case "shards", "alerts", "access", "boots":
		second, more, _ := strings.Cut(below, "/")
		if _, isShard := parseShardName(second); isShard {
			if first == "alerts" {
				return "alerts/tasks", true
			}
			second, _, _ = strings.Cut(more, "/")
		}

		first += "/" + second
	}

	return first, knownKinds[first]
}
