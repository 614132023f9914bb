//go:build upgrade

package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// A program that was built from a former commit, at CARILLON_FORMER, is upgraded to this one, node by node, under
// load, and downgraded again. This program understands a record format that the former one does not, so the format
// is raised and lowered whichever commit that is. See scripts/upgrade.sh.
func TestUpgrade_FromAFormerProgramAndBack(t *testing.T) {
	former := os.Getenv("CARILLON_FORMER")
	c := newCluster(t, "--shards", "16", "--lease-ttl", "3s")
	put := func(name, exe string, env ...string) {
		if p := c.nodes[name]; p != nil {
			p.signal(syscall.SIGTERM)
		} else {
			c.nodes[name] = &process{t: t, name: name, port: freePort(t), dir: filepath.Join(c.dir, name)}
		}
		c.nodes[name].exe, c.nodes[name].env = exe, env
		c.start(name)
	}
	rest := func() { time.Sleep(5 * time.Second) } // under load
	names := []string{"n1", "n2", "n3"}
	for _, n := range names {
		put(n, former)
	}
	f, err := c.client("n1").Cluster.Format(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.openNamespace("n1")
	was := f.Format // the newest format of the former program, which created the cluster
	c.everySecond("n1", 60, func(i int, s *task.Spec) {
		if i%6 == 0 { // what a misread record would change
			s.Action = task.Action{Process: &task.Process{Shell: "test $CARILLON_ATTEMPT = 2"}}
			s.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Failed}}
			s.Schedule = task.Schedules{"*/2 * * * * *"}
		}
	})
	rest()
	for _, n := range names {
		put(n, "", fmt.Sprint(ofFormat, "=", nextFormat))
		rest()
	}
	c.format("n1", was)
	if f, err := c.client("n1").Cluster.SetFormat(t.Context(), 0); err != nil || f.Format != nextFormat {
		t.Fatalf("upgrade: %+v, %v", f, err)
	}
	rest()
	c.refusedOld("n4", former, was)
	if _, err := c.client("n1").Cluster.SetFormat(t.Context(), was); err != nil {
		t.Fatal(err)
	}
	c.format("n1", was)
	for _, n := range names {
		put(n, former)
		rest()
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

// openNamespace lets the tasks of the namespace default use a shell. A cluster that an agent creates forbids it.
func (c *cluster) openNamespace(node string) {
	c.t.Helper()

	namespaces := c.client(node).Namespaces
	is, err := namespaces.Get(c.t.Context(), "default")
	if err == nil {
		is.Shell = true
		_, err = namespaces.Put(c.t.Context(), is, client.Writing{Revision: is.Revision})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}
