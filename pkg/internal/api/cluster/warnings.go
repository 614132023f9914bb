package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// Facts are what the warnings about a cluster follow from.
type Facts struct {
	Now    time.Time
	Status client.ClusterStatus // without warnings
	Nodes  []task.Node

	FormatInForce  int        // the format of records; 0: not known
	FreezeRevision int64      // the mod revision of the freezes in Status
	Token          task.Token // the bootstrap token, if HasToken is set
	HasToken       bool       // the cluster does not need it any more
	Incomplete     bool       // some facts could not be read, so some warnings may be missing
}

// Warnings returns the warnings about a cluster. The API shows them, and the leader opens alerts about those that last.
func Warnings(f *Facts) []task.Warning {
	list := slices.Concat(ineligibleWarnings(f.Nodes), formatWarnings(f), freezeWarnings(f), clusterWarnings(f.Status))
	if f.Status.NodesReady > 0 && !slices.ContainsFunc(f.Nodes, func(n task.Node) bool { return n.Takes() }) {
		list = append(list, newWarning(task.WarnNoNodeTakesRuns, "no node accepts runs: due runs wait"))
	}

	if t := &f.Token; f.HasToken {
		list = append(list, newWarning(task.WarnBootstrapToken, "the token %s of %s was created on %s and never expires, although the cluster has another administrator: delete it with carillon token delete %s",
			t.ID, t.Subject, t.CreatedAt.UTC().Format(time.DateOnly), t.ID))
	}

	return append([]task.Warning{}, slices.Concat(list, listenWarnings(f.Nodes), expiryWarnings(f.Nodes, f.Now))...)
}

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

	var old []string
	for _, n := range nodes {
		old = append(old, n.OldNodes...)
	}
	if slices.Sort(old); len(old) > 0 {
		list = append(list, newWarning(task.WarnOldCluster, "the old cluster, from before the last restore, still runs at %s: its tasks run twice; stop its agents",
			strings.Join(slices.Compact(old), ", ")))
	}

	for _, n := range nodes {
		if len(n.Blocked) > 0 {
			list = append(list, newWarning(task.WarnNodeBlocked, "node %s accepts no runs: %s", n.Name, task.DescribeBlocked(n.Blocked)))
		}

		if n.Stuck > 0 {
			list = append(list, newWarning(task.WarnStartsHang, "node %s has %s whose start hangs: a program, a directory or a file system on it does not respond", n.Name, wording.Plural(int64(n.Stuck), "run")))
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
		warn(task.WarnUnreadable, "the entries of %s cannot be read, so they do not run: the logs of the nodes name them; apply the tasks again", wording.Plural(int64(st.Unreadable), "task"))
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

// expiryWarnings returns warnings about certificates that nodes have announced as expired or about to expire.
func expiryWarnings(nodes []task.Node, now time.Time) (list []task.Warning) {
	for _, n := range nodes {
		for _, e := range n.Expires {
			day := e.At.UTC().Format(time.DateOnly)

			switch left := e.At.Sub(now); {
			case left <= 0:
				list = append(list, newWarning(task.WarnCertificateExpired, "node %s: its %s expired on %s and is rejected: replace the file; the node reloads it by itself", n.Name, e.Setting, day))
			default:
				list = append(list, newWarning(task.WarnCertificateExpires, "node %s: its %s expires on %s, in %s: replace the file; the node reloads it by itself", n.Name, e.Setting, day, wording.Plural(int64(left.Hours()/24), "day")))
			}
		}
	}

	return list
}

// formatWarnings returns warnings about nodes that do not understand the format of records, and about a downgrade that waits. Such a
// node cannot join, unless somebody has edited the cluster's record by hand.
func formatWarnings(f *Facts) (list []task.Warning) {
	for _, n := range f.Nodes {
		if n.Understands() < f.FormatInForce {
			list = append(list, newWarning(task.WarnFormatUnknown, "node %s (%s) only understands record format %d, but format %d is in use: it misreads runs; stop it, or run a newer version there",
				n.Name, n.Version, n.Understands(), f.FormatInForce))
		}
	}

	if format := f.Status.Format; format.WaitsFor != "" {
		list = append(list, newWarning(task.WarnDowngradeWaits, "the downgrade to format %d waits for %s", format.Wanted, format.WaitsFor))
	}

	return list
}

// freezeWarnings returns a warning for each freeze, because a freeze is easily forgotten, and one about nodes that have not confirmed
// them.
func freezeWarnings(f *Facts) (list []task.Warning) {
	for _, z := range f.Status.Freezes {
		end := "carillon cluster unfreeze"
		if z.Namespace != "" {
			end += " --namespace " + z.Namespace
		}

		since := "some time ago"
		if !z.Since.IsZero() {
			since = "since " + z.Since.Format(time.RFC3339)
		}

		by := ""
		if z.By != nil {
			by = " by " + z.By.String()
		}

		list = append(list, newWarning(task.WarnFrozen, "%s is frozen, %s%s: %s; its runs do not start until %s", scopeName(z.Namespace), since, by, z.Reason, end))
	}

	if names := unconfirmedBy(f.Nodes, f.FreezeRevision); len(names) > 0 {
		list = append(list, newWarning(task.WarnFreezeUnconfirmed, "nodes that may still start runs that they received before the freeze: %s", strings.Join(names, ", ")))
	}

	return list
}
