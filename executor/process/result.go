package process

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// Cause is the reason why an attempt is killed.
type Cause int

const (
	CauseNone     Cause = iota
	causeTimeout        // it exceeded its timeout
	CauseCancel         // a user or a policy cancelled it
	CauseShutdown       // the daemon stops
	CauseSilent         // the node has no contact with etcd, and the attempt may soon be declared lost
	CauseGone           // its record is gone: another node has decided its outcome
)

// String returns the name of the cause, which is the label in metrics.
func (c Cause) String() string {
	return [...]string{"none", "timeout", "cancel", "shutdown", "silent", "gone"}[c]
}

// Kill is an order to end an attempt: it receives its kill_signal and, after Grace, SIGKILL.
type Kill struct {
	Cause Cause
	Grace time.Duration
}

// Orders passes kills and pauses to a running attempt. The first kill determines the reason of the outcome; later
// ones can only shorten the grace period. Its methods may be called from any goroutine and do not block. An Orders
// belongs to one start.
type Orders struct {
	once   sync.Once     // closes given
	given  chan struct{} // closed by the first kill; it calls off a start
	paused atomic.Bool   // the attempt should be paused

	// These are made when they are first needed. Most HTTP attempts never need them; see OnFirst.
	made         sync.Once
	kills        chan Kill   // the kills, in order
	pauseChanged wake.Signal // paused has changed

	mu      sync.Mutex // guards the following, and is held while onFirst runs
	ordered bool       // an order was given
	onFirst func()     // see OnFirst; nil: not called
}

// NewOrders returns orders that contain neither a kill nor a pause.
func NewOrders() *Orders { return &Orders{given: make(chan struct{})} }

// makeChannels makes kills and pauseChanged.
func (o *Orders) makeChannels() {
	o.made.Do(func() { o.kills, o.pauseChanged = make(chan Kill, 8), wake.NewSignal() })
}

// Kill ends the attempt. If it has not started, it does not start.
func (o *Orders) Kill(k Kill) {
	o.makeChannels()

	select {
	case o.kills <- k:
	default: // eight kills are waiting, so the attempt is being killed
	}
	o.once.Do(func() { close(o.given) })
	o.noteOrder()
}

// OnFirst makes the first order call f, or calls f at once if there was an order before. Few attempts receive any, so an
// attempt can start the goroutine that receives its orders in f. f must not block and must not give orders. After
// OnFirst(nil), f is not running and is not called any more.
func (o *Orders) OnFirst(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.onFirst = f; o.ordered {
		o.callFirst()
	}
}

// noteOrder notes that an order was given.
func (o *Orders) noteOrder() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.ordered = true
	o.callFirst()
}

// callFirst calls the function of OnFirst, if it was not called yet. The caller holds mu.
func (o *Orders) callFirst() {
	if o.onFirst != nil {
		o.onFirst()
		o.onFirst = nil
	}
}

// Killed receives the kills of the attempt, in order. Only one goroutine may receive them.
func (o *Orders) Killed() <-chan Kill {
	o.makeChannels()
	return o.kills
}

// CalledOff is closed by the first kill.
func (o *Orders) CalledOff() <-chan struct{} { return o.given }

// PauseChanged wakes the goroutine of the attempt when the result of PauseRequested has changed.
func (o *Orders) PauseChanged() <-chan struct{} {
	o.makeChannels()
	return o.pauseChanged
}

// PauseRequested reports whether the attempt should be paused.
func (o *Orders) PauseRequested() bool { return o.paused.Load() }

// Result is how an attempt of a process ended.
type Result struct {
	State       task.State // succeeded, failed, timed_out, cancelled or lost
	Reason      string     // a task.Reason constant; empty for success
	Message     string     // for people; empty if there is nothing to report
	ExitCode    *int       // nil if the process did not exit by itself
	Signal      string     // such as "SIGKILL"
	StartedAt   time.Time  // directly before the fork; zero if there was none
	EndedAt     time.Time  // when the main process ended
	OutputBytes int64
	Truncated   bool                // not all output was kept
	Tail        []byte              // the end of the output, a few KiB; may not be valid UTF-8
	Status      *task.AttemptStatus // what the attempt reported; nil: its status file was not read
	Paused      time.Duration       // total time that it was paused
	Unenforced  []string            // the task's fields that this host did not enforce
	Usage       task.Usage

	// Unsent means that an HTTP attempt sent nothing, or that its target asked to wait. RetryAfter is how long the target
	// asked to wait; 0 if it did not.
	Unsent     bool
	RetryAfter time.Duration
	// TargetUnknown means that an attempt was unsent, perhaps because of its own settings: its short timeout, or its client
	// certificate. This says nothing about other attempts to the same target.
	TargetUnknown bool
	HTTPStatus    int // the status of the last response of an HTTP attempt; 0: there was none

	NotStarted bool // no instruction was executed, for a reason outside the attempt: its token is unused
	HandBack   bool // NotStarted, and another node should start it
}

// NotSentPrefix begins the message of an attempt that sent nothing.
const NotSentPrefix = "nothing was sent: "

// setOutcome derives the outcome from the wait status and from what rule has found in the output. err is the error of
// the wait, if it failed. A nil rule is the default: exit code 0 means success.
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

// signalName returns the name of a signal, such as "SIGKILL".
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s)) // a real-time signal
}

// SetCause overrides the outcome of an attempt that was killed. The cause of the kill determines the outcome, not how
// the process ended. CauseNone changes nothing.
func (r *Result) SetCause(c Cause, timeout time.Duration) {
	switch c {
	case causeTimeout:
		r.State, r.Reason = task.TimedOut, task.ReasonTimeout
		r.Message = "ran longer than " + task.Duration(timeout).String()
	case CauseCancel:
		r.State, r.Reason, r.Message = task.Cancelled, task.ReasonCancelled, ""
	case CauseShutdown:
		r.State, r.Reason, r.Message = task.Failed, task.ReasonShutdown, "the daemon stopped before the process ended"
	case CauseSilent:
		r.State, r.Reason = task.Lost, task.ReasonNodeLost
		r.Message = "killed: the node had lost contact with etcd, so another node may start the next attempt"
	case CauseGone:
		r.State, r.Reason, r.Message = task.Lost, task.ReasonNodeLost, "killed: its record no longer exists"
	}

	r.Message = strings.TrimSpace(r.Message)
}

// maxQuoted is how many bytes of a line a message quotes.
const maxQuoted = 100

// successRule holds the conditions of the task's success field and what was found in the output so far. It
// matches the patterns line by line, so its memory is bounded whatever the attempt prints. MatchLine may be called
// for both streams at the same time.
type successRule struct {
	task.Success
	output, not *regexp.Regexp         // success.output and success.not_output; nil: not set
	found       atomic.Bool            // a line has matched output
	refused     atomic.Pointer[string] // the beginning of the first line that matched not; nil: none
	mask        func(string) string    // hides values of secrets in what is quoted; nil: there are none
}

// newSuccessRule compiles the patterns. It returns an error if one is invalid.
func newSuccessRule(s task.Success) (*successRule, error) {
	r := &successRule{Success: s}
	var err error
	r.output, r.not, err = s.Patterns()
	return r, err
}

// needsOutput reports whether the rule has a pattern. Without one, no lines need to be matched.
func (r *successRule) needsOutput() bool { return r != nil && (r.output != nil || r.not != nil) }

// Settled reports whether further lines cannot change the outcome, so that matching can stop.
func (r *successRule) Settled() bool {
	return r.refused.Load() != nil || r.not == nil && r.found.Load()
}

// MatchLine matches one line of one of the streams, without its line break.
func (r *successRule) MatchLine(b []byte) {
	b = bytes.TrimSuffix(b, []byte{'\r'})
	if r.not != nil && r.refused.Load() == nil && r.not.Match(b) {
		text := r.quoteLine(b)
		r.refused.CompareAndSwap(nil, &text)
	}

	if r.output != nil && !r.found.Load() && r.output.Match(b) {
		r.found.Store(true)
	}
}

// quoteLine returns the beginning of a line for a message. Values of secrets are hidden before the line is cut, because the
// mask does not find what is left of a value that is cut.
func (r *successRule) quoteLine(b []byte) string {
	if r.mask != nil {
		b = []byte(r.mask(string(b)))
	}
	return spool.Tail(b[:min(len(b), maxQuoted)], maxQuoted)
}

// setExited sets the outcome of a process that has exited. The conditions are checked in a fixed order, and the first
// that fails gives the message: exit code, forbidden output, required output.
func (r *Result) setExited(code int, rule *successRule) {
	r.ExitCode, r.State = &code, task.Succeeded

	if rule == nil {
		rule = &noRule
	}

	refused := rule.refused.Load()
	fail := func(reason, format string, args ...any) {
		r.State, r.Reason, r.Message = task.Failed, reason, fmt.Sprintf(format, args...)
	}

	switch {
	case !rule.Exit(code) && len(rule.ExitCodes) > 0:
		fail(task.ReasonExit, "exited with code %d, which is not in success.exit_codes", code)
	case !rule.Exit(code):
		fail(task.ReasonExit, "exited with code %d", code)
	case refused != nil:
		fail(task.ReasonOutput, "its output contains a line that success.not_output forbids: %s", *refused)
	case rule.output != nil && !rule.found.Load():
		fail(task.ReasonOutput, "no line of its output matches success.output, %s", rule.Output)
	case code != 0:
		r.Message = fmt.Sprintf("exited with code %d, which is in success.exit_codes", code)
	}
}

// noRule is the default rule: exit code 0 means success.
var noRule successRule
