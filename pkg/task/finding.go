package task

import "slices"

// The severities of a finding.
const (
	Grave = "error"   // a guarantee is broken, or tasks do not run as they should
	Mild  = "warning" // nothing is broken yet
)

// Finding is a problem in a cluster that an audit has found.
type Finding struct {
	Kind     string   `json:"kind" doc:"The kind of finding, in one word for programs."`
	Group    string   `json:"group" doc:"shards, tasks, runs, nodes or etcd." enum:"shards,tasks,runs,nodes,etcd"`
	Severity string   `json:"severity" doc:"error: a guarantee is broken, or tasks do not run as they should. warning: nothing is broken yet." enum:"error,warning"`
	Keys     []string `json:"keys" doc:"The keys concerned, at most ten; the first is what was found, or a prefix that ends in /."`
	Count    int64    `json:"count" doc:"How many records are concerned."`
	Revision int64    `json:"revision,omitempty" doc:"The mod revision of the first key; absent if the key is."`
	Message  string   `json:"message" doc:"What was found."`
	Why      string   `json:"why" doc:"Why it matters."`
	Do       string   `json:"do" doc:"What to do about it."`
	Repair   string   `json:"repair,omitempty" doc:"What a repair would do; absent if you have to repair it yourself."`
}

// Audit is the result of an audit.
type Audit struct {
	Findings []Finding `json:"findings" doc:"The problems that it found."`
	Notes    []string  `json:"notes" doc:"What the audit could not cover."`
	Keys     int64     `json:"keys" doc:"How many records were read."`
	Revision int64     `json:"revision" doc:"The etcd revision at which the audit read."`
	At       Time      `json:"at" doc:"When that was, by the clock of the node that did it."`
	Node     string    `json:"node,omitempty" doc:"The node that did it."`
}

// AuditProgress is the progress of an audit.
type AuditProgress struct {
	Stage string `json:"stage" doc:"What it reads, or waits for."`
	Keys  int64  `json:"keys" doc:"How many records it has read."`
}

// The results of a repair.
const (
	Repaired      = "repaired"
	NotAsFound    = "changed"        // the finding no longer applies; nothing was written
	NotRepairable = "not_repairable" // a person must repair it
	RepairFailed  = "failed"         // the outcome is unknown; it is safe to try again
)

// RepairRequest identifies a finding to repair, with the values that the audit reported.
type RepairRequest struct {
	Kind     string `json:"kind" doc:"The kind of the finding."`
	Key      string `json:"key" doc:"The finding's first key."`
	Revision int64  `json:"revision" doc:"The finding's revision; 0 if it has none."`
}

// RepairResult is the result of a repair.
type RepairResult struct {
	RepairRequest
	Result  string `json:"result" doc:"repaired; changed: the finding no longer applies and nothing was written; not_repairable: you have to repair it yourself; failed: the result is unknown, and you can safely try again." enum:"repaired,changed,not_repairable,failed"`
	Deleted int64  `json:"deleted" doc:"The number of deleted keys."`
	Message string `json:"message,omitempty" doc:"What happened, as text."`
}

// Warning is a problem that a user or an operator should look at.
type Warning struct {
	Code string `json:"code" doc:"The kind of warning, for programs."`
	Text string `json:"text" doc:"The warning as text."`
}

// Codes of warnings about the cluster.
const (
	WarnEtcdSilent         = "etcd_silent"         // etcd does not answer the node that serves the request
	WarnEtcdRestored       = "etcd_restored"       // etcd was restored from an older snapshot
	WarnOldCluster         = "old_cluster"         // nodes of a history from before a restore still run
	WarnEtcdMember         = "etcd_member"         // a member of etcd has a problem
	WarnEtcdAlarm          = "etcd_alarm"          // a member of etcd has raised an alarm, so etcd accepts no writes
	WarnEtcdVersions       = "etcd_versions"       // the members of etcd have different versions
	WarnEtcdQuotas         = "etcd_quotas"         // the members of etcd have different quotas
	WarnEtcdCompaction     = "etcd_compaction"     // etcd keeps too many revisions
	WarnLedgerLimited      = "ledger_limited"      // ledgers remember less than they should, because etcd is filling up
	WarnEvenMembers        = "even_members"        // etcd has an even number of members
	WarnNoLeader           = "no_leader"           // no node assigns shards
	WarnNoNodeReady        = "no_node_ready"       // no node schedules tasks
	WarnNoNodeTakesRuns    = "no_node_takes_runs"  // no node accepts runs
	WarnShardsUnowned      = "shards_unowned"      // shards have no present owner
	WarnUnreadable         = "unreadable_entries"  // tasks do not fire because their entries cannot be read
	WarnFrozen             = "frozen"              // a freeze is in force
	WarnFreezeUnconfirmed  = "freeze_unconfirmed"  // nodes may still start runs that are frozen
	WarnNodeIneligible     = "node_ineligible"     // a node has given up its shards
	WarnNodeBlocked        = "node_blocked"        // a node accepts no runs, because it exceeds a limit
	WarnStartsHang         = "starts_hang"         // starts of runs hang on a node
	WarnNodeUnreachable    = "node_unreachable"    // a node's API cannot be reached
	WarnCertificateExpires = "certificate_expires" // a node's certificate expires soon
	WarnCertificateExpired = "certificate_expired" // a node's certificate has expired
	WarnFormatUnknown      = "format_unknown"      // a node does not understand the format of records
	WarnDowngradeWaits     = "downgrade_waits"     // a downgrade of the format has not taken effect yet
	WarnReceivers          = "receivers"           // a receiver of alerts gets no messages; also the code of the alert
	WarnNotEvaluated       = "not_evaluated"       // the alerts of some tasks are not evaluated; also the code of the alert
	WarnOutage             = "outage"              // the cluster had no leader for some time; also the code of the alert
	WarnBootstrapToken     = "bootstrap_token"     // a token that never expires is older than 30 days
)

// LeaderWarnings are the codes of warnings that only the leader can find. It reports them as alerts, and open ones are warnings.
var LeaderWarnings = []string{WarnReceivers, WarnNotEvaluated, WarnOutage}

// criticalWarnings are the codes of warnings about conditions under which nothing runs, or runs may be damaged.
var criticalWarnings = []string{
	WarnEtcdSilent, WarnEtcdRestored, WarnOldCluster, WarnEtcdAlarm, WarnNoLeader, WarnNoNodeReady, WarnNoNodeTakesRuns, WarnFormatUnknown,
	WarnCertificateExpired,
}

// IsCriticalWarning reports whether nothing runs, or runs may be damaged, under the condition that a warning with this code is about.
func IsCriticalWarning(code string) bool { return slices.Contains(criticalWarnings, code) }

// Codes of warnings about a task that was written.
const (
	WarnNoNodeMatches = "no_node_matches" // no node would take its runs now
	WarnFewNodesMatch = "few_nodes_match" // fewer nodes than its runs need would take them now

	WarnNoSendmail        = "no_sendmail"         // no node that would take its runs sends mail
	WarnNobodyNotified    = "nobody_notified"     // its alerts name no receiver
	WarnNoReceiver        = "no_receiver"         // a receiver of its alerts does not exist, or does not accept them
	WarnNothingExpected   = "nothing_expected"    // its alerts expect nothing
	WarnNoSuccessExpected = "no_success_expected" // it never alerts if it does not start
	WarnTightDeadline     = "tight_deadline"      // a run of usual length would miss success_by
	WarnUnknownSeverity   = "unknown_severity"    // its label severity is none that messages pass on
	WarnEmptyMessages     = "empty_messages"      // as a receiver, it accepts no variable of a message
)

// WarnRootUser is the code of a warning about a namespace that was written: a user of its run_as is root in effect.
const WarnRootUser = "root_user"

// WarningTexts returns the texts of warnings.
func WarningTexts(list []Warning) []string {
	texts := make([]string, len(list))
	for i, w := range list {
		texts[i] = w.Text
	}
	return texts
}
