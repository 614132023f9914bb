package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// soak is how long a long test runs: CARILLON_SOAK, or what CI has time for.
func soak(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	v := os.Getenv("CARILLON_SOAK")
	if v == "" {
		return short
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("CARILLON_SOAK: %v", err)
	}
	return d
}

// Three nodes share many tasks that tick each second. One is killed and started
// again, one is asked to stop: every tick has exactly one outcome, by what etcd
// holds.
func TestSoak_EveryTickHasOneOutcomeWhileNodesComeAndGo(t *testing.T) {
	length, tasks := soak(t, 24*time.Second), 100
	if os.Getenv("CARILLON_SOAK") != "" {
		tasks = 300
	}
	c := newCluster(t, "--shards", "32", "--lease-ttl", "3s")
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	c.everySecond("n1", tasks, nil)
	step := length / 4
	pause := func() { // load goes on meanwhile
		select {
		case <-time.After(step):
		case <-t.Context().Done():
		}
	}
	pause()
	c.nodes["n2"].signal(syscall.SIGKILL)
	pause()
	c.start("n2")
	pause()
	c.nodes["n3"].signal(syscall.SIGTERM)
	pause()
	c.quiet("n1")
	until := time.Now().Add(-time.Second)
	r := c.judge(check.Options{Until: until, Ended: true})
	if want := int64(tasks) * int64(length/time.Second) * 9 / 10; r.Summary.Ticks < want {
		t.Errorf("%d ticks are decided; at least %d were due", r.Summary.Ticks, want)
	}
}

// etcd goes away for 15 seconds under load and comes back: no daemon exits, no
// tick is lost, no task is killed, and the logs say it once.
func TestSoak_OutageOfEtcdLosesNothingAndKillsNothing(t *testing.T) {
	t.Parallel() // it waits, most of the time
	c := newCluster(t, "--shards", "16")
	c.start("n1")
	c.start("n2")
	marks := t.TempDir()
	c.everySecond("n1", 50, func(i int, s *task.Spec) {
		if i > 0 {
			return
		}
		s.Schedule = task.Schedules{"@every 1s"}
		s.Action = task.Action{Process: &task.Process{Shell: `echo start >>` + marks + `/log; sleep 22; echo end >>` + marks + `/log`}}
	})
	eventually(t, func() error {
		if b, err := os.ReadFile(filepath.Join(marks, "log")); err != nil || len(b) == 0 {
			return errors.New("the long task has not started")
		}
		return nil
	})
	before := len(c.nodes["n1"].logs.lines())
	c.etcd.Stop()
	outage := time.After(15 * time.Second)
	eventually(t, func() error { // meanwhile the API says so, however long that takes
		_, err := c.client("n1").Get(t.Context(), "default", "t001")
		if !errors.Is(err, task.ErrUnavailable) {
			return fmt.Errorf("while etcd is away the API answers %v", err)
		}
		return nil
	})
	<-outage
	c.etcd.Restart()
	for _, n := range []string{"n1", "n2"} {
		c.nodes[n].waitReady() // fails if the process ended
	}
	eventually(t, func() error {
		b, err := os.ReadFile(filepath.Join(marks, "log"))
		if err == nil && !strings.Contains(string(b), "end") {
			err = errors.New("the long task has not ended")
		}
		return err
	})
	for _, n := range []string{"n1", "n2"} {
		lines := c.nodes[n].logs.lines()
		if n == "n1" {
			lines = lines[before:]
		}
		if len(lines) > fewLines(lines) {
			t.Errorf("%s wrote %d lines of log:\n%s", n, len(lines), c.nodes[n].logs)
		}
	}
	c.quiet("n1")
	r := c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
	if n := r.Summary.Ended[task.Lost] + r.Summary.Ended[task.Failed]; n > 0 {
		t.Errorf("%d attempts were lost or failed", n)
	}
}

// fewLines is how many lines of log are few: a hundred for what a test does to a
// node, and some for each time that it lost its session, as it may if the machine
// stands still. What is told at each try is far more.
func fewLines(lines []string) int {
	most := 100
	for _, line := range lines {
		if strings.Contains(line, "lost the session") {
			most += 50
		}
	}
	return most
}
