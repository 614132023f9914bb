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

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/check"
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
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	length, shards, tasks := soak(t, 0), "12", 30
	if length > 0 {
		shards, tasks = "32", 300
	} else {
		t.Parallel() // it waits, most of the time
	}
	c := newCluster(t, "--shards", shards, "--lease-ttl", "3s")
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	c.everySecond("n1", tasks, nil)

	// In each phase the nodes that are there share the shards, and every task fires. A soak
	// then goes on for its share of the time.
	phases := int64(0)
	work := func(nodes ...string) {
		t.Helper()
		phases++
		c.owned(nodes...)
		c.allFire()
		clock.Sleep(t.Context(), length/4)
	}
	work("n1", "n2", "n3")
	c.nodes["n2"].signal(syscall.SIGKILL)
	work("n1", "n3")
	c.start("n2")
	work("n1", "n2", "n3")
	c.nodes["n3"].signal(syscall.SIGTERM)
	work("n1", "n2")
	c.quiet("n1")
	until := time.Now().Add(-time.Second)
	r := c.judge(check.Options{Until: until, Ended: true})
	if want := int64(tasks) * max(phases, int64(length/time.Second)*9/10); r.Summary.Ticks < want {
		t.Errorf("%d ticks are decided; at least %d were due", r.Summary.Ticks, want)
	}
}

// etcd goes away under load until all nodes have lost their sessions, and comes back: no
// daemon exits, no tick is lost, no task is killed, and the logs say it once.
func TestSoak_OutageOfEtcdLosesNothingAndKillsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // it waits, most of the time
	c := newCluster(t, "--shards", "8", "--lease-ttl", "3s")
	c.start("n1")
	c.start("n2")
	marks := t.TempDir()
	c.everySecond("n1", 20, func(i int, s *task.Spec) {
		if i > 0 {
			return
		}
		s.Schedule = task.Schedules{"@every 1s"}
		s.Action = task.Action{Process: &task.Process{Shell: `echo start >>` + marks + `/log; until [ -e ` + marks + `/go ]; do sleep 0.1; done; echo end >>` + marks + `/log`}}
	})
	eventually(t, func() error {
		if b, err := os.ReadFile(filepath.Join(marks, "log")); err != nil || len(b) == 0 {
			return errors.New("the long task has not started")
		}
		return nil
	})
	before, lost := len(c.nodes["n1"].logs.lines()), map[string]int{}
	for _, n := range []string{"n1", "n2"} {
		lost[n] = c.nodes[n].sessionsLost()
	}
	c.etcd.Stop()
	eventually(t, func() error { // meanwhile the API says so, however long that takes
		_, err := c.client("n1").Tasks.Get(t.Context(), "default", "t001")
		if !errors.Is(err, task.ErrUnavailable) {
			return fmt.Errorf("while etcd is away the API answers %v", err)
		}
		return nil
	})
	for n, p := range c.nodes {
		eventually(t, func() error {
			if p.sessionsLost() == lost[n] {
				return fmt.Errorf("%s has not noticed that its session has ended", n)
			}
			return nil
		})
	}
	c.etcd.Restart()
	for _, n := range []string{"n1", "n2"} {
		c.nodes[n].waitReady() // fails if the process ended
	}
	mark(t, marks, "go")
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

// sessionsLost is how often the process has said that it lost its session.
func (p *process) sessionsLost() int {
	return strings.Count(p.logs.String(), "lost the session; rejoining")
}

// allFire waits until the first hundred tasks of everySecond have fired once more.
func (c *cluster) allFire() {
	c.t.Helper()
	res, err := c.etcd.Client().Get(c.t.Context(), c.keys.Root())
	if err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, func() error { return c.hasFired(c.etcd.Client(), res.Header.Revision) })
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
