package task

// Warning is something that a person should look at.
type Warning struct {
	Code string `json:"code" doc:"The kind of warning, for programs."`
	Text string `json:"text" doc:"The warning as text."`
}

// Codes of warnings about the cluster.
const (
	WarnEtcdSilent         = "etcd_silent"         // etcd does not answer the node that was asked
	WarnEtcdRestored       = "etcd_restored"       // etcd was restored from an older snapshot
	WarnEtcdMember         = "etcd_member"         // a member of etcd does not do well
	WarnEtcdVersions       = "etcd_versions"       // its members have different versions
	WarnEtcdQuotas         = "etcd_quotas"         // its members have different quotas
	WarnEtcdCompaction     = "etcd_compaction"     // it keeps too many revisions
	WarnEvenMembers        = "even_members"        // its members are an even number
	WarnNoLeader           = "no_leader"           // nobody assigns shards
	WarnNoNodeReady        = "no_node_ready"       // no node fires
	WarnNoNodeTakesRuns    = "no_node_takes_runs"  // nothing is started
	WarnShardsUnowned      = "shards_unowned"      // shards have no owner that is present
	WarnUnreadable         = "unreadable_entries"  // tasks whose entries cannot be read do not fire
	WarnFrozen             = "frozen"              // a freeze holds
	WarnFreezeUnconfirmed  = "freeze_unconfirmed"  // nodes may still start what is frozen
	WarnNodeUnfit          = "node_unfit"          // a node gave its shards up
	WarnNodePressed        = "node_pressed"        // a node takes no runs, as it is beyond a limit
	WarnStartsHang         = "starts_hang"         // starts of runs hang on a node
	WarnNodeUnreachable    = "node_unreachable"    // a node's API cannot be reached
	WarnCertificateExpires = "certificate_expires" // a node's certificate ends soon
	WarnCertificateExpired = "certificate_expired" // a node's certificate has ended
	WarnFormatUnknown      = "format_unknown"      // a node does not understand the format of records
	WarnDowngradeWaits     = "downgrade_waits"     // a downgrade of the format waits
)

// Codes of warnings about a task that was written.
const (
	WarnNoNodeMatches = "no_node_matches" // no node would take its runs now
	WarnFewNodesMatch = "few_nodes_match" // fewer nodes than its runs need would take them now
)

// WarningTexts returns the words of warnings.
func WarningTexts(list []Warning) []string {
	texts := make([]string, len(list))
	for i, w := range list {
		texts[i] = w.Text
	}
	return texts
}
