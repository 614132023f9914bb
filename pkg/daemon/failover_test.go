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
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// soak returns how long a long test runs: CARILLON_SOAK, or the given time for CI.
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

// Three nodes share many tasks that tick every second. One is killed and restarted, and one is stopped. According
// to etcd, every tick has exactly one outcome.
//
// Verifies: G1-G8, G10-G12, G16, G23
func TestSoak_EveryTickHasOneOutcomeWhileNodesComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	length, shards, tasks := soak(t, 0), "12", 30
	if length > 0 {
		shards, tasks = "32", 300
	} else {
		t.Parallel() // mostly waits
	}
	c := newCluster(t, "--shards", shards, "--lease-ttl", "3s")
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	c.everySecond("n1", tasks, nil)

	// In each phase the present nodes share the shards, and every task fires. A soak continues each phase for its
	// share of the time.
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

// etcd is stopped under load until all nodes have lost their sessions, and is started again. No daemon exits, no
// tick is lost, no task is killed, and each log reports it once.
//
// Verifies: G1-G8, G10-G12, G16, G18, G23
func TestSoak_OutageOfEtcdLosesNothingAndKillsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits
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
	eventually(t, func() error { // meanwhile the API must answer 503, however long that takes
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
		c.nodes[n].waitReady() // fails if the process has ended
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

// sessionsLost returns how often the process has logged that it lost its session.
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

// fewLines returns the acceptable number of log lines: a hundred for what a test does to a node, and some for each
// lost session, because a machine that stops for a while loses sessions. A message that is logged at each try
// would exceed this.
func fewLines(lines []string) int {
	most := 100
	for _, line := range lines {
		if strings.Contains(line, "lost the session") {
			most += 50
		}
	}
	return most
}
