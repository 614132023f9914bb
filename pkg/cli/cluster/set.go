package cluster

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// setCommand returns "carillon cluster set".
func setCommand(f *factory.Factory) *cobra.Command {
	var rate int
	var lostAfter, ledger, publicURL string
	var receivers []string
	cmd := &cobra.Command{
		Use:   "set [--catch-up-rate N] [--lost-after DURATION] [--ledger DURATION] [--public-url URL] [--alert-receivers NAMESPACE/NAME,…]",
		Short: "Change cluster-wide settings",
		Long: "Change settings that apply to all nodes. Changes take effect immediately and are stored in etcd.\n\n" +
			"--catch-up-rate limits how many late runs start per second in the whole cluster, so that an outage is not\n" +
			"followed by a burst of runs.\n\n" +
			"--lost-after sets how long Carillon waits for a silent node before it declares its attempts lost. The node kills\n" +
			"them a little earlier, so that other attempts can then start in their place. A change applies to attempts that are\n" +
			"assigned afterwards. Attempts on a node with a longer lease_ttl get at least lease_ttl + 10s.\n\n" +
			"--ledger sets how long tasks remember the outcomes of ticks whose runs are no longer in their history, unless\n" +
			"history.ledger of a task says otherwise. With 0s, the ledger of a task is deleted when its history is trimmed next.\n\n" +
			"--public-url is the address of the Web UI for the links in messages about alerts, and --alert-receivers names the\n" +
			"receivers of alerts about the cluster itself.",
		Example: "  carillon cluster set --catch-up-rate 25\n" +
			"  carillon cluster set --lost-after 10m\n" +
			"  carillon cluster set --ledger 90d\n" +
			"  carillon cluster set --public-url https://carillon.example.com --alert-receivers ops/slack",
		Args: factory.Args(0, 0, ""),
	}
	cmd.Flags().IntVar(&rate, "catch-up-rate", 0, "start at most `N` late runs per second in the whole cluster (0: the default, 100)")
	cmd.Flags().StringVar(&lostAfter, "lost-after", "", "declare the attempts of a silent node lost after this `DURATION`, 12s to 24h (0s: the default, 2m)")
	cmd.Flags().StringVar(&ledger, "ledger", "", "let ledgers remember ticks for this `DURATION`, such as 36h or 90d, which is the longest (default of a new cluster: 30d; 0s: not at all)")
	cmd.Flags().StringVar(&publicURL, "public-url", "", "address of the Web UI for links in messages about alerts: `URL`, or empty for no links")
	cmd.Flags().StringSliceVar(&receivers, "alert-receivers", nil, "send alerts about the cluster to these receivers, each as `NAMESPACE/NAME` (empty: nobody)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var set client.ClusterSettings
		if cmd.Flags().Changed("catch-up-rate") {
			set.CatchUpRate = &rate
		}

		if cmd.Flags().Changed("lost-after") {
			d, err := task.ParseDuration("lost_after", lostAfter)
			if err != nil {
				return err
			}
			set.LostAfter = &d
		}

		if cmd.Flags().Changed("ledger") {
			d, err := task.ParseDuration("ledger", ledger)
			if err != nil {
				return err
			}
			set.Ledger = &d
		}

		if cmd.Flags().Changed("public-url") {
			set.PublicURL = &publicURL
		}

		if cmd.Flags().Changed("alert-receivers") {
			list := append([]string{}, receivers...) // not nil, which would change nothing
			set.AlertReceivers = &list
		}

		if set == (client.ClusterSettings{}) {
			return failure.Usage("nothing to set").WithHint("carillon cluster set --lost-after DURATION")
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		now, err := c.Cluster.UpdateSettings(cmd.Context(), set)
		if err != nil {
			return err
		}

		return output.EmitOne(&f.Printer, now, "", func(d *output.Details) { describeSettings(d, now) })
	}

	return cmd
}

// describeSettings prints settings.
func describeSettings(d *output.Details, s client.ClusterSettings) {
	if s.CatchUpRate != nil {
		d.Field("Catching up", "%s", wording.CatchUpText(*s.CatchUpRate))
	}

	if s.LostAfter != nil {
		d.Field("Lost after", "%s", wording.LostAfterText(*s.LostAfter))
	}

	if s.Ledger != nil {
		d.Field("Ledgers", "%s", wording.LedgerSettingText(*s.Ledger))
	}

	if s.PublicURL != nil && *s.PublicURL != "" {
		d.Field("Public URL", "%s", wording.OneLine(*s.PublicURL))
	}

	if s.AlertReceivers != nil && len(*s.AlertReceivers) > 0 {
		d.Field("Alerts to", "%s", strings.Join(*s.AlertReceivers, ", "))
	}
}
