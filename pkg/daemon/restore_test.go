package daemon_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/backup/restore"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// settings writes the settings with which an agent was started to a file, and returns its path.
func (a *agents) settings(name string) string {
	a.t.Helper()
	p := a.nodes[name]
	text := fmt.Sprintf("name: %s\ndata_dir: %s\nlisten: 127.0.0.1:%d\nembedded: true\ninitial_cluster:\n", name, p.dir, p.port)
	for n, u := range a.peers {
		text += fmt.Sprintf("  %s: %s\n", n, u)
	}

	path := filepath.Join(a.dir, name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}

	return path
}

// snapshot saves a snapshot of the etcd of an agent, as etcdctl does, and returns its path and a time before it.
func (a *agents) snapshot(name string) (path string, at time.Time) {
	a.t.Helper()
	c, err := kv.Dial(a.t.Context(), kv.Config{Endpoints: []string{"unix://" + filepath.Join(a.nodes[name].dir, "etcd", "etcd.sock")}})
	if err != nil {
		a.t.Fatal(err)
	}
	defer c.Close()

	at = time.Now().Truncate(time.Second)
	from, err := c.Snapshot(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	defer from.Close()

	path = filepath.Join(a.dir, "carillon.db")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		a.t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		a.t.Fatal(err)
	}

	return path, at
}

// restores runs "carillon backup restore" on the host of an agent, and returns its output.
func (a *agents) restores(name string, code int, said string, args ...string) string {
	a.t.Helper()
	r := a.carillon(name, append([]string{"backup", "restore", "--config", a.settings(name)}, args...)...)
	r.ends(code, said)

	return r.out.String()
}

// All three agents with an embedded etcd are killed, one with its host. The two others get a backup. The third one follows later.
func TestRestore_OfAnEmbeddedClusterFromABackup(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits

	const tasks = 5
	a := newAgents(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		a.begin(name)
	}
	for _, name := range []string{"n1", "n2", "n3"} {
		a.nodes[name].waitReady()
	}

	// A run that n3 holds in the backup keeps its task from starting again for this time.
	lostAfter := task.Duration(14 * time.Second)
	eventually(t, func() error {
		_, err := a.client("n1").Cluster.UpdateSettings(t.Context(), client.ClusterSettings{LostAfter: &lostAfter})
		return err
	})
	a.everySecond("n1", tasks, nil)
	a.ticks("n1", tasks)

	before, err := a.client("n1").Cluster.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	snapshot, at := a.snapshot("n1")
	time.Sleep(2 * time.Second) // what the lost cluster decides

	work := filepath.Join(a.dir, "work")
	from := []string{snapshot, "--backup-time", at.UTC().Format(time.RFC3339)}
	args := func(more ...string) []string { return append(append([]string{}, from...), more...) }

	a.restores("n1", 1, "stop it first", args("--plan")...)
	a.nodes["n1"].signal(syscall.SIGKILL)
	refused := func(words string) {
		t.Helper()
		eventually(t, func() error {
			r := a.carillon("n1", append([]string{"backup", "restore", "--config", a.settings("n1")}, args("--plan")...)...)
			<-r.done
			if !strings.Contains(r.errs.String(), words) {
				return errors.New(r.errs.String())
			}
			return nil
		})
	}
	refused("the cluster is not lost: nodes that have a session with etcd: n2, n3")
	a.restores("n1", 1, "the cluster is not lost", args("--plan", "--gone", "all")...)

	// n3 is gone with its host. Without a majority, n2 loses its session.
	a.nodes["n3"].signal(syscall.SIGKILL)
	lost := time.Now().Truncate(time.Second).Add(time.Second)
	refused("no answer from n3")

	plan := a.restores("n1", 0, "", args("--plan", "--gone", "n3", "--lost-until", lost.UTC().Format(time.RFC3339))...)
	if !strings.Contains(plan, "of 5 tasks until "+lost.UTC().Format(time.RFC3339)+" will not run") {
		t.Errorf("the plan:\n%s", plan)
	}

	out := a.restores("n1", 0, "", args("--work", work, "--gone", "n3", "--lost-until", lost.UTC().Format(time.RFC3339))...)
	if !strings.Contains(out, "carillon backup restore --install "+work+"/prepared.db") {
		t.Errorf("the next commands:\n%s", out)
	}

	a.nodes["n2"].signal(syscall.SIGKILL)
	for _, name := range []string{"n1", "n2"} {
		a.restores(name, 0, "", "--install", filepath.Join(work, "prepared.db"))
		a.begin(name)
	}
	for _, name := range []string{"n1", "n2"} {
		a.nodes[name].waitReady()
	}
	a.ticks("n2", tasks)

	after, err := a.client("n2").Cluster.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.ID != before.ID || after.Epoch <= before.Epoch {
		t.Errorf("cluster %s, epoch %d after cluster %s, epoch %d", after.ID, after.Epoch, before.ID, before.Epoch)
	}

	// The third member, with its old data, does not mix with the restored ones.
	old := a.begin("n3")
	select {
	case <-old.gone:
	case <-time.After(patience):
		t.Fatal("the member with the lost data does not stop")
	}
	if !strings.Contains(old.logs.String(), "belong to another etcd cluster") {
		t.Errorf("it says:\n%s", old.logs)
	}

	a.restores("n3", 0, "", "--install", filepath.Join(work, "prepared.db"))
	a.begin("n3").waitReady()
	a.ticks("n3", tasks)
	for name, m := range a.members("n3") {
		if m.Error != "" {
			t.Errorf("member %s: %s", name, m.Error)
		}
	}

	// A member of another restore of the same backup stays out.
	for _, name := range []string{"n1", "n2", "n3"} {
		a.nodes[name].signal(syscall.SIGKILL)
	}
	other := filepath.Join(a.dir, "other")
	a.restores("n1", 0, "", args("--work", other, "--gone", "all")...)
	a.restores("n3", 0, "", "--install", filepath.Join(other, "prepared.db"))
	a.begin("n1")
	a.begin("n2")
	a.nodes["n1"].waitReady()
	stray := a.begin("n3")
	select {
	case <-stray.gone:
	case <-time.After(patience):
		t.Fatal("the member of another restore does not stop")
	}

	a.ranOnce("n1", at, lost, tasks)
}

// ranOnce checks that no tick that is due between two times has run after the restore.
func (a *agents) ranOnce(name string, from, until time.Time, tasks int) {
	a.t.Helper()
	for i := range tasks {
		runs, err := a.client(name).Runs.ListByTask(a.t.Context(), "default", fmt.Sprintf("t%03d", i), client.RunListOptions{State: task.Succeeded})
		if err != nil {
			a.t.Fatal(err)
		}
		for _, r := range runs {
			if r.ScheduledTime.After(from) && !r.ScheduledTime.After(until) && r.CreatedAt.After(until) {
				a.t.Errorf("the tick %s of t%03d has run again", r.ScheduledTime, i)
			}
		}
	}
}

// Two nodes of a cluster go on while a third one runs with a restored etcd. They notice it, and give up. An operator can choose them instead.
func TestRestore_TwoClustersThatSeeEachOther(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits

	c := newCluster(t, "--shards", "8", "--lease-ttl", "3s")
	for _, name := range []string{"n1", "n2", "n3"} {
		c.start(name)
	}
	c.acquainted()
	c.nodes["n3"].signal(syscall.SIGTERM)

	restored := c.restoredEtcd()
	c.start("n3", "--etcd-endpoints", restored)
	ready := time.Now()
	for _, name := range []string{"n1", "n2"} {
		c.ineligible("n1", name, task.IneligibleRestored)
	}
	t.Logf("the old cluster has given up %s after the restored one was ready", time.Since(ready).Round(time.Millisecond))

	eventually(t, func() error {
		s, err := c.client("n3").Cluster.Status(t.Context())
		if err == nil && !slices.ContainsFunc(s.WarningDetails, func(w task.Warning) bool { return w.Code == task.WarnOldCluster }) {
			err = fmt.Errorf("the status of the restored cluster does not warn of the old one: %v", s.Warnings)
		}
		return err
	})

	if _, err := c.client("n2").Cluster.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2"} {
		c.nodes[name].waitReady()
	}
	c.ineligible("n3", "n3", task.IneligibleRestored)
}

// restoredEtcd restores a backup of the present content into an etcd of its own, and returns its endpoint.
func (c *cluster) restoredEtcd() string {
	c.t.Helper()
	from, err := c.etcd.Client().Snapshot(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	defer from.Close()
	content, err := io.ReadAll(from)
	if err != nil {
		c.t.Fatal(err)
	}

	path := filepath.Join(c.t.TempDir(), "carillon.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		c.t.Fatal(err)
	}
	stored, err := backup.Open(path)
	if err != nil {
		c.t.Fatal(err)
	}

	now := time.Now()
	o := &restore.Options{
		Work: filepath.Join(c.t.TempDir(), "work"), Node: "n3", Prefix: record.DefaultPrefix, Embedded: true, Now: now, BackupTime: now.Add(-time.Second), Logger: zap.NewNop(),
	}
	source, err := restore.Unpack(c.t.Context(), stored, o)
	if err != nil {
		c.t.Fatal(err)
	}
	found, err := restore.ReadContent(c.t.Context(), source.Path, c.keys)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := restore.Prepare(c.t.Context(), source, found, o); err != nil {
		c.t.Fatal(err)
	}

	dir, err := os.MkdirTemp("", "etcd") // the path of a socket must be short
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { os.RemoveAll(dir) })
	if _, err := restore.Install(c.t.Context(), filepath.Join(o.Work, restore.PreparedFile), restore.Target{DataDir: dir, Logger: zap.NewNop()}); err != nil {
		c.t.Fatal(err)
	}

	etcd, err := kvtest.Launch(filepath.Join(dir, "etcd"), 0)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = etcd.Close() })

	return etcd.Endpoint()
}
