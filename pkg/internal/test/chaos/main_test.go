package chaos_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

// asDaemon is an environment variable that makes the test binary act as the carillon program, in an environment
// that the test controls. Its value is the path of the daemon's control file.
const asDaemon = "CHAOS_CONTROL"

func TestMain(m *testing.M) {
	control := os.Getenv(asDaemon)

	if mark := os.Getenv(asReaper); mark != "" {
		reap(mark, os.Getenv(asReaper+"_MOUNT"))
		return
	}

	if control == "" {
		go forkAll()
		os.Exit(m.Run())
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	root := &cobra.Command{Use: "carillon", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(environment(ctx, control).Commands()...)

	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
