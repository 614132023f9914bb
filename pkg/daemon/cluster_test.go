package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/check"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// cluster is an etcd and some daemons: real processes, watched by a recorder
// that is no part of them.
type cluster struct {
	t        *testing.T
	etcd     *kvtest.Server
	endpoint string        // of the etcd
	caller   *certs.Source // of who calls the API by TLS; nil: it speaks plain HTTP
	dir      string
	keys     record.Keys
	recorder *check.Recorder
	nodes    map[string]*process
	flags    []string // of every agent

	clients sync.Map // server and token to *client.Client
}

type process struct {
	t    *testing.T
	name string
	port int
	http *http.Client // for its API
	tls  bool
	dir  string
	exe  string     // another program than the test's own; "" for that
	env  []string   // besides the test's
	pass []*os.File // inherited as descriptors 3 and following
	cmd  *exec.Cmd
	logs *logBuffer
	gone chan struct{}
}

func newCluster(t *testing.T, flags ...string) *cluster {
	t.Helper()
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, etcd: kvtest.StartServer(t), dir: t.TempDir(), keys: keys, nodes: map[string]*process{}, flags: flags}
	c.endpoint = c.etcd.Endpoint()
	c.recorder, err = check.Record(context.WithoutCancel(t.Context()), c.etcd.Dial(), keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.recorder.Stop(context.WithoutCancel(t.Context())) })
	t.Cleanup(c.stopAll)
	return c
}

// lostAfter has attempts of silent nodes be lost so soon.
func (c *cluster) lostAfter(d time.Duration) {
	c.t.Helper()
	setLostAfter(c.t, c.etcd.Client(), c.keys, 8, d)
}

// setLostAfter sets it in the record of a cluster, which it makes if there is none.
func setLostAfter(t *testing.T, etcd *kv.Client, keys record.Keys, shards int, d time.Duration) {
	t.Helper()
	s := store.New(etcd, kv.Direct(etcd), keys)
	eventually(t, func() error {
		if _, _, err := s.Bootstrap(t.Context(), shards, time.Now()); err != nil {
			return err
		}
		old, err := s.Cluster(t.Context())
		if err != nil {
			return err
		}
		changed := old.Cluster
		changed.LostAfter = task.Duration(d)
		return s.ChangeCluster(t.Context(), old, changed)
	})
}

// node is a daemon that is not started yet, or was.
func (c *cluster) node(name string) *process {
	c.t.Helper()
	p := c.nodes[name]
	if p == nil {
		p = &process{t: c.t, name: name, port: freePort(c.t), dir: filepath.Join(c.dir, name)}
		if c.caller != nil {
			p.tls, p.http = true, &http.Client{Transport: &http.Transport{DialTLSContext: certs.DialTLS((&net.Dialer{}).DialContext, c.caller.Client)}}
		}
		c.nodes[name] = p
	}
	return p
}

// start starts a daemon, or starts it again on its data, and waits until it is ready.
func (c *cluster) start(name string, flags ...string) *process {
	c.t.Helper()
	p := c.launchOnly(name, flags...)
	p.waitReady()
	return p
}

// launchOnly is start for a daemon that may not become ready.
func (c *cluster) launchOnly(name string, flags ...string) *process {
	c.t.Helper()
	p := c.node(name)
	args := append([]string{"agent", "--name", name, "--data-dir", p.dir, "--listen", fmt.Sprintf("127.0.0.1:%d", p.port),
		"--etcd-endpoints", c.endpoint, "--drain-timeout", "5s"}, c.flags...)
	p.launch(append(args, flags...))
	return p
}

func (p *process) launch(args []string) {
	p.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	if p.exe != "" {
		exe = p.exe
	}
	p.cmd = exec.Command(exe, args...)
	p.cmd.Env = append(append(os.Environ(), asDaemon+"=1", raceOptions, clockFile+"="+p.clock()), p.env...)
	p.logs = &logBuffer{}
	p.cmd.Stdout, p.cmd.Stderr = p.logs, p.logs
	p.cmd.ExtraFiles = p.pass
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.gone = make(chan struct{})
	go func(cmd *exec.Cmd, gone chan struct{}) {
		cmd.Wait()
		close(gone)
	}(p.cmd, p.gone)
}

// clock is the file by which the process's wall clock is moved.
func (p *process) clock() string { return p.dir + ".clock" }

// setClock moves the process's wall clock to so far from the right time.
func (p *process) setClock(off time.Duration) {
	p.t.Helper()
	if err := os.WriteFile(p.clock()+".new", []byte(off.String()), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(p.clock()+".new", p.clock()); err != nil {
		p.t.Fatal(err)
	}
}

// plain has the process called without TLS, in a cluster whose callers speak it.
func (p *process) plain() { p.tls, p.http = false, nil }

func (p *process) caller() *http.Client {
	if p.http != nil {
		return p.http
	}
	return http.DefaultClient
}

func (p *process) url() string {
	if p.tls {
		return fmt.Sprintf("https://127.0.0.1:%d", p.port)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", p.port)
}

func (p *process) waitReady() {
	p.t.Helper()
	eventually(p.t, func() error {
		select {
		case <-p.gone:
			p.t.Fatalf("%s ended:\n%s", p.name, p.logs)
		default:
		}
		res, err := p.caller().Get(p.url() + "/readyz")
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz: %s", res.Status)
		}
		return nil
	})
}

// signal sends a signal; for one that ends the process it waits for that.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	if s == syscall.SIGKILL || s == syscall.SIGTERM || s == syscall.SIGINT {
		select {
		case <-p.gone:
		case <-time.After(patience):
			p.t.Fatalf("%s did not end on %v:\n%s", p.name, s, p.logs)
		}
	}
	if s == syscall.SIGSTOP {
		p.standsStill()
	}
}

// standsStill waits until a process that was sent SIGSTOP has got it.
func (p *process) standsStill() {
	p.t.Helper()
	eventually(p.t, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		if state := string(b[bytes.LastIndexByte(b, ')')+1:]); !strings.HasPrefix(state, " T") {
			return fmt.Errorf("%s goes on: %.4s", p.name, state)
		}
		return nil
	})
}

func (c *cluster) stopAll() {
	for _, p := range c.nodes {
		select {
		case <-p.gone:
			continue
		default:
		}
		p.cmd.Process.Signal(syscall.SIGCONT)
		p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range c.nodes {
		select {
		case <-p.gone:
		case <-time.After(patience):
			p.cmd.Process.Kill()
			<-p.gone
			c.t.Errorf("%s had to be killed:\n%s", p.name, p.logs)
		}
		if c.t.Failed() || os.Getenv("CARILLON_TEST_LOGS") != "" {
			c.t.Logf("logs of %s:\n%s", p.name, p.logs)
		}
		if strings.Contains(p.logs.String(), "DATA RACE") {
			c.t.Errorf("%s has a data race:\n%s", p.name, p.logs)
		}
	}
}

// client is a client of one node, with the token of the cluster. It is the same one each time,
// unless it speaks TLS: each has connections of its own, which stay open for a while.
func (c *cluster) client(node string) *client.Client {
	c.t.Helper()
	var token string
	for _, p := range c.nodes {
		if b, err := os.ReadFile(filepath.Join(p.dir, "token")); err == nil {
			token = strings.TrimSpace(string(b))
		}
	}
	cfg := client.Config{Server: c.nodes[node].url(), Token: token, Timeout: 20 * time.Second}
	if c.caller != nil {
		cfg.TLS = c.caller.Client()
		return c.newClient(cfg)
	}
	key := cfg.Server + " " + token
	cl, ok := c.clients.Load(key)
	if !ok {
		cl, _ = c.clients.LoadOrStore(key, c.newClient(cfg))
	}
	return cl.(*client.Client)
}

func (c *cluster) newClient(cfg client.Config) *client.Client {
	c.t.Helper()
	cl, err := client.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return cl
}

// everySecond creates n tasks that tick each second.
func (c *cluster) everySecond(node string, n int, change func(i int, s *task.Spec)) {
	c.t.Helper()
	cl := c.client(node)
	for i := range n {
		s := task.Defaults()
		s.Name = fmt.Sprintf("t%03d", i)
		s.Schedule = task.Schedules{"* * * * * *"}
		s.Action.Noop = &task.Noop{}
		s.History.Keep = 500
		if change != nil {
			change(i, &s)
		}
		c.createBy(cl, s)
	}
}

// createBy creates a task. A node that cannot do it for the moment is asked again.
func (c *cluster) createBy(cl *client.Client, s task.Spec) {
	c.t.Helper()
	again := false
	c.unlessAway(func() error {
		_, err := cl.Tasks.Create(c.t.Context(), s.Namespace, s)
		if again && errors.Is(err, task.ErrExists) { // so it was created the time before
			return nil
		}
		again = true
		return err
	})
}

// unlessAway does what has to succeed; only if the node or etcd is not to be had
// for the moment it is tried again.
func (c *cluster) unlessAway(do func() error) {
	c.t.Helper()
	eventually(c.t, func() error {
		err := do()
		if err != nil && !errors.Is(err, task.ErrUnavailable) {
			c.t.Fatal(err)
		}
		return err
	})
}

// judge stops the recording and holds it against the promises.
func (c *cluster) judge(o check.Options) check.Report {
	c.t.Helper()
	events, err := c.recorder.Stop(context.WithoutCancel(c.t.Context()))
	if err != nil {
		c.t.Fatal(err)
	}
	r := check.Check(c.keys, events, o)
	c.t.Logf("%s", r.String())
	if len(r.Violations) > 0 {
		c.t.Errorf("%d violations", len(r.Violations))
		path := filepath.Join(os.TempDir(), "carillon-history-"+strings.ReplaceAll(c.t.Name(), "/", "-")+".jsonl")
		if f, err := os.Create(path); err == nil {
			defer f.Close()
			check.Save(f, events)
			c.t.Logf("the history is kept in %s", path)
		}
	}
	return r
}

// quiet waits until the tasks are paused and nothing waits or runs. The status counts
// what is with a node, not what waits for its next attempt: the recording knows both.
func (c *cluster) quiet(node string) {
	c.t.Helper()
	cl := c.client(node)
	var all []client.Task
	eventually(c.t, func() error {
		all = nil
		for one, err := range cl.Tasks.All(c.t.Context(), client.TaskListOptions{}) {
			if err != nil {
				return err
			}
			all = append(all, one)
		}
		return nil
	})
	for _, one := range all {
		eventually(c.t, func() error {
			_, err := cl.Tasks.Pause(c.t.Context(), one.Namespace, one.Name, 0)
			return err
		})
	}
	eventually(c.t, func() error {
		s, err := cl.Cluster.Status(c.t.Context())
		if err == nil && s.ActiveRuns > 0 {
			err = fmt.Errorf("%d runs are active", s.ActiveRuns)
		}
		if err == nil {
			ctx, cancel := context.WithTimeout(c.t.Context(), patience)
			defer cancel()
			err = c.recorder.CatchUp(ctx)
		}
		if err != nil {
			return err
		}
		if n := check.Check(c.keys, c.recorder.Events(), check.Options{}).Summary.Open; n > 0 {
			return fmt.Errorf("%d runs have no end", n)
		}
		return nil
	})
}

// patience is how long a test waits for what must come. It is far more than anything
// takes, as these tests run beside others on machines that stand still now and then,
// and less than what must not be needed: a lease of aLongLease, or the usual lost_after.
const patience = 90 * time.Second

// eventually tries until there is no error, for as long as patience.
//
// The interval grows: a try may read a whole cluster's state, and frequent tries would starve
// the daemons that the test waits for.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for interval := 10 * time.Millisecond; ; interval = min(2*interval, 200*time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %v", patience, err)
		}
		time.Sleep(interval)
	}
}

// handedOut are the ports that some process has, or had and may come back to.
var handedOut sync.Map

// freePort is a port that nobody else takes before the process listens for which it
// is, or while that is away: no other test of this package or another (those of kv
// and cmd take lower ones), nor the system, which gives away those from 32768 on.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 22000 + rand.N(10000)
		if _, is := handedOut.LoadOrStore(port, true); is {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("there is no free port")
	return 0
}

// logBuffer is what a process wrote.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) lines() (lines []string) {
	for s := bufio.NewScanner(strings.NewReader(l.String())); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}
