package task

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
)

// The states of a node.
const (
	NodeReady    = "ready"
	NodeCordoned = "cordoned" // gets no new runs and keeps its shards
	NodeDraining = "draining" // gets neither shards nor new runs
)

// The values of Node.Ineligible: why a node owns no shards although it has the role for it.
const (
	IneligibleClock    = "clock"    // its wall clock cannot be trusted
	IneligibleStalled  = "stalled"  // it did not decide ticks that were due
	IneligibleRestored = "restored" // etcd contains an older state than the node has seen
)

// The roles of a node.
const (
	RoleScheduler = "scheduler" // may own shards
	RoleExecutor  = "executor"  // may run tasks
	RoleAPI       = "api"       // serves the API
)

// BlockedByPolicy is in Node.Blocked while the node's policy cannot be read.
const BlockedByPolicy = "policy"

// BlockedByStarts is in Node.Blocked while too many starts of attempts hang on the node.
const BlockedByStarts = "stuck_starts"

// DescribeBlocked describes the values of Node.Blocked: "over its own limit of load1, disk_free".
func DescribeBlocked(blocked []string) string {
	facts := slices.DeleteFunc(slices.Clone(blocked), func(p string) bool { return p == BlockedByPolicy || p == BlockedByStarts })
	var words []string
	if len(facts) > 0 {
		words = append(words, "over its own limit of "+strings.Join(facts, ", "))
	}

	if slices.Contains(blocked, BlockedByStarts) {
		words = append(words, "too many starts of runs hang; see its log")
	}

	if slices.Contains(blocked, BlockedByPolicy) {
		words = append(words, "its policy cannot be read; see its log")
	}

	return strings.Join(words, "; ")
}

// Node is a daemon, as it announces itself in its record nodes/<name>.
type Node struct {
	Name       string            `json:"name" doc:"The name of the node."`
	Instance   string            `json:"instance" doc:"Identifies one start of its process."`
	Leases     []string          `json:"leases,omitempty" doc:"The leases of its session and of its election, in hexadecimal."`
	State      string            `json:"state" doc:"Ready, cordoned or draining." enum:"ready,cordoned,draining"`
	StateBy    *Actor            `json:"state_by,omitempty" doc:"Who requested the state; absent if the node chose it itself."`
	Ineligible string            `json:"ineligible,omitempty" doc:"Why it cannot own shards now: clock, stalled or restored. Absent if it can."`
	Host       string            `json:"host,omitempty" doc:"Identifies the boot of its machine and its network: two nodes with the same value reach each other over loopback."`
	BootID     string            `json:"boot_id,omitempty" doc:"Identifies the boot of its host; absent if it is not known."`
	BootedAt   Time              `json:"booted_at,omitzero" doc:"When its host has booted, by the clock of the node when it started."`
	Froze      int64             `json:"froze,omitempty" doc:"The mod revision of the record of freezes that its executor obeys."`
	Epoch      int               `json:"epoch,omitempty" doc:"The epoch of the cluster, as the node knows it."`
	OldNodes   []string          `json:"old_nodes,omitempty" doc:"Addresses of nodes that follow an older history of the cluster and still run."`
	Writes     int               `json:"writes,omitempty" doc:"The format of records that it writes; 0 means 1."`
	Format     int               `json:"format,omitempty" doc:"The newest format of records that it understands; 0 means 1."`
	PublicKey  string            `json:"public_key,omitempty" doc:"Verifies its requests to other nodes: Ed25519, base64."`
	Address    string            `json:"address" doc:"The URL of its API; empty while the API does not listen."`
	APIError   string            `json:"api_error,omitempty" doc:"Why its API does not listen on a configured address."`
	Version    string            `json:"version" doc:"The version of Carillon."`
	Labels     map[string]string `json:"labels" doc:"Its labels. node, host, os and arch are always among them."`
	Roles      []string          `json:"roles" doc:"Scheduler, executor, api."`
	Slots      int               `json:"slots" doc:"The number of attempts that may run at the same time."`
	Running    int               `json:"running" doc:"The number of attempts in its inbox, updated periodically."`
	Weight     int               `json:"weight" doc:"Its share of the shards relative to other nodes."`
	Unreadable int               `json:"unreadable,omitempty" doc:"Entries in its shards that do not fire because they cannot be read, updated periodically."`
	Member     *Member           `json:"etcd_member,omitempty" doc:"The embedded etcd in its process, if any."`
	Expires    []Expiry          `json:"expires,omitempty" doc:"Its certificates that expire within 30 days."`
	Facts      *Facts            `json:"facts,omitempty" doc:"Facts of its host, updated periodically."`
	Blocked    []string          `json:"blocked,omitempty" doc:"Why it accepts no runs: facts beyond its own limits, policy, or stuck_starts."`
	SecretKeys []string          `json:"secret_keys,omitempty" doc:"Ids of the keys for secrets that it can read; the first one encrypts."`
	SendsMail  bool              `json:"sends_mail,omitempty" doc:"It has a sendmail, and its settings permit it to mail output."`
	Clock      Time              `json:"clock" doc:"Its wall clock when this record was written."`
	StartedAt  Time              `json:"started_at" doc:"When its process started."`
	JoinedAt   Time              `json:"joined_at,omitzero" doc:"When its current session began."`
	// LeaseTTL is how long the node may be silent before its session expires.
	LeaseTTL Duration `json:"lease_ttl,omitzero" doc:"How long the node may be silent before its session expires."`
	// IgnoredLabels are the labels that it announces although its NodeLimit does not allow them. Labels is without them.
	// Not stored.
	IgnoredLabels map[string]string `json:"ignored_labels,omitempty" record:"-" doc:"The labels that it announces although its limit does not allow them."`
	// Stuck is the number of starts of attempts that hang, or could not be killed.
	Stuck int `json:"stuck_starts,omitempty" doc:"The number of starts of attempts that hang, or could not be killed."`
	// NotEvaluated is the number of tasks in its shards whose alerts it has not evaluated for minutes. It is nil if its
	// version does not evaluate alerts.
	NotEvaluated *int `json:"not_evaluated,omitempty" doc:"The number of tasks in its shards whose alerts it has not evaluated for minutes. Absent: its version evaluates no alerts."`
	// HandoverWithin limits how long its shards wait during a drain for their next owners to load them; 0 means
	// the leader's default.
	HandoverWithin Duration `json:"handover_within,omitempty" doc:"How long its shards wait during a drain for their next owners to load them. Absent: the default."`
	Shards         int      `json:"shards" record:"-" doc:"The number of its shards; not stored."`
	Revision       int64    `json:"revision,omitempty" record:"-" doc:"The create revision of its key, which identifies its session; not stored."`
}

// Expiry is the expiration of one of a node's certificates.
type Expiry struct {
	Setting string `json:"setting" doc:"The setting that names the file, such as tls_cert."`
	At      Time   `json:"at" doc:"When it expires."`
}

// Member is the state of a node's embedded etcd, updated periodically. It is announced because other nodes
// cannot query it.
type Member struct {
	ID      string `json:"id" doc:"Identifies the member, in hexadecimal."`
	Socket  string `json:"socket" doc:"The unix socket for clients on its host."`
	Version string `json:"version" doc:"The version of etcd."`
	DBSize  int64  `json:"db_size" doc:"The size of its database on disk, in bytes."`
	DBInUse int64  `json:"db_in_use" doc:"How many of these bytes are in use."`
	DBQuota int64  `json:"db_quota" doc:"The maximum size of its database in bytes."`
	Index   int64  `json:"raft_index" doc:"The index of the last committed log entry that it knows."`
	Applied int64  `json:"raft_applied" doc:"The index of the last applied log entry."`
}

// Understands returns the newest format of records that the node understands.
func (n Node) Understands() int { return max(n.Format, 1) }

// Has reports whether the node has a role.
func (n Node) Has(role string) bool { return slices.Contains(n.Roles, role) }

// Takes reports whether the node accepts new runs.
func (n *Node) Takes() bool {
	return n.State == NodeReady && len(n.Blocked) == 0 && n.Has(RoleExecutor)
}

// HoldsKey reports whether the node can read at least one key for secrets. A node of a version without secrets
// has none; it would start attempts without their values.
func (n *Node) HoldsKey() bool { return len(n.SecretKeys) > 0 }

// Owns reports whether the node may be assigned shards.
func (n Node) Owns() bool {
	return (n.State == NodeReady || n.State == NodeCordoned) && n.Ineligible == "" && n.Has(RoleScheduler)
}

// Fires reports whether the node can continue to schedule its shards until they are handed over, for example
// while it drains.
func (n Node) Fires() bool { return n.Ineligible == "" && n.Has(RoleScheduler) }

// Shard is a shard in the form in which users see it.
type Shard struct {
	ID        int          `json:"id" doc:"The number of the shard."`
	Node      string       `json:"node" doc:"Its owner."`
	Fence     int64        `json:"fence" doc:"The mod revision of the key of its owner, which its writes compare."`
	Since     Time         `json:"since,omitzero" doc:"When its owner got it."`
	Previous  []Assignment `json:"previous" doc:"The previous owners, the newest first."`
	Watermark Time         `json:"watermark" doc:"Ticks up to this time are decided."`
	Tasks     int          `json:"tasks" doc:"The number of its tasks."`
	Queued    int          `json:"queued" doc:"The number of runs in its queue."`
}

// Assignment is one owner of a shard.
type Assignment struct {
	Node  string `json:"node" doc:"The owner."`
	Since Time   `json:"since" doc:"When it got the shard."`
}

// Cluster is the record that all nodes share.
type Cluster struct {
	ID     string `json:"id" doc:"Identifies the cluster."`
	Shards int    `json:"shards" doc:"The number of shards."`
	Schema int    `json:"schema" doc:"The version of the layout of keys in etcd."`
	Epoch  int    `json:"epoch" doc:"Increases with each restore of etcd from a snapshot."`
	// Restored are the restores of the cluster, the oldest first.
	Restored []Restored `json:"restored,omitempty" doc:"The restores of the cluster."`
	// Format is the newest format of records that may exist. A node that does not understand it cannot join. 0
	// means 1.
	Format int `json:"format,omitempty" doc:"The record format that nodes write."`
	// FormatWanted, if an operator has set it, limits the format. Nodes write no newer format, and when all of
	// them obey, it becomes Format.
	FormatWanted int `json:"format_wanted,omitempty" doc:"The record format that somebody has asked for, while some nodes still write another one."`
	// CatchUpRate is how many runs of late ticks may start per second in the whole cluster; 0 means
	// DefaultCatchUpRate.
	CatchUpRate int `json:"catch_up_rate,omitempty" doc:"How many catch-up runs may start per second. Absent: the default."`
	// LostAfter is how long after the last contact with a node its attempts are declared lost; 0 means
	// DefaultLostAfter. A change applies only to attempts that are assigned afterwards, because the record of
	// each attempt contains the value that applies to it (Assigned.LostAfter).
	LostAfter Duration `json:"lost_after,omitzero" doc:"How long after the last contact with its node an attempt is declared lost. Absent: the default."`
	// Ledger is for how long the ledgers of tasks remember ticks, unless a task's history.ledger says otherwise; nil
	// means DefaultLedger, and 0 not at all.
	Ledger *Duration `json:"ledger,omitempty" doc:"How long ledgers remember ticks by default."`
	// LedgerLimit limits what tasks and Ledger say. The leader sets it while etcd is filling up; nil means that there
	// is no limit. LedgerLimitSince is when the leader first set a limit after there was none.
	LedgerLimit      *Duration `json:"ledger_limit,omitempty" doc:"The limit of all ledgers, while etcd is filling up."`
	LedgerLimitSince Time      `json:"ledger_limit_since,omitzero" doc:"Since when there is this limit."`
	// PublicURL is the address of the Web UI for the links in messages about alerts, without a slash at its end. If it is empty, they
	// have no links.
	PublicURL string `json:"public_url,omitempty" doc:"The address of the Web UI in messages."`
	// AlertReceivers get the alerts about the cluster, each as NAMESPACE/NAME.
	AlertReceivers []string `json:"alert_receivers,omitempty" doc:"The receivers of alerts about the cluster."`
	CreatedAt      Time     `json:"created_at" doc:"When the cluster was created."`
	// ChangedBy is who last changed the record, and ChangedAt when. Change describes a change that is not
	// visible in the record itself: of etcd's members, or a repair. A version of Carillon without these fields
	// leaves them unchanged.
	ChangedBy *Actor `json:"changed_by,omitempty" doc:"The user or node that last changed the cluster."`
	ChangedAt Time   `json:"changed_at,omitzero" doc:"When its settings were last changed."`
	Change    string `json:"change,omitempty" doc:"What was changed last, if it is not a setting."`
}

// maxChange is the maximum number of bytes of a change's description.
const maxChange = 500

// MarkChanged returns the record with the author and time of a change. change is empty if the record itself
// shows what has changed.
func (c Cluster) MarkChanged(by *Actor, at Time, change string) Cluster {
	change = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?' // the description is shown on one line
		}
		return r
	}, change)

	if len(change) > maxChange {
		change = strings.ToValidUTF8(change[:maxChange], "") + "…"
	}

	c.ChangedBy, c.ChangedAt, c.Change = by, at, change
	return c
}

// maxAlertReceivers is the maximum number of Cluster.AlertReceivers, and maxPublicURL that of the bytes of Cluster.PublicURL.
const (
	maxAlertReceivers = 10
	maxPublicURL      = 256
)

// ParsePublicURL checks a value of Cluster.PublicURL and returns it without a slash at its end.
func ParsePublicURL(text string) (string, error) {
	const field, rule = "public_url", "is not an address such as https://carillon.example.com: http or https, a host, and at most a port and a path"
	if len(text) > maxPublicURL {
		return "", Invalid(CodeTooLong, field, "has %d bytes; at most %d are allowed", len(text), maxPublicURL)
	}

	u, err := url.Parse(text)
	switch {
	case text == "":
		return "", nil
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.User != nil, u.RawQuery != "", u.ForceQuery, strings.Contains(text, "#"),
		strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", Invalid(CodeBadValue, field, "%s %s", Quote(text), rule)
	}

	return strings.TrimRight(text, "/"), nil
}

// CheckAlertReceivers checks the form of values of Cluster.AlertReceivers.
func CheckAlertReceivers(list []string) error {
	const field = "alert_receivers"
	if len(list) > maxAlertReceivers {
		return Invalid(CodeTooMany, field, "has %d receivers; at most %d are allowed", len(list), maxAlertReceivers)
	}

	for i, name := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		namespace, receiver, ok := strings.Cut(name, "/")
		if !ok {
			return Invalid(CodeBadName, at, "%s is not NAMESPACE/NAME", Quote(name))
		}
		if err := cmp.Or(CheckName(at, namespace), CheckName(at, receiver)); err != nil {
			return err
		}
		if slices.Contains(list[:i], name) {
			return Invalid(CodeBadValue, at, "%s is named twice", Quote(name))
		}
	}

	return nil
}

// DefaultCatchUpRate is the default of Cluster.CatchUpRate.
const DefaultCatchUpRate = 100

// CatchUp returns how many runs of late ticks may start per second.
func (c Cluster) CatchUp() int {
	if c.CatchUpRate > 0 {
		return c.CatchUpRate
	}
	return DefaultCatchUpRate
}

// The default and the range of Cluster.LostAfter.
const (
	DefaultLostAfter = Duration(2 * time.Minute)
	MinLostAfter     = Duration(12 * time.Second)
	MaxLostAfter     = Duration(24 * time.Hour)
)

// lostAfterLease is the minimum time by which the wait for a silent node's attempts exceeds its lease.
const lostAfterLease = Duration(10 * time.Second)

// EffectiveLostAfter returns how long after the last contact with a node its attempts are declared lost.
func (c Cluster) EffectiveLostAfter() Duration { return cmp.Or(c.LostAfter, DefaultLostAfter) }

// LostAfterWithLease returns LostAfter for an attempt that is assigned now to a node with this lease_ttl. The
// node must kill the attempt before that time has passed since it last renewed its lease (G17). It renews the
// lease only a few times per TTL. With a long lease and a short LostAfter, a healthy node would kill its
// attempts between two renewals, so such nodes get more time.
func (c Cluster) LostAfterWithLease(ttl Duration) Duration {
	return max(c.EffectiveLostAfter(), ttl+lostAfterLease)
}

// LedgerSetting returns for how long ledgers remember ticks if neither a task nor the limit says otherwise.
func (c Cluster) LedgerSetting() Duration {
	if c.Ledger != nil {
		return *c.Ledger
	}

	return DefaultLedger
}

// LimitLedger returns how much of a time, of the cluster's or a task's setting, the limit of the ledgers allows.
func (c Cluster) LimitLedger(d Duration) Duration {
	if c.LedgerLimit != nil {
		return min(d, *c.LedgerLimit)
	}

	return d
}

// LedgerOf returns for how long the ledger of a task with these settings remembers ticks.
func (c Cluster) LedgerOf(h History) Duration {
	return c.LimitLedger(Duration(h.EffectiveLedger(c.LedgerSetting())))
}

// InForce returns the newest format of records that may exist.
func (c Cluster) InForce() int { return max(c.Format, 1) }

// Written returns the format that nodes write.
func (c Cluster) Written() int {
	if c.FormatWanted > 0 {
		return min(c.InForce(), c.FormatWanted)
	}
	return c.InForce()
}
