package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/peercerts"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// agents is a cluster whose agents have an embedded etcd.
type agents struct {
	*cluster
	peers map[string]string
}

func newAgents(t *testing.T) *agents {
	t.Helper()
	dir, err := os.MkdirTemp("", "trio") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	tr := &agents{cluster: &cluster{t: t, dir: dir, keys: keys, nodes: map[string]*process{}}, peers: map[string]string{}}
	for _, n := range []string{"n1", "n2", "n3"} {
		tr.peers[n] = fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
	}
	t.Cleanup(tr.stopAll)
	return tr
}

func (a *agents) initialCluster() string {
	var list []string
	for n, u := range a.peers {
		list = append(list, n+"="+u)
	}
	return strings.Join(list, ",")
}

// admit gives an agent its certificate from the CA that n1 has created.
func (a *agents) admit(name string) {
	a.t.Helper()
	p := a.nodes[name]
	if name == "n1" || peercerts.HasAny(p.dir) {
		return
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		a.t.Fatal(err)
	}
	eventually(a.t, func() error {
		token, _, err := peercerts.NewToken(a.nodes["n1"].dir, peercerts.Member{Name: name, Host: "127.0.0.1"}, time.Hour, time.Now())
		if err != nil {
			return err
		}
		return os.WriteFile(peercerts.TokenPath(p.dir), []byte(token), 0o600)
	})
}

// begin starts or restarts an agent and does not wait until it is ready.
func (a *agents) begin(name string, flags ...string) *process {
	a.t.Helper()
	p := a.nodes[name]
	if p == nil {
		p = &process{t: a.t, name: name, port: freePort(a.t), dir: filepath.Join(a.dir, name)}
		a.nodes[name] = p
	}
	a.admit(name)
	p.launch(append([]string{"agent", "--embedded", "--name", name, "--data-dir", p.dir, "--listen", fmt.Sprintf("127.0.0.1:%d", p.port),
		"--initial-cluster", a.initialCluster(), "--shards", "12", "--lease-ttl", "3s", "--drain-timeout", "5s"}, flags...))
	return p
}

func (a *agents) record() {
	a.t.Helper()
	var sockets []string
	for _, p := range a.nodes {
		sockets = append(sockets, "unix://"+filepath.Join(p.dir, "etcd", "etcd.sock"))
	}
	c, err := kv.Dial(a.t.Context(), kv.Config{Endpoints: sockets})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { c.Close() })
	if a.recorder, err = recorder.Start(context.WithoutCancel(a.t.Context()), c, a.keys); err != nil {
		a.t.Fatal(err)
	}
	setLostAfter(a.t, c, a.keys, 12, 14*time.Second)
	a.t.Cleanup(func() { a.recorder.Stop(context.WithoutCancel(a.t.Context())) })
}

// ticks waits until every task has run after now.
func (a *agents) ticks(node string, tasks int) {
	a.t.Helper()
	now := time.Now()
	for i := range tasks {
		// A run that was on a killed node must first be lost. With an embedded etcd, the guardian cannot report it
		// as cleared.
		eventually(a.t, func() error {
			runs, err := a.client(node).Runs.ListByTask(a.t.Context(), "default", fmt.Sprintf("t%03d", i), client.RunListOptions{State: task.Succeeded})
			if err == nil && (len(runs) == 0 || !runs[0].ScheduledTime.After(now)) {
				err = errors.New("it does not tick")
			}
			return err
		})
	}
}

func (a *agents) members(node string) map[string]client.EtcdMember {
	a.t.Helper()
	var list []client.EtcdMember
	a.unlessAway(func() (err error) {
		list, err = a.client(node).Members.List(a.t.Context())
		return err
	})
	byName := map[string]client.EtcdMember{}
	for _, m := range list {
		byName[m.Name] = m
	}
	return byName
}

func answers(p *process, path string) (int, string) {
	res, err := http.Get(p.url() + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// Three agents without another etcd wait for a majority, fire, lose one to kill -9, then one with all its data,
// and are restarted in turn.
//
// Verifies: G26, G50
func TestEmbedded_ThreeAgentsAreTheirOwnEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits
	const tasks = 10
	tr := newAgents(t)
	first := tr.begin("n1")
	eventually(t, func() error {
		if code, body := answers(first, "/readyz"); code != 503 || !strings.Contains(body, "2 of which are missing") || strings.Contains(body, "n2") {
			return fmt.Errorf("readyz says %d %s", code, body)
		}
		return nil
	})
	if code, body := answers(first, "/healthz"); code != 200 {
		t.Errorf("healthz says %d %s", code, body)
	}
	eventually(t, func() error {
		if !strings.Contains(first.logs.String(), "etcd is waiting for its other members") || !strings.Contains(first.logs.String(), "n3") {
			return errors.New("the log does not say what it waits for")
		}
		return nil
	})
	tr.begin("n2").waitReady()
	tr.begin("n3").waitReady()
	first.waitReady()
	tr.record()
	tr.everySecond("n1", tasks, nil)
	tr.ticks("n2", tasks)
	eventually(t, func() error {
		leaders := 0
		for name, m := range tr.members("n3") {
			if m.Error != "" || m.PeerURL != tr.peers[name] || m.ID == "" || m.DBSize == 0 {
				return fmt.Errorf("%s: %+v", name, m)
			}
			if m.Leader {
				leaders++
			}
		}
		if leaders != 1 {
			return fmt.Errorf("%d leaders", leaders)
		}
		return nil
	})

	tr.nodes["n2"].signal(syscall.SIGKILL)
	tr.ticks("n1", tasks)
	eventually(t, func() error {
		if m := tr.members("n1")["n2"]; !strings.Contains(m.Error, "not present") {
			return fmt.Errorf("n2, which is dead: %+v", m)
		}
		return nil
	})
	tr.begin("n2").waitReady()

	n3 := tr.nodes["n3"]
	n3.signal(syscall.SIGKILL)
	if err := os.RemoveAll(n3.dir); err != nil {
		t.Fatal(err)
	}
	lost := tr.begin("n3")
	select {
	case <-lost.gone:
	case <-time.After(patience):
		t.Error("it starts without its data as if nothing had happened")
	}
	if !strings.Contains(lost.logs.String(), "carillon cluster member remove n3") {
		t.Errorf("it does not say what to do:\n%s", lost.logs)
	}
	cl := tr.client("n1")
	// etcd may have lost its leader with n3, and be unavailable for a moment.
	refused := func(what string, with error, try func() error) {
		t.Helper()
		eventually(t, func() error {
			err := try()
			if errors.Is(err, task.ErrUnavailable) {
				return err
			}
			if !errors.Is(err, with) {
				t.Errorf("%s: %v", what, err)
			}
			return nil
		})
	}
	refused("the member of the node that answers is removed", task.ErrConflict, func() error { _, err := cl.Members.Remove(t.Context(), "n1"); return err })
	refused("removing nobody", task.ErrNotFound, func() error { _, err := cl.Members.Remove(t.Context(), "nobody"); return err })
	refused("adding one that is there", task.ErrExists, func() error {
		_, err := cl.Members.Add(t.Context(), client.AddMemberRequest{Name: "n3", PeerURL: tr.peers["n3"]})
		return err
	})
	removed := false
	tr.unlessAway(func() error {
		_, err := cl.Members.Remove(t.Context(), "n3")
		if removed && errors.Is(err, task.ErrNotFound) { // by an earlier try
			return nil
		}
		removed = true
		return err
	})
	tr.peers["n3"] = fmt.Sprintf("https://127.0.0.1:%d", freePort(t)) // as on another host
	added := false
	tr.unlessAway(func() error {
		ch, err := cl.Members.Add(t.Context(), client.AddMemberRequest{Name: "n3", PeerURL: tr.peers["n3"]})
		if added && errors.Is(err, task.ErrExists) { // by an earlier try
			return nil
		}
		added = true
		if err == nil && (ch.Members != 3 || !strings.Contains(ch.InitialCluster, "n3="+tr.peers["n3"])) {
			t.Fatalf("%+v", ch)
		}
		return err
	})
	told := map[string]string{} // detail to actor
	for e, err := range cl.Events.All(t.Context(), client.EventOptions{Kinds: []string{task.EventCluster}}) {
		if err != nil {
			t.Fatal(err)
		}
		told[e.Detail] = e.Actor.Name()
	}
	for _, change := range []string{"etcd member n3 removed", "etcd member n3 added at " + tr.peers["n3"]} {
		if told[change] != "service:bootstrap" {
			t.Errorf("%s by %q; the events are %q", change, told[change], told)
		}
	}
	tr.begin("n3", "--initial-cluster-state", "existing").waitReady()
	eventually(t, func() error {
		if m := tr.members("n3")["n3"]; m.Learner || m.Error != "" {
			return fmt.Errorf("n3 is back, but %+v", m)
		}
		return nil
	})

	for _, n := range []string{"n1", "n2", "n3"} {
		tr.nodes[n].signal(syscall.SIGTERM)
		tr.begin(n).waitReady()
	}
	tr.ticks("n3", tasks)
	tr.quiet("n1")
	tr.judge(check.Options{Until: time.Now().Add(-time.Second), Ended: true})
	for n, p := range tr.nodes {
		if lines := p.logs.lines(); len(lines) > fewLines(lines) {
			t.Errorf("%s wrote %d lines of log:\n%s", n, len(lines), p.logs)
		}
	}
}
