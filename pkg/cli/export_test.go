package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
)

func init() {
	adjustForTests = func(a *factory.Factory) {
		a.NodeTimeout = 100 * time.Millisecond // no node in a script handles anything
		a.LookupTimeout = time.Minute          // scripts check the messages
		a.RescanEvery = 300 * time.Millisecond
	}
}

// Tree returns the whole command tree.
func Tree(daemonCommands ...*cobra.Command) *cobra.Command {
	return newRootCommand(factory.New(IO{Env: func(string) string { return "" }}), daemonCommands)
}

// AnsweringServer is a server for tests of other packages.
var AnsweringServer = answeringServer

// FormatsOf returns the output formats of a command.
func FormatsOf(cmd *cobra.Command) []string { return factory.Formats(cmd) }
