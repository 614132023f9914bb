package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// node is a daemon in this process, as carillon agent runs it. Only its clock and its client of etcd may be others.
type node struct {
	daemon *daemon.Node
	token  string // of an administrator
	cancel context.CancelFunc
	ended  chan struct{} // closed when it has ended
	err    error         // why it has ended
}

// startNode starts the node, with a clock and an observer of its writes. It returns when the node owns every shard. The
// clock may be nil. The node executes runs unless they go to the inbox of another one.
func (c *cluster) startNode(ctx context.Context, clk *pacedClock, o *tickObserver) (*node, error) {
	c.progress.beginStep("start a node")

	tokens, err := c.createTokens(ctx, 1)
	if err != nil {
		return nil, err
	}

	cfg := daemon.Defaults()
	cfg.Name, cfg.DataDir, cfg.Listen, cfg.Prefix = nodeName, filepath.Join(c.dir, nodeName), "127.0.0.1:0", strings.TrimSuffix(c.keys.Root(), "/")
	cfg.EtcdEndpoints, cfg.EtcdUser, cfg.EtcdPassword = c.cfg.Endpoints, c.cfg.Username, c.cfg.Password
	cfg.Slots, cfg.Cgroup, cfg.HTTPAllow = c.Slots, c.Cgroup, []string{"127.0.0.0/8"}
	cfg.LeaseTTL = task.Duration(30 * time.Second) // a saturated etcd answers late
	cfg.DefaultUser = strconv.Itoa(os.Getuid())    // others have no access to the directory
	if c.inbox != nodeName {
		cfg.Roles = []string{task.RoleScheduler, task.RoleAPI}
	}

	env := daemon.Environment{Etcd: func(ctx context.Context, _ daemon.Config) (*kv.Client, error) { return c.observedClient(ctx, o) }}
	if clk != nil {
		env.Now, env.Boot = clk.Now, clk.boot
	}

	d, err := env.Start(ctx, cfg, c.log)
	if err != nil {
		return nil, err
	}

	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n := &node{daemon: d, token: tokens[0], cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(n.ended)
		n.err = d.Run(running)
	}()

	err = awaitReady(ctx, d.Address(), n.ended)
	if err == nil {
		err = c.awaitBalanced(ctx, nodeName)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a node: %w", err), n.stop())
	}

	return n, nil
}

// stop drains the node and waits for its end. It may be called more than once.
func (n *node) stop() error {
	n.cancel()
	<-n.ended
	n.daemon.Close()
	http.DefaultClient.CloseIdleConnections()

	if n.err != nil {
		return fmt.Errorf("the node: %w", n.err)
	}

	return nil
}

// awaitCondition is the function awaitCondition. It fails when the node ends.
func (n *node) awaitCondition(ctx context.Context, limit time.Duration, condition string, holds func() (bool, error)) error {
	return awaitCondition(ctx, limit, condition, func() (bool, error) {
		select {
		case <-n.ended:
			return false, fmt.Errorf("the node has ended: %w", n.err)
		default:
			return holds()
		}
	})
}

// metrics returns the metrics of the node.
func (n *node) metrics(ctx context.Context) (metrics, error) {
	return readMetrics(ctx, n.daemon.Address(), n.token)
}

// awaitTicks waits until the node has counted a number of ticks as decided, which it does after etcd has acknowledged the
// commit. It returns the metrics afterwards.
func (n *node) awaitTicks(ctx context.Context, ticks int64) (m metrics, err error) {
	err = n.awaitCondition(ctx, settleFor, "every tick is decided", func() (bool, error) {
		m, err = n.metrics(ctx)
		return m.ticks("") >= ticks, err
	})

	return m, err
}

// observedClient returns a client of etcd, like that of the benchmark, whose transactions are observed.
func (e *etcdTarget) observedClient(ctx context.Context, o *tickObserver) (*kv.Client, error) {
	if e.server == nil || e.client != e.server.Client() {
		c, err := e.dialClient(ctx)
		if err == nil {
			c.KV = observedKV{c.KV, o}
		}

		return c, err
	}

	// The daemon closes its client. That must not close the client of the server.
	c := clientv3.NewCtxClient(context.WithoutCancel(ctx))
	c.KV, c.Watcher, c.Lease = observedKV{e.client.KV, o}, sharedWatcher{e.client.Watcher}, sharedLease{e.client.Lease}
	c.Maintenance, c.Cluster = e.client.Maintenance, e.client.Cluster

	return kv.Wrap(c, callLimit), nil
}

// sharedWatcher and sharedLease are parts of a client that is not closed with them.
type (
	sharedWatcher struct{ clientv3.Watcher }
	sharedLease   struct{ clientv3.Lease }
)

func (sharedWatcher) Close() error { return nil }
func (sharedLease) Close() error   { return nil }

// metrics are the values of metrics, by name and labels as /metrics shows them.
type metrics map[string]float64

// errUnavailable means that a node cannot answer now, for example because it has just lost its contact to etcd.
var errUnavailable = errors.New("unavailable")

// readMetrics reads the metrics of a node.
func readMetrics(ctx context.Context, url, token string) (metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return nil, err
	}

	req.Header.Set("Authorization", "Bearer "+token)

	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}

	defer res.Body.Close()

	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return nil, fmt.Errorf("GET %s: %w", req.URL, errUnavailable)
	default:
		return nil, fmt.Errorf("GET %s: %s", req.URL, res.Status)
	}

	m := metrics{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ") // no label of ours contains a space
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			m[name] = n
		}
	}

	return m, lines.Err()
}

// ticks returns how many ticks had an outcome; "": any.
func (m metrics) ticks(outcome string) (n int64) {
	for name, value := range m {
		if strings.HasPrefix(name, "carillon_ticks_total{outcome=\""+outcome) {
			n += int64(value)
		}
	}

	return n
}

// fillGroupCommits sets how many ticks shared a commit, and how many transactions shared a request, since an earlier
// reading.
func (m metrics) fillGroupCommits(before metrics, res *Result) {
	since := func(name string) float64 { return m[name] - before[name] }

	if n := since(`carillon_commits_total{result="ok"}`); n > 0 {
		res.PerCommit = roundTo(float64(m.ticks("")-before.ticks(""))/n, 1)
	}
	if n := since("carillon_batch_transactions_count"); n > 0 {
		res.PerRequest = roundTo(since("carillon_batch_transactions_sum")/n, 1)
	}
}
