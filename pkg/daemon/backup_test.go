package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/test/buckettest"
	"github.com/carillonhq/carillon/pkg/internal/test/clitest"
	"github.com/carillonhq/carillon/pkg/task"
)

// launchEmbedded starts the only node of a cluster, with an embedded etcd.
func launchEmbedded(c *cluster, name string) *process {
	c.t.Helper()
	p := &process{t: c.t, name: name, port: freePort(c.t), dir: filepath.Join(c.dir, name)}
	c.nodes[name] = p

	// A daemon that died while it made or sent a backup has left these files.
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	left := []string{filepath.Join(p.dir, "backup.tmp"), filepath.Join(p.dir, "backup.tmp.db")}
	for _, file := range left {
		if err := os.WriteFile(file, []byte("left"), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}

	p.launch([]string{"agent", "--name", name, "--embedded", "--data-dir", p.dir, "--listen", fmt.Sprintf("127.0.0.1:%d", p.port), "--shards", "8", "--drain-timeout", "5s"})
	p.waitReady()

	for _, file := range left {
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			c.t.Errorf("%s: %v", file, err)
		}
	}

	return p
}

// The script backs up a cluster with an embedded etcd in all ways, also after its node was killed, and creates its tasks again in
// another cluster.
func TestStory_Backups(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()

	// Each node is the only one of its cluster.
	clusters := map[string]*cluster{}
	for _, name := range []string{"n1", "m1"} {
		c := &cluster{t: t, dir: t.TempDir(), nodes: map[string]*process{}}
		t.Cleanup(c.stopAll)
		launchEmbedded(c, name)
		clusters[name] = c
	}

	n1, m1 := clusters["n1"].nodes["n1"], clusters["m1"].nodes["m1"]
	token, err := os.ReadFile(filepath.Join(n1.dir, "token"))
	if err != nil {
		t.Fatal(err)
	}

	storage := buckettest.Start(t)
	clitest.Run(t, "testdata/backup", func(env *testscript.Env) clitest.Server {
		for name, value := range storage.Environment() {
			env.Setenv(name, value)
		}
		env.Setenv("DATA_DIR", n1.dir)
		env.Setenv("ETCD", "unix://"+filepath.Join(n1.dir, "etcd", "etcd.sock"))
		env.Setenv("OTHER_SERVER", m1.url())
		env.Setenv("OTHER_TOKEN_FILE", filepath.Join(m1.dir, "token"))

		return clitest.Server{URL: n1.url(), Token: strings.TrimSpace(string(token))}
	}, clitest.Commands{
		"kill-node": func(*testscript.TestScript, bool, []string) { n1.signal(syscall.SIGKILL) },
		"same-tasks": func(ts *testscript.TestScript, _ bool, _ []string) {
			a, b := tasksOf(ts, clusters["n1"].client("n1")), tasksOf(ts, clusters["m1"].client("m1"))
			if len(a) == 0 || !slices.Equal(a, b) {
				ts.Fatalf("%v\ninstead of\n%v", b, a)
			}
		},
		"flip": flipByte,
		// remember puts what the last command printed into a variable, and save writes a private file.
		"remember": func(ts *testscript.TestScript, _ bool, args []string) {
			ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
		},
		"save": func(ts *testscript.TestScript, _ bool, args []string) {
			ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(args[1]), 0o600))
		},
	})
}

// tasksOf returns the specs of all tasks of a cluster, in the order of their names.
func tasksOf(ts *testscript.TestScript, c *client.Client) (specs []string) {
	for t, err := range c.Tasks.All(context.Background(), client.TaskListOptions{Complete: true}) {
		ts.Check(err)
		b, err := json.Marshal(t.Spec)
		ts.Check(err)
		specs = append(specs, string(b))
	}
	slices.Sort(specs)

	return specs
}

// flipByte changes the byte in the middle of a file: flip FILE.
func flipByte(ts *testscript.TestScript, _ bool, args []string) {
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	b[len(b)/2] ^= 0xFF
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
}

// A backup of three members is made by one that does not lead, whichever node is asked, and has everything that was acknowledged before.
//
// Verifies: G67
func TestBackup_IsMadeByAMemberThatDoesNotLead(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()

	a := newAgents(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		a.begin(name)
	}
	for _, p := range a.nodes {
		p.waitReady()
	}

	leader := ""
	eventually(t, func() error {
		members, err := a.client("n1").Members.List(t.Context())
		if err != nil {
			return err
		}

		ready := 0
		for _, m := range members {
			if m.Leader {
				leader = m.Name
			}
			if m.Error == "" && !m.Learner {
				ready++
			}
		}
		if ready < 3 || leader == "" {
			return fmt.Errorf("%d members are ready, and the leader is %q", ready, leader)
		}

		return nil
	})

	for i := range 50 {
		a.create(leader, spec(fmt.Sprint("t", i), "true"))

		if i%10 != 9 {
			continue
		}
		stream, err := a.client(leader).Cluster.Backup(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m, _, err := backup.ReadFrame(stream)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := backup.Store(t.Context(), t.TempDir(), m, stream); err != nil {
			t.Fatal(err)
		}
		_ = stream.Close()

		if m.Tasks() != int64(i+1) || len(m.Nodes) != 3 {
			t.Errorf("%d tasks and %d nodes after %d tasks were created", m.Tasks(), len(m.Nodes), i+1)
		}
	}

	// The node that was asked records this as well as the one that has made the backup.
	own, forwarded := 0, 0
	for r, err := range a.client(leader).AuditLog.List(t.Context(), client.AuditLogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Operation != "backup-cluster":
		case r.Outcome == task.AuditForwarded && r.Objects[0].Name != "" && r.Reason != "served by node "+leader:
			forwarded++
		case r.Outcome == task.AuditRead && r.Node == leader:
			own++
		}
	}
	if own != 5 || forwarded != 5 {
		t.Errorf("%d records of the leader's node %s, and %d of others", own, leader, forwarded)
	}
}
