package task

import (
	"slices"
	"strings"
)

// The states of a node.
const (
	NodeReady    = "ready"
	NodeCordoned = "cordoned" // gets no new runs, and keeps its shards
	NodeDraining = "draining" // gets no shards and no new runs
)

// Why a node owns no shards, though it could: Node.Unfit.
const (
	UnfitClock    = "clock"    // its wall clock is not to be trusted
	UnfitStalled  = "stalled"  // it did not decide what was due
	UnfitRestored = "restored" // etcd holds an older state than the node has seen
)

// The roles of a node.
const (
	RoleScheduler = "scheduler" // may own shards
	RoleExecutor  = "executor"  // may run tasks
)

// PressedPolicy is in Node.Pressed as long as the node's policy cannot be read.
const PressedPolicy = "policy"

// PressedWords say what is in Node.Pressed: "beyond its own limit of load1, disk_free".
func PressedWords(pressed []string) string {
	facts := slices.DeleteFunc(slices.Clone(pressed), func(p string) bool { return p == PressedPolicy })
	var words []string
	if len(facts) > 0 {
		words = append(words, "beyond its own limit of "+strings.Join(facts, ", "))
	}
	if len(facts) < len(pressed) {
		words = append(words, "its policy cannot be read: see its log")
	}
	return strings.Join(words, "; ")
}

// Node is a daemon as it announces itself under nodes/<name>.
type Node struct {
	Name       string            `json:"name"`
	Instance   string            `json:"instance"`              // one start of its process
	Leases     []string          `json:"leases,omitempty"`      // hexadecimal: its session's, its election's
	State      string            `json:"state"`                 // ready, cordoned or draining
	Unfit      string            `json:"unfit,omitempty"`       // why it can own no shards at present: its clock, what it cannot decide; empty if it can
	Host       string            `json:"host,omitempty"`        // the boot of its machine, and its network: two nodes with the same reach each other by loopback
	Froze      int64             `json:"froze,omitempty"`       // the mod revision of the record of freezes that its executor obeys
	Epoch      int               `json:"epoch,omitempty"`       // of the cluster, as the node knows it
	Writes     int               `json:"writes,omitempty"`      // the format that it writes at present; 0 is 1
	Format     int               `json:"format,omitempty"`      // the newest format of records that it understands; 0 is 1
	Address    string            `json:"address"`               // where its API answers: http://host:port
	Version    string            `json:"version"`               // Carillon's
	Labels     map[string]string `json:"labels"`                // node, os and arch are always there
	Roles      []string          `json:"roles"`                 // scheduler, executor
	Slots      int               `json:"slots"`                 // attempts that may run at once
	Running    int               `json:"running"`               // attempts in its inbox, told now and then
	Weight     int               `json:"weight"`                // its part of the shards, against the others
	Unreadable int               `json:"unreadable,omitempty"`  // entries of its shards that do not fire because they cannot be read, told now and then
	Member     *Member           `json:"etcd_member,omitempty"` // of the etcd in its process, if it has one
	Expires    []Expiry          `json:"expires,omitempty"`     // its certificates that end within 30 days
	Facts      *Facts            `json:"facts,omitempty"`       // of its host, told now and then
	Pressed    []string          `json:"pressed,omitempty"`     // facts that are beyond its own limits, or policy: it takes no runs meanwhile
	SecretKeys []string          `json:"secret_keys,omitempty"` // ids of the keys for secrets that it holds and can read; the first encrypts
	Clock      Time              `json:"clock"`                 // its wall clock when this was written
	StartedAt  Time              `json:"started_at"`            //
	JoinedAt   Time              `json:"joined_at,omitzero"`    // since when it has its present session
	// HandoverWithin is how long its shards may wait at most, when it drains, for
	// their next owners to load them; 0 is the leader's to say.
	HandoverWithin Duration `json:"handover_within,omitempty"`
	Shards         int      `json:"shards"`             // how many it owns; not stored
	Revision       int64    `json:"revision,omitempty"` // create revision of its key: one session; not stored
}

// Expiry is when a certificate of a node ends.
type Expiry struct {
	Setting string `json:"setting"` // that names its file, such as tls_cert
	At      Time   `json:"at"`
}

// Member is how the embedded etcd of a node fares, told now and then: other
// nodes cannot ask it.
type Member struct {
	ID      string `json:"id"`     // hexadecimal
	Socket  string `json:"socket"` // where clients on its host reach it
	Version string `json:"version"`
	DBSize  int64  `json:"db_size"`   // bytes on disk
	DBInUse int64  `json:"db_in_use"` // bytes of them in use
	DBQuota int64  `json:"db_quota"`
	Index   int64  `json:"raft_index"`   // of the last entry of the log that is committed, as it knows
	Applied int64  `json:"raft_applied"` // of the last that is applied
}

// Understands is the newest format of records that the node understands.
func (n Node) Understands() int { return max(n.Format, 1) }

// Has reports whether the node has a role.
func (n Node) Has(role string) bool { return slices.Contains(n.Roles, role) }

// Takes reports whether the node takes new runs.
func (n *Node) Takes() bool {
	return n.State == NodeReady && len(n.Pressed) == 0 && n.Has(RoleExecutor)
}

// HoldsKey reports whether the node has a key for secrets that it can read, whichever it
// is. One of a version that knows of no secrets has none, and would start attempts without.
func (n *Node) HoldsKey() bool { return len(n.SecretKeys) > 0 }

// Owns reports whether the node may be given shards.
func (n Node) Owns() bool {
	return (n.State == NodeReady || n.State == NodeCordoned) && n.Unfit == "" && n.Has(RoleScheduler)
}

// Fires reports whether the node can go on with shards that it owns until they
// are handed over: though it is draining, say.
func (n Node) Fires() bool { return n.Unfit == "" && n.Has(RoleScheduler) }

// Shard is a shard as users see it.
type Shard struct {
	ID        int          `json:"id"`
	Node      string       `json:"node"`
	Fence     int64        `json:"fence"` // mod revision of its owner key
	Since     Time         `json:"since,omitzero"`
	Previous  []Assignment `json:"previous"` // owners before this one, the newest first
	Watermark Time         `json:"watermark"`
	Tasks     int          `json:"tasks"`
	Queued    int          `json:"queued"`
}

// Assignment is one owner of a shard, and since when.
type Assignment struct {
	Node  string `json:"node"`
	Since Time   `json:"since"`
}

// Cluster is what all nodes agree on.
type Cluster struct {
	ID     string `json:"id"`
	Shards int    `json:"shards"`
	Schema int    `json:"schema"`
	Epoch  int    `json:"epoch"`
	// Format is the newest format of records that may be there: who does not
	// understand it cannot join. 0 is 1.
	Format int `json:"format,omitempty"`
	// FormatWanted, if an operator has set it, bounds the format: nodes write no
	// newer one, and when none is left Format becomes it.
	FormatWanted int `json:"format_wanted,omitempty"`
	// CatchUpRate is how many runs per second are started, in the whole cluster, of
	// ticks that came to light late; 0 is DefaultCatchUpRate.
	CatchUpRate int  `json:"catch_up_rate,omitempty"`
	CreatedAt   Time `json:"created_at"`
}

// DefaultCatchUpRate is how many runs of late ticks start per second in a cluster
// that does not say otherwise.
const DefaultCatchUpRate = 100

// CatchUp is how many runs of late ticks start per second.
func (c Cluster) CatchUp() int {
	if c.CatchUpRate > 0 {
		return c.CatchUpRate
	}
	return DefaultCatchUpRate
}

// InForce is the newest format of records that may be there.
func (c Cluster) InForce() int { return max(c.Format, 1) }

// Written is the format that nodes write.
func (c Cluster) Written() int {
	if c.FormatWanted > 0 {
		return min(c.InForce(), c.FormatWanted)
	}
	return c.InForce()
}
