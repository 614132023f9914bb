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
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// cluster is an etcd and several daemons, which are real processes. A recorder outside of them observes etcd.
type cluster struct {
	t        *testing.T
	etcd     *kvtest.Server
	endpoint string        // the endpoint of the etcd
	caller   *certs.Source // the certificates of API clients; nil: plain HTTP
	dir      string
	keys     record.Keys
	recorder *recorder.Recorder
	nodes    map[string]*process
	flags    []string // flags of every agent

	token   string   // the secret of the first token, if no node has created the cluster
	clients sync.Map // server and token to *client.Client
}

type process struct {
	t       *testing.T
	name    string
	port    int
	scraped int          // the port of its metrics
	http    *http.Client // a client of its API
	tls     bool
	dir     string
	exe     string     // the program, if it is not the test binary; "": the test binary
	env     []string   // environment variables in addition to those of the test
	pass    []*os.File // inherited as descriptor 3 and following
	cmd     *exec.Cmd
	logs    *logBuffer
	gone    chan struct{}
}

func newCluster(t *testing.T, flags ...string) *cluster {
	t.Helper()
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, etcd: kvtest.StartServer(t), dir: t.TempDir(), keys: keys, nodes: map[string]*process{}, flags: flags}
	c.endpoint = c.etcd.Endpoint()
	c.recorder, err = recorder.Start(context.WithoutCancel(t.Context()), c.etcd.Dial(), keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.recorder.Stop(context.WithoutCancel(t.Context())) })
	t.Cleanup(c.stopAll)
	return c
}

// lostAfter sets the cluster's lost_after.
func (c *cluster) lostAfter(d time.Duration) {
	c.t.Helper()
	if token := setLostAfter(c.t, c.etcd.Client(), c.keys, 8, d); token != "" {
		c.token = token
	}
}

// setLostAfter sets it in the record of a cluster. If there is none, it makes one with a first token, as a node does, and
// returns the secret.
func setLostAfter(t *testing.T, etcd *kv.Client, keys record.Keys, shards int, d time.Duration) (secret string) {
	t.Helper()
	s := store.New(etcd, kv.Direct(etcd), keys)
	const subject = access.KindService + ":bootstrap"
	secret, token := authority.NewSecret()
	token.Subject = subject

	first := store.OpenAccess()
	first.Namespaces = append(first.Namespaces, store.OpenNamespace("ice"))
	first.Tokens = []record.Token{token}
	first.Bindings = []task.Binding{{Name: "bootstrap", Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Cluster: true}}

	eventually(t, func() error {
		_, made, err := s.Bootstrap(t.Context(), shards, time.Now(), first)
		if err != nil {
			return err
		}
		if !made {
			secret = ""
		}
		old, err := s.Cluster(t.Context())
		if err != nil {
			return err
		}
		changed := old.Cluster
		changed.LostAfter = task.Duration(d)
		return s.ChangeCluster(t.Context(), old, changed)
	})

	return secret
}

// node returns a daemon that is not running yet, or the existing one.
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

// start starts or restarts a daemon on its data, and waits until it is ready.
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
	if p.scraped == 0 {
		p.scraped = freePort(p.t)
	}
	p.cmd.Env = append(append(os.Environ(), asDaemon+"=1", raceOptions, clockFile+"="+p.clock(), fmt.Sprintf("CARILLON_METRICS_LISTEN=127.0.0.1:%d", p.scraped)), p.env...)
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

// clock returns the file that sets the error of the process's wall clock.
func (p *process) clock() string { return p.dir + ".clock" }

// setClock sets the error of the process's wall clock.
func (p *process) setClock(off time.Duration) {
	p.t.Helper()
	if err := os.WriteFile(p.clock()+".new", []byte(off.String()), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(p.clock()+".new", p.clock()); err != nil {
		p.t.Fatal(err)
	}
}

// plain makes clients call the process without TLS in a cluster with TLS.
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

// metricsURL returns where the process serves its metrics without a token.
func (p *process) metricsURL() string { return fmt.Sprintf("http://127.0.0.1:%d/metrics", p.scraped) }

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

// signal sends a signal. If the signal ends the process, it waits for the end.
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

// standsStill waits until a process has stopped after SIGSTOP.
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

// client returns a client of one node with the cluster's token. It returns the same client each time, except with
// TLS, because each client has connections that stay open for a while.
func (c *cluster) client(node string) *client.Client {
	c.t.Helper()
	token := c.token
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

// everySecond creates n tasks that tick every second.
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

// createBy creates a task, and retries while the node is temporarily unable to.
func (c *cluster) createBy(cl *client.Client, s task.Spec) {
	c.t.Helper()
	again := false
	c.unlessAway(func() error {
		_, err := cl.Tasks.Create(c.t.Context(), s.Namespace, s)
		if again && errors.Is(err, task.ErrExists) { // an earlier try has created it
			return nil
		}
		again = true
		return err
	})
}

// unlessAway calls do, which must succeed. It retries only while the node or etcd is unavailable.
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

// judge stops the recording and checks it against the promises.
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
			recorder.Save(f, events)
			c.t.Logf("the history is kept in %s", path)
		}
	}
	return r
}

// quiet waits until the tasks are paused and nothing waits or runs. The status counts attempts on nodes but not
// those that wait for a retry, so it checks the recording, too.
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

// patience is how long a test waits for something that must happen. It is much longer than anything takes, because
// other tests run at the same time on machines that may stop for a while. It is shorter than what must not be
// needed: aLongLease and the default lost_after.
const patience = 90 * time.Second

// eventually calls try until it returns nil, for up to patience.
//
// The interval grows, because a try may read the state of a whole cluster, and frequent tries would slow down the
// daemons for which the test waits.
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

// handedOut contains the ports that a process has, or may use again.
var handedOut sync.Map

// freePort returns a port that no other process takes before the intended process listens there or while it is
// down: neither other tests of this package, nor those of kv and cmd, which use lower ports, nor the system, which
// assigns ports from 32768 on.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 22000 + rand.N(10000)
		if _, ok := handedOut.LoadOrStore(port, true); ok {
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

// logBuffer holds the output of a process.
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
