package guardian_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"
)

// remoteDaemon in the environment makes the test binary run as a daemon with an HTTP attempt. Its value is the data
// directory.
const remoteDaemon = "GUARDIAN_TEST_DAEMON"

// borneSilence is how long the session of that daemon may be silent.
const borneSilence = time.Second

// TestMain also runs the test binary as other processes.
func TestMain(m *testing.M) {
	guardiantest.Main()

	if dir := os.Getenv(remoteDaemon); dir != "" {
		playDaemon(dir)
	}

	leaktest.Main(m)
}

// playDaemon is a daemon whose session is renewed all the time and which has an HTTP attempt in progress. It writes a line
// when the guardian knows that. It never returns.
func playDaemon(dir string) {
	g := guardian.NewClient(guardiantest.Config(dir))
	go func() { _ = g.Run(context.Background()) }()

	g.AnnounceRemote(1, borneSilence)
	for said := false; ; time.Sleep(20 * time.Millisecond) {
		g.SetRenewal(1, proctree.BootTime())

		if !said && g.WaitReady(nil) && g.Flush() == nil {
			said = true
			fmt.Println("ready")
		}
	}
}
