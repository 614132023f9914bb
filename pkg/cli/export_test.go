package cli

import (
	"time"

	"github.com/spf13/cobra"
)

func init() {
	turnPatience = 100 * time.Millisecond // no node of a script does anything
	lookLimit = time.Minute               // scripts read what is said with it
}

// Tree is the whole command tree.
func Tree(daemonCommands ...*cobra.Command) *cobra.Command {
	return newApp(IO{Env: func(string) string { return "" }}).root(daemonCommands)
}

// FormatsOf are the output formats of a command.
func FormatsOf(cmd *cobra.Command) []string { return formatsOf(cmd) }
