package executor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/pkg/task"
)

// While an attempt runs, its checkpoint is in the inbox record, so that the next attempt receives it even after a
// loss. The reports of the attempt can be read meanwhile, and its results are recorded with its end.
func TestExecutor_Talks(t *testing.T) {
	t.Parallel()
	n := newNode(t, newEtcd(t))
	n.join()
	n.assign("report-r1", `test "$CARILLON_CHECKPOINT" = old || exit 9
		printf 'checkpoint c1\nrows=5\n0.25 a quarter\n' >> $CARILLON_STATUS_FILE; echo $$ > @began
		until [ -e @on ]; do sleep 0.02; done; echo 'checkpoint c2' >> $CARILLON_STATUS_FILE; exit 1`,
		func(a *task.Assigned) {
			a.Checkpoint = "old"
			a.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Failed}}
		})

	n.began("began")
	executortest.Eventually(t, "the checkpoint on record", func() bool { a, _ := n.inbox("report-r1"); return a != nil && a.Checkpoint == "c1" })

	said, ok := n.AttemptStatus("default", "job", "report-r1")
	if !ok || said.Progress == nil || *said.Progress.Percent != 25 || said.Progress.Text != "a quarter" || said.Results["rows"] != "5" {
		t.Errorf("it says %+v", said)
	}

	if all := n.AttemptStatuses(); len(all) != 1 || all[0].Run != "report-r1" {
		t.Errorf("all say %+v", all)
	}

	a, _ := n.inbox("report-r1")
	if w := Next(*a, LostEnd(*a, 1, a.CreatedAt.Time), a.CreatedAt.Time, 0); w != nil {
		t.Error("a lost attempt is not wanted to be tried again")
	}

	a.Retry.On = []task.State{task.Lost}
	if w := Next(*a, LostEnd(*a, 1, a.CreatedAt.Time), a.CreatedAt.Time, 0); w == nil || w.Checkpoint != "c1" {
		t.Errorf("after a loss: %+v", w)
	}

	n.touch("on")
	var w *task.Waiting
	executortest.Eventually(t, "the next attempt", func() bool { w = n.waits("report-r1"); return w != nil })

	if w.Checkpoint != "c2" || w.Results["rows"] != "5" || w.Progress != nil {
		t.Errorf("the next attempt has %+v", w.Run)
	}

	executortest.Eventually(t, "nothing more to hear", func() bool { _, ok := n.AttemptStatus("default", "job", "report-r1"); return !ok })

	n.assign("report-r2", `echo sum=12 >> $CARILLON_STATUS_FILE; echo 'checkpoint x' >> $CARILLON_STATUS_FILE`)

	if r := n.ended("report-r2"); r.Results["sum"] != "12" || r.Checkpoint != "" {
		t.Errorf("on record is %+v", r)
	}

	n.stop()

	if _, err := os.Stat(filepath.Join(n.cfg.Dir, "rooms")); !os.IsNotExist(err) {
		t.Errorf("attempt directories remain after the end: %v", err)
	}
}
