package task

// Warning is a problem that a user or an operator should look at.
type Warning struct {
	Code string `json:"code" doc:"The kind of warning, for programs."`
	Text string `json:"text" doc:"The warning as text."`
}

// Codes of warnings about the cluster.
const (
	WarnEtcdSilent         = "etcd_silent"         // etcd does not answer the node that serves the request
	WarnEtcdRestored       = "etcd_restored"       // etcd was restored from an older snapshot
	WarnEtcdMember         = "etcd_member"         // a member of etcd has a problem
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
	WarnBootstrapToken     = "bootstrap_token"     // a token that never expires is older than 30 days
)

// Codes of warnings about a task that was written.
const (
	WarnNoNodeMatches = "no_node_matches" // no node would take its runs now
	WarnFewNodesMatch = "few_nodes_match" // fewer nodes than its runs need would take them now
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
