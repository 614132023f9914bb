package daemon

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

const (
	// notifyUnready is between two looks at a node that does not fire yet, notifyReady
	// between those at one that does.
	notifyUnready = 200 * time.Millisecond
	notifyReady   = 5 * time.Second
	// stopMargin is how long a node may take to stop beyond its drain timeout: what
	// runs is killed then, the session ends, an embedded etcd closes.
	stopMargin = 30 * time.Second
)

// manager tells the service manager that started this process (systemd, Type=notify)
// how the node fares. All its methods may be called on nil, which tells nobody.
//
//	starting ──the node fires──► READY ──told to stop──► STOPPING
//	   ▲                           │
//	   └── RELOADING: a new life ──┘     (etcd has a new history)
//
// While the node lives, and none of its parts stands still, it says so (WATCHDOG).
// A process that stands still as a whole says nothing either. The manager is asked
// to bear that for as long as the node's attempts could still be adopted: until then a
// restart would end what a node that comes back goes on with.
type manager struct {
	send    func(state string) error
	watched time.Duration // how long it bears silence, as far as it was told; 0: for ever
	cfg     Config
	log     *zap.Logger

	mu    sync.Mutex
	waits string // for what, before there is a node
	node  lives  // nil: there is none yet

	fired    bool // READY was said once: from then on its life is watched
	ready    bool
	stopping bool
	lost     bool   // the last message did not arrive
	status   string // that was told last
}

// lives is what the manager is told of a node.
type lives interface {
	fires() error // why it does not fire
	alive() error // why it is not to be taken for alive
	doing() string
	// lostAfter is how long the attempts that it gets are waited for when it is silent.
	lostAfter() time.Duration
}

// newManager is nil if nobody is to be told.
func newManager(cfg Config, log *zap.Logger) *manager {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	m := &manager{cfg: cfg, log: log.Named("notify"), send: func(state string) error {
		_, err := sd.SdNotify(false, state)
		return err
	}}
	var err error
	if m.watched, err = sd.SdWatchdogEnabled(false); err != nil {
		m.log.Warn("nobody watches whether this process lives", zap.Error(err))
	}
	return m
}

// waitsFor says what the node waits for before it is there; "" is nothing.
func (m *manager) waitsFor(what string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	m.waits = what
	m.mu.Unlock()
}

// accompany tells of a node from now on; nil: it is gone, and another one follows.
func (m *manager) accompany(n lives) {
	if m == nil {
		return
	}
	m.mu.Lock()
	m.node, m.waits = n, ""
	m.mu.Unlock()
}

// accompanied runs life, a node's or several, and tells of it: that it is to stop
// when ctx ends, and why it ended.
func (m *manager) accompanied(ctx context.Context, life func() error) error {
	if m == nil {
		return life()
	}
	ended, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		m.run(ctx, ended)
	}()
	err := life()
	close(ended)
	<-told
	if err != nil {
		m.tell("STATUS=Failed: " + oneLine(err.Error()))
	}
	return err
}

func (m *manager) run(ctx context.Context, ended <-chan struct{}) {
	asked := ctx.Done()
	for {
		wait := m.look()
		select {
		case <-ended:
			return
		case <-asked:
			asked = nil
			m.stop()
		case <-time.After(wait):
		}
	}
}

// stop says that the node stops, and how long that may take, whatever the unit says.
func (m *manager) stop() {
	m.stopping = true
	m.tell(sd.SdNotifyStopping, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (m.cfg.DrainTimeout.Std()+stopMargin).Microseconds()))
}

// look tells what is new, and returns when to look again.
func (m *manager) look() time.Duration {
	m.mu.Lock()
	node, waits := m.node, m.waits
	m.mu.Unlock()
	var lines []string
	status, alive := "Starting", true
	switch {
	case node == nil && m.ready && !m.stopping:
		m.ready = false
		lines = append(lines, sd.SdNotifyReloading, strings.TrimSpace(sd.SdNotifyMonotonicUsec()))
	case node == nil && waits != "":
		status = "Waiting: " + waits
	case node != nil:
		alive = node.alive() == nil
		err := node.fires()
		if status = node.doing(); err != nil {
			status = "Not ready: " + err.Error()
		} else if !m.ready && !m.stopping {
			m.ready = true
			lines = append(lines, sd.SdNotifyReady)
		}
		if m.ready {
			lines = append(lines, m.patience(node.lostAfter())...)
		}
	}
	m.fired = m.fired || m.ready
	if status != m.status || m.lost {
		m.status = status
		lines = append(lines, "STATUS="+oneLine(status))
	}
	if m.watched > 0 && m.fired && alive {
		lines = append(lines, sd.SdNotifyWatchdog)
	}
	m.tell(lines...)
	switch {
	case m.stopping:
		return time.Second
	case !m.ready:
		return notifyUnready
	case m.watched > 0:
		return min(notifyReady, m.watched/4)
	}
	return notifyReady
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// patience asks for more of it than the unit says, or was asked for before, if attempts
// may be adopted for longer than that. It never asks for less: attempts that were
// assigned before may still have the longer time.
func (m *manager) patience(lostAfter time.Duration) []string {
	if m.watched == 0 || lostAfter <= m.watched {
		return nil
	}

	m.watched = lostAfter
	return []string{fmt.Sprintf("WATCHDOG_USEC=%d", lostAfter.Microseconds())}
}

func (m *manager) tell(lines ...string) {
	if len(lines) == 0 {
		return
	}
	err := m.send(strings.Join(lines, "\n"))
	if err != nil && !m.lost {
		m.log.Warn("the service manager cannot be told how this node fares", zap.Error(err))
	}
	m.lost = err != nil
}
