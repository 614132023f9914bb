// Command carillon contains all of Carillon: the daemon of a node and the command-line client. On systems other than Linux, it is
// only the client. See "carillon --help".
package main

import (
	"context"
	"os"

	"github.com/carillonhq/carillon/pkg/cli"
)

func main() { os.Exit(runCommand()) }

// runCommand ends its command at the first signal. After that, the default action of signals is restored, so
// that a second signal always ends the process.
func runCommand() int {
	ctx, stop := cli.Signals(context.Background())
	defer stop()

	sys := cli.IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	commands := nodeCommands(&sys)

	return cli.Main(ctx, os.Args[1:], sys, commands...)
}
