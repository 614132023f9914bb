package chaos_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// mutantName is the variable in a daemon's environment that names its mutant of package mutant.
const mutantName = "CHAOS_MUTANT"

// environment is the real environment, except for what the control file contains.
func environment(ctx context.Context, path string) daemon.Environment {
	c := followControls(path)
	return daemon.Environment{
		OpenDefault: true,
		Now:         func() time.Time { return wallClock(c) },
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialPeer(ctx, c, network, address)
		},
		Etcd: func(_ context.Context, cfg daemon.Config) (*kv.Client, error) { return dialEtcd(ctx, c, cfg) },
	}
}

// wallClock returns the host's clock with the changes of the control file. The time has no monotonic part, which
// would not be changed and would hide the change.
func wallClock(c *controls) time.Time {
	now := time.Now()
	by, _ := c.get()
	if by.Offset == 0 && by.Drift == 0 {
		return now
	}

	return now.Round(0).Add(by.Offset + time.Duration(by.Drift*float64(now.Sub(by.Since))))
}

func dialEtcd(ctx context.Context, c *controls, cfg daemon.Config) (*kv.Client, error) {
	client, err := kv.Dial(ctx, kv.Config{Endpoints: cfg.EtcdEndpoints, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}

	client.KV = lossyKV{client.KV, c}
	client.Watcher = stallingWatcher{client.Watcher, c}

	if name := os.Getenv(mutantName); name != "" {
		m, ok := mutant.Named(name)
		if !ok {
			return nil, fmt.Errorf("there is no mutant %q", name)
		}

		keys, err := record.NewKeys(cfg.Prefix)
		if err != nil {
			return nil, err
		}

		m.New(keys)(cfg.Name, client.Client)
	}

	return client, nil
}

// dialPeer connects to another node. If that is cut off, dialing hangs, as in a network that drops packets, and so
// do existing connections.
func dialPeer(ctx context.Context, c *controls, network, address string) (net.Conn, error) {
	if !c.until(ctx.Done(), reachable) {
		return nil, ctx.Err()
	}

	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}

	return &peerConn{Conn: conn, controls: c, closed: make(chan struct{})}, nil
}

func reachable(c control) bool { return !c.CutPeers }

type peerConn struct {
	net.Conn
	controls *controls
	closed   chan struct{}
}

func (p *peerConn) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if !p.controls.until(p.closed, reachable) {
		return 0, net.ErrClosed
	}
	return n, err
}

func (p *peerConn) Close() error {
	err := p.Conn.Close()
	if err == nil {
		close(p.closed)
	}
	return err
}
