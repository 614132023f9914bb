package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// node is a host: a name, an address, a clock, and the daemon that runs on it, if any.
type node struct {
	*world
	name    string
	address string
	dir     string       // the data directory of the next start
	starts  int          // how often a daemon was started
	boots   int          // how often the host has booted
	booted  time.Time    // when it last did; zero: at the next start
	skew    atomic.Int64 // the error of its wall clock, in ns
	roles   []string     // nil: all roles

	proc   *process        // nil: no daemon runs
	former <-chan struct{} // closed when the former daemon no longer prevents the start of the next
}

// process is one start of a daemon.
type process struct {
	link   *link
	boot   string                      // the id of the boot of its host
	daemon atomic.Pointer[daemon.Node] // nil until it has started
	stop   context.CancelFunc          // ends the daemon as SIGTERM does
	gone   chan struct{}               // closed when everything of it has ended
	killed chan struct{}               // closed when its attempts are killed
}

// addNode adds a node, without a daemon.
func (w *world) addNode() *node {
	n := &node{world: w, name: fmt.Sprintf("n%d", len(w.nodes)+1), address: fmt.Sprintf("127.0.0.%d:7070", len(w.nodes)+1)}
	n.dir = filepath.Join(w.dir, n.name)
	w.mu.Lock()
	defer w.mu.Unlock()

	w.nodes[n.name], w.names = n, append(w.names, n.name)

	return n
}

// startDaemon starts a daemon on the data directory of the former one.
func (n *node) startDaemon() {
	n.starts++
	n.founded.Do(n.createClusterRecord)
	if n.booted.IsZero() {
		n.booted = time.Now().Add(-time.Second)
	}
	p := &process{link: newLink(n.world, n.name, n.rng.Uint64()), boot: fmt.Sprintf("%s-boot-%d", n.name, n.boots), gone: make(chan struct{}), killed: make(chan struct{})}
	ctx, stop := context.WithCancel(n.life)
	p.stop, n.proc = stop, p
	n.mu.Lock()
	n.world.all = append(n.world.all, p)
	n.mu.Unlock()
	n.logLine("> start %s", n.name)
	cfg := daemon.Defaults()
	cfg.Name, cfg.DataDir, cfg.Listen, cfg.EtcdEndpoints = n.name, n.dir, n.address, []string{"http://memory:2379"}
	cfg.Shards, cfg.Slots = n.opts.Shards, n.opts.Slots
	cfg.Labels = map[string]string{poolLabel: poolOf(slices.Index(n.names, n.name))}
	if n.roles != nil {
		cfg.Roles = append(slices.Clip(n.roles), task.RoleAPI) // every node answers the users
	}

	cfg.LeaseTTL, cfg.DrainTimeout = task.Duration(leaseTTL), task.Duration(drainTimeout)
	go func() {
		defer close(p.gone)
		defer stop()
		if err := n.runDaemon(ctx, p, cfg); err != nil && ctx.Err() == nil {
			n.logLine("> %s has ended by itself: %v", n.name, err)
			n.countReached("a daemon ended by itself")
		}
	}()
}

// createClusterRecord creates the record of the cluster before its first node starts, with a short lost_after, a token
// for the simulation, and the accounts of users.
func (w *world) createClusterRecord() {
	const subject = access.KindService + ":users"
	secret, token := authority.NewSecret()
	token.Subject = subject

	first := store.OpenAccess()
	first.Namespaces = append(first.Namespaces, store.OpenNamespace(simNamespace), store.OpenNamespace(frozenNamespace))
	first.Tokens = []record.Token{token}
	first.Bindings = []task.Binding{{Name: "users", Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Cluster: true}}

	for i := range apiUsers {
		a, token, binding := newAccount(i)
		w.accounts = append(w.accounts, a)
		first.Tokens, first.Bindings = append(first.Tokens, token), append(first.Bindings, binding)
	}

	if _, _, err := w.admin.Bootstrap(w.life, w.opts.Shards, time.Now(), first); err != nil {
		w.abort(err)
	}

	w.mu.Lock()
	w.token = secret
	w.mu.Unlock()

	old, err := w.admin.Cluster(w.life)
	if err != nil {
		w.abort(err)
	}

	changed := old.Cluster
	changed.LostAfter = task.Duration(lostAfter)
	if err := w.admin.ChangeCluster(w.life, old, changed); err != nil {
		w.abort(err)
	}
}

// runDaemon runs a daemon in the environment of the simulation until ctx ends or the daemon does. In a new epoch of the cluster, the daemon
// starts over, as the command agent lets it.
func (n *node) runDaemon(ctx context.Context, p *process, cfg daemon.Config) error {
	for {
		err := n.runDaemonOnce(ctx, p, cfg)
		if !errors.Is(err, etcdhistory.ErrNewHistory) || ctx.Err() != nil {
			return err
		}
		n.logLine("> %s starts over in the new epoch", n.name)
		n.countReached("a daemon starts over")
	}
}

// runDaemonOnce runs one instance of a daemon.
func (n *node) runDaemonOnce(ctx context.Context, p *process, cfg daemon.Config) error {
	boot := n.booted
	log := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zapcore.EncoderConfig{
		TimeKey: "t", LevelKey: "l", NameKey: "n", MessageKey: "m", EncodeLevel: zapcore.LowercaseLevelEncoder,
		EncodeTime: zapcore.TimeEncoderOfLayout("15:04:05.000"), EncodeDuration: zapcore.StringDurationEncoder, ConsoleSeparator: " ",
	}), n.world, zap.InfoLevel)).Named(fmt.Sprintf("%s.%d", n.name, n.starts))
	d, err := daemon.Environment{
		Now:    func() time.Time { return time.Now().Add(time.Duration(n.skew.Load())) },
		Boot:   func() time.Duration { return time.Since(boot) },
		Listen: func(_, at string) (net.Listener, error) { return n.net.listenAt(at) },
		Dial:   n.net.dialAddress,
		Etcd: func(context.Context, daemon.Config) (*kv.Client, error) {
			// Calls that are under way when the daemon closes its client may still arrive. So the daemon closes
			// only the outer client.
			inner := n.dial(n.life)
			c := clientv3.NewCtxClient(n.life)
			c.KV, c.Watcher, c.Lease, c.Maintenance, c.Cluster = inner.KV, inner.Watcher, inner.Lease, inner.Maintenance, inner.Cluster
			p.link.wrapClient(c)

			if n.opts.WrapClient != nil {
				n.opts.WrapClient(n.name, c)
			}

			return kv.Wrap(c, 0), nil
		},
		BootID:    p.boot,
		Unguarded: true,
		Act:       p.executeAttempt(n),
		HTTP:      requestRunner{n, p},
	}.Start(ctx, cfg, log)

	if err != nil {
		return err
	}

	defer d.Close()

	p.daemon.Store(d)
	err = d.Run(ctx)
	n.addCounts(d)

	return err
}

// killDaemon ends the daemon as SIGKILL does: nothing that it does from now on has an effect. Unless the whole host
// is dead, its guardian kills the attempts up to 400 ms later, and writes cleared/.
func (n *node) killDaemon(host bool) {
	p := n.proc
	n.proc, n.former = nil, p.killed
	n.logLine("> kill %s, its host too: %t", n.name, host)

	// Cut everything off before the process is stopped, so that its shutdown has no effect outside.
	p.link.setMode(dead)
	n.net.closeAddress(n.address)
	n.moveDir()
	p.stop()

	// Without a guardian nothing proves that the attempts are dead. Others must wait for lost_after.
	if host {
		n.boots++
		n.booted = time.Time{}
		close(p.killed)
	} else {
		instance, delay := "", durationBetween(n.rng, 0, 400*time.Millisecond)
		if d := p.daemon.Load(); d != nil {
			instance = d.Instance()
		}

		n.background.Go(func() {
			clock.Sleep(n.life, delay)
			close(p.killed)

			if instance != "" && n.life.Err() == nil {
				ctx, cancel := context.WithTimeout(n.life, 10*time.Second)
				defer cancel()
				if err := n.admin.PutCleared(ctx, instance, task.At(time.Now())); err != nil {
					n.logLine("> the guardian of %s cannot say that it is gone: %v", n.name, err)
				}
			}
		})
	}
}

// moveDir gives the next process a copy of the data directory, because the dead one still writes to its own.
func (n *node) moveDir() {
	next := filepath.Join(n.world.dir, fmt.Sprintf("%s.%d", n.name, n.starts))
	if err := os.MkdirAll(next, 0o700); err != nil {
		n.abort(err)
	}

	for _, name := range []string{"state.json", "late-audit", "late-cancels"} {
		b, err := os.ReadFile(filepath.Join(n.dir, name))
		if os.IsNotExist(err) {
			continue
		}

		if err == nil {
			err = os.WriteFile(filepath.Join(next, name), b, 0o600)
		}

		if err != nil {
			n.abort(err)
		}
	}

	n.mu.Lock()
	defer n.mu.Unlock()

	n.dir = next
}

// drainDaemon ends the daemon as SIGTERM does.
func (n *node) drainDaemon() {
	p := n.proc
	n.proc, n.former = nil, p.gone
	n.logLine("> drain %s", n.name)
	p.stop()
}

// executeAttempt returns the function that stands for the process of an attempt. Its command is "sim DURATION
// EXIT-CODE", or Flaky instead of the code.
func (p *process) executeAttempt(n *node) func(<-chan struct{}, task.Assigned, int64) int {
	return func(killed <-chan struct{}, a task.Assigned, token int64) int {
		var d time.Duration
		code := 0

		if c := a.Action.Process.Command; len(c) == 3 {
			d, _ = time.ParseDuration(c[1])
			if fmt.Sscan(c[2], &code); c[2] == Flaky {
				code = int(token % 2)
			}
		}

		one := n.probes.noteStart(n.name, a, token)
		t := time.NewTimer(d)
		defer t.Stop()

		select {
		case <-t.C:
			n.probes.noteEnd(one, true)
			return code
		case <-killed:
		case <-p.killed:
		}

		n.probes.noteEnd(one, false)

		return 137 // as for SIGKILL
	}
}

// newHTTPClient returns a client that reaches the nodes' addresses, with a new connection for each call.
func (w *world) newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: w.net.dialAddress, DisableKeepAlives: true}}
}
