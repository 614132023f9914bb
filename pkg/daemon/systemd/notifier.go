package systemd

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

// Notifier reports the node's state to the service manager that started this
// process (systemd, Type=notify). Its exported methods may be called on nil, which reports
// nothing.
//
//	starting ──the node fires──► READY ──asked to stop──► STOPPING
//	   ▲                           │
//	   └── RELOADING: a new node ──┘     (etcd has a new history)
//
// While the node lives, and none of its parts stands still, it says so (WATCHDOG). A
// process that stands still as a whole says nothing either. It asks the service manager to
// bear that for as long as the node's attempts could still be adopted: until then a
// restart would end attempts that a node that comes back goes on with.
type Notifier struct {
	send         func(state string) error // sends one message
	watchdog     time.Duration            // how long silence is borne, as far as was agreed; 0: for ever
	drainTimeout time.Duration            // of the node that stops
	log          *zap.Logger

	mu      sync.Mutex
	startup string // what the node waits for, before there is one
	node    Node   // nil: there is none yet

	fired    bool // READY was sent once: from then on the node's life is watched
	ready    bool
	stopping bool
	lost     bool   // the last message did not arrive
	status   string // the last one that was sent
}

// Node is the node whose state is reported.
type Node interface {
	// CheckFiring says why the node does not fire; nil if it does.
	CheckFiring() error
	// CheckAlive says why the node is not to be taken for alive; nil if it is.
	CheckAlive() error
	// Status is what the node does, in a line.
	Status() string
	// LostAfter is how long the attempts that it gets are waited for when it is silent.
	LostAfter() time.Duration
}

// NewNotifier returns nil if no service manager wants reports. drainTimeout is how long
// the node may take to drain when it stops.
func NewNotifier(drainTimeout time.Duration, log *zap.Logger) *Notifier {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}

	m := &Notifier{drainTimeout: drainTimeout, log: log.Named("notify"), send: func(state string) error {
		_, err := sd.SdNotify(false, state)
		return err
	}}

	var err error
	if m.watchdog, err = sd.SdWatchdogEnabled(false); err != nil {
		m.log.Warn("no watchdog supervises this process", zap.Error(err))
	}

	return m
}

// SetStartupStatus says what the node waits for before it is there; "" is nothing.
func (m *Notifier) SetStartupStatus(why string) {
	if m == nil {
		return
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	m.startup = why
}

// SetNode has n reported from now on; nil: it is gone, and another one follows.
func (m *Notifier) SetNode(n Node) {
	if m == nil {
		return
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	m.node, m.startup = n, ""
}

// ReportWhile calls run, which runs one node or several one after the other, and reports
// them meanwhile: that they are to stop when ctx ends, and why they ended.
func (m *Notifier) ReportWhile(ctx context.Context, run func() error) error {
	if m == nil {
		return run()
	}

	ended, reported := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reported)
		m.reportUntil(ctx, ended)
	}()

	err := run()
	close(ended)
	<-reported

	if err != nil {
		m.sendLines("STATUS=Failed: " + oneLine(err.Error()))
	}

	return err
}

// reportUntil reports until ended is closed.
func (m *Notifier) reportUntil(ctx context.Context, ended <-chan struct{}) {
	asked := ctx.Done()
	for {
		wait := m.reportNews()
		select {
		case <-ended:
			return
		case <-asked:
			asked = nil
			m.reportStopping()
		case <-time.After(wait):
		}
	}
}

// reportStopping says that the node stops, and how long that may take, whatever the unit says.
func (m *Notifier) reportStopping() {
	m.stopping = true
	m.sendLines(sd.SdNotifyStopping, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (m.drainTimeout+stopMargin).Microseconds()))
}

// reportNews sends what is new, and returns when to report again.
func (m *Notifier) reportNews() time.Duration {
	m.mu.Lock()
	node, startup := m.node, m.startup
	m.mu.Unlock()

	var lines []string
	status, alive := "Starting", true

	switch {
	case node == nil && m.ready && !m.stopping:
		m.ready = false
		lines = append(lines, sd.SdNotifyReloading, strings.TrimSpace(sd.SdNotifyMonotonicUsec()))
	case node == nil && startup != "":
		status = "Waiting: " + startup
	case node != nil:
		alive = node.CheckAlive() == nil
		err := node.CheckFiring()
		if status = node.Status(); err != nil {
			status = "Not ready: " + err.Error()
		} else if !m.ready && !m.stopping {
			m.ready = true
			lines = append(lines, sd.SdNotifyReady)
		}

		if m.ready {
			lines = append(lines, m.extendWatchdog(node.LostAfter())...)
		}
	}

	m.fired = m.fired || m.ready
	if status != m.status || m.lost {
		m.status = status
		lines = append(lines, "STATUS="+oneLine(status))
	}

	if m.watchdog > 0 && m.fired && alive {
		lines = append(lines, sd.SdNotifyWatchdog)
	}

	m.sendLines(lines...)

	switch {
	case m.stopping:
		return time.Second
	case !m.ready:
		return notifyUnready
	case m.watchdog > 0:
		return min(notifyReady, m.watchdog/4)
	}

	return notifyReady
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// extendWatchdog asks the service manager to bear silence for longer than it has agreed
// to, if attempts may be adopted for longer than that. It never asks for less: attempts
// that were assigned before may still have the longer time.
func (m *Notifier) extendWatchdog(lostAfter time.Duration) []string {
	if m.watchdog == 0 || lostAfter <= m.watchdog {
		return nil
	}

	m.watchdog = lostAfter

	return []string{fmt.Sprintf("WATCHDOG_USEC=%d", lostAfter.Microseconds())}
}

// sendLines sends lines, all in one message.
func (m *Notifier) sendLines(lines ...string) {
	if len(lines) == 0 {
		return
	}

	err := m.send(strings.Join(lines, "\n"))
	if err != nil && !m.lost {
		m.log.Warn("cannot report the node's state to the service manager", zap.Error(err))
	}

	m.lost = err != nil
}
