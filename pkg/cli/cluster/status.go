package cluster

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon cluster".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Show and change the state of the cluster"}
	cmd.AddCommand(factory.LimitFormats(statusCommand(f), output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML), recoverCommand(f), membersCommand(f), memberCommand(f),
		factory.LimitFormats(setCommand(f), output.FormatTable, output.FormatJSON, output.FormatYAML),
		factory.LimitFormats(freezeCommand(f), output.FormatTable, output.FormatJSON, output.FormatYAML), factory.LimitFormats(unfreezeCommand(f), output.FormatTable, output.FormatJSON, output.FormatYAML),
		factory.LimitFormats(upgradeCommand(f), output.FormatTable, output.FormatJSON, output.FormatYAML), factory.LimitFormats(downgradeCommand(f), output.FormatTable, output.FormatJSON, output.FormatYAML))
	cmd.AddCommand(hostCommands(f)...)

	return cmd
}

// statusCommand returns "carillon cluster status".
func statusCommand(f *factory.Factory) *cobra.Command {
	exitCode := false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the health of the cluster",
		Long: "Show the health of the cluster and its etcd, and the problems of the cluster that \"carillon top\" shows. If etcd is\n" +
			"running out of space, the output includes commands that free some.\n\n" +
			"With -o json, problems lists the problems, the most severe first. Each has a severity (critical, warning or info),\n" +
			"a kind, words, and perhaps a hint, a time since and a subject: a namespace, a node or a shard.",
		Example: "  carillon cluster status\n  carillon cluster status -o json | jq '.problems[] | select(.severity == \"critical\")'\n  carillon cluster status --exit-code || page-someone",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			// Each of them may wait for a node that hangs, so both are read at the same time.
			var s client.ClusterStatus
			var b task.Board
			var boardErr error
			callgroup.Run(
				func() { s, err = c.Cluster.Status(cmd.Context()) },
				func() { b, boardErr = c.Board.Get(cmd.Context(), client.BoardOptions{Span: time.Second, Limit: 100}) },
			)
			if err != nil {
				return err
			}

			// Without the board, the status still has most problems.
			board := &b
			if boardErr != nil {
				board = nil
				f.Note("problems that only the nodes know are missing: %s", output.OneLine(boardErr.Error()))
			}

			problems := overview.OfStatus(s, board)
			if err := output.EmitOne(&f.Printer, statusWithProblems{s, listedProblems(problems)}, s.ID, func(d *output.Details) { describeCluster(f, d, s, problems) }); err != nil {
				return err
			}
			if exitCode && overview.Attention(problems) > 0 {
				return failure.AlreadyReported([]int{failure.ExitFinding})
			}

			return nil
		},
	}

	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 8 if a problem needs attention")

	return cmd
}

// statusWithProblems is the output for programs: the fields of the status, and the problems.
type statusWithProblems struct {
	client.ClusterStatus
	Problems []listedProblem `json:"problems"`
}

// listedProblem is a problem of the cluster. Without a namespace, a node and a shard, its subject is the cluster.
type listedProblem struct {
	Severity  overview.Severity `json:"severity"`
	Kind      overview.Kind     `json:"kind"`
	Namespace string            `json:"namespace,omitempty"`
	Node      string            `json:"node,omitempty"`
	Shard     string            `json:"shard,omitempty"` // its number
	Words     string            `json:"words"`           // what is wrong with the subject
	Hint      string            `json:"hint,omitempty"`  // what to do; absent if the words say it
	Since     task.Time         `json:"since,omitzero"`
}

// listedProblems returns the problems, the most severe first. The board lists all problems of the cluster.
func listedProblems(groups []overview.Group) []listedProblem {
	list := []listedProblem{}
	for _, g := range groups {
		for _, p := range g.Problems {
			list = append(list, listedProblem{g.Severity, g.Kind, p.Subject.Namespace, p.Subject.Node, p.Subject.Shard, p.Words, g.Hint, p.Since})
		}
	}

	return list
}

// describeCluster prints the status.
func describeCluster(f *factory.Factory, d *output.Details, s client.ClusterStatus, problems []overview.Group) {
	d.StyledField("Cluster", output.OneLine(s.ID)+f.Plain(" · ")+fmt.Sprintf("since %s", f.PastTime(s.CreatedAt, output.ReaderZone)))

	if s.Epoch > 1 {
		d.Field("Epoch", "%d", s.Epoch)
	}
	if s.Restored != nil {
		d.Field("Restored", "%s, %s", f.PastTime(s.Restored.At, output.ReaderZone), wording.RestoredText(s.Restored))
	}

	if s.ChangedBy != nil {
		words := fmt.Sprintf("%s by %s", f.PastTime(s.ChangedAt, output.ReaderZone), s.ChangedBy)
		if s.Change != "" {
			words += ": " + s.Change
		}
		d.Field("Changed", "%s", words)
	}

	d.StyledField("Nodes", formatShare(f, s.NodesReady, s.Nodes, "ready"))
	d.StyledField("Leader", cmp.Or(output.OneLine(s.Leader), f.Paint(output.Red, "none")))
	d.StyledField("Shards", formatShare(f, s.ShardsOwned, s.Shards, "owned"))
	d.Field("Tasks", "%d", s.Tasks)

	d.Field("Active runs", "%d", s.ActiveRuns)

	for _, fact := range wording.ClusterFacts(s) {
		d.Field(fact.Name, "%s", fact.Value)
	}
	d.Field("Revisions", "%s", wording.RevisionsText(s.Revisions))

	d.Section("etcd", f.RenderIndented(memberGrid(f, s.Etcd)))

	if len(problems) > 0 {
		d.Section("Problems", problemLines(f, problems))
	}

	if len(s.MakeSpace) > 0 {
		var b strings.Builder
		for _, line := range s.MakeSpace {
			b.WriteString("  " + output.OneLine(line) + "\n")
		}
		d.Section("To free space", b.String())
	}
}

// severityColors are the colors of problems.
var severityColors = map[overview.Severity]output.Color{overview.Critical: output.Red, overview.Warning: output.Yellow, overview.Info: output.Cyan}

// problemLines returns a line for each problem, and what to do after those of each kind.
func problemLines(f *factory.Factory, problems []overview.Group) string {
	var b strings.Builder
	for _, g := range problems {
		sign := "! "
		if g.Severity == overview.Info {
			sign = "- "
		}

		for _, p := range g.Problems {
			b.WriteString("  " + f.Paint(severityColors[g.Severity], sign+output.OneLine(p.Text())))
			if !p.Since.IsZero() {
				b.WriteString(f.Plain(" · ") + "since " + f.PastTime(p.Since, output.ReaderZone))
			}
			b.WriteString("\n")
		}

		if g.Hint != "" {
			b.WriteString("    " + g.Hint + "\n")
		}
	}

	return b.String()
}

// memberGrid returns the table of members.
func memberGrid(f *factory.Factory, members []client.EtcdMember) *output.Table {
	g := &output.Table{Headers: []string{"ENDPOINT", "ROLE", "VERSION", "SIZE", "IN USE", "ALARMS"}}

	for _, m := range members {
		role, alarms := "member", ""

		switch {
		case m.Leader:
			role = "leader"
		case m.Learner:
			role = "learner"
		}

		if len(m.Alarms) > 0 {
			alarms = f.Paint(output.Red, output.OneLine(strings.Join(m.Alarms, ", ")))
		}

		if m.Error != "" {
			role, alarms = f.Paint(output.Red, "away"), output.OneLine(m.Error)
		}

		inUse := ""
		if m.DBInUse > 0 {
			inUse = output.Bytes(m.DBInUse) + " in use"
		}

		g.AddRow(output.OneLine(m.Endpoint), role, output.OneLine(m.Version), cmp.Or(wording.MemberSize(m), f.NoValue()), inUse, alarms)
	}

	return g
}

// formatShare describes a part of a whole, colored by whether it is complete.
func formatShare(f *factory.Factory, part, whole int, noun string) string {
	words := fmt.Sprintf("%d of %d %s", part, whole, noun)
	if part < whole || whole == 0 {
		return f.Paint(output.Yellow, words)
	}
	return f.Paint(output.Green, words)
}
