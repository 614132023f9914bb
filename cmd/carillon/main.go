// Command carillon is all of Carillon: the daemon of a node and the tool that
// talks to it. See "carillon --help".
package main

import (
	"context"
	"os"

	"github.com/carillonhq/carillon/pkg/bench"
	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/daemon"
)

func main() { os.Exit(runCommand()) }

// runCommand ends its command at the first signal; at a second one the system's own
// way takes over, so that nothing can keep the process from being stopped.
func runCommand() int {
	ctx, stop := daemon.Signals(context.Background())
	defer stop()

	sys := cli.IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Version: daemon.Version()}
	return cli.Main(ctx, os.Args[1:], sys, append(daemon.Commands(), bench.Command())...)
}
