package cluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// newWarning returns a warning with a code and a formatted text.
func newWarning(code, format string, args ...any) task.Warning {
	return task.Warning{Code: code, Text: fmt.Sprintf(format, args...)}
}

// restoredAt returns the names of the nodes that have detected that etcd was restored from an older snapshot.
func restoredAt(nodes []task.Node) string {
	var names []string
	for _, n := range nodes {
		if n.Ineligible == task.IneligibleRestored {
			names = append(names, n.Name)
		}
	}

	return strings.Join(names, ", ")
}

// ineligibleWarnings returns warnings about nodes that have given up their shards, or that take no runs.
func ineligibleWarnings(nodes []task.Node) (list []task.Warning) {
	if names := restoredAt(nodes); names != "" {
		list = append(list, newWarning(task.WarnEtcdRestored, "etcd was restored from an older snapshot, as detected by %s: nothing fires and nothing can be changed "+
			"until an operator accepts its current contents with carillon cluster recover", names))
	}

	for _, n := range nodes {
		if len(n.Blocked) > 0 {
			list = append(list, newWarning(task.WarnNodeBlocked, "node %s accepts no runs: %s", n.Name, task.DescribeBlocked(n.Blocked)))
		}

		if n.Stuck > 0 {
			list = append(list, newWarning(task.WarnStartsHang, "node %s has %d runs whose start hangs: a program, a directory or a file system on it does not respond", n.Name, n.Stuck))
		}

		switch n.Ineligible {
		case "", task.IneligibleRestored:
		case task.IneligibleClock:
			list = append(list, newWarning(task.WarnNodeIneligible, "node %s owns no shards: its clock jumped, or differs from that of other nodes", n.Name))
		case task.IneligibleStalled:
			list = append(list, newWarning(task.WarnNodeIneligible, "node %s temporarily owns no shards, because it did not decide ticks that were due; see its log", n.Name))
		default:
			list = append(list, newWarning(task.WarnNodeIneligible, "node %s owns no shards: %s", n.Name, n.Ineligible))
		}
	}

	return list
}

// listenWarnings returns warnings about nodes whose API other hosts cannot reach.
func listenWarnings(nodes []task.Node) []task.Warning {
	var list []task.Warning
	for _, n := range nodes {
		if n.APIError != "" {
			list = append(list, newWarning(task.WarnNodeUnreachable, "node %s fires, but %s", n.Name, n.APIError))
		}
	}

	return list
}

// clusterWarnings returns the general warnings about a cluster with this status.
func clusterWarnings(st client.ClusterStatus) []task.Warning {
	var list []task.Warning
	warn := func(code, format string, args ...any) { list = append(list, newWarning(code, format, args...)) }

	if st.Leader == "" {
		warn(task.WarnNoLeader, "there is no leader: shards are not assigned until one is elected")
	}

	if st.NodesReady == 0 {
		warn(task.WarnNoNodeReady, "no node is ready: nothing runs")
	}

	if n := st.Shards - st.ShardsOwned; n > 0 {
		warn(task.WarnShardsUnowned, "%d of %d shards have no owner that is present: their tasks do not run", n, st.Shards)
	}

	if st.Unreadable > 0 {
		warn(task.WarnUnreadable, "%d tasks do not run because their entries cannot be read: the logs of the nodes name them; apply the tasks again", st.Unreadable)
	}

	list = append(list, etcdWarnings(st)...)
	if st.LedgerLimit != nil {
		list = append(list, ledgerWarning(st))
	}

	return list
}

// ledgerWarning returns the warning that the leader has limited for how long ledgers remember ticks.
func ledgerWarning(st client.ClusterStatus) task.Warning {
	what := fmt.Sprintf("for %s at most", st.LedgerLimit.Approximate())
	if *st.LedgerLimit == 0 {
		what = "nothing"
	}

	return newWarning(task.WarnLedgerLimited, "ledgers remember %s, because etcd is filling up (since %s): increase its quota, or keep less with history.keep and "+
		"carillon cluster set --ledger. The limit ends when enough of the quota is free", what, st.LedgerLimitSince.Format(time.RFC3339))
}
