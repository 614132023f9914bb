package daemon_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/task"
)

// command is a carillon command that runs against one node.
type command struct {
	t         *testing.T
	out, errs logBuffer
	code      int
	done      chan struct{}
}

func (c *cluster) carillon(node string, args ...string) *command {
	c.t.Helper()
	p := c.nodes[node]
	r := &command{t: c.t, done: make(chan struct{})}
	env := map[string]string{"CARILLON_SERVER": p.url(), "CARILLON_TOKEN_FILE": filepath.Join(c.dir, "n1", "token")}
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*patience)
	c.t.Cleanup(func() { cancel(); <-r.done })
	go func() {
		defer close(r.done)
		r.code = cli.Main(ctx, args, cli.IO{Out: &r.out, Err: &r.errs, RestoreHost: daemon.RestoreHost, Env: func(name string) string { return env[name] }})
	}()
	return r
}

// says waits until the output is exactly want.
func (c *command) says(want string) {
	c.t.Helper()
	eventually(c.t, func() error {
		if got := c.out.String(); got != want {
			return fmt.Errorf("it printed %q, want %q; and said: %s", got, want, &c.errs)
		}
		return nil
	})
}

// ends waits for the end, and checks the exit code and the last output.
func (c *command) ends(code int, said string) {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatalf("it does not end; it printed %q and said: %s", c.out.String(), &c.errs)
	}
	if c.code != code || !strings.Contains(c.errs.String(), said) {
		c.t.Errorf("ended with %d and said %q, want %d and %q", c.code, c.errs.String(), code, said)
	}
}

// A run on the first node is followed from the third while the second is stopped. Another one is followed over the
// death of its node to the next attempt on another node.
//
// Verifies: G47, G53
func TestLogs_AreFollowedFromAnyNode(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()                        // mostly waits
	c := newCluster(t, "--shards", "8") // the default lease, because a node must be present to pause a run
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	marks := t.TempDir()
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(marks, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wait := func(name string) string {
		return "until [ -e " + filepath.Join(marks, name) + " ]; do sleep 0.05; done; "
	}

	talk := spec("talk", "echo one; "+wait("two")+"echo two; "+wait("end")+"printf end")
	talk.Target.Selector = "node = n1"
	c.create("n1", talk)
	run := c.trigger("n1", "talk")
	c.until("n1", "talk", run.ID, task.Running)
	c.nodes["n2"].signal(syscall.SIGSTOP)
	follows := c.carillon("n3", "run", "logs", run.ID, "-f")
	follows.says("one\n")
	touch("two")
	follows.says("one\ntwo\n")
	touch("end")
	follows.says("one\ntwo\nend")
	follows.ends(0, "✓ succeeded · talk")
	c.nodes["n2"].signal(syscall.SIGCONT)
	c.nodes["n2"].waitReady()
	c.pausesWhileFollowed()

	again := spec("again", `echo attempt $CARILLON_ATTEMPT; echo $CARILLON_NODE > `+marks+`/node.$CARILLON_ATTEMPT; [ $CARILLON_ATTEMPT = 2 ] || sleep 300; exit 4`)
	again.Target.Selector = "node != n3"
	again.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Lost}}
	c.create("n3", again)
	waits := c.carillon("n3", "task", "trigger", "again", "--wait", "--exit-status")
	follows = c.carillon("n3", "logs", "again", "-f")
	follows.says("attempt 1\n")
	eventually(t, func() error {
		if got := waits.out.String(); !strings.HasSuffix(got, "\nattempt 1\n") {
			return fmt.Errorf("trigger --wait printed %q", got)
		}
		return nil
	})
	c.nodes[lineIn(t, filepath.Join(marks, "node.1"))].signal(syscall.SIGKILL)
	follows.says("attempt 1\nattempt 2\n")
	waits.ends(4, "again did not succeed: exit 4, attempt 2")
	if out := waits.out.String(); !strings.Contains(out, "\nattempt 1\nattempt 2\n✗ exit 4, attempt 2 · again") {
		t.Errorf("trigger --wait printed %q", out)
	}
	// The next run is followed, too, on any node.
	c.trigger("n3", "again")
	eventually(t, func() error {
		if got := follows.out.String(); !strings.HasPrefix(got, "attempt 1\nattempt 2\nattempt 1\n") {
			return fmt.Errorf("it printed %q; and said: %s", got, &follows.errs)
		}
		return nil
	})
}
