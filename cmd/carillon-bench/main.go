// Command carillon-bench measures Carillon, compared with what its etcd can do. It is not part of the product. See
// package bench, and "carillon-bench --help".
package main

import (
	"context"
	"os"

	"github.com/carillonhq/carillon/pkg/bench"
	"github.com/carillonhq/carillon/pkg/cli"
)

func main() { os.Exit(runCommand()) }

// runCommand ends its command at the first signal. A later one has its default effect.
func runCommand() int {
	ctx, stop := cli.Signals(context.Background())
	defer stop()

	return bench.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}
