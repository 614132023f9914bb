package main

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/daemon"
)

// nodeCommands returns the commands that run a node, and lets those of the client read the settings of this host's agent.
func nodeCommands(sys *cli.IO) []*cobra.Command {
	sys.RestoreHost = daemon.RestoreHost
	return daemon.Commands()
}
