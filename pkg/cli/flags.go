package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagSets are the names of all flags of a command, its own and the global ones.
func flagSets(cmd *cobra.Command) [][]string {
	var own, global []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { own = append(own, f.Name) })
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { global = append(global, f.Name) })
	return [][]string{own, global}
}
