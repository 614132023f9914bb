package executor

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

// cause is why an attempt is made to end.
type cause int

const (
	causeNone     cause = iota
	causeTimeout        // it ran longer than it may
	causeCancel         // somebody wants it to end
	causeShutdown       // the daemon stops
	causeSilent         // the node is silent, and the attempt is about to be declared lost
	causeGone           // its record is gone: others decided about it
)

// String is the word for it in metrics.
func (c cause) String() string {
	return [...]string{"none", "timeout", "cancel", "shutdown", "silent", "gone"}[c]
}

// kill is an order to end an attempt: its kill_signal, and after grace SIGKILL.
type kill struct {
	cause cause
	grace time.Duration
}

// orders carries kills to an attempt. The first one gives the outcome its
// reason, later ones may shorten the grace.
type orders struct {
	once  sync.Once
	given chan struct{} // closed with the first
	c     chan kill
	still atomic.Bool // it is to stand still
	turn  wake.Signal // still has changed
}

func newOrders() *orders {
	return &orders{given: make(chan struct{}), c: make(chan kill, 8), turn: wake.NewSignal()}
}

func (o *orders) give(k kill) {
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
	Truncated   bool       // not all output is kept
	Tail        []byte     // some KiB; not yet valid UTF-8
	Talk        *task.Talk // what it has said of itself; nil: nobody listened
	Paused      time.Duration
	Unenforced  []string
	Usage       task.Usage

	unstarted bool // nothing was forked, for no fault of the attempt
	returns   bool // and the node cannot start it
}

// judge reads the outcome off the status, and off what rule has seen; nil: the
// default.
func (r *Result) judge(ws syscall.WaitStatus, err error, rule *rule) {
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
		r.exited(ws.ExitStatus(), rule)
	}
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s)) // a real-time signal
}

// blame overrides the outcome of an attempt that was made to end: why counts,
// not how.
func (r *Result) blame(c cause, timeout time.Duration) {
	switch c {
	case causeTimeout:
		r.State, r.Reason = task.TimedOut, task.ReasonTimeout
		r.Message = "ran longer than " + task.Duration(timeout).String()
	case causeCancel:
		r.State, r.Reason, r.Message = task.Cancelled, task.ReasonCancelled, ""
	case causeShutdown:
		r.State, r.Reason, r.Message = task.Failed, task.ReasonShutdown, "the daemon stopped before it had ended"
	case causeSilent:
		r.State, r.Reason = task.Lost, task.ReasonNodeLost
		r.Message = "killed: the node had lost touch with etcd, so that another may start a successor"
	case causeGone:
		r.State, r.Reason, r.Message = task.Lost, task.ReasonNodeLost, "killed: its record is gone"
	}
	r.Message = strings.TrimSpace(r.Message)
}
