package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// probe is the shell line of a task. It logs which attempt starts, and whether the first process of the task is
// alive. On the frozen node it continues forever.
const probe = `
log=%[1]s/log; first=%[1]s/pid.%[2]s
echo "START $CARILLON_RUN_ID $CARILLON_ATTEMPT $CARILLON_FENCING_TOKEN $(date +%%s) $$" >>$log
if [ $CARILLON_NODE = n1 ] && ! [ -e %[1]s/thawed ]; then echo $$ >$first; while :; do sleep 0.1; done; fi
case "$(cut -d' ' -f3 /proc/$(cat $first)/stat 2>/dev/null)" in ''|Z|X) ;; *) echo %[2]s >>%[1]s/overlap;; esac
echo "END $CARILLON_RUN_ID $CARILLON_ATTEMPT $CARILLON_FENCING_TOKEN $(date +%%s) $$" >>$log`

// runs reports whether a process exists and is not a zombie. Zombies occur because the parent of a process that
// the guardian kills is frozen.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := b[bytes.LastIndexByte(b, ')')+2]
	return state != 'Z' && state != 'X'
}

func mark(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A daemon is frozen for longer than its lease and lost_after while it runs tasks. The guardian kills its attempts
// before they are declared lost, also those that are not replaced. When the daemon continues, it changes no
// outcome and takes part again.
func TestDaemon_ThatIsFrozenPastLostAfterRunsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8", "--lease-ttl", "2s")
	c.lostAfter(12 * time.Second)
	c.start("n1")
	marks := t.TempDir()
	shell := func(name string) string { return fmt.Sprintf(probe, marks, name) }
	again := spec("again", shell("again"))
	again.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Lost}}
	skips := spec("skips", shell("skips"))
	skips.Schedule, skips.Overlap = task.Schedules{"@every 1s"}, task.OverlapSkip
	alone := spec("alone", shell("alone"))
	alone.Overlap = task.OverlapAllow
	for _, s := range []task.Spec{again, skips, alone} {
		c.create("n1", s)
	}
	lost := map[string]string{"again": c.trigger("n1", "again").ID, "alone": c.trigger("n1", "alone").ID}
	pids := map[string]int{}
	for _, name := range []string{"again", "skips", "alone"} {
		pids[name] = pidIn(t, filepath.Join(marks, "pid."+name))
	}
	c.start("n2")
	c.nodes["n1"].signal(syscall.SIGSTOP)

	eventually(t, func() error {
		if runs(pids["again"]) || runs(pids["skips"]) || runs(pids["alone"]) {
			return errors.New("a task of the frozen daemon still runs")
		}
		return nil
	})
	second := c.until("n2", "again", lost["again"], task.Succeeded)
	if second.Node != "n2" || second.Attempt != 2 || len(second.Attempts) != 1 || second.Attempts[0].State != task.Lost {
		t.Errorf("ended as %+v", second)
	}
	c.until("n2", "alone", lost["alone"], task.Lost)
	eventually(t, func() error { // the ticks of the other task continue
		list, err := c.client("n2").Runs.ListByTask(t.Context(), "default", "skips", client.RunListOptions{State: task.Succeeded, Node: "n2"})
		if err == nil && len(list) < 2 {
			err = fmt.Errorf("%d runs of the task that skips", len(list))
		}
		return err
	})

	mark(t, marks, "thawed")
	c.nodes["n1"].signal(syscall.SIGCONT)
	if r := c.until("n2", "again", lost["again"], task.Succeeded); r.Token != second.Token {
		t.Errorf("the outcome has changed to %+v", r)
	}
	c.until("n2", "alone", lost["alone"], task.Lost)
	c.nodes["n1"].waitReady()
	here := spec("here", "true")
	here.Target.Selector = "node = n1"
	c.create("n2", here)
	if r := c.until("n2", "here", c.trigger("n2", "here").ID, task.Succeeded, task.Failed, task.Lost); r.State != task.Succeeded {
		t.Errorf("the thawed node ended a task as %+v", r)
	}
	c.quiet("n2")
	c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
	if b, _ := os.ReadFile(filepath.Join(marks, "overlap")); len(b) > 0 {
		t.Errorf("others started while these still ran: %q", b)
	}
	b, err := os.ReadFile(filepath.Join(marks, "log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range check.CheckProbeLog(bytes.NewReader(b), c.keys, c.recorder.Events()) {
		t.Errorf("the probe log: %+v", v)
	}
}
