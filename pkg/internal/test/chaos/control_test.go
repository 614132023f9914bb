package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/kv"
)

// control is the current environment of a daemon. The test writes it to a file, which the daemon reads many times a
// second.
type control struct {
	// Offset moves the wall clock. Drift makes it run faster from Since on, by that many seconds a second.
	Offset time.Duration `json:"offset,omitempty"`
	Drift  float64       `json:"drift,omitempty"`
	Since  time.Time     `json:"since,omitzero"`

	StallWatches bool          `json:"stall_watches,omitempty"` // no watch delivers anything
	LoseAnswers  int           `json:"lose_answers,omitempty"`  // the percentage of writes whose answers are lost
	DelayWrites  int           `json:"delay_writes,omitempty"`  // the percentage of writes that fail and are delivered later
	DelayBy      time.Duration `json:"delay_by,omitempty"`      // the maximum delay of these
	CutPeers     bool          `json:"cut_peers,omitempty"`     // other nodes cannot be reached
}

const controlEvery = 25 * time.Millisecond

// write replaces the file atomically, so that its reader never sees a part of it.
func (c control) write(path string) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("control file: %w", err)
	}

	return os.Rename(path+".new", path)
}

// controls is the daemon's view of its control file.
type controls struct {
	mu      sync.Mutex
	now     control
	changed chan struct{}
}

func followControls(path string) *controls {
	c := &controls{changed: make(chan struct{})}
	c.read(path)
	go func() {
		for range time.Tick(controlEvery) {
			c.read(path)
		}
	}()

	return c
}

// read applies the content of the file. A file that cannot be read, for example because the daemon has no
// descriptors left, changes nothing.
func (c *controls) read(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}

	var next control
	if json.Unmarshal(b, &next) != nil {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if next != c.now {
		c.now = next
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// get returns the current values, and a channel that is closed when they change.
func (c *controls) get() (control, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.changed
}

// until waits until a condition holds. It returns false if done is closed first.
func (c *controls) until(done <-chan struct{}, claim func(control) bool) bool {
	for {
		now, changed := c.get()
		if claim(now) {
			return true
		}

		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

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
