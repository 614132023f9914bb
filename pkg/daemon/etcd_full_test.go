package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// smallQuota is a quota that fills up quickly.
const smallQuota = 24 << 20

// Verifies: G4, G18, G38
func TestFull_EmbeddedEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // parallel with the next test; both mostly wait
	c := &cluster{t: t, dir: t.TempDir(), nodes: map[string]*process{}}
	t.Cleanup(c.stopAll)
	p := &process{t: t, name: "n1", port: freePort(t), dir: filepath.Join(c.dir, "n1")}
	c.nodes["n1"] = p
	p.launch([]string{"agent", "--name", "n1", "--embedded", "--etcd-quota", fmt.Sprint(smallQuota), "--data-dir", p.dir,
		"--listen", fmt.Sprintf("127.0.0.1:%d", p.port), "--shards", "8", "--drain-timeout", "5s"})
	p.waitReady()
	fillAndMakeSpace(c, "unix://"+filepath.Join(p.dir, "etcd", "etcd.sock"), func() {})
}

// Of two nodes with a separate etcd, the leader is killed while etcd is full, and is restarted. No node can join
// or lead then. When there is space again, everything must continue without further actions.
//
// Verifies: G4, G18, G38
func TestFull_EtcdOfItsOwn(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	server := kvtest.StartWithQuota(t, smallQuota)
	c := &cluster{t: t, dir: t.TempDir(), nodes: map[string]*process{}}
	t.Cleanup(c.stopAll)
	args := func(name string, p *process) []string {
		return []string{"agent", "--name", name, "--etcd-endpoints", server.Endpoint(), "--data-dir", p.dir,
			"--listen", fmt.Sprintf("127.0.0.1:%d", p.port), "--shards", "8", "--drain-timeout", "5s"}
	}
	for _, name := range []string{"n2", "n1"} {
		p := &process{t: t, name: name, port: freePort(t), dir: filepath.Join(c.dir, name)}
		c.nodes[name] = p
		p.launch(args(name, p))
		p.waitReady()
	}
	fillAndMakeSpace(c, server.Endpoint(), func() {
		n2 := c.nodes["n2"]
		n2.signal(syscall.SIGKILL)
		n2.launch(args("n2", n2))
	})
	c.nodes["n2"].waitReady()
}

func TestStatus_TellsOfEntriesThatNobodyCanRead(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8")
	c.start("n1")
	c.create("n1", spec("good", "true"))
	c.create("n1", spec("bad", "true"))
	res, err := c.etcd.Client().Get(t.Context(), c.keys.Shards(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range res.Kvs {
		if k, ok := c.keys.ParseShard(string(e.Key)); ok && k.Kind == record.KindEntry && k.Ref.Name == "bad" {
			if _, err := c.etcd.Client().Put(t.Context(), string(e.Key), "{"); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, func() error {
		st, err := c.client("n1").Cluster.Status(t.Context())
		if err == nil && st.Unreadable != 1 {
			err = fmt.Errorf("%d entries are said to be unreadable", st.Unreadable)
		}
		return err
	})
}

// fillAndMakeSpace fills the etcd of a cluster, checks what a user sees, calls meanwhile, and makes space as
// cluster status describes.
func fillAndMakeSpace(c *cluster, endpoint string, meanwhile func()) {
	t, ctx := c.t, c.t.Context()
	var err error
	if c.keys, err = record.NewKeys(record.DefaultPrefix); err != nil {
		t.Fatal(err)
	}
	etcd, err := kv.Dial(ctx, kv.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	if c.recorder, err = recorder.Start(context.WithoutCancel(ctx), etcd, c.keys); err != nil {
		t.Fatal(err)
	}
	defer c.recorder.Stop(context.WithoutCancel(ctx))
	cl := c.client("n1")
	c.everySecond("n1", 6, func(i int, s *task.Spec) {
		if i%2 == 0 {
			s.Missed.Policy = task.MissedAll
		}
	})
	eventually(t, func() error { return c.hasFired(etcd, 0) })
	marks := t.TempDir()
	long := spec("long", fmt.Sprintf("echo $$ > %[1]s/pid; until [ -e %[1]s/go ]; do sleep 0.1; done", marks))
	long.Target.Selector = "node = n1"
	c.create("n1", long)
	ends := c.trigger("n1", "long") // while etcd is full
	pid := pidIn(t, filepath.Join(marks, "pid"))
	endless := spec("endless", fmt.Sprintf("echo $$ > %s/endless; exec sleep 10000", marks))
	endless.Target.Selector, endless.Retry.Attempts = "node = n1", 3
	c.create("n1", endless)
	cancelled := c.trigger("n1", "endless") // while etcd is full
	endlessPID := pidIn(t, filepath.Join(marks, "endless"))

	for i, full := 0, false; !full; i++ {
		if i == 4*smallQuota>>18 {
			t.Fatal("etcd exceeds its quota")
		}
		_, err := etcd.Put(ctx, fmt.Sprintf("/junk/%d", i), strings.Repeat("x", 1<<18))
		full = kv.NoSpace(err)
	}
	since, err := etcd.Get(ctx, "/junk/")
	if err != nil {
		t.Fatal(err)
	}
	mark(t, marks, "go")
	c.refusesChanges(cl)
	c.cancelsWhileFull("endless", cancelled.ID, endlessPID)
	eventually(t, func() error {
		if cl.Ready(ctx) == nil {
			return errors.New("the node is ready although it decides nothing")
		}
		return nil
	})
	meanwhile()
	eventually(t, func() error { return c.nodes["n1"].tellsOfFullEtcd() })
	if err := cl.Tasks.Delete(ctx, "default", "t005", 0); err != nil {
		t.Errorf("a full etcd refuses deletes: %v", err)
	}
	written, err := etcd.Get(ctx, c.keys.Root(), clientv3.WithPrefix(), clientv3.WithMinModRev(since.Header.Revision+1))
	if err != nil || len(written.Kvs) > 0 {
		t.Errorf("%d keys were written while etcd was full, %v", len(written.Kvs), err)
	}
	eventually(t, func() error {
		if alive(pid) {
			return errors.New("the task goes on")
		}
		return nil
	})
	c.renewsLease(etcd, "n1")

	if _, err := etcd.Delete(ctx, "/junk/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	var st client.ClusterStatus
	eventually(t, func() (err error) { // the list does not wait for a slow etcd
		st, err = cl.Cluster.Status(ctx)
		if w := strings.Join(st.Warnings, "\n"); err == nil && (!strings.Contains(w, "is full") || len(st.MakeSpace) != 3) {
			err = fmt.Errorf("the status of a full etcd: %+v", st)
		}
		return err
	})
	for _, line := range st.MakeSpace {
		doAsEtcdctl(t, line)
	}
	freed, err := etcd.Get(ctx, "/junk/")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return c.hasFired(etcd, freed.Header.Revision) })
	eventually(t, func() error { return cl.Ready(ctx) })
	c.until("n1", "long", ends.ID, task.Succeeded)
	c.until("n1", "endless", cancelled.ID, task.Cancelled)
	if logs := c.nodes["n1"].logs.String(); strings.Contains(logs, "lost the session") {
		t.Error("the session was not renewed in a full etcd")
	}
	eventually(t, func() error {
		st, err := cl.Cluster.Status(ctx)
		if err == nil && (len(st.MakeSpace) > 0 || len(st.Etcd) == 0 || len(st.Etcd[0].Alarms) > 0) {
			err = fmt.Errorf("there is space, but %+v", st)
		}
		return err
	})
	c.quiet("n1")
	eventually(t, func() error { return c.allEnded(etcd) })
	if r := c.judge(check.Options{}); r.Summary.Open > 0 {
		t.Errorf("%d runs have no end", r.Summary.Open)
	}
}

// cancelsWhileFull cancels a run of n1 through another node if there is one, and waits until its process is gone.
func (c *cluster) cancelsWhileFull(name, run string, pid int) {
	c.t.Helper()
	via := "n1"
	if c.nodes["n2"] != nil {
		via = "n2"
	}

	eventually(c.t, func() error { // a node that is about to lose its session refuses
		got, err := c.client(via).Runs.Cancel(c.t.Context(), "default", name, run)
		if err == nil && (!got.Unrecorded || got.Node != "n1") {
			c.t.Errorf("a cancel in a full etcd: %+v", got)
		}
		return err
	})
	eventually(c.t, func() error {
		if alive(pid) {
			return errors.New("the cancelled run goes on")
		}
		return nil
	})
}

// renewsLease waits until a node's lease was renewed.
func (c *cluster) renewsLease(etcd *kv.Client, node string) {
	c.t.Helper()
	least := int64(math.MaxInt64)
	eventually(c.t, func() error {
		res, err := etcd.Get(c.t.Context(), c.keys.Node(node))
		if err != nil {
			return err
		}
		if len(res.Kvs) == 0 {
			return fmt.Errorf("%s has lost its session", node)
		}
		lease, err := etcd.TimeToLive(c.t.Context(), clientv3.LeaseID(res.Kvs[0].Lease))
		if err == nil && lease.TTL <= least {
			least, err = lease.TTL, fmt.Errorf("%d s are left of the lease of %s", lease.TTL, node)
		}
		return err
	})
}

// allEnded returns nil if no run waits or is active.
func (c *cluster) allEnded(etcd *kv.Client) error {
	for _, prefix := range []string{c.keys.Shards(), c.keys.Runs()} {
		res, err := etcd.Get(c.t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		for _, e := range res.Kvs {
			if k, ok := c.keys.ParseShard(string(e.Key)); prefix == c.keys.Runs() || ok && k.Kind == record.KindQueued {
				return fmt.Errorf("%s still exists", e.Key)
			}
		}
	}
	return nil
}

// refusesChanges tries all requests that put something.
func (c *cluster) refusesChanges(cl *client.Client) {
	ctx, one := c.t.Context(), spec("one", "true")
	for what, try := range map[string]func() error{
		"create": func() error { _, err := cl.Tasks.Create(ctx, "default", one); return err },
		"apply":  func() error { _, err := cl.Tasks.Apply(ctx, one, client.ApplyOptions{}); return err },
		"patch": func() error {
			_, err := cl.Tasks.Patch(ctx, "default", "t000", []byte(`{"timeout": "1m"}`), 0)
			return err
		},
		"pause":   func() error { _, err := cl.Tasks.Pause(ctx, "default", "t000", 0); return err },
		"trigger": func() error { _, err := cl.Tasks.Trigger(ctx, "default", "t000", nil); return err },
	} {
		var e *client.Error
		if err := try(); !errors.As(err, &e) || e.Status != http.StatusInsufficientStorage || e.Code != client.CodeNoSpace || e.ID == "" || e.Hint == "" {
			c.t.Errorf("%s in a full etcd: %+v", what, err)
		}
	}
}

// tellsOfFullEtcd returns nil if the metrics and the log of a node report that etcd is full.
func (p *process) tellsOfFullEtcd() error {
	res, err := http.Get(p.metricsURL())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	for _, want := range []string{`(?m)^carillon_etcd_alarm\{alarm="NOSPACE",endpoint=".*"\} 1$`, `(?m)^carillon_etcd_db_bytes\{.*\} [2-9]\.`,
		fmt.Sprintf(`(?m)^carillon_etcd_quota_bytes\{.*\} %s$`, regexp.QuoteMeta(fmt.Sprintf("%g", float64(smallQuota))))} {
		if !regexp.MustCompile(want).Match(b) {
			return fmt.Errorf("no %s in the metrics", want)
		}
	}
	if !strings.Contains(p.logs.String(), "etcd accepts no writes") {
		return errors.New("the log does not tell of it")
	}
	return nil
}

// hasFired returns nil if every task has a record of a run that is newer than rev.
func (c *cluster) hasFired(etcd *kv.Client, rev int64) error {
	tasks, err := etcd.Get(c.t.Context(), c.keys.SpecsOf("default")+"t0", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	records, err := etcd.Get(c.t.Context(), c.keys.Shards(), clientv3.WithPrefix(), clientv3.WithMinCreateRev(rev+1))
	if err != nil {
		return err
	}
	fired := map[string]bool{}
	for _, e := range records.Kvs {
		if k, ok := c.keys.ParseShard(string(e.Key)); ok && k.Kind == record.KindEnded && strings.HasPrefix(k.Ref.Name, "t0") && strings.Contains(string(e.Value), string(task.Succeeded)) {
			fired[k.Ref.Name] = true
		}
	}
	if len(fired) < len(tasks.Kvs) || len(fired) == 0 {
		return fmt.Errorf("%d of %d tasks have fired since revision %d", len(fired), len(tasks.Kvs), rev)
	}
	return nil
}

// doAsEtcdctl does what etcdctl does with that command line.
func doAsEtcdctl(t *testing.T, line string) {
	t.Helper()
	m := regexp.MustCompile(`^ETCDCTL_ENDPOINTS=(\S+) etcdctl --command-timeout 10m (.+)$`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("not a command line of etcdctl: %s", line)
	}
	etcd, err := kv.Dial(t.Context(), kv.Config{Endpoints: strings.Split(m[1], ",")})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	var rev int64
	switch {
	case m[2] == "defrag":
		_, err = etcd.Defragment(t.Context(), m[1])
	case m[2] == "alarm disarm":
		_, err = etcd.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	default:
		if _, err := fmt.Sscanf(m[2], "compact --physical %d", &rev); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		_, err = etcd.Compact(t.Context(), rev, clientv3.WithCompactPhysical())
	}
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
}
