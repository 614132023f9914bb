package guardian_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
)

// Verifies: G17
func TestGuardian_KillsAFrozenDaemonWithHTTPAttempts(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), remoteDaemon+"="+dir)
	cmd.Stderr = os.Stderr

	out, err := cmd.StdoutPipe()
	executortest.Must(t, err)
	executortest.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()

		// The context of the test has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		executortest.Must(t, guardian.WaitForExit(ctx, dir))
	})

	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}

	executortest.Must(t, cmd.Process.Signal(syscall.SIGSTOP))

	err = cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the daemon ended with %v, want SIGKILL", err)
	}

	executortest.Eventually(t, "the instance is cleared", func() bool {
		_, err := os.Stat(filepath.Join(dir, "cleared.i1"))
		return err == nil
	})
}

func TestClient_TellsTheGuardianOfSessionsWithHTTPAttempts(t *testing.T) {
	g := guardian.NewClient(guardian.Config{})
	e := guardiantest.Listen(t, g)
	remote := func(session int, silence time.Duration) {
		t.Helper()
		x := e.Hear("of HTTP attempts", func(x guardian.Message) bool { return x.Remote != nil })
		if x.Remote == nil || *x.Remote != (guardian.Remote{Session: session, Silence: silence}) {
			t.Fatalf("it is told of %+v, want session %d and %s", x.Remote, session, silence)
		}
	}

	// One message for the first attempt. Another attempt needs one only if it may be silent for less long.
	first, second := g.AnnounceRemote(1, time.Minute), g.AnnounceRemote(1, time.Minute)
	third := g.AnnounceRemote(1, time.Second)
	executortest.Must(t, g.Flush())
	remote(1, time.Minute)
	remote(1, time.Second)

	// Ends are passed on later, and only if nothing has started meanwhile.
	first.Ended()
	third.Ended()
	third = g.AnnounceRemote(1, time.Second)
	g.SetRenewal(1, time.Second)
	third.Ended()
	g.SetRenewal(1, 2*time.Second)
	remote(1, time.Minute)

	// The attempt moves to another session, which the node has joined.
	second.SetSession(2)
	remote(2, time.Minute)
	g.WithdrawRemotes()
	remote(1, 0)

	// Another guardian learns what is left.
	e.Close()
	g.SetRenewal(2, 3*time.Second) // finds that it is gone
	e = guardiantest.Listen(t, g)
	remote(2, time.Minute)
	second.Ended()
	g.WithdrawRemotes()
	remote(2, 0)

	g.AnnounceRemote(3, 5*time.Second).Ended()
	executortest.Must(t, g.Flush())
	remote(3, 5*time.Second)
}

func TestClient_WithoutAGuardianAnnouncesNothing(t *testing.T) {
	var g *guardian.Client
	h := g.AnnounceRemote(1, time.Second)
	h.SetSession(2)
	h.Ended()
	g.WithdrawRemotes()
}
