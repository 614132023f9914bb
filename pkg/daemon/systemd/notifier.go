// Package systemd communicates with the service manager that started the daemon. It reports
// the node's state (Type=notify) and takes over sockets that the service manager
// has opened (socket activation). It also tells the journal the levels of log messages.
//
// Without a service manager, both do nothing: a nil *Notifier reports nothing, and with the zero
// Sockets the daemon opens its own. A report that cannot be sent, and
// a socket at another address than the settings name, are logged, and the node continues.
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
	// notifyUnready is the interval at which a node is checked that does not fire yet, notifyReady
	// that of a node that does.
	notifyUnready = 200 * time.Millisecond
	notifyReady   = 5 * time.Second
	// stopMargin is how long a node may take to stop after its drain timeout. In that time, running attempts
	// are killed, the session ends, and an embedded etcd closes.
	stopMargin = 30 * time.Second
)

// Notifier reports the node's state to the service manager that started this
// process (systemd, Type=notify). Its exported methods may be called on nil, which reports
// nothing.
//
//	starting ──the node fires──► READY ───ctx ends─────► STOPPING
//	   ▲                           │
//	   └── RELOADING: a new node ──┘     (etcd has a new history)
//
// While the node is alive and none of its components is stuck, it sends WATCHDOG messages. A
// process that is stopped as a whole sends none. The Notifier asks the service manager to
// accept that silence for as long as the node could still adopt its attempts when it continues. A
// restart before that would kill attempts unnecessarily.
type Notifier struct {
	send         func(state string) error // sends one message
	watchdog     time.Duration            // after how long without a message the service manager kills the process; 0: never
	drainTimeout time.Duration            // the drain timeout of the node
	log          *zap.Logger

	mu      sync.Mutex // guards startup and node
	startup string     // what a starting node waits for
	node    Node       // nil: none yet

	// The goroutine of reportUntil owns these.
	fired    bool   // READY was sent once, so WATCHDOG messages are sent
	ready    bool   // READY was sent for the present node
	stopping bool   // STOPPING was sent
	lost     bool   // the last message could not be sent
	status   string // the last status that was sent
}

// Node is the node whose state a Notifier reports.
type Node interface {
	// CheckFiring returns why the node does not fire, or nil.
	CheckFiring() error
	// CheckAlive returns why the node does not count as alive, or nil.
	CheckAlive() error
	// Status describes in one line what the node does.
	Status() string
	// LostAfter returns the lost_after of attempts that are assigned to the node now.
	LostAfter() time.Duration
}

// NewNotifier returns a Notifier, or nil if the service manager expects no reports. drainTimeout is how long
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

// SetStartupStatus sets what a starting node waits for; "" means nothing.
func (no *Notifier) SetStartupStatus(why string) {
	if no == nil {
		return
	}

	no.mu.Lock()
	defer no.mu.Unlock()

	no.startup = why
}

// SetNode makes the Notifier report n from now on. nil means that the node has ended and another one follows.
func (no *Notifier) SetNode(n Node) {
	if no == nil {
		return
	}

	no.mu.Lock()
	defer no.mu.Unlock()

	no.node, no.startup = n, ""
}

// ReportWhile calls run, which runs one node or several, one after the other, and reports
// their state meanwhile. When ctx ends, it reports that the process stops. It reports and returns the error of run.
func (no *Notifier) ReportWhile(ctx context.Context, run func() error) error {
	if no == nil {
		return run()
	}

	ended, reported := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reported)
		no.reportUntil(ctx, ended)
	}()

	err := run()
	close(ended)
	<-reported

	if err != nil {
		no.sendLines("STATUS=Failed: " + oneLine(err.Error()))
	}

	return err
}

// reportUntil reports the state until ended is closed.
func (no *Notifier) reportUntil(ctx context.Context, ended <-chan struct{}) {
	asked := ctx.Done()
	for {
		wait := no.reportNews()
		select {
		case <-ended:
			return
		case <-asked:
			asked = nil
			no.reportStopping()
		case <-time.After(wait):
		}
	}
}

// reportStopping reports that the node stops, and how long that may take. This overrides the unit's timeout.
func (no *Notifier) reportStopping() {
	no.stopping = true
	no.sendLines(sd.SdNotifyStopping, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (no.drainTimeout+stopMargin).Microseconds()))
}

// reportNews sends what has changed, and returns the time until the next report.
func (no *Notifier) reportNews() time.Duration {
	no.mu.Lock()
	node, startup := no.node, no.startup
	no.mu.Unlock()

	var lines []string
	status, alive := "Starting", true

	switch {
	// The node has ended and another one follows: the service is reloading.
	case node == nil && no.ready && !no.stopping:
		no.ready = false
		lines = append(lines, sd.SdNotifyReloading, strings.TrimSpace(sd.SdNotifyMonotonicUsec()))
	case node == nil && startup != "":
		status = "Waiting: " + startup
	case node != nil:
		alive = node.CheckAlive() == nil
		err := node.CheckFiring()
		if status = node.Status(); err != nil {
			status = "Not ready: " + err.Error()
		} else if !no.ready && !no.stopping {
			no.ready = true
			lines = append(lines, sd.SdNotifyReady)
		}

		if no.ready {
			lines = append(lines, no.extendWatchdog(node.LostAfter())...)
		}
	}

	no.fired = no.fired || no.ready
	if status != no.status || no.lost {
		no.status = status
		lines = append(lines, "STATUS="+oneLine(status))
	}

	// WATCHDOG messages begin with the first READY. Before that, the unit's start timeout applies.
	if no.watchdog > 0 && no.fired && alive {
		lines = append(lines, sd.SdNotifyWatchdog)
	}

	no.sendLines(lines...)

	switch {
	case no.stopping:
		return time.Second
	case !no.ready:
		return notifyUnready
	case no.watchdog > 0:
		return min(notifyReady, no.watchdog/4)
	}

	return notifyReady
}

// oneLine replaces line breaks, which would begin another field of the message.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// extendWatchdog returns a message that extends the service manager's watchdog timeout, if attempts can be adopted for
// longer than that. It never reduces the timeout, because attempts
// that were assigned before may have the longer lost_after.
func (no *Notifier) extendWatchdog(lostAfter time.Duration) []string {
	if no.watchdog == 0 || lostAfter <= no.watchdog {
		return nil
	}

	no.watchdog = lostAfter

	return []string{fmt.Sprintf("WATCHDOG_USEC=%d", lostAfter.Microseconds())}
}

// sendLines sends lines in one message. It logs the first of several errors in a row.
func (no *Notifier) sendLines(lines ...string) {
	if len(lines) == 0 {
		return
	}

	err := no.send(strings.Join(lines, "\n"))
	if err != nil && !no.lost {
		no.log.Warn("cannot report the node's state to the service manager", zap.Error(err))
	}

	no.lost = err != nil
}
