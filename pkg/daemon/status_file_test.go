package daemon_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Every node returns what a run has reported, and names a node that does not answer. When the node of the run
// dies, the next attempt receives its checkpoint.
func TestTalk_FromAnyNodeAndOverALoss(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--lease-ttl", "5s")
	c.start("n1")
	c.start("n2")
	s := spec("load", `if [ "$CARILLON_CHECKPOINT" ]; then echo "from=$CARILLON_CHECKPOINT" >> $CARILLON_STATUS_FILE; exit 0; fi
		printf 'checkpoint row 17\nrows=17\n0.4 loading\n' >> $CARILLON_STATUS_FILE; sleep 300`)
	s.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Lost}}
	c.create("n1", s)
	run := c.trigger("n1", "load")
	node := c.until("n2", "load", run.ID, task.Running).Node
	other := map[string]string{"n1": "n2", "n2": "n1"}[node]

	says := func(what string, ok func(r task.Run) bool) {
		t.Helper()
		eventually(t, func() error {
			r, err := c.client(other).Runs.Get(t.Context(), "default", "load", run.ID)
			if err == nil && !ok(r) {
				err = fmt.Errorf("%s: %+v of %+v", what, r.Progress, r)
			}
			return err
		})
	}
	says("progress, results and checkpoint", func(r task.Run) bool {
		return r.Progress != nil && r.Progress.Percent != nil && *r.Progress.Percent == 40 && r.Progress.Text == "loading" &&
			r.Results["rows"] == "17" && r.Checkpoint == "row 17"
	})
	eventually(t, func() error {
		b, err := c.client(other).Board.Get(t.Context(), client.BoardOptions{})
		if err == nil && (len(b.Active) != 1 || b.Active[0].Progress == nil || b.Active[0].Progress.Percent == nil || *b.Active[0].Progress.Percent != 40) {
			err = fmt.Errorf("the board shows %+v", b.Active)
		}
		return err
	})
	eventually(t, func() error { // a list does not wait for a node that answers slowly
		list := c.carillon(other, "run", "list", "load", "-o", "wide")
		list.ends(0, "")
		if !strings.Contains(list.out.String(), " 40% loading ") {
			return fmt.Errorf("the list shows %s", &list.out)
		}
		return nil
	})

	c.nodes[node].signal(syscall.SIGSTOP)
	says("its node is silent", func(r task.Run) bool { return r.Progress != nil && strings.Contains(r.Progress.Silent, node) })
	c.nodes[node].signal(syscall.SIGCONT)
	says("its node is back", func(r task.Run) bool { return r.Progress != nil && r.Progress.Silent == "" })

	c.nodes[node].signal(syscall.SIGKILL)
	end := c.until(other, "load", run.ID, task.Succeeded)
	if end.Attempt != 2 || end.Results["from"] != "row 17" || end.Checkpoint != "" || end.Progress != nil {
		t.Errorf("it ended as %+v", end)
	}
}
