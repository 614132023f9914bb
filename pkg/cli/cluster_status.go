package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "The whole: nodes, shards, etcd, warnings"}
	cmd.AddCommand(only(a.clusterStatus(), asTable, asWide, asJSON, asJSONL, asYAML), a.clusterRecover(), a.clusterMembers(), a.clusterMember(), only(a.clusterJoinToken(), asTable, asJSON, asYAML),
		only(a.clusterSet(), asTable, asJSON, asYAML),
		only(a.clusterFreeze(), asTable, asJSON, asYAML), only(a.clusterUnfreeze(), asTable, asJSON, asYAML),
		only(a.clusterUpgrade(), asTable, asJSON, asYAML), only(a.clusterDowngrade(), asTable, asJSON, asYAML))
	return cmd
}

func (a *app) clusterStatus() *cobra.Command {
	exitCode := false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how the cluster fares, and what to look at",
		Long: "Say how the cluster and its etcd fare, and what to look at. Where etcd runs out of space, the command lines\n" +
			"that make some are part of it.",
		Example: "  carillon cluster status\n  carillon cluster status -o json | jq .etcd\n  carillon cluster status --exit-code || page-someone",
		Args:    args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := c.Cluster(cmd.Context())
			if err != nil {
				return err
			}
			if err := emitOne(a, s, s.ID, func(d *details) { a.describeCluster(d, s) }); err != nil {
				return err
			}
			if exitCode && len(s.Warnings) > 0 {
				return silently([]int{exitFinding})
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 8 if there is a warning")
	return cmd
}

func (a *app) describeCluster(d *details, s client.ClusterStatus) {
	d.painted("Cluster", oneLine(s.ID)+a.plain(" · ")+fmt.Sprintf("since %s", a.gone(s.CreatedAt, "UTC")))
	if s.Epoch > 1 {
		d.field("Epoch", "%d", s.Epoch)
	}
	if s.ChangedBy != "" {
		words := fmt.Sprintf("%s by %s", a.gone(s.ChangedAt, "UTC"), s.ChangedBy)
		if s.Change != "" {
			words += ": " + s.Change
		}
		d.field("Changed", "%s", words)
	}
	nodes := a.share(s.NodesReady, s.Nodes, "ready")
	if s.Pressed > 0 {
		nodes += a.paint(yellow, fmt.Sprintf(", %d of them pressed", s.Pressed))
	}
	d.painted("Nodes", nodes)
	d.painted("Leader", first(oneLine(s.Leader), a.paint(red, "none just now")))
	d.painted("Shards", a.share(s.ShardsOwned, s.Shards, "owned"))
	d.field("Tasks", "%d", s.Tasks)
	if s.Unreadable > 0 {
		d.painted("Unreadable", a.paint(red, fmt.Sprintf("%d entries do not fire", s.Unreadable)))
	}
	d.field("Active runs", "%d", s.ActiveRuns)
	if s.Format.Format > 0 { // of a server that tells
		d.field("Format", "%s", formatWords(s.Format))
	}
	if s.CatchUpRate > 0 {
		d.field("Catching up", "%s", catchUpWords(s.CatchUpRate))
	}
	if s.LostAfter > 0 { // of a server that tells
		d.field("Lost after", "%s", lostAfterWords(s.LostAfter))
	}
	if r := s.Room; r != nil {
		history := ""
		if r.HistoryPerTask >= 0.05 {
			history = fmt.Sprintf(", with %.1f records of history", r.HistoryPerTask)
		}
		d.field("Room", "for some %s tasks, as one takes %s now, all told%s", roughly(int64(r.Tasks)), size(r.BytesPerTask), history)
	}
	if r := s.Revisions; r.Oldest > 0 {
		d.field("Revisions", "%d kept, from %d to %d", r.Newest-r.Oldest+1, r.Oldest, r.Newest)
	}
	d.section("etcd", a.bare(a.memberGrid(s.Etcd)))
	if len(s.Warnings) > 0 {
		var b strings.Builder
		for _, w := range s.Warnings {
			b.WriteString("  " + a.paint(yellow, "! "+oneLine(w)) + "\n")
		}
		d.section("Warnings", b.String())
	}
	if len(s.MakeSpace) > 0 {
		var b strings.Builder
		for _, line := range s.MakeSpace {
			b.WriteString("  " + oneLine(line) + "\n")
		}
		d.section("To make space", b.String())
	}
}

// roughly is n to two digits: an estimate is no more exact than that.
func roughly(n int64) string {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	n = (n + unit/2) / unit * unit
	switch {
	case n >= 1_000_000:
		return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64) + " million"
	case n >= 10_000:
		return strconv.FormatInt(n/1000, 10) + ",000"
	}
	return strconv.FormatInt(n, 10)
}

func (a *app) memberGrid(members []client.EtcdMember) *grid {
	g := &grid{heads: []string{"ENDPOINT", "ROLE", "VERSION", "SIZE", "IN USE", "ALARMS"}}
	for _, m := range members {
		role, alarms := "member", ""
		switch {
		case m.Leader:
			role = "leader"
		case m.Learner:
			role = "learner"
		}
		if len(m.Alarms) > 0 {
			alarms = a.paint(red, oneLine(strings.Join(m.Alarms, ", ")))
		}
		if m.Error != "" {
			role, alarms = a.paint(red, "away"), oneLine(m.Error)
		}
		inUse := ""
		if m.DBInUse > 0 {
			inUse = size(m.DBInUse) + " in use"
		}
		g.add(oneLine(m.Endpoint), role, oneLine(m.Version), a.dbSize(m), inUse, alarms)
	}
	return g
}

func (a *app) share(part, whole int, what string) string {
	words := fmt.Sprintf("%d of %d %s", part, whole, what)
	if part < whole || whole == 0 {
		return a.paint(yellow, words)
	}
	return a.paint(green, words)
}

func (a *app) dbSize(m client.EtcdMember) string {
	if m.DBSize == 0 {
		return a.none()
	}
	if m.DBQuota == 0 {
		return size(m.DBSize)
	}
	return fmt.Sprintf("%s of %s (%d%%)", size(m.DBSize), size(m.DBQuota), m.DBSize*100/m.DBQuota)
}
