package process

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Cause is why an attempt is made to end.
type Cause int

const (
	CauseNone     Cause = iota
	causeTimeout        // it ran longer than it may
	CauseCancel         // somebody wants it to end
	CauseShutdown       // the daemon stops
	CauseSilent         // the node is silent, and the attempt is about to be declared lost
	CauseGone           // its record is gone: others decided about it
)

// String is the word for it in metrics.
func (c Cause) String() string {
	return [...]string{"none", "timeout", "cancel", "shutdown", "silent", "gone"}[c]
}

// Kill is an order to end an attempt: its kill_signal, and after grace SIGKILL.
type Kill struct {
	Cause Cause
	Grace time.Duration
}

// Orders carries kills to an attempt. The first one gives the outcome its
// reason, later ones may shorten the grace.
type Orders struct {
	once         sync.Once
	given        chan struct{} // closed with the first
	c            chan Kill
	paused       atomic.Bool // it is to stand still
	pauseChanged wake.Signal // still has changed
}

// NewOrders makes orders that ask for nothing.
func NewOrders() *Orders {
	return &Orders{given: make(chan struct{}), c: make(chan Kill, 8), pauseChanged: wake.NewSignal()}
}

// Kill has the attempt end.
func (o *Orders) Kill(k Kill) {
	select {
	case o.c <- k:
	default: // eight orders wait already: it is being killed
	}
	o.once.Do(func() { close(o.given) })
}

// Result is how an attempt of a process ended.
type Result struct {
	State       task.State // succeeded, failed, timed_out, cancelled or lost
	Reason      string
	Message     string // for a person; empty if all is well
	ExitCode    *int
	Signal      string // such as "SIGKILL"
	StartedAt   time.Time
	EndedAt     time.Time // of the main process
	OutputBytes int64
	Truncated   bool                // not all output is kept
	Tail        []byte              // some KiB; not yet valid UTF-8
	Status      *task.AttemptStatus // what it has reported; nil: nobody read its status file
	Paused      time.Duration
	Unenforced  []string
	Usage       task.Usage

	NotStarted bool // nothing was forked, for no fault of the attempt
	HandBack   bool // and the node cannot start it
}

// setOutcome reads the outcome off the status, and off what rule has seen; nil: the
// default.
func (r *Result) setOutcome(ws syscall.WaitStatus, err error, rule *successRule) {
	switch {
	case err != nil:
		r.State, r.Reason, r.Message = task.Failed, task.ReasonExit, err.Error()
	case ws.Signaled():
		r.State, r.Reason, r.Signal = task.Failed, task.ReasonSignal, signalName(ws.Signal())
		r.Message = "killed by " + r.Signal
		if ws.CoreDump() {
			r.Message += " (core dumped)"
		}
	default:
		r.setExited(ws.ExitStatus(), rule)
	}
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s)) // a real-time signal
}

// SetCause overrides the outcome of an attempt that was made to end: why counts,
// not how.
func (r *Result) SetCause(c Cause, timeout time.Duration) {
	switch c {
	case causeTimeout:
		r.State, r.Reason = task.TimedOut, task.ReasonTimeout
		r.Message = "ran longer than " + task.Duration(timeout).String()
	case CauseCancel:
		r.State, r.Reason, r.Message = task.Cancelled, task.ReasonCancelled, ""
	case CauseShutdown:
		r.State, r.Reason, r.Message = task.Failed, task.ReasonShutdown, "the daemon stopped before it had ended"
	case CauseSilent:
		r.State, r.Reason = task.Lost, task.ReasonNodeLost
		r.Message = "killed: the node had lost touch with etcd, so that another may start a successor"
	case CauseGone:
		r.State, r.Reason, r.Message = task.Lost, task.ReasonNodeLost, "killed: its record is gone"
	}

	r.Message = strings.TrimSpace(r.Message)
}
