package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/task"
)

// A node whose keys cannot be read gets no runs with secrets, but others. A run that waits for this node has that
// reason, and starts when the keys are readable again.
func TestSecrets_WaitWhileTheOnlyKeysAreBroken(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only a daemon that is root may hold keys and run tasks")
	}
	file := secret.KeyFile(filepath.Join(t.TempDir(), "keys"))
	if _, _, err := file.New(false); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, "--shards", "8", "--secret-keys", string(file))
	s := &canarySite{cluster: c}
	c.start("n1")
	s.must("hidden\n", "secret", "set", "db", "PASSWORD")
	with, without := spec("with", `test "$PASSWORD" = hidden`), spec("without", "exit 0")
	with.Action.Process.EnvFrom = []task.EnvFrom{{Secret: "db"}}
	with.Retry.Attempts, with.Retry.Backoff = 3, task.Duration(time.Second) // a run that is being started when the keys break fails
	c.create("n1", with)
	c.create("n1", without)
	if err := os.Chmod(string(file), 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		n, err := c.client("n1").Nodes.Get(t.Context(), "n1")
		if err == nil && n.HoldsKey() {
			err = errors.New("it announces keys")
		}
		return err
	})
	waits := c.trigger("n1", "with").ID
	c.until("n1", "without", c.trigger("n1", "without").ID, task.Succeeded)
	eventually(t, func() error {
		a, err := c.client("n1").Tasks.Why(t.Context(), "default", "with", client.WhyQuestion{})
		if b, _ := json.Marshal(a); err == nil && !strings.Contains(string(b), "n1 accepts no runs: it has no readable key for secrets") {
			err = fmt.Errorf("why does not tell it: %s", b)
		}
		return err
	})
	if err := os.Chmod(string(file), 0o600); err != nil {
		t.Fatal(err)
	}
	c.until("n1", "with", waits, task.Succeeded)
}
