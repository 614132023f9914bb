package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// A run has a part on every node while one node dies and one joins. The part of the dead node is lost, the new
// node gets none, and the run ends according to its rule. Then only the lost part is repeated, on the node that is
// back.
func TestFanOut_ToAllNodesWhileOneDiesAndOneJoins(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "4")
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	c.acquainted() // otherwise the node that places the parts may not know all nodes
	dir := t.TempDir()
	s := spec("sweep", fmt.Sprintf(
		`echo "$CARILLON_NODE $CARILLON_PART_INDEX of $CARILLON_PART_COUNT" >>%s/log; while [ ! -e %[1]s/go ]; do sleep 0.1; done; echo done on $CARILLON_NODE`, dir))
	s.Target.Count = task.All
	c.create("n1", s)
	run := c.trigger("n1", s.Name)
	eventually(t, func() error {
		b, _ := os.ReadFile(filepath.Join(dir, "log"))
		if n := strings.Count(string(b), "\n"); n != 3 {
			return fmt.Errorf("%d parts have started", n)
		}
		return nil
	})
	live := c.carillon("n2", "logs", run.ID, "-f")
	c.nodes["n3"].signal(syscall.SIGKILL)
	c.start("n4")
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := c.until("n1", s.Name, run.ID, task.Failed)
	want := map[string]task.State{"n1": task.Succeeded, "n2": task.Succeeded, "n3": task.Lost}
	if f := ended.Fan; f == nil || len(f.Parts) != 3 || f.Succeeded != 2 || ended.Reason != task.ReasonParts {
		t.Fatalf("the run ended as %s (%s): %+v", ended.State, ended.Reason, f)
	}
	for _, p := range ended.Fan.Parts {
		if p.State != want[p.Node] {
			t.Errorf("part %d on %s is %s", p.Index, p.Node, p.State)
		}
	}
	<-live.done
	if out := live.out.String(); strings.Count(out, "done on n1") != 1 || strings.Count(out, "done on n2") != 1 || !strings.Contains(out, "sweep[0] ") {
		t.Errorf("what was followed is %q", out)
	}
	logs := c.carillon("n4", "logs", s.Name) // the part of n3 is not available
	<-logs.done
	if out := logs.out.String(); strings.Count(out, "done on n1") != 1 || !strings.Contains(out, "sweep[0] ") {
		t.Errorf("the merged output is %q", out)
	}

	c.start("n3")
	c.acquainted()
	again, err := c.client("n1").Runs.Retry(t.Context(), "default", s.Name, run.ID)
	if err != nil {
		t.Fatal(err)
	}
	repeated := c.until("n1", s.Name, again.Run.ID, task.Succeeded)
	if f := repeated.Fan; len(f.Parts) != 1 || f.Parts[0].Node != "n3" || f.Kept != 2 {
		t.Errorf("it was repeated with %+v", f)
	}
	b, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil || strings.Count(string(b), "n3 2 of 3") != 2 || strings.Contains(string(b), "n4") {
		t.Errorf("parts have run as %q, %v", b, err)
	}
	c.judge(check.Options{Ended: true})
}
