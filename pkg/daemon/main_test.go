package daemon_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/daemon"
)

// asDaemon in the environment makes the test binary the program itself, so that
// tests run real daemons, with the race detector in them.
const asDaemon = "CARILLON_TEST_AS_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	root := &cobra.Command{Use: "carillon", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(daemon.Commands()...)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
