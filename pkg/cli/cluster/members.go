package cluster

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
)

// membersCommand returns "carillon cluster members".
func membersCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "members",
		Short:   "List etcd members",
		Example: "  carillon cluster members\n  carillon cluster members -o json | jq '.[] | select(.error)'",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			list, err := c.Members.List(cmd.Context())
			if err != nil {
				return err
			}

			return output.EmitList(&f.Printer, list, memberName, func(bool) *output.Table { return membersGrid(f, list) })
		},
	}
}

// memberName returns the name of a member.
func memberName(m client.EtcdMember) string { return cmp.Or(m.Name, m.ID, m.Endpoint) }

// membersGrid returns the table of members.
func membersGrid(f *factory.Factory, list []client.EtcdMember) *output.Table {
	g := &output.Table{Headers: []string{"NAME", "ID", "PEER URL", "ROLE", "HEALTH", "SIZE"}, Empty: "etcd reports no members"}

	for _, m := range list {
		role, health := "member", f.Paint(output.Green, "healthy")

		switch {
		case m.Leader:
			role = "leader"
		case m.Learner:
			role = "learner"
		}

		if m.Error != "" {
			health = f.Paint(output.Red, output.OneLine(m.Error))
		} else if len(m.Alarms) > 0 {
			health = f.Paint(output.Red, output.OneLine(strings.Join(m.Alarms, ", ")))
		}

		g.AddRow(cmp.Or(output.OneLine(m.Name), f.NoValue()), cmp.Or(output.OneLine(m.ID), f.NoValue()), cmp.Or(output.OneLine(m.PeerURL), output.OneLine(m.Endpoint)), role, health, cmp.Or(wording.MemberSize(m), f.NoValue()))
	}

	return g
}

// memberCommand returns "carillon cluster member".
func memberCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "member", Short: "Add and remove members of the embedded etcd"}
	cmd.AddCommand(factory.LimitFormats(memberAdd(f), output.FormatTable, output.FormatJSON, output.FormatYAML), factory.LimitFormats(memberRemove(f), output.FormatTable, output.FormatJSON, output.FormatYAML))
	return cmd
}

// memberAdd returns "carillon cluster member add".
func memberAdd(f *factory.Factory) *cobra.Command {
	var peer string
	cmd := &cobra.Command{
		Use:   "add NAME --peer-url URL",
		Short: "Add a member to the embedded etcd",
		Long: "Add a member to the embedded etcd. Run this before you start the agent of the new member. The member receives\n" +
			"the data first, and votes when it has caught up. To replace a lost member, remove it first.",
		Example: "  carillon cluster member remove n3\n  carillon cluster member add n3 --peer-url https://10.0.0.3:2380",
		Args:    factory.Args(1, 1, "the agent's name"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if peer == "" {
				return failure.Usage("--peer-url: must be the URL at which the other members will reach it, such as https://10.0.0.3:2380")
			}

			c, err := f.Connect()
			if err != nil {
				return err
			}

			ch, err := c.Members.Add(cmd.Context(), client.AddMemberRequest{Name: words[0], PeerURL: peer})
			if err != nil {
				return err
			}

			return memberChanged(f, ch, fmt.Sprintf("added %s; start it with an empty data directory:", ch.Name), startOfMember(ch, peer))
		},
	}

	cmd.Flags().StringVar(&peer, "peer-url", "", "`URL` at which the other members will reach it: https://HOST:PORT, or http with insecure_peers")

	return cmd
}

// startOfMember describes how to start a member that was added, and how it gets its certificate.
func startOfMember(ch client.MemberChange, peer string) string {
	start := fmt.Sprintf("  carillon agent --embedded --name %s --initial-cluster-state existing --initial-cluster %s", ch.Name, ch.InitialCluster)

	if !strings.HasPrefix(peer, "https:") {
		return start + " --insecure-peers"
	}

	return start + fmt.Sprintf("\n\nUnless you set etcd_peer_cert, the new member needs a certificate. Run this on the host of the member that has the CA,\n"+
		"and put the output into the file join-token in the data directory of %s:\n  sudo carillon cluster join-token %s --peer-url %s", ch.Name, ch.Name, peer)
}

// memberRemove returns "carillon cluster member remove".
func memberRemove(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a member from the embedded etcd permanently",
		Long: "Remove a member from the embedded etcd permanently. Its agent stops, and its data cannot be used again. The\n" +
			"command refuses if the remaining members would have no majority. To remove a member that has never run, use its ID.",
		Example: "  carillon cluster member remove n3",
		Args:    factory.Args(1, 1, "the member's name, or its id"),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			ch, err := c.Members.Remove(cmd.Context(), words[0])
			if err != nil {
				return err
			}

			return memberChanged(f, ch, fmt.Sprintf("removed %s", ch.Name), "")
		},
	}
}

// memberChanged prints the result of a change.
func memberChanged(f *factory.Factory, ch client.MemberChange, what, next string) error {
	if ch.Warning != "" {
		f.Note("%s", ch.Warning)
	}

	return output.EmitOne(&f.Printer, ch, ch.Name, func(d *output.Details) {
		d.StyledField("Done", what)
		if next != "" {
			d.Section("Next", next+"\n")
		}
	})
}
