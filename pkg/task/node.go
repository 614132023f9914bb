package task

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
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

// PressedStarts is in Node.Pressed as long as too many starts of attempts hang on the node.
const PressedStarts = "stuck_starts"

// PressedWords say what is in Node.Pressed: "beyond its own limit of load1, disk_free".
func PressedWords(pressed []string) string {
	facts := slices.DeleteFunc(slices.Clone(pressed), func(p string) bool { return p == PressedPolicy || p == PressedStarts })
	var words []string
	if len(facts) > 0 {
		words = append(words, "beyond its own limit of "+strings.Join(facts, ", "))
	}

	if slices.Contains(pressed, PressedStarts) {
		words = append(words, "too many starts of runs hang there: see its log")
	}

	if slices.Contains(pressed, PressedPolicy) {
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
	StateBy    string            `json:"state_by,omitempty"`    // who asked for it; empty if it was the node's own doing
	Unfit      string            `json:"unfit,omitempty"`       // why it can own no shards at present: its clock, what it cannot decide; empty if it can
	Host       string            `json:"host,omitempty"`        // the boot of its machine, and its network: two nodes with the same reach each other by loopback
	Froze      int64             `json:"froze,omitempty"`       // the mod revision of the record of freezes that its executor obeys
	Epoch      int               `json:"epoch,omitempty"`       // of the cluster, as the node knows it
	Writes     int               `json:"writes,omitempty"`      // the format that it writes at present; 0 is 1
	Format     int               `json:"format,omitempty"`      // the newest format of records that it understands; 0 is 1
	PublicKey  string            `json:"public_key,omitempty"`  // by which others verify what it asks of them: Ed25519, base64
	Address    string            `json:"address"`               // where its API answers: http://host:port; empty while it does not
	APIError   string            `json:"api_error,omitempty"`   // why its API does not listen somewhere where it should
	Version    string            `json:"version"`               // Carillon's
	Labels     map[string]string `json:"labels"`                // node, host, os and arch are always there
	Roles      []string          `json:"roles"`                 // scheduler, executor
	Slots      int               `json:"slots"`                 // attempts that may run at once
	Running    int               `json:"running"`               // attempts in its inbox, told now and then
	Weight     int               `json:"weight"`                // its part of the shards, against the others
	Unreadable int               `json:"unreadable,omitempty"`  // entries of its shards that do not fire because they cannot be read, told now and then
	Member     *Member           `json:"etcd_member,omitempty"` // of the etcd in its process, if it has one
	Expires    []Expiry          `json:"expires,omitempty"`     // its certificates that end within 30 days
	Facts      *Facts            `json:"facts,omitempty"`       // of its host, told now and then
	Pressed    []string          `json:"pressed,omitempty"`     // facts that are beyond its own limits, policy, or stuck_starts: it takes no runs meanwhile
	SecretKeys []string          `json:"secret_keys,omitempty"` // ids of the keys for secrets that it holds and can read; the first encrypts
	Clock      Time              `json:"clock"`                 // its wall clock when this was written
	StartedAt  Time              `json:"started_at"`            //
	JoinedAt   Time              `json:"joined_at,omitzero"`    // since when it has its present session
	// LeaseTTL is how long the node may be silent before it is taken to be gone.
	LeaseTTL Duration `json:"lease_ttl,omitzero"`
	// Stuck is how many starts of attempts hang, or could not be ended.
	Stuck int `json:"stuck_starts,omitempty"`
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
	// newer one, and when all of them do so Format becomes it.
	FormatWanted int `json:"format_wanted,omitempty"`
	// CatchUpRate is how many runs per second are started, in the whole cluster, of
	// ticks that came to light late; 0 is DefaultCatchUpRate.
	CatchUpRate int `json:"catch_up_rate,omitempty"`
	// LostAfter is how long the attempts of a silent node are waited for before they
	// are lost; 0 is DefaultLostAfter. A change is for attempts that are assigned
	// afterwards: each one's record has the value that holds for it (Assigned.LostAfter).
	LostAfter Duration `json:"lost_after,omitzero"`
	CreatedAt Time     `json:"created_at"`
	// ChangedBy is who changed the record last, ChangedAt when. Change says what, if
	// that is not in the record itself: a change of etcd's members, or a repair. A
	// version that does not know these fields leaves them as they were.
	ChangedBy string `json:"changed_by,omitempty" doc:"The user or node that last changed the cluster."`
	ChangedAt Time   `json:"changed_at,omitzero"`
	Change    string `json:"change,omitempty" doc:"What was changed last, if it is not a setting."`
}

// maxChange is how many bytes of a change's description are kept.
const maxChange = 500

// MarkChanged returns the record as somebody changes it. change is empty if the
// record itself tells what has changed.
func (c Cluster) MarkChanged(by string, at Time, change string) Cluster {
	change = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?' // it is shown as one line
		}
		return r
	}, change)

	if len(change) > maxChange {
		change = strings.ToValidUTF8(change[:maxChange], "") + "…"
	}

	c.ChangedBy, c.ChangedAt, c.Change = by, at, change
	return c
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

// The bounds of Cluster.LostAfter, and what it is in a cluster that does not say
// otherwise.
const (
	DefaultLostAfter = Duration(2 * time.Minute)
	MinLostAfter     = Duration(12 * time.Second)
	MaxLostAfter     = Duration(24 * time.Hour)
)

// lostAfterLease is how much longer than its lease a silent node's attempts are waited
// for, at least.
const lostAfterLease = Duration(10 * time.Second)

// EffectiveLostAfter is how long the attempts of a silent node are waited for.
func (c Cluster) EffectiveLostAfter() Duration { return cmp.Or(c.LostAfter, DefaultLostAfter) }

// LostAfterWithLease is how long an attempt is waited for that is assigned now to a node
// with that lease_ttl, if the node falls silent. A node kills its attempts before that
// has passed since it last renewed its lease, which it does a few times in the time of
// the lease. So attempts of a node with a long lease get more time, or the node would
// kill them while it is well.
func (c Cluster) LostAfterWithLease(ttl Duration) Duration {
	return max(c.EffectiveLostAfter(), ttl+lostAfterLease)
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
