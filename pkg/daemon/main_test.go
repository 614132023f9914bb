package daemon_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

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
	root.AddCommand(outside().Commands()...)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// What a test's daemon takes from its environment in place of the real world.
const (
	clockFile = "CARILLON_TEST_CLOCK" // a file with a duration by which its wall clock is off; none, or empty: it is right
	hostName  = "CARILLON_TEST_HOST"  // the host that it believes to be on
)

func outside() daemon.Outside {
	o := daemon.Outside{Host: os.Getenv(hostName)}
	if file := os.Getenv(clockFile); file != "" {
		o.Now = func() time.Time { return time.Now().Add(offsetIn(file)) }
	}
	return o
}

func offsetIn(file string) time.Duration {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	d, err := time.ParseDuration(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return d
}
