package daemon_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// spec returns a task with a shell line and without a schedule.
func spec(name, shell string) task.Spec {
	s := task.Defaults()
	s.Name, s.Schedule = name, task.Schedules{"@manual"}
	s.Action.Process = &task.Process{Shell: shell}
	return s
}

func (c *cluster) create(node string, s task.Spec) {
	c.t.Helper()
	c.createBy(c.client(node), s)
}

func (c *cluster) trigger(node, name string) task.Run {
	c.t.Helper()
	var r client.Triggered
	c.unlessAway(func() (err error) {
		r, err = c.client(node).Tasks.Trigger(c.t.Context(), "default", name, nil)
		return err
	})
	return r.Run
}

// until waits until a run is in one of the states.
func (c *cluster) until(node, name, id string, states ...task.State) task.Run {
	c.t.Helper()
	var r task.Run
	eventually(c.t, func() (err error) {
		if r, err = c.client(node).Runs.Get(c.t.Context(), "default", name, id); err != nil {
			return err
		}
		for _, s := range states {
			if r.State == s {
				return nil
			}
		}
		return fmt.Errorf("run %s is %s (%s), not %v", id, r.State, r.Reason, states)
	})
	return r
}

// pidIn waits for a file to which a task writes its process number, and returns the number.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	pid := 0
	eventually(t, func() error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err
	})
	return pid
}

// lineIn waits for the line that a task writes to a file. The file exists before the line does.
func lineIn(t *testing.T, path string) (line string) {
	t.Helper()
	eventually(t, func() error {
		b, err := os.ReadFile(path)
		ended := false
		if line, _, ended = strings.Cut(string(b), "\n"); err == nil && !ended {
			err = fmt.Errorf("%s holds %q", path, b)
		}
		return err
	})
	return line
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// Verifies: G17
func TestDaemon_LeavesNoProcessBehindWhenItIsKilled(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8", "--lease-ttl", "3s")
	c.start("n1")
	marks := t.TempDir()
	s := spec("long", fmt.Sprintf("echo $$ > %s/group; setsid sh -c 'echo $$ > %s/escaped; exec sleep 300' & sleep 300", marks, marks))
	s.Target.Selector = "node = n1"
	c.create("n1", s)
	c.start("n2")
	run := c.trigger("n1", "long")
	group, escaped := pidIn(t, marks+"/group"), pidIn(t, marks+"/escaped")
	c.nodes["n1"].signal(syscall.SIGKILL)
	eventually(t, func() error {
		if alive(group) || alive(escaped) {
			return errors.New("a process of the dead daemon lives")
		}
		return nil
	})
	// The guardian has reported them as cleared, so the run is lost long before lost_after.
	lost := c.until("n2", "long", run.ID, task.Lost)
	if lost.Reason != task.ReasonNodeLost {
		t.Errorf("reason is %q", lost.Reason)
	}
	c.judge(check.Options{})
}

// Verifies: G9
func TestDaemon_StartsALostAttemptAgainElsewhereOnlyIfAsked(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8", "--lease-ttl", "3s")
	c.start("n1")
	c.start("n2")
	marks := t.TempDir()
	s := spec("again", `echo "START $CARILLON_RUN_ID $CARILLON_ATTEMPT $CARILLON_FENCING_TOKEN 0 $$" >> `+marks+`/log; echo $CARILLON_NODE > `+marks+`/node.$CARILLON_ATTEMPT; [ $CARILLON_ATTEMPT = 2 ] || sleep 300`)
	s.Retry = task.Retry{Attempts: 2, Backoff: 0, Factor: 1, MaxBackoff: 0, On: []task.State{task.Lost}}
	c.create("n1", s)
	run := c.trigger("n1", "again")
	victim := lineIn(t, marks+"/node.1")
	other := map[string]string{"n1": "n2", "n2": "n1"}[victim]
	c.nodes[victim].signal(syscall.SIGKILL)
	end := c.until(other, "again", run.ID, task.Succeeded)
	if end.Attempt != 2 || len(end.Attempts) != 1 || end.Attempts[0].State != task.Lost || end.Node != other {
		t.Errorf("ended as attempt %d on %s after %+v", end.Attempt, end.Node, end.Attempts)
	}
	c.judge(check.Options{Ended: true})
}

func TestDaemon_TakesItsNameBackAtOnceAndRefusesToShareIt(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8", "--lease-ttl", aLongLease)
	c.start("n1")
	c.nodes["n1"].signal(syscall.SIGKILL)
	c.start("n1") // the lease of the dead process would last longer than this waits
	second := &process{t: t, name: "second", port: freePort(t), dir: c.nodes["n1"].dir}
	second.launch([]string{"agent", "--name", "n9", "--data-dir", second.dir, "--listen", fmt.Sprintf("127.0.0.1:%d", second.port), "--etcd-endpoints", c.etcd.Endpoint()})
	<-second.gone
	if !strings.Contains(second.logs.String(), "another daemon is running on it") {
		t.Errorf("a second daemon on the same directory said:\n%s", second.logs)
	}
}

func TestDaemon_RefusesANameThatAnotherHolds(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8")
	c.start("n1", "--lease-ttl", aLongLease) // with a short lease it might lose its name for a moment
	thief := &process{t: t, name: "thief", port: freePort(t), dir: filepath.Join(c.dir, "thief")}
	thief.launch([]string{"agent", "--name", "n1", "--data-dir", thief.dir, "--listen", fmt.Sprintf("127.0.0.1:%d", thief.port),
		"--etcd-endpoints", c.etcd.Endpoint(), "--lease-ttl", "2s"})
	select {
	case <-thief.gone:
	case <-time.After(patience):
		thief.cmd.Process.Kill()
		t.Fatal("it waits for the name for ever")
	}
	if !strings.Contains(thief.logs.String(), "is taken by instance") || !strings.Contains(thief.logs.String(), c.nodes["n1"].url()) {
		t.Errorf("it does not name the holder:\n%s", thief.logs)
	}
}

// Verifies: G20
func TestDaemon_DrainsWhenAskedToStopAndLeavesNothing(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8")
	c.start("n1")
	c.start("n2", "--drain-timeout", "60s")
	marks := t.TempDir()
	s := spec("short", "echo $$ > "+marks+"/pid; sleep 2; echo done")
	s.Target.Selector = "node = n2"
	c.create("n1", s)
	run := c.trigger("n1", "short")
	pidIn(t, marks+"/pid")
	if err := c.nodes["n2"].cmd.Process.Signal(syscall.SIGTERM); err != nil { // two signals at the same time count as one
		t.Fatal(err)
	}
	began := time.Now()
	time.Sleep(20 * time.Millisecond)             // the kernel would merge two signals at the same moment
	if time.Since(began) < 500*time.Millisecond { // more than a second later, it would be a further signal, which ends the process at once
		if err := c.nodes["n2"].cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-c.nodes["n2"].gone:
	case <-time.After(patience):
		t.Fatalf("it does not end:\n%s", c.nodes["n2"].logs)
	}
	if end := c.until("n1", "short", run.ID, task.Succeeded, task.Failed, task.Lost); end.State != task.Succeeded {
		t.Errorf("the running task ended as %s (%s) although there was time", end.State, end.Reason)
	}
	etcd := c.etcd.Dial()
	res, err := etcd.Get(t.Context(), c.keys.Root(), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range res.Kvs {
		if k := string(kv.Key); k == c.keys.Node("n2") || strings.HasPrefix(k, c.keys.Inbox("n2")) || strings.HasPrefix(k, c.keys.Root()+"cleared/") {
			t.Errorf("%s is left", k)
		}
	}
	eventually(t, func() error { // the session and the election of n1, and nothing of n2
		leases, err := etcd.Leases(t.Context())
		if err == nil && len(leases.Leases) > 2 {
			err = fmt.Errorf("%d leases are left", len(leases.Leases))
		}
		return err
	})
	c.judge(check.Options{Ended: true})
}

func TestDaemon_RunWaitsForANodeThatMatches(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8")
	c.start("n1")
	s := spec("picky", "echo here")
	s.Target.Selector = "role = db, zone in (a, b)"
	c.create("n1", s)
	run := c.trigger("n1", "picky")
	eventually(t, func() error {
		r, err := c.client("n1").Runs.Get(t.Context(), "default", "picky", run.ID)
		if err == nil && r.Reason != task.ReasonNoNode {
			err = fmt.Errorf("it waits for the reason %q", r.Reason)
		}
		return err
	})
	c.start("n2", "--label", "role=db", "--label", "zone=b")
	if end := c.until("n1", "picky", run.ID, task.Succeeded); end.Node != "n2" {
		t.Errorf("it ran on %s", end.Node)
	}
	// Its output is on n2, and every node returns it.
	for _, n := range []string{"n1", "n2"} {
		out, err := c.client(n).Logs.Open(t.Context(), "default", "picky", run.ID, client.LogOptions{})
		if err != nil {
			t.Fatalf("logs from %s: %v", n, err)
		}
		b, err := io.ReadAll(out)
		out.Close()
		if err != nil || string(b) != "here\n" {
			t.Errorf("logs from %s: %q, %v", n, b, err)
		}
	}
}

// Verifies: G7
func TestDaemon_PauseThatWasAcknowledgedWins(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "4")
	c.start("n1")
	const tasks, rounds = 4, 5
	c.everySecond("n1", tasks, func(_ int, s *task.Spec) { s.Schedule = task.Schedules{"@every 100ms"} })
	cl := c.client("n1")
	type pause struct {
		name string
		at   time.Time
	}
	var pauses []pause
	// A task is written ten times a second. A slow node loses each race and reports a conflict.
	change := func(do func() error) {
		t.Helper()
		eventually(t, func() error {
			err := do()
			for end := time.Now().Add(patience); errors.Is(err, task.ErrConflict) && time.Now().Before(end); {
				err = do() // at once, before the next tick
			}
			if err != nil && !errors.Is(err, task.ErrUnavailable) {
				t.Fatal(err)
			}
			return err
		})
	}
	for round := range rounds {
		for i := range tasks {
			name := fmt.Sprintf("t%03d", i)
			change(func() error { _, err := cl.Tasks.Pause(t.Context(), "default", name, 0); return err })
			pauses = append(pauses, pause{name, time.Now()})
			if round == rounds-1 {
				continue
			}
			change(func() error { _, err := cl.Tasks.Resume(t.Context(), "default", name, 0); return err })
		}
	}
	last := pauses[len(pauses)-tasks:]
	time.Sleep(time.Second) // time for an incorrect tick to fire
	for _, p := range last {
		runs, err := cl.Runs.ListByTask(t.Context(), "default", p.name, client.RunListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			if r.ScheduledTime.After(p.at) || r.CreatedAt.After(p.at) {
				t.Errorf("%s was paused at %s and has a run of %s, created %s", p.name, p.at, r.ScheduledTime, r.CreatedAt)
			}
		}
	}
	c.judge(check.Options{})
}

// Verifies: G2
func TestDaemon_ThatWasFrozenPastItsLeaseIsFencedAndComesBack(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8", "--lease-ttl", "2s")
	c.start("n1")
	c.start("n2")
	c.everySecond("n1", 20, nil)
	eventually(t, func() error { // without shards it would have nothing to lose
		n, err := c.client("n1").Nodes.Get(t.Context(), "n2")
		if err == nil && n.Shards == 0 {
			err = errors.New("n2 owns no shard")
		}
		return err
	})
	c.nodes["n2"].signal(syscall.SIGSTOP)
	eventually(t, func() error { // the other node owns all shards
		shards, err := c.client("n1").Shards.List(t.Context())
		if err != nil {
			return err
		}
		for _, s := range shards {
			if s.Node != "n1" {
				return fmt.Errorf("shard %d is %s's", s.ID, s.Node)
			}
		}
		return nil
	})
	eventually(t, func() error {
		if _, err := c.client("n1").Nodes.Get(t.Context(), "n2"); !errors.Is(err, task.ErrNotFound) {
			return fmt.Errorf("its lease has not ended: %v", err)
		}
		return nil
	})
	c.nodes["n2"].signal(syscall.SIGCONT)
	eventually(t, func() error {
		nodes, err := c.client("n1").Nodes.List(t.Context())
		if err == nil && len(nodes) != 2 {
			err = fmt.Errorf("%d nodes", len(nodes))
		}
		return err
	})
	c.nodes["n2"].waitReady()
	c.quiet("n1")
	if r := c.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true}); r.Summary.Ticks == 0 {
		t.Error("no tick was judged")
	}
}
