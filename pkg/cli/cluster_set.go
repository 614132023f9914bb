package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
)

func (a *app) clusterSet() *cobra.Command {
	var rate int
	cmd := &cobra.Command{
		Use:   "set --catch-up-rate N",
		Short: "Change settings that all nodes follow",
		Long: "Change settings that all nodes follow, at once and for good. --catch-up-rate is how many runs of ticks that\n" +
			"came to light late start per second in the whole cluster, so that an outage is not followed by a stampede.",
		Example: "  carillon cluster set --catch-up-rate 25",
		Args:    args(0, 0, ""),
	}
	cmd.Flags().IntVar(&rate, "catch-up-rate", 0, "`N` late runs start per second, in the whole cluster (0: the default, 100)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var set client.ClusterSettings
		if cmd.Flags().Changed("catch-up-rate") {
			set.CatchUpRate = &rate
		}
		if set == (client.ClusterSettings{}) {
			return usage("nothing to set").hinting("carillon cluster set --catch-up-rate N")
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		now, err := c.SetCluster(cmd.Context(), set)
		if err != nil {
			return err
		}
		return emitOne(a, now, "", func(d *details) { describeSettings(d, now) })
	}
	return cmd
}

func describeSettings(d *details, s client.ClusterSettings) {
	if s.CatchUpRate != nil {
		d.field("Catching up", "%s", catchUpWords(*s.CatchUpRate))
	}
}

func catchUpWords(rate int) string { return fmt.Sprintf("at %d late runs per second", rate) }
