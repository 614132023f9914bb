package daemon_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// nextFormat is the format of a later version, which only tests understand. Its records are the same as those of
// the present format.
const nextFormat = store.NewestFormat + 1

// next starts a daemon that understands nextFormat, as a later version would.
func (c *cluster) next(name string) {
	c.t.Helper()
	c.as(name, fmt.Sprint(ofFormat, "=", nextFormat))
}

// as starts a daemon with additional environment variables.
func (c *cluster) as(name string, env ...string) {
	c.t.Helper()
	if c.nodes[name] == nil {
		c.nodes[name] = &process{t: c.t, name: name, port: freePort(c.t), dir: filepath.Join(c.dir, name)}
	}
	c.nodes[name].env = env
	c.start(name)
}

// format waits until a format is in force.
func (c *cluster) format(node string, want int) {
	c.t.Helper()
	eventually(c.t, func() error {
		f, err := c.client(node).Cluster.Format(c.t.Context())
		if err == nil && f.Format != want {
			err = fmt.Errorf("%+v", f)
		}
		return err
	})
}

// A cluster is upgraded to a later version node by node under load, and downgraded in the same way. Both versions
// read the runs of the other correctly, and every tick has one outcome.
func TestVersions_RollingUpgradeAndItsWayBack(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits
	// The default lease, because a node that is absent for a moment does not count for the format.
	c := newCluster(t, "--shards", "8", "--drain-timeout", "60s")
	c.as("n1")
	c.as("n2")
	c.everySecond("n1", 12, func(i int, s *task.Spec) {
		if i%3 == 0 { // what a misread record would change: retries, grace, environment
			s.Action = task.Action{Process: &task.Process{Shell: "test $CARILLON_ATTEMPT = 2"}}
			s.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Failed}}
			s.Schedule = task.Schedules{"*/2 * * * * *"}
		}
	})
	c.allFire()
	c.nodes["n2"].signal(syscall.SIGTERM)
	c.next("n2")
	c.allFire()
	if f, err := c.client("n2").Cluster.SetFormat(t.Context(), 0); err != nil || f.Format != store.NewestFormat || !strings.Contains(f.Because, "n1") {
		t.Errorf("while n1 is an old version: %+v, %v", f, err)
	}
	c.nodes["n1"].signal(syscall.SIGTERM)
	c.next("n1")
	c.format("n1", store.NewestFormat) // not raised by itself so soon
	if f, err := c.client("n2").Cluster.SetFormat(t.Context(), 0); err != nil || f.Format != nextFormat {
		t.Errorf("when all are upgraded: %+v, %v", f, err)
	}
	c.allFire()
	c.refusedOld("n3", "", store.NewestFormat)
	if f, err := c.client("n1").Cluster.SetFormat(t.Context(), store.NewestFormat); err != nil || f.Wanted != store.NewestFormat {
		t.Errorf("the way back: %+v, %v", f, err)
	}
	c.format("n1", store.NewestFormat)
	for _, n := range []string{"n1", "n2"} {
		c.nodes[n].signal(syscall.SIGTERM)
		c.as(n)
		c.allFire()
	}
	for _, p := range c.nodes {
		if strings.Contains(p.logs.String(), "unreadable") {
			t.Errorf("%s could not read a record:\n%s", p.name, p.logs)
		}
	}
	c.quiet("n1")
	r := c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
	if r.Summary.Ended[task.Failed] > 0 || r.Summary.Ended[task.Lost] > 0 {
		t.Errorf("%+v", r.Summary.Ended)
	}
}

// refusedOld starts an older version, which understands only formats up to this one, from the program exe ("":
// this one). It has to refuse to start and name the reason.
func (c *cluster) refusedOld(name, exe string, format int) {
	c.t.Helper()
	p := &process{t: c.t, name: name, port: freePort(c.t), dir: filepath.Join(c.dir, name), exe: exe}
	p.launch([]string{"agent", "--name", name, "--data-dir", p.dir, "--listen", fmt.Sprintf("127.0.0.1:%d", p.port), "--etcd-endpoints", c.etcd.Endpoint()})
	eventually(c.t, func() error {
		select {
		case <-p.gone:
			return nil
		default:
			return errors.New("it runs")
		}
	})
	if !strings.Contains(p.logs.String(), fmt.Sprint("format ", nextFormat)) || !strings.Contains(p.logs.String(), fmt.Sprint("downgrade --to-format ", format)) {
		c.t.Errorf("it does not say why it refuses:\n%s", p.logs)
	}
}
